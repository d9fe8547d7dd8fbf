"""Power is lost, or the process killed, after every step of a workload; and again in recovery.

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
from typing import Any, TypeAlias

import pytest

from lamina.config import WriterSettings
from lamina.engine.requests import ProducerStamp
from lamina.engine.store import Store
from lamina.errors import RecordsMissing
from lamina.storage.files import Files
from tests.support.file_system import FileSystemContract
from tests.support.simulated import Choice, Disk, SimulatedFiles

DATA = "/srv/data"
FORMATS = ("frame", "keratin")
NOW_MS = 1_700_000_000_000
QUIET = WriterSettings(flush_ms=1 << 31)
SEEDS = 1
PRODUCER = 7
FAILURES_MAX = 20
REPLAY: tuple[int, Choice | str] | None = None
"""Set it to a step and a choice to run only that one."""

Records: TypeAlias = dict[str, tuple[int, dict[int, bytes]]]


def open_store(files: SimulatedFiles) -> Store:
    return Store(DATA, files=files, now_ms=lambda: NOW_MS, writer=QUIET, tick_ms=1 << 31)


def read(store: Store, topic: str) -> dict[int, bytes]:
    """Returns every durable record by its offset."""
    found = {}
    for batch in store.scan(topic):
        rows = zip(
            batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
        )
        found.update(rows)
    return found


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
        if store.describe_topic(topic).settings["retention.bytes"] != -1:
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

    def life(self, topic: str) -> Life:
        (life,) = self.promise[topic]
        assert life is not None
        return life

    def _know(self, topic: str, **changes: Any) -> None:
        self.promise[topic] = (replace(self.life(topic), **changes),)

    def open(self) -> Store:
        self.store = None
        store = open_store(self.files)
        self.store = store
        return store

    def close(self) -> None:
        self.look()
        store, self.store = self.store, None
        assert store is not None
        store.close()

    def create(self, topic: str, **config: int) -> None:
        assert self.store is not None
        before = self.promise.get(topic, (None,))
        epoch = 1 + self.deleted[topic]
        self.promise[topic] = (*before, Life(epoch))
        settings = {"segment.bytes": 1024, **config}
        self.store.create_topic(topic, format=self.format_name, config=settings)
        self.promise[topic] = (Life(epoch),)

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


def workload(scribe: Scribe) -> None:
    """Everything that changes a disk, once."""
    store = scribe.open()
    scribe.create("orders")
    scribe.append("orders", [100, 40, 10])
    scribe.append("orders", [300], acks=1)
    scribe.append("orders", [20, 20], acks=0)
    store.maintain()
    values = scribe.append("orders", [50, 60], sequence=0)
    scribe.retry("orders", values)
    scribe.append("orders", [600, 500])
    scribe.append("orders", [200] * 14)
    values = scribe.append("orders", [400, 500, 30], sequence=2)
    scribe.append("orders", [10], acks=1)
    scribe.trim("orders", 9)
    scribe.create("other", **{"segment.bytes": 4096})
    scribe.append("other", [700], acks=1)
    store.maintain()
    scribe.append("other", [5])
    scribe.retain("orders", 1500)
    scribe.delete("other")
    scribe.create("other", **{"segment.bytes": 2048})
    scribe.append("other", [9])
    scribe.close()
    scribe.open()
    scribe.retry("orders", values)
    scribe.append("orders", [1500, 20, 30], sequence=5)
    scribe.append("other", [900, 900], acks=1)
    scribe.trim("orders", len(scribe.life("orders").values))
    scribe.delete("orders")
    scribe.create("orders")
    scribe.append("orders", [33])
    scribe.close()


# ---------------------------------------------------------------- what must hold


def verify(store: Store, promise: Promise) -> None:
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
        verify_records(store, topic, life)


def verify_records(store: Store, topic: str, life: Life) -> None:
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


def use_further(store: Store, promise: Promise) -> None:
    """Repeats the last idempotent append, as its producer would, and appends more."""
    for topic in store.topics():
        epoch = store.describe_topic(topic).epoch
        (life,) = (each for each in promise[topic] if each is not None and each.epoch == epoch)
        if life.stamped is not None:
            repeat(store, topic, life, life.stamped)
        end = store.latest_offset(topic)
        assert store.append(topic, [b"more", b"x" * 700], partition=0).base_offset == end
        assert store.latest_offset(topic) == end + 2


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
    volatile = ("checkpoint.json", "recovery.json", "lock")
    return {path: data for path, data in files.contents().items() if not path.endswith(volatile)}


def survive(files: SimulatedFiles, promise: Promise, turn: int) -> None:
    """Opens a disk after a crash, checks it and uses it; then, in turn, one of three ends.

    Power is lost before the use; or after it; or all is closed and opened twice again.
    """
    store = open_store(files)
    try:
        verify(store, promise)
        expected = records(store)
        disk = files.snapshot()
        if turn % 3:
            use_further(store, promise)
            expected = records(store)
            disk = files.snapshot()
    finally:
        store.close()
    if turn % 3 < 2:
        files = disk.crash("dropped")
    with open_store(files) as again:
        hold(again, expected)
    if turn % 3 == 2:
        before = lasting(files)
        open_store(files).close()
        is_same = lasting(files) == before
        assert is_same, "opening once more has changed files"


@pytest.fixture(scope="module", params=FORMATS)
def history(request: pytest.FixtureRequest) -> Scribe:
    scribe = Scribe(request.param)
    workload(scribe)
    return scribe


def choices(moment: Moment, seeds: int) -> Iterator[Choice | str]:
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
            survive(files, moment.promise, moment.step + count)
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


# ---------------------------------------------------------------- the tests


def test_nothing_promised_is_lost_whenever_power_fails(history: Scribe) -> None:
    assert run(history, SEEDS) > 1000 or REPLAY


@pytest.mark.long
def test_nothing_promised_is_lost_by_more_seeds(history: Scribe) -> None:
    assert run(history, 20) > 10_000 or REPLAY


def test_recovery_can_be_killed_at_every_step(history: Scribe) -> None:
    """What a recovery gives does not depend on how often one was begun before it."""
    count = 0
    for moment in history.moments[20::60]:
        files = moment.disk.crash(moment.step)
        begun: list[Disk] = []
        files.before = lambda kind, path, f=files, b=begun: b.append(f.snapshot())  # type: ignore
        with open_store(files) as store:
            expected = records(store)
            files.before = None
        for number, disk in enumerate(begun):
            choice: Choice = ("dropped", "kept", number)[number % 3]  # type: ignore[assignment]
            again = disk.crash(choice) if number % 4 else disk.restart()
            with open_store(again) as store:
                verify(store, moment.promise)
                hold(store, expected)
            count += 1
    assert count > 300


class TestSimulatedFiles(FileSystemContract):
    @pytest.fixture
    def files(self) -> Files:
        files = SimulatedFiles()
        files.make_directory("/root")
        return files

    @pytest.fixture
    def root(self) -> str:
        return "/root"


def test_the_simulation_loses_what_was_not_synced_and_nothing_else() -> None:
    files = SimulatedFiles()
    files.make_directory("/d")
    file = files.create("/d/a")
    file.write_at(0, b"safe")
    file.sync()
    assert files.snapshot().crash("dropped").list("/d") == [], "its name was not synced"
    files.sync_directory("/d")
    file.write_at(2, b"xx12")
    files.create("/d/b")
    disk = files.snapshot()
    assert disk.crash("dropped").contents() == {"/d/a": b"safe"}
    assert disk.crash("kept").contents() == {"/d/a": b"saxx12", "/d/b": b""}
    assert disk.restart().contents() == disk.crash("kept").contents()
    assert disk.restart().snapshot().crash("dropped").contents() == {"/d/a": b"safe"}
    found = {content for seed in range(200) for content in disk.crash(seed).contents().items()}
    assert {("/d/a", b"safe"), ("/d/a", b"saxx12"), ("/d/b", b"")} <= found
    assert all(data[:2] == b"sa" for path, data in found if path == "/d/a"), "synced bytes stay"


def test_the_simulation_keeps_either_side_of_a_replacement() -> None:
    files = SimulatedFiles()
    files.make_directory("/d")
    files.replace("/d/a", b"old")
    disks: list[Disk] = []
    files.before = lambda kind, path: disks.append(files.snapshot())
    files.replace("/d/a", b"new")
    found = {disk.crash(seed).contents()["/d/a"] for disk in disks for seed in range(50)}
    assert found == {b"old", b"new"}
    assert files.snapshot().crash("dropped").contents() == {"/d/a": b"new"}


def test_the_simulation_keeps_later_sectors_without_earlier_ones() -> None:
    files = SimulatedFiles()
    files.make_directory("/d")
    file = files.create("/d/a")
    files.sync_directory("/d")
    file.write_at(0, b"a" * 512 + b"b" * 512)
    disk = files.snapshot()
    found = {disk.crash(seed).contents()["/d/a"] for seed in range(300)}
    assert bytes(512) + b"b" * 512 in found
    assert b"a" * 512 in found
    assert b"a" * 512 + bytes(512) in found
    assert any(len(data) == 1024 and data.strip(b"\0ab") for data in found), "garbage"


@pytest.mark.parametrize("after", ["dropped", "kept", "pending", "done"])
def test_the_simulation_fails_a_sync_in_four_ways(after: Any) -> None:
    files = SimulatedFiles()
    files.make_directory("/d")
    file = files.create("/d/a")
    files.sync_directory("/d")
    file.write_at(0, b"abc")
    files.fail("sync", after=after)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    assert file.read_at(0, 9) == (b"" if after == "dropped" else b"abc")
    file.sync()
    safe = files.snapshot().crash("dropped").contents()["/d/a"]
    assert safe == (b"" if after in ("dropped", "kept") else b"abc")
