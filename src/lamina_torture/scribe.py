"""Uses a store, and writes down what it has promised before each step that changes the disk.

One scribe, one workload, one simulated disk. Each moment is a disk and a promise: what a fault at
this step makes of the disk must keep the promise. No timer runs: what a store does by itself is a
step of the workload, so that the same workload makes the same moments.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from lamina.api import Acks, ProducerStamp
from lamina.config import WalSettings, WriterSettings
from lamina.errors import LaminaError
from lamina.store.store import Store
from lamina_torture.disk import Disk
from lamina_torture.promises import GROUP, NOW_MS, Life, Promise, row_of, tag_of
from lamina_torture.rows import demand
from lamina_torture.simulated import SimulatedFiles

DATA = "/srv/data"
COLD = "/srv/cold"
NEVER_MS = 1 << 31
PRODUCER = 7


@dataclass(frozen=True, repr=False)
class Moment:
    """Before a step: the disk, and what was promised up to then."""

    step: int
    kind: str
    path: str
    disk: Disk[SimulatedFiles]
    promise: Promise


def wal_settings(shards: int) -> WalSettings:
    """Returns settings with which little data goes through everything."""
    return WalSettings(
        shards=shards,
        wal_bytes=2048,
        segment_events=4,
        segment_bytes=1024,
        cold_directory=COLD,
        hot_segments=1,
    )


def open_store(files: SimulatedFiles, *, shards: int = 2, **more: Any) -> Store:
    """Opens a store in which nothing happens by itself and no time passes."""
    chosen: dict[str, Any] = {
        "now_ms": lambda: NOW_MS,
        "writer": WriterSettings(flush_ms=NEVER_MS),
        "tick_ms": NEVER_MS,
        "wal": wal_settings(shards),
    }
    return Store(DATA, files=files, **{**chosen, **more})


@dataclass(repr=False)
class Scribe:
    """Runs a workload and writes down what was promised before each step."""

    format_name: str
    files: SimulatedFiles = field(default_factory=SimulatedFiles)
    moments: list[Moment] = field(default_factory=list)
    promise: Promise = field(default_factory=dict)
    deleted: Counter[str] = field(default_factory=Counter)
    store: Store | None = None
    shards: int = 2
    now_ms: Callable[[], int] = lambda: NOW_MS
    watching: bool = True
    """Whether moments are kept: a prefix that another workload has had need not be."""

    def __post_init__(self) -> None:
        self.files.before = self._before

    def _before(self, kind: str, path: str) -> None:
        self.look()
        if self.watching:
            self.note(kind, path)

    def note(self, kind: str = "end", path: str = "") -> None:
        """Writes down this moment."""
        disk = self.files.snapshot()
        self.moments.append(Moment(len(self.moments), kind, path, disk, dict(self.promise)))

    def look(self) -> None:
        """What a reader of durable records sees now must be there for ever."""
        for topic, lives in self.promise.items():
            if self.store is not None and len(lives) == 1 and lives[0] is not None:
                end = self.store.latest_offset(topic)
                demand(end >= lives[0].durable, "I5", f"{topic}: the end moved back to {end}")
                if end > lives[0].durable:
                    self._know(topic, durable=end)

    def life(self, topic: str) -> Life:
        """Returns what is known of a topic that is there."""
        (life,) = self.promise[topic]
        assert life is not None
        return life

    def _know(self, topic: str, **changes: Any) -> None:
        self.promise[topic] = (replace(self.life(topic), **changes),)

    def open_on(self, files: SimulatedFiles, turn: int | None = None) -> Store:
        """Opens a store on a disk; after a crash with other shards in turn."""
        shards = self.shards if turn is None else 1 + turn // 3 % 3
        return open_store(files, shards=shards, now_ms=self.now_ms)

    @property
    def opened(self) -> Store:
        """The store at hand."""
        assert self.store is not None
        return self.store

    # ------------------------------------------------------------------ what a workload does

    def open(self) -> Store:
        """Opens the store."""
        self.store = None
        self.store = self.open_on(self.files)
        return self.store

    def kill(self) -> None:
        """Ends the process in the middle: what it had not synced is still not safe."""
        self.look()
        dead, self.store = self.store, None
        self.files.before = None
        self.files = self.files.snapshot().restart()
        self.files.before = self._before
        if dead is not None:  # its disk is left behind; its threads would stay
            with contextlib.suppress(LaminaError, OSError):
                dead.close()

    def close(self) -> None:
        """Closes the store."""
        self.look()
        store, self.store = self.opened, None
        store.close()

    def create(self, topic: str, **config: Any) -> None:
        """Creates a topic."""
        before = self.promise.get(topic, (None,))
        epoch = 1 + self.deleted[topic]
        life = Life.begun(epoch, self.format_name)
        self.promise[topic] = (*before, life)
        settings = {"segment.bytes": 1024, **config}
        self.opened.create_topic(topic, format=self.format_name, config=settings)
        self.promise[topic] = (life,)

    def delete(self, topic: str) -> None:
        """Deletes a topic."""
        life = self.life(topic)
        self.promise[topic] = (life, None)
        self.opened.delete_topic(topic)
        self.promise[topic] = (None,)
        self.deleted[topic] += 1

    def append(
        self, topic: str, sizes: list[int], acks: Acks = "all", sequence: int | None = None
    ) -> list[bytes]:
        """Appends records of these sizes, by an idempotent producer when it has a sequence."""
        life = self.life(topic)
        first = life.end
        values = [
            f"{topic} {life.epoch} {first + row} ".encode().ljust(size, b"%d" % (row % 10))
            for row, size in enumerate(sizes)
        ]
        idempotent = sequence is not None
        stamp = ProducerStamp(PRODUCER, 0, sequence) if idempotent else None  # type: ignore[arg-type]
        stamped = life.stamped if stamp is None else (stamp, first, len(values))
        self._know(topic, values=life.values + tuple(values), stamped=stamped)
        rows = [row_of(life.format, first + number, each) for number, each in enumerate(values)]
        ack = self.opened.append(topic, rows, partition=0, acks=acks, producer=stamp)
        if acks == "all":
            demand(ack.base_offset == first, "I3", f"{topic}: {ack.base_offset}, not {first}")
            self._know(topic, durable=first + len(values))
        self._await_written(topic, first + len(values))
        return values

    def _await_written(self, topic: str, end: int) -> None:
        """Waits for an append that nobody waits for: it has a thread of its own."""
        deadline = time.monotonic() + 30
        while self.opened.latest_offset(topic, isolation="written") < end:
            demand(time.monotonic() < deadline, "I12", "an append with acks=0 was never written")
            time.sleep(0.0005)

    def retry(self, topic: str) -> None:
        """Repeats the last idempotent append, as a producer does that missed the answer."""
        life = self.life(topic)
        if life.stamped is None:
            return
        stamp, first, count = life.stamped
        values = life.values[first - life.first :][:count]
        rows = [row_of(life.format, at, each) for at, each in enumerate(values, first)]
        again = self.opened.append(topic, rows, partition=0, producer=stamp)
        demand(again.base_offset == first, "I3", "a repeated append gets its first answer")

    def trim(self, topic: str, before: int) -> None:
        """Trims: whole segments, but in a wal topic to the record."""
        self._know(topic, going=max(before, self.life(topic).going))
        earliest = self.opened.trim(topic, 0, before)
        demand(earliest <= max(before, self.life(topic).gone), "I8", f"trimmed to {earliest}")
        self._know(topic, gone=earliest, going=earliest)

    def delete_records(self, topic: str, before: int) -> None:
        """Deletes all below an offset: to the record, in every format."""
        self._know(topic, going=max(before, self.life(topic).going))
        earliest = self.opened.delete_records(topic, 0, before)
        demand(earliest == max(before, self.life(topic).gone), "I8", f"deleted to {earliest}")
        self._know(topic, gone=earliest, going=earliest)

    def retain(self, topic: str, **config: int) -> None:
        """Sets a limit for a moment, lets the store keep to it, and takes the limit away."""
        known = config.get("retention.bytes", -1)
        self._know(topic, retention=(-1, known), going=self.life(topic).end)
        self.opened.alter_topic(topic, config)
        self._know(topic, retention=(known,))
        if self.format_name == "wal":
            self.opened.maintain()
        else:
            self.opened.apply_retention(topic)
        earliest = self.opened.earliest_offset(topic)
        self._know(topic, gone=earliest, retention=(-1, known))
        self.opened.alter_topic(topic, dict.fromkeys(config, -1))
        self._know(topic, retention=(-1,), going=earliest)

    def remove(self, topic: str, chosen: Iterable[int], **which: Any) -> None:
        """Deletes single records of a wal topic."""
        life = self.life(topic)
        live = frozenset(chosen) - life.deleted - frozenset(range(life.gone))
        self._know(topic, deleting=live)
        count = self.opened.delete(topic, **which)
        demand(count == len(live), "I8", f"{count} were deleted, not {len(live)}")
        self._know(topic, deleting=frozenset(), deleted=life.deleted | live)

    def remove_tag(self, topic: str, tag: bytes) -> None:
        """Deletes the records with a tag."""
        life = self.life(topic)
        with_tag = (at for at in range(life.first, life.end) if tag_of(at) == tag)
        self.remove(topic, with_tag, tag=tag)

    def commit(self, topic: str, until: int) -> None:
        """Commits the group's position."""
        life = self.life(topic)
        self._know(topic, committing=max(until, life.committing))
        self.opened.group(topic, GROUP).commit(until)
        self._know(topic, committed=max(until, life.committed))
