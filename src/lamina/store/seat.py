"""A store that holds a cluster: when it may answer, what it ships, and how that ends.

      Takeover ──▶ Seat ──▶ Store(…, seat=…)        renewing the lease is the caller's
                    │ prepare   the directory: `seat_directory`, `mounting`
                    │ refusal   asked before every answer
                    └ shipping  windows: `shipping`, `window_contents`, `collecting`

Rules.
1. Records are reported as stored only while nobody else can hold the lease, or if their window
   exists.
2. Once another broker is found in our place, by whoever finds it, the seat is lost for good: every
   later call raises the error that names the other one.
3. A lease that was not renewed in time is not lost: once it is renewed, answers go out again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lamina.api import RecoveryReport
from lamina.archive.terms import Terms
from lamina.cluster.lease import Clock, Watch
from lamina.cluster.steps import run
from lamina.cluster.tails import Takeover
from lamina.config import TopicSettings
from lamina.errors import InvalidRequest, LaminaError, NotPrimary
from lamina.formats.documents.seat_file import SERVING, SHIPPED
from lamina.formats.log_format import CODECS
from lamina.groups.coordinator import Coordinator
from lamina.groups.registry import Groups
from lamina.log.sealed import Archivable
from lamina.storage.objects import Objects
from lamina.store.collecting import Collector, Left
from lamina.store.open_topics import OpenTopics
from lamina.store.opening import Boot
from lamina.store.schema_files import SchemaFiles
from lamina.store.seat_directory import Ground, prepare, require_all, write_seat
from lamina.store.shipping import Shipper
from lamina.store.topics import TopicChanges
from lamina.store.window_contents import Contents

if TYPE_CHECKING:
    from lamina.archive.tier import Tier

TAIL_MS = 1000
_ARCHIVED = "remote.storage.enable"


class Seat:
    """The hold on a cluster that a store is opened with.

    `clock` is the one by which `taken` was taken. `on_fenced` is called once, from any thread, when
    another broker is found in our place.
    """

    def __init__(
        self,
        taken: Takeover,
        clock: Clock,
        *,
        tail_ms: int = TAIL_MS,
        on_fenced: Callable[[LaminaError], None] = lambda error: None,
    ) -> None:
        self.holding = taken.holding
        self.log = taken.log
        self.tail_ms = tail_ms
        self.failure: LaminaError | None = None
        """The error that ended the seat; None while it lasts."""
        self._taken = taken
        self._clock = clock
        self._on_fenced = on_fenced
        self._failing = threading.Lock()
        self._ground: Ground | None = None
        self._left = Left(0, 0)
        self._boot: Boot | None = None
        self.shipper: Shipper | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the lease."""
        return self.holding.epoch

    # ------------------------------------------------------------------ may it answer

    def refusal(self) -> LaminaError | None:
        """Returns why nothing may be answered as stored now; None if it may."""
        if self.failure is not None:
            return self.failure
        if self.holding.may_answer(self._clock()):
            return None
        successor = self.holding.successor
        if successor is not None:
            return replaced_by(successor.holder, successor.url, successor.epoch)
        return NotPrimary(
            "the lease of the cluster could not be renewed in time: another broker may hold it now;"
            " what was asked may be stored here or not",
            was_begun=True,
        )

    def require(self) -> None:
        """Raises NotPrimary unless an answer may go out now."""
        if (refusal := self.refusal()) is not None:
            raise refusal

    def fail(self, error: LaminaError) -> None:
        """Ends the seat for good: somebody else holds the cluster."""
        with self._failing:
            if self.failure is not None:
                return
            self.failure = error
        if self.shipper is not None:
            self.shipper.wake()
        self._on_fenced(error)

    def fenced(self, objects: Objects, error: LaminaError) -> None:
        """Ends the seat because another broker took a slot; asks the lease which one."""
        watch, named = Watch(), NotPrimary(str(error), was_begun=True)
        with contextlib.suppress(LaminaError):  # then only its name is not known
            run(objects, watch.look(self._clock))
        lease = watch.lease
        if lease is not None and lease.epoch > self.epoch:
            named = replaced_by(lease.holder, lease.url, lease.epoch)
        named.__cause__ = error
        self.fail(named)

    # ------------------------------------------------------------------ the store's parts

    def prepare(self, boot: Boot, objects: Objects | None, report: RecoveryReport) -> None:
        """Makes the directory hold the cluster's log, before anything of it is opened."""
        if objects is None:
            raise InvalidRequest("a broker of a cluster needs the cluster's archive")
        self._boot = boot
        self._left = Left.of(self._taken)
        self._ground = prepare(boot, objects, self._taken, report)
        self._taken.tails = ()  # their records are on disk now, and may be large

    def board(
        self,
        open_topics: OpenTopics,
        groups: Groups,
        coordinator: Coordinator,
        schemas: SchemaFiles,
        changes: TopicChanges,
        tier: Tier | None,
    ) -> Shipper:
        """Takes the parts of the store that is shipped; returns what acks=archived waits for."""
        assert self._ground is not None, "prepared before"
        assert self._boot is not None, "prepared before"
        assert tier is not None, "there is an archive"
        now_ms = self._boot.now_ms
        contents = Contents(open_topics, groups, coordinator, schemas, changes.changing, now_ms)
        coordinator.offsets.gate, changes.seat = self.refusal, self
        contents.begin(self._ground.history, self._ground.ends)
        collector = Collector(tier, open_topics.segmented, contents, self.log, self._left)
        self.shipper = Shipper(self, tier.objects, contents, collector, self._clock)
        self._ground = None
        return self.shipper

    def topic_config(self, format_name: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the settings of a new topic; raises InvalidRequest for what is not carried."""
        if format_name not in CODECS:
            raise InvalidRequest(
                f"a cluster cannot take topics of format {format_name} over yet: use keratin or"
                " frame"
            )
        self.check_alteration(config)
        return {_ARCHIVED: True, **config}

    def check_alteration(self, config: Mapping[str, Any]) -> None:
        """Raises InvalidRequest for settings of a topic that would not be archived."""
        if _ARCHIVED in config and not TopicSettings.parse(config).is_archived:
            raise InvalidRequest(f"topics of a cluster are archived: {_ARCHIVED} stays on")

    def terms(self) -> Terms:
        """Returns the terms on which the store archives."""
        return Terms(self.epoch, self.may_archive, self.require)

    def may_archive(self, partition: Archivable) -> int:
        """Returns the offset up to which records may be archived: windows hold those below it."""
        assert self.shipper is not None, "boarded before the tier begins"
        return self.shipper.contents.end_of(partition.place.topic, partition.place.partition)

    # ------------------------------------------------------------------ life

    def ship_lag_ms(self) -> int:
        """Returns how long the oldest durable record may have been in no window; 0 for none."""
        return self.shipper.lag_ms() if self.shipper is not None else 0

    def unshipped_records(self) -> int:
        """Returns how many durable records are in no window yet: what a lost machine would take."""
        return self.shipper.unshipped_records() if self.shipper is not None else 0

    def start(self) -> None:
        """Begins to ship, if the store holds all that was shipped before."""
        assert self.shipper is not None, "boarded before"
        assert self._boot is not None, "prepared before"
        contents = self.shipper.contents
        require_all(self._boot, self.epoch, contents.ends, contents.local_ends())
        self.shipper.start(self.tail_ms)

    def halt(self) -> None:
        """Ends the thread that ships; `finish` ships what is left."""
        if self.shipper is not None:
            self.shipper.halt()

    def finish(self) -> None:
        """Ships what is left, if possible; the store accepts nothing more by now."""
        if self.shipper is None or self._boot is None:
            return
        is_shipped = self.shipper.finish()
        if self.failure is None:
            write_seat(self._boot, self.epoch, SHIPPED if is_shipped else SERVING)


def replaced_by(holder: str, url: str, epoch: int) -> NotPrimary:
    """Returns the error of a broker that does not hold the cluster; it names the one that does."""
    return NotPrimary(
        f"the cluster is held by {holder} at {url or 'no address'} in epoch {epoch}",
        url,
        was_begun=True,
    )
