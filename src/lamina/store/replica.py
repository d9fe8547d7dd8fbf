"""The store of a standby: it follows the holder's windows and the archive's lists, and only reads.

    bucket ──poll──▶ `following`: topics, ledgers, records ──▶ readers: `replica_partition`

A poll reads windows until there is no next one, and shows what it finds at once. The age of the
replica is counted from the beginning of the last poll that reached the end.

Rules.
1. Only what the bucket holds is served: a window, or an object of a list. No end ever goes back.
2. A poll that fails leaves everything as it is: reads go on, and `replica_lag_ms` grows.
3. Windows that were collected before they were read are in the archive: the replica starts again at
   the log's boundary, and reads the lists again before it shows anything of it.
4. Calls that are not reads raise NotPrimary, which names the holder. So does a read beyond the end.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from lamina.api import BATCH_BYTES, BATCH_RECORDS, Diff, RouterInfo, StoreApi
from lamina.api.portraits import Portrait, store_title
from lamina.archive.object_reader import BlockCache
from lamina.cluster.lease import Watch
from lamina.cluster.steps import run
from lamina.cluster.tails import Collected, boundary_of, last_seq, window_and_boundary
from lamina.errors import Busy, CorruptData, LaminaError, NotPrimary, Unavailable
from lamina.formats.documents import topic_schemas
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.documents.topic_schemas import TopicSchemas
from lamina.formats.log_format import CODECS
from lamina.formats.tail_file import Tail
from lamina.storage import paths
from lamina.storage.files import boot_clock_ms
from lamina.storage.objects import Objects
from lamina.store.archive_store import archived_topics, schemas_of
from lamina.store.following import Following, Life, life_of
from lamina.store.lookup import Lookup
from lamina.store.parts import answered_by
from lamina.store.reads import Reads
from lamina.store.replica_partition import LIST_MS, ReplicaPartition
from lamina.store.typed_topics import TypedReads, bury_nowhere
from lamina.store.window_objects import HELD_BYTES, HeldWindows

POLL_MS = 1000
RESTARTS = 3
"""How often a poll may start again because windows were collected while it read them."""
IDLE_POLLS = 10
"""After this many polls without a window the log is listed: one may be missing in the middle."""
CLOSE_S = 5.0
"""How long closing waits for a running poll."""
_log = logging.getLogger(__name__)


class ReplicaStore(StoreApi, leave=("scan", "fetch")):
    """What a bucket holds of a cluster, followed. `start` it, or `poll` by hand; then read.

    `now_ms` is a clock that only goes forward. `refusal` says why this process does not hold the
    cluster, and who does; without it the lease is asked.
    """

    _CANNOT = "a standby only reads: {call} is for the holder of the cluster"

    def __init__(
        self,
        objects: Objects,
        now_ms: Callable[[], int] = boot_clock_ms,
        *,
        refusal: Callable[[], NotPrimary | None] | None = None,
        held_bytes: int = HELD_BYTES,
    ) -> None:
        self._objects = objects
        self._now_ms = now_ms
        self._refusal = refusal
        self._held = HeldWindows(objects, held_bytes)
        self._cache = BlockCache()
        self._polling = threading.Lock()
        self._entering = threading.Lock()
        self._readers: dict[tuple[Life, int], ReplicaPartition] = {}
        self._following: Following | None = None
        self._topics: Mapping[str, TopicFile] = {}
        self._adopted: Mapping[str, TopicFile] = {}
        self._adopted_ms: int | None = None
        self._left_out: set[str] = set()
        self._fresh_ms = now_ms()
        self._is_ready = False
        self._idle = 0
        self.problem = ""
        """Why the last poll failed; empty when it did not."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lookup: Lookup[ReplicaPartition] = Lookup(self._known_topics, self._reader)
        self._reads = Reads(self._lookup)
        self._typed = TypedReads(self._lookup, self._reads, self._schemas_of, bury_nowhere)

    # ------------------------------------------------------------------ looked up by readers

    def _known_topics(self) -> Mapping[str, TopicFile]:
        if not self._is_ready:
            why = f": {self.problem}" if self.problem else ""
            raise Busy(f"the replica has not read the cluster's log yet{why}")
        return self._topics

    def _reader(self, about: TopicFile, partition: int) -> ReplicaPartition:
        key = life_of(about), partition
        reader = self._readers.get(key)
        if reader is None:
            with self._entering:
                reader = self._readers.get(key) or self._entered(key, about)
        reader.require_shown()
        return reader

    def _entered(self, key: tuple[Life, int], about: TopicFile) -> ReplicaPartition:
        """Makes a reader that polls keep up to date."""
        given = self._objects, self._held, about, key[1], self._cache
        reader = ReplicaPartition(*given, now_ms=self._now_ms, elsewhere=self._elsewhere)
        self._readers[key] = reader
        if self._following is not None:
            reader.follow(self._following)
        return reader

    def _schemas_of(self, about: TopicFile) -> TopicSchemas | None:
        following = self._following
        if following is None or not following.history.is_begun:
            return schemas_of(self._objects, about)
        key = paths.archive_topic_schemas(about.name)
        topic = following.history.topics.get(about.name)
        raw = topic.copies.get(key) if topic is not None else None
        if not raw:
            return None
        found = topic_schemas.decode(raw)
        return found if found.is_of(about) else None

    def _elsewhere(self, problem: str) -> NotPrimary:
        """Makes the error of a call that only the holder can answer."""
        if self._refusal is not None:
            refusal = self._refusal()
            return NotPrimary(problem, refusal.holder if refusal is not None else "")
        watch = Watch()
        try:
            run(self._objects, watch.look(self._now_ms))
        except LaminaError:  # then nobody is named
            return NotPrimary(problem)
        lease = watch.lease
        return NotPrimary(problem, lease.url if lease is not None and not lease.is_released else "")

    def _cannot(self, call: str) -> LaminaError:
        self._lookup.require_open()
        return self._elsewhere(self._CANNOT.format(call=call))

    # ------------------------------------------------------------------ following

    def poll(self) -> None:
        """Reads what is new, up to the end of the log; raises the error that prevents it."""
        with self._polling:
            self._lookup.require_open()
            begun_ms = self._now_ms()
            try:
                self._catch_up()
            except LaminaError as error:
                if str(error) != self.problem:
                    _log.warning("following the cluster's log: %s", error)
                self.problem = str(error)
                raise
            self._fresh_ms, self._is_ready, self.problem = begun_ms, True, ""

    def _catch_up(self) -> None:
        is_begun = self._following is not None
        for _ in range(RESTARTS):
            try:
                if self._following is not None and is_begun:
                    self._go_on(self._following)
                else:
                    self._begin()
                return
            except Collected:  # it is in the archive by now
                is_begun = False
        raise Unavailable("windows are collected faster than they can be read")

    def _begin(self) -> None:
        """Reads the log from its boundary on, and shows it when all of it is there."""
        first_seq = run(self._objects, boundary_of())[0].first_seq
        found = Following(first_seq, first_seq, self._held)
        while (tail := self._next(found)[0]) is not None:
            found.take(tail)
        if not found.history.is_begun:
            self._adopt()
        for reader in list(self._readers.values()):
            self._read_list_of(reader)
        self._following, self._idle = found, 0
        self._held.let_go(first_seq)
        self._show(found)

    def _go_on(self, following: Following) -> None:
        """Reads the windows that are new; each is shown at once."""
        first = following.next_seq
        while True:
            tail, boundary = self._next(following)
            if tail is None and self._is_one_missing(following):
                continue
            if tail is None:
                break
            following.take(tail)
            self._show(following)
        self._idle = self._idle + 1 if following.next_seq == first else 0
        self._show(following)  # also what was wrong before, and may be mended
        if boundary > following.first_seq:
            self._let_go(following, boundary)
        if not following.history.is_begun and self._is_adoption_old():
            self._adopt()
            for reader in list(self._readers.values()):
                self._read_list_of(reader)
            self._show(following)

    def _next(self, following: Following) -> tuple[Tail | None, int]:
        return run(self._objects, window_and_boundary(following.next_seq))

    def _is_one_missing(self, following: Following) -> bool:
        """Checks now and then whether there are windows after the next one, which is missing.

        Returns True if it may have been made meanwhile. Raises CorruptData if it is missing.
        """
        if self._idle < IDLE_POLLS:
            return False
        if run(self._objects, last_seq()) < following.next_seq:
            self._idle = 0
            return False
        if self._next(following)[0] is not None:
            return True
        raise CorruptData(
            "a window of the cluster's log is missing",
            path=f"{self._objects.url}/{paths.tail(following.next_seq)}",
            expected="a tail",
        )

    def _let_go(self, following: Following, boundary: int) -> None:
        """Forgets windows below the boundary; their records are shown from the list before."""
        for key in following.behind(boundary):
            reader = self._readers.get(key)
            if reader is not None:
                self._read_list_of(reader)
        following.let_go(boundary)
        self._show(following)

    def _read_list_of(self, reader: ReplicaPartition) -> None:
        """Makes a reader read the list again; an error is raised by `_show`."""
        if reader.is_shown:
            with contextlib.suppress(CorruptData):
                reader.refresh()

    def _adopt(self) -> None:
        """Takes the topics of an archive that no cluster has written to yet, as they are now.

        Those of a kind that no cluster carries are left out: no broker could take them over.
        """
        begun_ms, found = self._now_ms(), archived_topics(self._objects)
        carried = {name: about for name, about in found.items() if about.format in CODECS}
        left_out = sorted(found.keys() - carried.keys() - self._left_out)
        if left_out:
            _log.warning("no cluster carries these topics of the archive: %s", ", ".join(left_out))
        self._adopted_ms, self._adopted = begun_ms, carried
        self._left_out |= set(left_out)

    def _is_adoption_old(self) -> bool:
        return self._adopted_ms is None or self._now_ms() - self._adopted_ms >= LIST_MS

    def _show(self, following: Following) -> None:
        """Shows readers what was read; raises an error only when all others have been served."""
        is_begun = following.history.is_begun
        self._topics = following.topics() if is_begun else self._adopted
        alive = {life_of(each) for each in self._topics.values()}
        wrong: LaminaError | None = None
        for key, reader in list(self._readers.items()):
            if key[0] not in alive:
                self._readers.pop(key).end_waits()
                continue
            try:
                reader.follow(following)
            except LaminaError as error:
                wrong = wrong or error
        if wrong is not None:
            raise wrong

    # ------------------------------------------------------------------ how it stands

    def replica_lag_ms(self) -> int:
        """Returns how long ago the last poll began that reached the end."""
        return max(0, self._now_ms() - self._fresh_ms)

    def status(self) -> dict[str, Any]:
        """Returns how far this replica has got, for health, metrics and the console."""
        following = self._following
        return {
            "replica_lag_ms": self.replica_lag_ms(),
            "is_ready": self._is_ready,
            "epoch": following.epoch if following is not None else 0,
            "first_seq": following.first_seq if following is not None else 0,
            "next_seq": following.next_seq if following is not None else 0,
            "held_bytes": self._held.size_bytes,
            "problem": self.problem,
        }

    # ------------------------------------------------------------------ life

    def start(self, poll_ms: int = POLL_MS) -> None:
        """Starts the thread that polls."""
        self._thread = threading.Thread(
            target=self._run, args=(poll_ms / 1000,), name="lamina-replica", daemon=True
        )
        self._thread.start()

    def _run(self, pause_s: float) -> None:
        while not self._stopping.is_set():
            try:
                self.poll()
            except LaminaError:
                pass  # it was logged, and is in the status
            except Exception as error:
                self.problem = str(error)
                _log.exception("following the cluster's log failed; it is tried again")
            self._stopping.wait(pause_s)

    def close(self) -> None:
        """Ends the polls and the reads; the bucket is as it was."""
        if self._lookup.is_closed:
            return
        self._lookup.is_closed = True
        self._stopping.set()
        for reader in list(self._readers.values()):
            reader.end_waits()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)
        self._cache.close()

    def _portrait(self) -> Portrait:
        return Portrait(store_title(self, self._objects.url, is_open=not self._lookup.is_closed))

    def routers(self) -> list[RouterInfo]:
        """Lists none: a cluster carries no routers."""
        self._lookup.require_open()
        return []

    def diff(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        limit: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        exclude_node: bytes | None = None,
    ) -> Diff:
        """Returns what is new; whoever is further than this replica has not caught up here."""
        self._lookup.partition(topic, partition).require_within(start)
        return self._reads.diff(
            topic, partition, start, limit=limit, max_bytes=max_bytes, exclude_node=exclude_node
        )

    topics = answered_by("_reads", Reads.topics)
    describe_topic = answered_by("_reads", Reads.describe_topic)
    format_of = answered_by("_reads", Reads.format_of)
    scan = answered_by("_reads", Reads.scan)
    fetch = answered_by("_reads", Reads.fetch)
    schema = answered_by("_typed", TypedReads.schema)
    schemas = answered_by("_typed", TypedReads.schemas)
    read = answered_by("_typed", TypedReads.read)
    segments = answered_by("_reads", Reads.segments)
    earliest_offset = answered_by("_reads", Reads.earliest_offset)
    latest_offset = answered_by("_reads", Reads.latest_offset)
    offset_for_time = answered_by("_reads", Reads.offset_for_time)
    gaps = answered_by("_reads", Reads.gaps)
    gone_from = answered_by("_reads", Reads.gone_from)
