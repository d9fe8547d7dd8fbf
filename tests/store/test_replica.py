"""A standby's store: at every moment a durable prefix of what the holder has, and nothing else."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.cluster.steps import run
from lamina.cluster.tails import collect
from lamina.errors import (
    ArchiveUnavailable,
    Busy,
    Closed,
    CorruptData,
    LaminaError,
    NotPrimary,
    UnknownTopic,
)
from lamina.formats.documents import topic_file
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.tail_file import Kind, Section
from lamina.storage import paths
from lamina.storage.objects import Objects
from lamina.store import collecting, replica, replica_partition
from lamina.store.replica import ReplicaStore
from lamina_torture.simulated import SimulatedFiles
from tests.archive.rig import NOW_MS, TOPIC, memory, numbered, opened, read, table
from tests.store.seat_rig import SETTINGS, Broker, Brokers, Time, filled, taken_by
from tests.support.failing_objects import FailingObjects


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "WINDOWS_MAX", 5)


@pytest.fixture
def replica_of(objects: Objects, clock: Time) -> Iterator[Callable[..., ReplicaStore]]:
    made: list[ReplicaStore] = []

    def make(of: Any = None, **more: Any) -> ReplicaStore:
        made.append(ReplicaStore(of or objects, clock, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def collected(broker: Broker) -> None:
    """Ships, archives and collects until nothing changes any more."""
    assert broker.seat is not None
    assert broker.seat.shipper is not None
    for _ in range(4):
        broker.ship()
        broker.seat.shipper.collector.collect(broker.objects)


Make = Callable[..., ReplicaStore]


# ---------------------------------------------------------------------- what it serves


@pytest.mark.parametrize("kind", ["keratin", "frame"])
def test_it_serves_what_was_shipped_and_not_what_was_not(
    brokers: Brokers, replica_of: Make, kind: str
) -> None:
    first = brokers()
    with first.serve() as store, replica_of() as copy:
        store.create_topic(TOPIC, partitions=2, format=kind)
        with pytest.raises(Busy, match="not read"):
            copy.topics()
        copy.poll()
        assert copy.topics() == []  # it is in no window yet
        filled(store, 0, 5)
        first.ship()
        filled(store, 5, 5)  # durable there, and in no window
        copy.poll()
        assert read(copy) == numbered(0, 5)
        assert copy.latest_offset(TOPIC, 0) == 5
        assert copy.latest_offset(TOPIC, 1) == 0
        first.ship()
        assert copy.latest_offset(TOPIC, 0) == 5
        copy.poll()
        assert table(copy.scan(TOPIC, 0)).equals(table(store.scan(TOPIC, 0)))
        assert copy.describe_topic(TOPIC).settings == store.describe_topic(TOPIC).settings
        assert copy.format_of(TOPIC) == (kind, 2)
        assert copy.fetch(TOPIC, 0, 9).num_rows == 1
        assert copy.fetch(TOPIC, 0, 10).num_rows == 0
        assert copy.diff(TOPIC, 0, 3).next_offset == 10
        at_ms = table(store.scan(TOPIC, 0))["timestamp"][4].value // 1_000_000
        assert copy.offset_for_time(TOPIC, 0, at_ms) == store.offset_for_time(TOPIC, 0, at_ms)
        assert [each.next_offset for each in copy.segments(TOPIC, 0)] == [5, 10, 10]


def test_records_pass_from_windows_into_the_archive_without_hole_or_double(
    brokers: Brokers, replica_of: Make, objects: Objects, few: None
) -> None:
    first = brokers()
    with first.serve() as store, replica_of() as copy, replica_of() as late:
        store.create_topic(TOPIC, config=SETTINGS)
        copy.poll()
        for start in range(0, 120, 7):
            filled(store, start, 7)
            first.ship()
            store.archive()
            collected(first)
            copy.poll()
            assert read(copy) == numbered(0, start + 7)
            assert read(copy, start // 2) == numbered(start // 2, start + 7)
        assert any(paths.object_key(info.key) for info in objects.list(paths.ARCHIVE))
        assert copy.status()["first_seq"] > 5
        late.poll()
        assert read(late) == numbered(0, 126)


def test_windows_are_let_go_step_by_step_behind_the_boundary(
    brokers: Brokers, replica_of: Make, few: None
) -> None:
    first = brokers()
    with first.serve() as store, replica_of() as copy:
        store.create_topic(TOPIC, config=SETTINGS)
        assert first.seat is not None
        assert first.seat.shipper is not None
        seen, most_bytes = set(), 0
        for start in range(0, 60, 2):
            filled(store, start, 2)
            first.ship()
            copy.poll()
            first.seat.shipper.collector.collect(first.objects)
            copy.poll()
            seen.add(copy.status()["first_seq"])
            most_bytes = max(most_bytes, copy.status()["held_bytes"])
            assert read(copy) == numbered(0, start + 2)
        assert len(seen) > 3
        assert copy.status()["held_bytes"] == sum(map(len, copy._held._bodies.values()))
        assert most_bytes < 5000


def test_a_window_that_several_objects_take_the_place_of(
    brokers: Brokers, replica_of: Make
) -> None:
    first = brokers()
    with first.serve() as store, replica_of() as copy:
        store.create_topic(TOPIC, config=SETTINGS)
        filled(store, 0, 60)
        first.ship()
        copy.poll()
        assert read(copy) == numbered(0, 60)
        assert len(copy.segments(TOPIC, 0)) == 2
        store.archive()
        assert len(copy.segments(TOPIC, 0)) == 2
        assert read(copy) == numbered(0, 60)  # of the window, which needs no list
        copy._readers[(TOPIC, 1, NOW_MS), 0].refresh()
        for start in range(60):
            assert read(copy, start) == numbered(start, 60)
        parts = copy.segments(TOPIC, 0)
        assert [each.next_offset for each in parts] == [18, 36, 54, 60, 60]
        assert [each.base_offset for each in parts] == [0, 18, 36, 54, 60]  # the window is cut


def test_offsets_without_records_that_no_ledger_explains(
    objects: Objects, replica_of: Make, clock: Time
) -> None:
    about = TopicFile(TOPIC, "keratin", 1, 1, 5)
    key = paths.archive_topic_settings(TOPIC)
    sections = (
        Section(Kind.COPY, key, topic_file.encode(about)),
        Section(Kind.RECORDS, TOPIC, b"", 0, 0, 5),
    )
    run(objects, taken_by(objects, "b1", clock).log.commit(sections))
    with replica_of() as copy:
        copy.poll()
        assert copy.latest_offset(TOPIC, 0) == 5
        assert read(copy, 0) == []
        assert [each.reason for each in copy.gaps(TOPIC, 0)] == ["deleted"]
    run(objects, taken_by(objects, "b2", clock).log.commit((replace(sections[1], name="u"),)))
    with replica_of() as copy, pytest.raises(CorruptData, match="no window describes"):
        copy.poll()


def test_windows_that_were_collected_before_they_were_read(
    brokers: Brokers, replica_of: Make, few: None
) -> None:
    first = brokers()
    with first.serve() as store, replica_of() as copy:
        store.create_topic(TOPIC, config=SETTINGS)
        filled(store, 0, 3)
        first.ship()
        copy.poll()
        assert read(copy) == numbered(0, 3)
        for start in range(3, 60, 3):
            filled(store, start, 3)
            first.ship()
            collected(first)
        assert read(copy) == numbered(0, 3)  # what was held of it
        copy.poll()
        assert read(copy) == numbered(0, 60)


def test_bodies_that_are_not_held_are_read_from_their_windows(
    brokers: Brokers, replica_of: Make
) -> None:
    first = brokers()
    with first.serve() as store, replica_of(held_bytes=3000) as copy:
        store.create_topic(TOPIC)
        for start in range(0, 60, 3):
            filled(store, start, 3)
            first.ship()
            copy.poll()
            assert copy.status()["held_bytes"] <= 3000
        assert read(copy) == numbered(0, 60)
        assert copy._held.size_bytes == sum(map(len, copy._held._bodies.values()))


def test_a_takeover_is_followed(brokers: Brokers, replica_of: Make) -> None:
    first, second = brokers(), brokers()
    store = first.serve()
    with replica_of() as copy:
        store.create_topic(TOPIC)
        filled(store, 0, 4)
        first.ship()
        filled(store, 4, 4)  # never shipped
        copy.poll()
        with second.serve() as successor:
            copy.poll()
            assert read(copy) == numbered(0, 4)
            successor.append(TOPIC, b"other", partition=0)
            second.ship()
            copy.poll()
            assert read(copy) == [*numbered(0, 4), (4, b"other")]
            assert copy.status()["epoch"] == 2
    store.close()


def test_an_archive_that_no_cluster_has_written_to(
    objects: Objects, replica_of: Make, clock: Time, brokers: Brokers
) -> None:
    files, archived = SimulatedFiles(), {"remote.storage.enable": True}
    with opened(files, objects) as store, replica_of() as copy:
        store.create_topic(TOPIC, config=SETTINGS | archived)
        filled(store, 0, 40)
        store.archive()
        copy.poll()
        assert copy.topics() == [TOPIC]
        end = copy.latest_offset(TOPIC, 0)
        assert 0 < end <= 40
        assert read(copy) == numbered(0, end)
        filled(store, 40, 40)
        store.archive()
        clock.now_ms += replica_partition.LIST_MS
        copy.poll()
        assert copy.latest_offset(TOPIC, 0) > end
        store.create_topic("w", format="wal", config=archived)
        store.append("w", b"x", partition=0)
        store.archive()
        clock.now_ms += replica_partition.LIST_MS
        copy.poll()
        assert copy.topics() == [TOPIC]  # no cluster carries the other one
        store.delete_topic("w")
    with replica_of() as copy:
        copy.poll()
        before = copy.latest_offset(TOPIC, 0)
        holder = brokers()
        with holder.serve():
            holder.ship()
            copy.poll()
            assert copy.latest_offset(TOPIC, 0) == before


# ---------------------------------------------------------------------- topics


def test_topics_come_go_and_come_again(brokers: Brokers, replica_of: Make) -> None:
    first = brokers()
    with first.serve() as store, replica_of() as copy:
        store.create_topic(TOPIC)
        filled(store, 0, 9)
        first.ship()
        copy.poll()
        assert copy.latest_offset(TOPIC, 0) == 9
        store.add_partitions(TOPIC, 3)
        store.append(TOPIC, b"third", partition=2)
        first.ship()
        copy.poll()
        assert [row["value"] for row in table(copy.scan(TOPIC, 2)).to_pylist()] == [b"third"]
        store.delete_topic(TOPIC)
        first.ship()
        with ThreadPoolExecutor(1) as executor:
            waiting = executor.submit(copy.fetch, TOPIC, 0, 9, wait_ms=30_000)
            while not copy._readers[(TOPIC, 1, NOW_MS), 0]._waiting:
                pass
            copy.poll()
            with pytest.raises(UnknownTopic):
                waiting.result(10)
        with pytest.raises(UnknownTopic):
            copy.latest_offset(TOPIC, 0)
        assert copy._following is not None
        assert not copy._following._stretches
        store.create_topic(TOPIC)
        store.append(TOPIC, b"new", partition=0)
        first.ship()
        copy.poll()
        assert [value for _, value in read(copy)] == [b"new"]
        assert copy.describe_topic(TOPIC).epoch == 2


def test_what_is_removed_is_missing_for_the_same_reason(brokers: Brokers, replica_of: Make) -> None:
    first = brokers()
    with first.serve() as store, replica_of() as copy:
        store.create_topic(TOPIC, config=SETTINGS)
        filled(store, 0, 60)
        first.ship()
        copy.poll()
        store.archive()
        store.delete_records(TOPIC, 0, 33)
        first.ship()
        copy.poll()
        assert copy.earliest_offset(TOPIC, 0) == store.earliest_offset(TOPIC, 0) == 33
        assert copy.gaps(TOPIC, 0) == store.gaps(TOPIC, 0)
        assert read(copy) == numbered(33, 60)
        with pytest.raises(CorruptData, match="trim"):
            read(copy, 0)


def test_typed_topics_are_read_as_columns(brokers: Brokers, replica_of: Make) -> None:
    first = brokers()
    with first.serve() as store, replica_of() as copy:
        store.create_topic(TOPIC, schema=pa.schema([("n", pa.int64())]))
        store.append(TOPIC, pa.table({"n": [1, 2, 3]}))
        first.ship()
        copy.poll()
        assert copy.read(TOPIC).read_all()["n"].to_pylist() == [1, 2, 3]
        assert copy.schemas(TOPIC) == store.schemas(TOPIC)


# ---------------------------------------------------------------------- what is not its own


def test_everything_else_names_the_holder(brokers: Brokers, replica_of: Make) -> None:
    first = brokers()
    with first.serve() as store, replica_of() as copy:
        store.create_topic(TOPIC)
        filled(store, 0, 3)
        first.ship()
        copy.poll()
        for call in (
            lambda: copy.append(TOPIC, b"x"),
            lambda: copy.create_topic("u"),
            lambda: copy.group(TOPIC, "g"),
            copy.groups,
            copy.flush,
            lambda: copy.path,
            lambda: copy.fetch(TOPIC, 0, 4),
            lambda: copy.diff(TOPIC, 0, 4),
        ):
            with pytest.raises(NotPrimary) as caught:
                call()
            assert caught.value.holder == "grpc://b1"
    named = NotPrimary("by the standing", "grpc://elsewhere")
    with replica_of(refusal=lambda: named) as copy:
        with pytest.raises(NotPrimary) as caught:
            copy.flush()
        assert caught.value.holder == "grpc://elsewhere"
    with pytest.raises(Closed):
        copy.topics()
    with pytest.raises(Closed):
        copy.flush()


# ---------------------------------------------------------------------- a bucket that fails


def test_it_goes_on_with_what_it_has_while_the_bucket_does_not_answer(
    brokers: Brokers, objects: Objects, replica_of: Make, clock: Time
) -> None:
    first, failing = brokers(), FailingObjects(objects)
    with first.serve() as store, replica_of(failing) as copy:
        store.create_topic(TOPIC)
        filled(store, 0, 5)
        first.ship()
        copy.poll()
        assert read(copy) == numbered(0, 5)
        clock.now_ms += 400
        assert copy.replica_lag_ms() == 400
        failing.fail_at, failing.forever = 0, True
        with pytest.raises(ArchiveUnavailable):
            copy.poll()
        clock.now_ms += replica_partition.LIST_MS
        assert copy.replica_lag_ms() == 400 + replica_partition.LIST_MS
        assert "the test says so" in copy.status()["problem"]
        assert read(copy) == numbered(0, 5)
        with pytest.raises(NotPrimary) as caught:
            copy.flush()
        assert caught.value.holder == ""
        failing.fail_at = None
        filled(store, 5, 5)
        first.ship()
        copy.poll()
        assert (copy.replica_lag_ms(), copy.problem) == (0, "")
        assert read(copy) == numbered(0, 10)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_poll_may_fail_at_every_request(
    brokers: Brokers, objects: Objects, replica_of: Make, few: None, when: Any
) -> None:
    first, failing = brokers(), FailingObjects(objects)
    with first.serve() as store, replica_of(failing) as copy:
        store.create_topic(TOPIC, config=SETTINGS)
        failing.when, shown = when, 0
        for start in range(0, 60, 2):
            filled(store, start, 2)
            store.archive()
            collected(first) if start % 20 == 18 else first.ship()
            failing.fail_at = len(failing.calls) + start % 9
            try:
                copy.poll()
            except ArchiveUnavailable:
                failing.fail_at = None
                if copy._is_ready and TOPIC in copy.topics():
                    rows = read(copy)
                    assert rows == numbered(0, len(rows))
                    assert len(rows) >= shown
                copy.poll()
            failing.fail_at = None
            shown = start + 2
            assert read(copy) == numbered(0, shown)


def test_a_damaged_window_stops_it_there_and_is_named(
    brokers: Brokers, objects: Objects, replica_of: Make, clock: Time
) -> None:
    first, spoiled = brokers(), FailingObjects(objects)
    with first.serve() as store, replica_of(spoiled) as copy:
        store.create_topic(TOPIC)
        filled(store, 0, 5)
        first.ship()
        copy.poll()
        filled(store, 5, 5)
        first.ship()
        seq = store.seat.log.next_seq - 1 if store.seat is not None else 0
        spoiled.spoil = lambda key, data: (
            data[:-9] + b"x" + data[-8:] if key == paths.tail(seq) else data
        )
        for _ in range(2):
            clock.now_ms += 100
            with pytest.raises(CorruptData, match="checksum does not fit") as caught:
                copy.poll()
        assert caught.value.path == paths.tail(seq)
        assert copy.replica_lag_ms() == 200
        assert read(copy) == numbered(0, 5)
        spoiled.spoil = None
        copy.poll()
        assert read(copy) == numbered(0, 10)


def test_a_window_that_somebody_deleted_is_missed(
    brokers: Brokers, objects: Objects, replica_of: Make
) -> None:
    first = brokers()
    with first.serve() as store, replica_of() as copy:
        store.create_topic(TOPIC)
        first.ship()
        copy.poll()
        assert store.seat is not None
        filled(store, 0, 2)
        first.ship()
        missing = paths.tail(store.seat.log.next_seq - 1)
        kept = objects.read(missing).data
        filled(store, 2, 2)
        first.ship()
        objects.delete(missing)
        for _ in range(replica.IDLE_POLLS):
            copy.poll()
        for _ in range(2):
            with pytest.raises(CorruptData, match="is missing"):
                copy.poll()
        assert missing in copy.problem
        assert copy.latest_offset(TOPIC, 0) == 0
        objects.create(missing, kept)
        copy.poll()
        assert read(copy) == numbered(0, 4)


def test_an_end_never_goes_back(
    brokers: Brokers, objects: Objects, replica_of: Make, clock: Time
) -> None:
    """Windows that were let go and are not in the archive: nothing is taken back."""
    first = brokers()
    with first.serve() as store, replica_of() as copy, replica_of() as late:
        store.create_topic(TOPIC)
        for start in range(0, 12, 3):
            filled(store, start, 3)
            first.ship()
        copy.poll()
        assert read(copy) == numbered(0, 12)
        assert store.seat is not None
        run(objects, collect(store.seat.log.next_seq - 1, store.seat.log))  # too early
        for _ in range(3):
            clock.now_ms += 10
            with pytest.raises(CorruptData, match="neither in the archive nor"):
                copy.poll()
            assert "neither in" in copy.problem
        assert copy.replica_lag_ms() == 30
        assert copy.latest_offset(TOPIC, 0) == 12
        assert read(copy) == numbered(0, 12)  # held here
        with pytest.raises(CorruptData, match="no window describes"):
            late.poll()


def test_a_list_that_lost_its_end_takes_nothing_back(
    brokers: Brokers, objects: Objects, replica_of: Make, few: None
) -> None:
    first, time = brokers(), Time()
    with first.serve() as store, replica_of() as copy:
        copy._now_ms = time
        store.create_topic(TOPIC, config=SETTINGS)
        for start in range(0, 40, 4):
            filled(store, start, 4)
            collected(first)
        for number in range(8):  # until no window holds records
            store.alter_topic(TOPIC, {"archive.delay.ms": number})
            collected(first)
        copy.poll()
        assert read(copy) == numbered(0, 40)
        assert not copy._following._stretches if copy._following is not None else False
        for info in list(objects.list(paths.ARCHIVE)):
            objects.delete(info.key)
        time.now_ms += replica_partition.LIST_MS
        assert copy.fetch(TOPIC, 0, 0).num_rows  # of what is cached
        assert copy.latest_offset(TOPIC, 0) == 40
        with pytest.raises(CorruptData, match="ends before what was shown"):
            copy.poll()


def test_how_old_it_is_counts_from_the_beginning_of_a_poll(
    brokers: Brokers, objects: Objects, replica_of: Make, clock: Time
) -> None:
    slow = FailingObjects(objects)

    def late(key: str, data: bytes) -> bytes:
        clock.now_ms += 10
        return data

    slow.spoil = late
    with brokers().serve(), replica_of(slow) as copy:
        began_ms = clock.now_ms
        copy.poll()
        assert copy.replica_lag_ms() == clock.now_ms - began_ms > 0


def test_its_thread_follows_and_wakes_whoever_waits(brokers: Brokers, objects: Objects) -> None:
    first = brokers()
    with first.serve() as store, ReplicaStore(objects) as copy:
        store.create_topic(TOPIC)
        first.ship()
        copy.poll()
        copy.start(5)
        filled(store, 0, 1)
        first.ship()
        assert copy.fetch(TOPIC, 0, 0, wait_ms=20_000).num_rows == 1
        assert copy.replica_lag_ms() < 20_000


# ---------------------------------------------------------------------- any order of events


EVENTS = ["append", "ship", "archive", "collect", "take over", "poll", "wait", "fail"]


@settings(max_examples=100, deadline=None)
@given(
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 9)), max_size=40),
    held_bytes=st.sampled_from([0, 2000, 1 << 20]),
)
def test_it_is_a_prefix_of_the_holder_in_any_order_of_events(
    events: list[tuple[str, int]], held_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collecting, "WINDOWS_MAX", 5)
        play = Play(held_bytes)
        for event, number in [*events, ("collect", 1), ("poll", 1)]:
            play.do(event, number)
        assert play.shown == play.count
        play.close()


class Play:
    """A holder, a replica, and what must be true of both."""

    def __init__(self, held_bytes: int) -> None:
        self.objects, self.clock = memory(), Time()
        self.failing = FailingObjects(self.objects)
        self.copy = ReplicaStore(self.failing, self.clock, held_bytes=held_bytes)
        self.names = itertools.count(1)
        self.count = self.shipped = self.shown = 0
        self._serve()
        self.store.create_topic(TOPIC, config=SETTINGS)
        self.broker.ship()

    def _serve(self) -> None:
        self.broker = Broker(self.objects, f"b{next(self.names)}", lambda: 0)
        self.store = self.broker.serve()

    def do(self, event: str, number: int) -> None:
        """Makes one thing happen."""
        match event:
            case "append":
                filled(self.store, self.count, number)
                self.count += number
            case "ship":
                self.broker.ship()
                self.shipped = self.count
            case "archive":
                self.store.archive()
            case "collect":
                collected(self.broker)
                self.shipped = self.count
            case "take over":
                self.store.close()  # which ships what is left
                self.shipped = self.count
                self._serve()
            case "wait":
                self.clock.now_ms += replica_partition.LIST_MS * number // 4
            case "fail":
                self.failing.fail_at = len(self.failing.calls) + number
                with contextlib.suppress(LaminaError):
                    self.copy.poll()
                self.failing.fail_at = None
            case "poll":
                self.copy.poll()
                rows = self.rows()
                assert len(rows) >= self.shipped, "all that was shipped is read"
        if self.copy._is_ready:
            rows = self.rows()
            assert rows == numbered(0, len(rows))
            assert self.shown <= len(rows) <= self.count
            self.shown = len(rows)

    def rows(self) -> list[tuple[int, bytes]]:
        return read(self.copy, 0)

    def close(self) -> None:
        self.store.close()
        self.copy.close()
