"""A workload's promises at each step, every disk that a crash there may leave, and the check of it.

A workload runs once on a simulated disk and writes down, before each step that changes the disk,
what was promised up to then. Each of these moments is then turned into several disks: nothing
unsynced is left, all of it, some of it by a seed; or the process was killed and power fails later.
On each the store is opened, held against the promise, used further, and opened again.

A failure names format, step and choice: `-k` and `REPLAY` reproduce it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

import pytest

from lamina.config import WriterSettings
from lamina.engine.requests import ProducerStamp
from lamina.engine.store import Store
from lamina.errors import RecordsMissing
from lamina.torture.disk import Choice, Disk
from lamina.torture.simulated import SimulatedFiles

DATA = "/srv/data"
NOW_MS = 1_700_000_000_000
QUIET = WriterSettings(flush_ms=1 << 31)
PRODUCER = 7
FAILURES_MAX = 20
REPLAY: tuple[int, Choice | str] | None = None
"""Set it to a step and a choice to run only that one."""

Records: TypeAlias = dict[str, tuple[int, dict[int, bytes]]]


def open_store(files: SimulatedFiles, **arguments: Any) -> Store:
    quiet = {"now_ms": lambda: NOW_MS, "writer": QUIET, "tick_ms": 1 << 31}
    return Store(DATA, files=files, **{**quiet, **arguments})


def read(store: Store, topic: str) -> dict[int, bytes]:
    """Returns every durable record by its offset, over gaps."""
    found: dict[int, bytes] = {}
    at = store.earliest_offset(topic)
    while True:
        try:
            for batch in store.scan(topic, start=at):
                offsets, values = batch.column("offset"), batch.column("value")
                found.update(zip(offsets.to_pylist(), values.to_pylist(), strict=True))
            return found
        except RecordsMissing as missing:
            at, before = missing.end, at
        assert at > before, "there is no way on"


def records(store: Store) -> Records:
    return {
        topic: (store.describe_topic(topic).epoch, read(store, topic)) for topic in store.topics()
    }


def hold(store: Store, expected: Records) -> None:
    """Demands exactly these records; only where a retention is set, some first ones may be gone."""
    found = records(store)
    assert found.keys() == expected.keys(), "topics"
    for topic, (epoch, there) in found.items():
        before_epoch, before = expected[topic]
        settings = store.describe_topic(topic).settings
        if any(settings[key] != -1 for key in ("retention.bytes", "retention.records")):
            earliest = store.earliest_offset(topic)
            before = {offset: value for offset, value in before.items() if offset >= earliest}
        is_same = (epoch, there) == (before_epoch, before)  # pytest would explain it for minutes
        assert is_same, "served, and gone with the next crash"


# ---------------------------------------------------------------- what was promised


@dataclass(frozen=True, repr=False)
class Life:
    """What is known of a topic from its creation to its deletion."""

    epoch: int
    values: tuple[bytes, ...] = ()
    """By offset, all that was ever handed to `append`."""
    durable: int = 0
    """Everything below was acknowledged as fsynced, or seen by a reader of durable records."""
    gone: int = 0
    """A trim or retention that has returned left nothing below."""
    going: int = 0
    """One that is under way may remove what is below."""
    retention: tuple[int, ...] = (-1,)
    stamped: tuple[ProducerStamp, int, int] | None = None


Promise: TypeAlias = dict[str, tuple[Life | None, ...]]
"""For each name the lives that it may have: more than one while it is being created or deleted."""


@dataclass(frozen=True, repr=False)
class Moment:
    step: int
    kind: str
    path: str
    disk: Disk
    promise: Promise


@dataclass(repr=False)
class Scribe:
    """Runs a workload and writes down what was promised before each step."""

    format_name: str
    files: SimulatedFiles = field(default_factory=SimulatedFiles)
    moments: list[Moment] = field(default_factory=list)
    promise: Promise = field(default_factory=dict)
    deleted: Counter[str] = field(default_factory=Counter)
    store: Store | None = None
    life_of: ClassVar[type[Life]] = Life

    def __post_init__(self) -> None:
        self.files.before = self._before

    def _before(self, kind: str, path: str) -> None:
        self.look()
        disk = self.files.snapshot()
        self.moments.append(Moment(len(self.moments), kind, path, disk, dict(self.promise)))

    def look(self) -> None:
        """What a reader of durable records sees now must be there for ever."""
        for topic, lives in self.promise.items():
            if self.store is not None and len(lives) == 1 and lives[0] is not None:
                end = self.store.latest_offset(topic)
                self._know(topic, durable=max(lives[0].durable, end))

    def verify_records(self, store: Store, topic: str, life: Life) -> None:
        """Holds a topic after a crash against what was promised of it."""
        verify_dense(store, topic, life)

    def look_after(self, store: Store) -> None:
        """Does, after a crash, what a store does between requests."""

    def life(self, topic: str) -> Life:
        (life,) = self.promise[topic]
        assert life is not None
        return life

    def _know(self, topic: str, **changes: Any) -> None:
        self.promise[topic] = (replace(self.life(topic), **changes),)

    def open_on(self, files: SimulatedFiles, turn: int | None = None) -> Store:
        """Opens a store on a disk; after a crash, where there are several ways, `turn` picks."""
        return open_store(files)

    def open(self) -> Store:
        self.store = None
        store = self.open_on(self.files)
        self.store = store
        return store

    def kill(self) -> None:
        """Ends the process in the middle: what it had not synced is still not safe."""
        self.look()
        self.store = None
        self.files.before = None
        self.files = self.files.snapshot().restart()
        self.files.before = self._before

    def close(self) -> None:
        self.look()
        store, self.store = self.store, None
        assert store is not None
        store.close()

    def create(self, topic: str, **config: Any) -> None:
        assert self.store is not None
        before = self.promise.get(topic, (None,))
        epoch = 1 + self.deleted[topic]
        self.promise[topic] = (*before, self.life_of(epoch))
        settings = {"segment.bytes": 1024, **config}
        self.store.create_topic(topic, format=self.format_name, config=settings)
        self.promise[topic] = (self.life_of(epoch),)

    def delete(self, topic: str) -> None:
        assert self.store is not None
        life = self.life(topic)
        self.promise[topic] = (life, None)
        self.store.delete_topic(topic)
        self.promise[topic] = (None,)
        self.deleted[topic] += 1

    def append(
        self, topic: str, sizes: list[int], acks: object = "all", sequence: int | None = None
    ) -> list[bytes]:
        assert self.store is not None
        life = self.life(topic)
        first = len(life.values)
        values = [
            f"{topic} {life.epoch} {first + row} ".encode().ljust(size, b"%d" % (row % 10))
            for row, size in enumerate(sizes)
        ]
        stamp = None if sequence is None else ProducerStamp(PRODUCER, 0, sequence)
        stamped = life.stamped if stamp is None else (stamp, first, len(values))
        self._know(topic, values=life.values + tuple(values), stamped=stamped)
        ack = self.store.append(topic, values, partition=0, acks=acks, producer=stamp)
        if acks == "all":
            assert ack.base_offset == first
            self._know(topic, durable=first + len(values))
        deadline = time.monotonic() + 10
        while self.store.latest_offset(topic, isolation="written") < first + len(values):
            assert time.monotonic() < deadline, "an append with acks=0 was never written"
            time.sleep(0.0005)
        return values

    def retry(self, topic: str, values: list[bytes]) -> None:
        assert self.store is not None
        stamped = self.life(topic).stamped
        assert stamped is not None
        stamp, first, _ = stamped
        again = self.store.append(topic, values, partition=0, producer=stamp)
        assert again.base_offset == first, "a repeated append gets its first answer"

    def trim(self, topic: str, before: int) -> None:
        assert self.store is not None
        self._know(topic, going=before)
        earliest = self.store.trim(topic, 0, before)
        assert 0 < earliest <= before
        self._know(topic, gone=earliest, going=earliest)

    def retain(self, topic: str, retention_bytes: int) -> None:
        assert self.store is not None
        life = self.life(topic)
        self._know(topic, retention=(-1, retention_bytes), going=len(life.values))
        self.store.alter_topic(topic, {"retention.bytes": retention_bytes})
        self._know(topic, retention=(retention_bytes,))
        assert self.store.apply_retention(topic) > 0
        self._know(topic, gone=self.store.earliest_offset(topic))
        self._know(topic, retention=(-1, retention_bytes))
        self.store.alter_topic(topic, {"retention.bytes": -1})
        self._know(topic, retention=(-1,), going=self.life(topic).gone)


# ---------------------------------------------------------------- what must hold


def verify(scribe: Scribe, store: Store, promise: Promise) -> None:
    """Holds a store that was opened after a crash against what was promised before it."""
    there = set(store.topics())
    assert there <= set(promise)
    for topic, lives in promise.items():
        if topic not in there:
            assert None in lives, f"topic {topic} is gone"
            continue
        info = store.describe_topic(topic)
        matching = [life for life in lives if life is not None and life.epoch == info.epoch]
        assert matching, f"topic {topic} has epoch {info.epoch}, which was not promised"
        life = matching[0]
        assert info.settings["retention.bytes"] in life.retention
        scribe.verify_records(store, topic, life)


def verify_dense(store: Store, topic: str, life: Life) -> None:
    """Every offset from the earliest on is there, and what is below it has a reason."""
    earliest, end = store.earliest_offset(topic), store.latest_offset(topic)
    assert life.durable <= end <= len(life.values), "acknowledged or seen, and lost"
    assert store.latest_offset(topic, isolation="written") == end
    assert life.gone <= earliest <= max(life.gone, life.going), "back again, or gone unasked"
    found = read(store, topic)
    is_dense = list(found) == list(range(earliest, end))
    assert is_dense, "offsets are missing"
    is_same = tuple(found.values()) == life.values[earliest:end]
    assert is_same, "what is read is not what was appended"
    gaps = store.gaps(topic)
    assert {gap.reason for gap in gaps} <= {"trim", "retention"}, gaps
    assert all(any(g.first <= o < g.end for g in gaps) for o in range(earliest)), "reasons"
    assert all(gap.end <= earliest for gap in gaps)
    if earliest:
        with pytest.raises(RecordsMissing):
            list(store.scan(topic, start=earliest - 1))


def use_further(scribe: Scribe, store: Store, promise: Promise, turn: int) -> None:
    """Repeats the last idempotent append, as its producer would, and appends more.

    Every second time it stops there: whatever comes later could make good what opening left undone.
    """
    for topic in store.topics():
        epoch = store.describe_topic(topic).epoch
        (life,) = (each for each in promise[topic] if each is not None and each.epoch == epoch)
        if life.stamped is not None:
            repeat(store, topic, life, life.stamped)
        end = store.latest_offset(topic)
        more = store.append(topic, [b"more", b"x" * 700], partition=0, acks="all")
        assert more.base_offset == end
        assert store.latest_offset(topic) == end + 2
    if turn % 2:
        scribe.look_after(store)


def repeat(store: Store, topic: str, life: Life, stamped: tuple[ProducerStamp, int, int]) -> None:
    stamp, first, count = stamped
    values = list(life.values[first : first + count])
    end = store.latest_offset(topic)
    answer = store.append(topic, values, partition=0, producer=stamp)
    if end >= first + count:
        assert answer.base_offset == first, "a repeat of what is there"
        assert store.latest_offset(topic) == end
    found = list(read(store, topic).values())
    if store.earliest_offset(topic) <= first:
        assert [found.count(value) for value in values] == [1] * count, "each record once"


def lasting(files: SimulatedFiles) -> dict[str, bytes]:
    """The files that opening and closing must not change."""
    volatile = ("checkpoint.json", "recovery.json", "lock", ".bin")
    return {path: data for path, data in files.contents().items() if not path.endswith(volatile)}


def survive(scribe: Scribe, files: SimulatedFiles, promise: Promise, turn: int) -> None:
    """Opens a disk after a crash, checks it and uses it; then, in turn, one of three ends.

    Power is lost before the use; or after it; or all is closed and opened twice again.
    """
    store = scribe.open_on(files, turn)
    try:
        verify(scribe, store, promise)
        expected = records(store)
        disk = files.snapshot()
        if turn % 3:
            use_further(scribe, store, promise, turn)
            expected = records(store)
            disk = files.snapshot()
    finally:
        store.close()
    if turn % 3 < 2:
        files = disk.crash("dropped")
    with scribe.open_on(files, turn) as again:
        hold(again, expected)
    if turn % 3 == 2:
        before = lasting(files)
        scribe.open_on(files, turn).close()
        is_same = lasting(files) == before
        assert is_same, "opening once more has changed files"


def choices(moment: Moment, seeds: int) -> Iterator[Choice | str]:
    """Yields what may have happened at a moment; without seeds, one way beside the worst one.

    A name that is not safe yet is the harm of a kill: it is used, and then power is lost.
    """
    if not seeds:
        yield "dropped"
        turn = 0 if moment.kind == "sync_directory" else moment.step % 3
        yield ("killed", "kept", moment.step)[turn]  # type: ignore[misc]
        return
    yield from ("dropped", "killed")
    if moment.step % 2:
        yield "kept"
    yield from (moment.step * 1000 + seed for seed in range(seeds))


def disks(moments: list[Moment], seeds: int) -> Iterator[tuple[SimulatedFiles, Moment, str]]:
    """Yields every disk that the moments may leave: each different one once."""
    known: set[Any] = set()
    for moment in moments:
        for choice in choices(moment, seeds):
            if REPLAY is not None and (moment.step, choice) != REPLAY:
                continue
            name = f"{(moment.step, choice)} before {moment.kind} {moment.path}"
            if choice == "killed":
                yield moment.disk.restart(), moment, name
                continue
            files = moment.disk.crash(choice)  # type: ignore[arg-type]
            seen = frozenset(files.contents().items()), tuple(sorted(moment.promise.items()))
            if seen not in known:
                known.add(seen)
                yield files, moment, name


def run(history: Scribe, seeds: int) -> int:
    """Checks every disk; returns how many there were."""
    count, failures = 0, []
    for files, moment, name in disks(history.moments, seeds):
        try:
            killed = not seeds and "'killed'" in name
            turn = 1 + 3 * count if killed else moment.step + count
            survive(history, files, moment.promise, turn)
        except Exception as error:
            if REPLAY is not None:
                raise
            what = f"{type(error).__name__} {error}".split("\n")[0][:200]
            failures.append(f"{name}: {what}")
        count += 1
        if len(failures) == FAILURES_MAX:
            break
    assert not failures, f"{len(failures)} of {count}:\n" + "\n".join(failures)
    return count


def kill_recoveries(history: Scribe, moments: list[Moment]) -> int:
    """Kills recovery at each of its steps: what one gives does not depend on those begun before.

    Returns how many were killed.
    """
    count = 0
    for moment in moments:
        files = moment.disk.crash(moment.step)
        begun: list[Disk] = []
        files.before = lambda kind, path, f=files, b=begun: b.append(f.snapshot())  # type: ignore
        with history.open_on(files, moment.step) as store:
            expected = records(store)
            files.before = None
        for number, disk in enumerate(begun):
            choice: Choice = ("dropped", "kept", number)[number % 3]  # type: ignore[assignment]
            again = disk.crash(choice) if number % 4 else disk.restart()
            with history.open_on(again, moment.step) as store:
                verify(history, store, moment.promise)
                hold(store, expected)
            count += 1
    return count
