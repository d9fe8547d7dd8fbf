"""Every call to the disk fails once, each in its turn: nothing acknowledged is lost, nobody hangs.

A workload runs as often as it makes calls of a kind; in the n-th run the n-th call fails. What
fails must fail with an error of ours; what was acknowledged must be readable then, after opening
again on the healed disk, and after power was lost instead.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from lamina.config import WalSettings, WriterSettings
from lamina.engine.requests import ProducerStamp
from lamina.engine.store import Store
from lamina.errors import LaminaError, Poisoned, StorageFull, Unavailable, UnknownTopic
from lamina.torture.disk import Choice
from lamina.torture.simulated import SimulatedFiles

DATA = "/srv/data"
FORMATS = ("frame", "keratin", "wal")
KINDS = ("write_at", "sync", "create", "rename", "remove", "truncate", "sync_directory", "open")
NOW_MS = 1_700_000_000_000
QUIET = WriterSettings(flush_ms=1 << 31)
TOPIC = "orders"


WAL = WalSettings(
    shards=2,
    wal_bytes=4096,
    segment_events=4,
    segment_bytes=1024,
    cold_directory="/srv/cold",
    hot_segments=1,
)


def open_store(files: SimulatedFiles) -> Store:
    return Store(DATA, files=files, now_ms=lambda: NOW_MS, writer=QUIET, wal=WAL, tick_ms=1 << 31)


def first_offset(format_name: str) -> int:
    return int(format_name == "wal")


def read(store: Store, topic: str) -> dict[int, bytes]:
    """Returns every durable record by its offset, from the earliest on."""
    found = {}
    for batch in store.scan(topic):
        offsets, values = batch.column("offset").to_pylist(), batch.column("value").to_pylist()
        found.update(zip(offsets, values, strict=True))
    return found


@dataclass(repr=False)
class Client:
    """Uses a store as a program would that survives errors, and remembers what it was told."""

    files: SimulatedFiles
    format_name: str
    store: Store | None = None
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    handed_in: list[bytes] = field(default_factory=list)
    refused: list[bytes] = field(default_factory=list)
    errors: list[LaminaError] = field(default_factory=list)
    trimmed_below: int = 0
    after: Callable[[Client], None] = lambda client: None

    def attempt(self, action: Callable[[Store], Any]) -> Any:
        """Does something; an error that is not ours, or an OSError, would end the test."""
        if self.store is None:
            return None
        try:
            return action(self.store)
        except LaminaError as error:
            self.errors.append(error)
            self.after(self)
            return error

    def open(self) -> None:
        try:
            self.store = open_store(self.files)
        except LaminaError as error:
            self.errors.append(error)
            self.after(self)
            self.store = open_store(self.files)

    def close(self) -> None:
        self.attempt(lambda store: store.close())
        self.store = None

    def append(self, sizes: list[int], acks: object = "all", sequence: int | None = None) -> None:
        values = [
            f"{len(self.handed_in) + row} ".encode().ljust(size, b"x")
            for row, size in enumerate(sizes)
        ]
        self.handed_in += values
        idempotent = sequence is not None and self.format_name != "wal"
        stamp = ProducerStamp(7, 0, sequence) if idempotent else None  # type: ignore[arg-type]
        answer = self.attempt(
            lambda store: store.append(TOPIC, values, partition=0, acks=acks, producer=stamp)
        )
        if isinstance(answer, StorageFull):
            self.refused += values
            self.lose_power()
        if acks == "all" and answer is not None and not isinstance(answer, LaminaError):
            self.acknowledged |= dict(enumerate(values, answer.base_offset))

    def lose_power(self) -> None:
        """Looks at what would be there if power failed now."""
        disk = self.files.snapshot()
        for choice in ("dropped", "kept", len(self.handed_in)):
            with open_store(disk.crash(choice)) as store:  # type: ignore[arg-type]
                self.check(store)

    def trim(self, before: int) -> None:
        self.trimmed_below = max(self.trimmed_below, before)
        self.attempt(lambda store: store.trim(TOPIC, 0, before))

    def check(self, store: Store) -> None:
        """Holds a store against what this client was told."""
        try:
            found = read(store, TOPIC)
        except UnknownTopic:
            assert not self.acknowledged
            return
        expected = {
            at: value for at, value in self.acknowledged.items() if at >= min(found, default=0)
        }
        is_there = found.items() >= expected.items()
        assert is_there, "an acknowledged record is lost"
        first = first_offset(self.format_name)
        assert store.earliest_offset(TOPIC) <= max(first, self.trimmed_below)
        counts = Counter(found.values())
        is_ours = set(counts) <= set(self.handed_in)
        assert is_ours, "read, but never appended"
        assert max(counts.values(), default=1) == 1, "appended once, read twice"
        assert not set(found.values()) & set(self.refused), "refused, and yet there"
        assert not [gap for gap in store.gaps(TOPIC) if gap.reason == "lost"]


def workload(client: Client) -> None:
    config = {"segment.bytes": 1024}
    client.open()
    create = lambda store: store.create_topic(TOPIC, format=client.format_name, config=config)  # noqa: E731
    if isinstance(client.attempt(create), LaminaError):
        client.attempt(create)
    client.append([100, 50])
    client.append([30], acks=1)
    client.append([40, 40], sequence=0)
    client.append([900])
    client.attempt(lambda store: store.maintain())
    client.append([300] * 7, sequence=2)
    client.trim(6)
    client.attempt(lambda store: store.create_topic("other", format=client.format_name))
    client.attempt(lambda store: store.append("other", [b"o"]))
    client.attempt(lambda store: store.alter_topic("other", {"retention.bytes": 4096}))
    client.attempt(lambda store: store.delete_topic("other"))
    client.append([20])
    client.close()
    client.open()
    client.append([60])
    client.append([1200])


def calls_of(kind: str, format_name: str) -> int:
    client = Client(SimulatedFiles(), format_name)
    workload(client)
    assert not client.errors
    assert len(client.acknowledged) > 12
    calls = client.files.calls[kind]
    client.check(client.store)  # type: ignore[arg-type]
    client.close()
    return calls


def reopened(client: Client, turn: int) -> None:
    """Checks the healed disk: after a new start of the process, and after power loss."""
    disk = client.files.snapshot()
    choice: Choice = ("dropped", "dropped", "kept", turn)[turn % 4]  # type: ignore[assignment]
    for again in (disk.restart(), disk.crash(choice)):
        with open_store(again) as store:
            client.check(store)
            if TOPIC not in store.topics():
                continue
            seen = read(store, TOPIC)
            lost = again.snapshot().crash("dropped")
            end = store.latest_offset(TOPIC)
            assert store.append(TOPIC, [b"more"], partition=0).base_offset == end
            used = read(store, TOPIC)
            assert len(used) == len(seen) + 1
        files, expected = ((lost, seen), (again, used))[turn % 2]
        with open_store(files) as store:
            is_same = read(store, TOPIC) == expected
        assert is_same, "served, and gone later"


def failing(format_name: str, kind: str, number: int, **fault: Any) -> Client:
    """Runs the workload with one failing call."""
    files = SimulatedFiles()
    files.fail(kind, at=number, **fault)
    client = Client(files, format_name)

    def after(client: Client) -> None:
        if client.store is not None and not client.store._closed:
            client.check(client.store)

    client.after = after
    workload(client)
    client.close()
    files.faults.clear()
    return client


def run_all(format_name: str, kind: str, **fault: Any) -> int:
    """Fails each call of a kind in its turn; returns how many there were."""
    total, problems = calls_of(kind, format_name), []
    for number in range(1, total + 1):
        try:
            client = failing(format_name, kind, number, **fault)
            assert [step.kind for step in client.files.history if step.failed] == [kind]
            no_failed_sync_is_repeated(client.files)
            reopened(client, number)
        except Exception as error:
            problems.append(f"{kind} {number}: {type(error).__name__} {error}".split("\n")[0])
    assert not problems, f"{len(problems)} of {total}:\n" + "\n".join(problems[:40])
    return total


def no_failed_sync_is_repeated(files: SimulatedFiles) -> None:
    failed = set()
    for step in files.history:
        if step.kind == "sync" and step.inode in failed:
            raise AssertionError(f"{step.path} was synced again after a failure")
        if step.kind == "open":
            failed.discard(step.inode)  # through recovery, which writes it again
        if step.kind == "sync" and step.failed:
            failed.add(step.inode)


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_failing_call_loses_what_was_acknowledged(format_name: str, kind: str) -> None:
    assert run_all(format_name, kind) > 3


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("after", ["dropped", "kept", "done"])
def test_a_failed_sync_is_never_made_good_by_a_later_one(format_name: str, after: Any) -> None:
    assert run_all(format_name, "sync", after=after) > 20


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_write_that_fails_half_way_is_not_seen(format_name: str) -> None:
    assert run_all(format_name, "write_at", written=0.6) > 20


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_write_without_space_changes_nothing(format_name: str) -> None:
    assert run_all(format_name, "write_at", error=errno.ENOSPC, written=0.6) > 20
    assert run_all(format_name, "create", error=errno.ENOSPC) > 5


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("kind", ["write_at", "sync"])
def test_after_a_failed_write_or_sync_only_reads_go_on(format_name: str, kind: str) -> None:
    files, first = SimulatedFiles(), first_offset(format_name)
    with open_store(files) as store:
        store.create_topic(TOPIC, format=format_name)
        store.append(TOPIC, [b"safe"])
        files.fail(kind, after="kept")
        for _ in range(3):
            with pytest.raises(Poisoned):
                store.append(TOPIC, [b"unsafe"])
        assert read(store, TOPIC) == {first: b"safe"}
        with pytest.raises(Poisoned):
            store.trim(TOPIC, 0, first + 1)
        calls = files.calls["sync"]
        store.maintain()
        assert read(store, TOPIC) == {first: b"safe"}
        touched = [step.path for step in files.history if step.kind == "sync"][calls:]
        assert not [path for path in touched if path.endswith(".log")]
    with open_store(files) as store:
        assert store.append(TOPIC, [b"again"]).base_offset in (first + 1, first + 2)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_full_disk_refuses_appends_and_lets_go_what_frees_it(format_name: str) -> None:
    files = SimulatedFiles()
    client = Client(files, format_name)
    client.open()
    store = client.store
    assert store is not None
    store.create_topic(TOPIC, format=format_name, config={"segment.bytes": 8192})
    store.maintain()
    files.capacity_bytes = files.used_bytes + 120_000
    for _ in range(100):
        client.append([3000, 3000])
        if client.errors:
            break
    assert isinstance(client.errors[0], StorageFull)
    client.check(store)
    client.append([3000] * 9, sequence=0)
    store.maintain()
    client.check(store)
    files.capacity_bytes = files.used_bytes
    client.append([3000])
    assert all(isinstance(error, StorageFull) for error in client.errors)
    end = store.latest_offset(TOPIC)
    client.trim(end // 2)
    assert 0 < store.earliest_offset(TOPIC) <= end // 2, "trimming goes on"
    count = len(client.acknowledged)
    client.append([3000], sequence=0)
    assert len(client.acknowledged) == count + 1, "space came back"
    client.check(store)
    client.close()
    reopened(client, 0)


@pytest.mark.parametrize("format_name", FORMATS)
def test_retention_by_itself_frees_a_full_disk(format_name: str) -> None:
    files = SimulatedFiles()
    with open_store(files) as store:
        store.create_topic(TOPIC, format=format_name, config={"segment.bytes": 8192})
        for _ in range(20):
            store.append(TOPIC, [b"x" * 3000])
        store.maintain()
        store.alter_topic(TOPIC, {"retention.bytes": 20_000})
        files.capacity_bytes = files.used_bytes
        store.maintain()
        assert store.earliest_offset(TOPIC) > 5


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_full_disk_can_be_opened_and_read(format_name: str) -> None:
    files = SimulatedFiles()
    with open_store(files) as store:
        store.create_topic(TOPIC, format=format_name, config={"segment.bytes": 2048})
        for number in range(20):
            store.append(TOPIC, [b"%d" % number * 200])
        expected = read(store, TOPIC)
        disk = files.snapshot()
    for again in (disk.crash("dropped"), files):
        again.capacity_bytes = again.used_bytes
        with open_store(again) as store:
            assert read(store, TOPIC) == expected
            assert store.trim(TOPIC, 0, 10) > 0


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("kind", ["read", "map"])
def test_a_read_that_fails_says_where_and_succeeds_again(format_name: str, kind: str) -> None:
    files = SimulatedFiles()
    with open_store(files) as store:
        store.create_topic(TOPIC, format=format_name)
        store.append(TOPIC, [b"sealed"])
        store.roll(TOPIC)
        store.append(TOPIC, [b"active"])
        files.fail(kind)
        with pytest.raises(Unavailable, match=r"reading offset \d from .* failed"):
            read(store, TOPIC)
        assert list(read(store, TOPIC).values()) == [b"sealed", b"active"]
        assert store.gaps(TOPIC) == (), "a read error is no damage"
