"""Consumer groups as their users see them, on every format, with a clock that tests move."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lamina.api import Move, Skipped
from lamina.errors import Closed, InvalidRequest, OffsetOutOfRange, UnknownTopic
from lamina.formats.log_format import CODECS
from lamina.groups.group import Group
from lamina.store.store import Store
from tests.support.directories import (
    FORMATS,
    START_MS,
    Clock,
    files_of,
    flip,
    opened,
    positions,
    read_only,
    timed,
)

LEASE_MS = 1000
EVERY = (*FORMATS, "wal")
BOTH = pytest.mark.parametrize("format_name", FORMATS)


class Rig:
    """A store with one topic of numbered values, and a clock; `first` is its first offset."""

    def __init__(self, path: Path, format_name: str = "keratin", partitions: int = 1) -> None:
        self.path, self.clock = path / "data", Clock()
        self.first = 1 if format_name == "wal" else 0
        self.store = opened(self.path, self.clock)
        config = {} if format_name == "wal" else {"segment.bytes": 1024}
        self.store.create_topic("t", format=format_name, partitions=partitions, config=config)

    def fill(self, count: int, partition: int = 0) -> None:
        self.store.append("t", [b"%d" % each for each in range(count)], partition=partition)

    def at(self, *numbers: int) -> list[int]:
        """The offsets of the topic's records with these numbers."""
        return [self.first + each for each in numbers]

    def group(self, name: str = "g", **more: Any) -> Group:
        return self.store.group("t", name, **more)

    def reopen(self) -> None:
        self.store.close()
        self.store = opened(self.path, self.clock)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.store.close()


@pytest.fixture(params=EVERY)
def any_rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = Rig(tmp_path, request.param)
    yield made
    made.store.close()


def offsets(batch: pa.RecordBatch) -> list[int]:
    found: list[int] = batch.column("offset").to_pylist()
    return found


def epochs(batch: pa.RecordBatch) -> list[int]:
    found: list[int] = batch.column("epoch").to_pylist()
    return found


# ---------------------------------------------------------------- queue style


def test_a_poll_hands_out_each_record_once_with_its_lease(any_rig: Rig) -> None:
    rig = any_rig
    rig.fill(10)
    group = rig.group()
    first, second = group.poll(4, LEASE_MS), group.poll(100, LEASE_MS)
    assert (offsets(first), offsets(second)) == (rig.at(*range(4)), rig.at(*range(4, 10)))
    assert first.column("value").to_pylist() == [b"0", b"1", b"2", b"3"]
    assert epochs(first) == [1] * 4
    deadlines = first.column("deadline").cast(pa.int64()).to_pylist()
    assert deadlines == [START_MS + LEASE_MS] * 4
    assert group.poll(1).num_rows == 0
    assert group.poll(1).schema == first.schema


def test_what_is_not_acked_comes_again_with_the_next_epoch(any_rig: Rig) -> None:
    rig = any_rig
    rig.fill(6)
    group = rig.group()
    batch = group.poll(6, LEASE_MS)
    assert group.ack(batch.slice(1, 2)) == 2
    rig.clock.now_ms += LEASE_MS - 1
    assert group.poll(9).num_rows == 0
    rig.clock.now_ms += 1
    again = group.poll(9, LEASE_MS)
    assert (offsets(again), epochs(again)) == (rig.at(0, 3, 4, 5), [2] * 4)


def test_acks_in_any_order_repeated_and_of_what_is_not_held(any_rig: Rig) -> None:
    rig = any_rig
    rig.fill(10)
    group = rig.group()
    assert group.ack(rig.at(7, 5)) == 2
    assert group.ack(np.array(rig.at(5, 6, 5))) == 1
    assert group.ack(rig.first + 5) == 0
    assert group.committed() == rig.first
    assert offsets(group.poll(100, LEASE_MS)) == rig.at(0, 1, 2, 3, 4, 8, 9)
    assert group.ack(range(rig.first, rig.first + 5)) == 5
    assert group.committed() == rig.first + 8
    rig.reopen()
    group = rig.group()
    assert group.committed() == rig.first + 8
    assert group.poll(10).num_rows == 0, "8 and 9 are still held"
    rig.clock.now_ms += LEASE_MS
    assert epochs(group.poll(10)) == [2, 2]


def test_what_is_beyond_the_durable_end_cannot_be_acked(any_rig: Rig) -> None:
    rig, end = any_rig, any_rig.first + 3
    rig.fill(3)
    group = rig.group()
    for wrong in (
        lambda: group.ack(end),
        lambda: group.ack(rig.at(0, 9)),
        lambda: group.commit(end + 1),
    ):
        with pytest.raises(OffsetOutOfRange, match=f"ends at {end}"):
            wrong()
    assert group.committed() == rig.first
    assert group.commit(end) == end


def test_only_durable_records_are_handed_out(any_rig: Rig) -> None:
    rig = any_rig
    if rig.first:  # a wal topic says itself how safe its appends are at least
        rig.store.alter_topic("t", {"durability": "disk"})
    rig.store.append("t", [b"a"], acks="all")
    rig.store.append("t", [b"b"], acks=1)
    group = rig.group()
    assert offsets(group.poll(9)) == rig.at(0)
    rig.store.flush()
    assert offsets(group.poll(9)) == rig.at(1)


def test_released_records_come_at_once_and_count_as_delivered(any_rig: Rig) -> None:
    rig = any_rig
    rig.fill(4)
    group = rig.group()
    batch = group.poll(4, LEASE_MS)
    assert group.release(batch.slice(0, 2)) == 2
    assert group.release(batch.slice(0, 2)) == 0
    again = group.poll(9, LEASE_MS)
    assert (offsets(again), epochs(again)) == (rig.at(0, 1), [2, 2])
    assert group.release(batch) == 2, "of the first batch only what is still held under it"
    assert group.extend(again, 5 * LEASE_MS) == 2
    rig.clock.now_ms += 2 * LEASE_MS
    assert offsets(group.poll(9)) == rig.at(2, 3)
    assert group.extend(batch) == 0, "those leases are over"


def test_a_lease_survives_reopening_and_so_does_the_count(any_rig: Rig) -> None:
    rig = any_rig
    rig.fill(2)
    group = rig.group()
    group.release(group.poll(2))
    group.poll(1, LEASE_MS)
    rig.reopen()
    group = rig.group()
    rest = group.poll(9)
    assert (offsets(rest), epochs(rest)) == (rig.at(1), [2])
    rig.clock.now_ms += LEASE_MS
    again = group.poll(9)
    assert (offsets(again), epochs(again)) == (rig.at(0), [3])


def test_a_clock_set_back_does_not_hold_records_for_ever(rig: Rig) -> None:
    rig.fill(1)
    rig.group().poll(1, LEASE_MS)
    rig.clock.now_ms -= 365 * 86_400_000
    rig.reopen()
    rig.clock.now_ms += 12 * 3_600_000
    assert epochs(rig.group().poll(1)) == [2]


@pytest.mark.parametrize("wrong", [-1, [1, -2], ["a"], 1.5, True, "all"])
def test_what_is_no_offset_is_refused(rig: Rig, wrong: Any) -> None:
    rig.fill(3)
    with pytest.raises(InvalidRequest):
        rig.group().ack(wrong)
    for call in (
        lambda: rig.group().poll(0),
        lambda: rig.group().poll(1, 0),
        lambda: rig.group().ack(0, acks=0),
        lambda: rig.group().ack(range(1 << 21)),
        lambda: rig.group("a/" * 200),
        lambda: rig.group(start="middle"),
    ):
        with pytest.raises(InvalidRequest):
            call()
    with pytest.raises(UnknownTopic):
        rig.group().committed(1)


# ---------------------------------------------------------------- dead letters


@BOTH
def test_after_the_delivery_limit_a_record_is_a_dead_letter(
    tmp_path: Path, format_name: str
) -> None:
    rig = Rig(tmp_path, format_name)
    rig.store.append("t", [(b"k", b"poison")])
    group = rig.group()
    for delivery in range(1, 6):
        assert epochs(group.poll(1, LEASE_MS)) == [delivery]
        rig.clock.now_ms += LEASE_MS
    assert group.poll(1).num_rows == 0
    assert group.committed() == 1
    (letter,) = next(rig.store.scan("t.dlq")).to_pylist()
    assert (letter["key"], letter["value"]) == (b"k", b"poison")
    headers = {each["key"]: each["value"] for each in letter["headers"]}
    assert headers.pop("lamina.dlq.life")
    assert headers == {
        "lamina.dlq.reason": b"delivered 5 times, not acked",
        "lamina.dlq.group": b"g",
        "lamina.dlq.topic": b"t",
        "lamina.dlq.partition": b"0",
        "lamina.dlq.offset": b"0",
        "lamina.dlq.epoch": b"5",
    }
    rig.store.close()


def test_a_rejected_record_keeps_its_headers_before_ours(rig: Rig) -> None:
    own = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    rows = [{"value": b"x", "headers": own}, {"value": None}, {"value": b"y", "headers": own[:1]}]
    rig.store.append("t", rows)
    group = rig.group()
    assert group.reject(group.poll(3), "bad row") == 3
    assert group.reject([0, 1, 2], "again") == 0, "they are acked"
    letters = next(rig.store.scan("t.dlq")).to_pylist()
    assert [each["value"] for each in letters] == [b"x", None, b"y"]
    for letter, before in zip(letters, (own, [], own[:1]), strict=True):
        assert letter["headers"][: len(before)] == before
        ours = {each["key"]: each["value"] for each in letter["headers"][len(before) :]}
        assert (ours["lamina.dlq.reason"], ours["lamina.dlq.epoch"]) == (b"bad row", b"1")
        assert len(ours) == 7
    assert group.committed() == 3


def test_a_dead_letter_topic_without_headers_gets_documents(rig: Rig) -> None:
    rig.store.create_topic("t.dlq", format="frame")
    rig.store.append("t", [(b"k", b"v")])
    group = rig.group()
    group.reject(group.poll(1), "bad")
    (letter,) = next(rig.store.scan("t.dlq")).to_pylist()
    found = json.loads(letter["value"])
    assert letter["key"] == b"k"
    assert (found["reason"], found["offset"], found["epoch"]) == ("bad", 0, 1)
    (record,) = next(rig.store.scan("t")).column("timestamp").cast("int64").to_pylist()
    assert found["timestamp_ms"] == record
    assert (found["key"], found["value"]) == ("aw==", "dg==")


def test_the_delivery_limit_and_the_lease_are_settings_of_the_topic(rig: Rig) -> None:
    limit, lease = "group.share.delivery.count.limit", "group.share.record.lock.duration.ms"
    rig.store.alter_topic("t", {limit: 1, lease: 77})
    rig.fill(1)
    group = rig.group()
    deadline = group.poll(1).column("deadline").cast(pa.int64()).to_pylist()
    assert deadline == [START_MS + 77]
    rig.clock.now_ms += 77
    assert group.poll(1).num_rows == 0
    assert rig.store.latest_offset("t.dlq") == 1


# ---------------------------------------------------------------- many consumers, partitions


def test_a_poll_takes_the_partitions_in_turn(tmp_path: Path) -> None:
    rig = Rig(tmp_path, partitions=3)
    for partition in range(3):
        rig.fill(20, partition)
    group = rig.group()
    taken = [Counter(group.poll(5).column("partition").to_pylist()) for _ in range(3)]
    assert sorted(next(iter(each)) for each in taken) == [0, 1, 2]
    rest = group.poll(100)
    assert Counter(rest.column("partition").to_pylist()) == {0: 15, 1: 15, 2: 15}
    assert group.ack(rest) == 45
    assert [each.records for each in group.lag()] == [5, 5, 5]
    assert set(group.poll(9, partitions=[1]).column("partition").to_pylist()) <= {1}
    with pytest.raises(InvalidRequest, match="partition"):
        group.ack([1])
    rig.store.close()


def test_a_poll_ends_with_the_record_that_reaches_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, partitions=3)
    for partition in range(3):
        rig.fill(20, partition)
    group = rig.group()
    assert group.poll(30, max_bytes=1).num_rows == 1
    assert group.poll(30).num_rows == 30
    part = pa.record_batch({"offset": pa.array([7], pa.int64())})
    assert part.get_total_buffer_size() == 8
    monkeypatch.setattr(group, "_take", lambda *_: (part, False))
    assert group.poll(30, max_bytes=16).num_rows == 2, "the second one reaches it exactly"
    rig.store.close()


def test_consumers_share_a_group_without_overlap(tmp_path: Path) -> None:
    rig = Rig(tmp_path, partitions=2)
    for partition in range(2):
        rig.fill(3000, partition)
    group = rig.group()
    seen: list[tuple[int, int]] = []
    lock = threading.Lock()

    def consume() -> None:
        while (batch := group.poll(37, 600_000)).num_rows:
            rows = zip(batch.column("partition").to_pylist(), offsets(batch), strict=True)
            with lock:
                seen.extend(rows)
            group.ack(batch)

    threads = [threading.Thread(target=consume) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == len(set(seen)) == 6000
    assert group.describe().lag == 0
    assert [group.committed(each) for each in (0, 1)] == [3000, 3000]
    rig.store.close()


def test_a_waiting_poll_is_woken_by_an_append_a_release_and_a_deadline(tmp_path: Path) -> None:
    with Store(str(tmp_path / "data")) as store:
        store.create_topic("t", partitions=2)
        group = store.group("t", "g")
        found: list[pa.RecordBatch] = []

        def wait() -> threading.Thread:
            run = threading.Thread(target=lambda: found.append(group.poll(9, 50, wait_ms=60_000)))
            run.start()
            return run

        waiting = wait()
        store.append("t", [b"x"], partition=1)
        waiting.join(30)
        assert epochs(found[0]) == [1]
        waiting = wait()  # nothing but the deadline brings it back
        waiting.join(30)
        assert epochs(found[1]) == [2]
        held = group.poll(9, 600_000, wait_ms=60_000)
        waiting = wait()
        group.release(held)
        waiting.join(30)
        assert epochs(found[2]) == [4]


# ---------------------------------------------------------------- stream style and what is gone


def test_a_committed_offset_is_kept_and_never_moves_back(any_rig: Rig) -> None:
    rig = any_rig
    rig.fill(10)
    group = rig.group()
    group.poll(10)
    assert group.commit(6) == 6
    assert group.commit(2) == 6
    assert group.committed() == 6
    rig.reopen()
    assert rig.group().committed() == 6


@BOTH
def test_a_trimmed_range_is_skipped_with_its_reason(tmp_path: Path, format_name: str) -> None:
    rig = Rig(tmp_path, format_name)
    for _ in range(4):
        rig.fill(20)
        rig.store.roll("t")
    group = rig.group()
    group.poll(5, LEASE_MS)
    rig.store.trim("t", 0, 40)
    rig.clock.now_ms += LEASE_MS
    assert offsets(group.poll(3)) == [40, 41, 42]
    assert group.skipped == [Skipped(0, 0, 40, "trim")]
    assert group.committed() == 40
    assert group.lag()[0].records == 40
    rig.store.close()


@BOTH
def test_damaged_records_are_skipped_and_the_frontier_moves_over_them(
    tmp_path: Path, format_name: str
) -> None:
    rig = Rig(tmp_path, format_name)
    rig.fill(10)
    rig.store.roll("t")
    rig.fill(3)
    log = files_of(rig.path, "log")[0]
    rig.store.close()
    flip(log, positions(log, CODECS[format_name])[4] + 30)
    rig.store = opened(rig.path, rig.clock)
    group = rig.group()
    batch = group.poll(100)
    assert offsets(batch) == [0, 1, 2, 3, *range(5, 13)]
    assert group.skipped == [Skipped(0, 4, 5, "lost")]
    group.ack(batch)
    group.poll(1)
    assert group.committed() == 13
    rig.store.close()


# ---------------------------------------------------------------- lag and admin


def test_lag_is_told_in_records_bytes_and_seconds(any_rig: Rig) -> None:
    rig = any_rig
    rig.store.append("t", timed([START_MS - 5000] * 100, size=10))
    rig.store.roll("t")
    rig.store.append("t", timed([START_MS - 2000] * 50, size=10))
    group = rig.group()
    (before,) = group.lag()
    assert (before.records, before.seconds, before.end) == (150, 5.0, rig.first + 150)
    group.commit(rig.first + 100)
    (after,) = group.lag()
    assert (after.records, after.seconds) == (50, 2.0)
    assert 0 < after.bytes < before.bytes
    group.ack(rig.at(120, 121))
    group.poll(7, LEASE_MS)
    (last,) = group.lag()
    assert (last.records, last.inflight, last.acked_ahead) == (48, 7, 2)
    group.commit(rig.first + 150)
    (none,) = group.lag()
    assert (none.records, none.bytes, none.seconds) == (0, 0, 0.0)


def test_groups_are_listed_described_and_deleted(any_rig: Rig) -> None:
    rig = any_rig
    rig.store.create_topic("u")
    rig.fill(3)
    group = rig.group("b")
    rig.store.group("u", "a")
    rig.group("a")
    assert rig.store.groups() == [("t", "a"), ("t", "b"), ("u", "a")]
    assert rig.store.groups("u") == [("u", "a")]
    group.ack(group.poll(1))
    assert rig.store.describe_group("t", "b").lag == 2
    with read_only(rig.path) as beside:
        assert beside.groups() == rig.store.groups()
        found = beside.describe_group("t", "b").partitions[0]
        published = rig.first  # 0 so far; the WAL itself says where a wal topic ends
        assert found.committed == rig.first + published
        rig.store.maintain()
        assert beside.describe_group("t", "b").partitions[0].committed == rig.first + 1
        with pytest.raises(InvalidRequest, match="no group"):
            beside.describe_group("t", "z")
        with pytest.raises(InvalidRequest, match="read-only"):
            beside.group("t", "b")
    rig.store.delete_group("t", "b")
    assert rig.store.groups("t") == [("t", "a")]
    with pytest.raises(Closed, match="deleted"):
        group.ack(1)
    with pytest.raises(InvalidRequest, match="no group"):
        rig.store.delete_group("t", "b")
    rig.reopen()
    assert rig.store.groups("t") == [("t", "a")]
    assert rig.group("b").committed() == rig.first


@pytest.mark.parametrize(
    ("where", "after"),
    [
        ({"to": "earliest"}, 20),
        ({"to": "latest"}, 60),
        ({"to": 33}, 33),
        ({"to": 5}, 20),
        ({"to": 99}, 60),
        ({"timestamp_ms": START_MS + 45}, 45),
        ({"timestamp_ms": START_MS + 999}, 60),
        ({"shift": -10}, 20),
        ({"shift": 7}, 37),
    ],
)
def test_a_reset_is_planned_then_done(any_rig: Rig, where: dict[str, Any], after: int) -> None:
    rig, first = any_rig, any_rig.first
    after += first
    if isinstance(where.get("to"), int):
        where = {"to": where["to"] + first}
    for start in (0, 20, 40):
        rig.store.append("t", timed([START_MS + start + each for each in range(20)]))
        rig.store.roll("t")
    group = rig.group()
    group.commit(first + 30)
    group.ack(rig.at(40, 41))
    group.poll(5)
    rig.store.trim("t", 0, first + 20)
    plan = rig.store.reset_group("t", "g", **where)
    assert plan == [Move(0, first + 30, after)]
    assert group.committed() == first + 30, "a plan changes nothing"
    assert rig.store.reset_group("t", "g", execute=True, **where) == plan
    assert group.committed() == after
    rig.reopen()
    group = rig.group()
    assert group.committed() == after
    batch = group.poll(100)
    assert offsets(batch) == list(range(after, first + 60)), "leases and acks ahead are forgotten"
    assert set(epochs(batch)) <= {1}


def test_a_reset_names_one_target(rig: Rig) -> None:
    rig.group()
    for wrong in ({}, {"to": 1, "shift": 2}, {"to": "end"}, {"to": 1, "partitions": [3]}):
        with pytest.raises(InvalidRequest):
            rig.store.reset_group("t", "g", **wrong)


def test_a_new_group_can_start_at_the_end(any_rig: Rig) -> None:
    rig = any_rig
    rig.fill(5)
    assert rig.group("late", start="latest").poll(9).num_rows == 0
    assert rig.group("early").poll(9).num_rows == 5


def test_a_topic_takes_its_groups_with_it(any_rig: Rig) -> None:
    rig = any_rig
    rig.fill(5)
    group = rig.group()
    group.commit(5)
    rig.store.delete_topic("t")
    assert rig.store.groups() == []
    with pytest.raises(Closed):
        group.commit(5)
    rig.store.create_topic("t", format="wal" if rig.first else "keratin")
    rig.fill(3)
    assert rig.group().committed() == rig.first
    assert rig.group().poll(9).num_rows == 3


def test_what_a_deleted_topic_left_behind_is_not_inherited(rig: Rig) -> None:
    rig.fill(5)
    rig.group().commit(5)
    rig.store.flush()
    kept = {each.name: each.read_bytes() for each in (rig.path / "groups").iterdir()}
    rig.store.delete_topic("t")
    for name, data in kept.items():  # as if the process had been killed before it removed them
        (rig.path / "groups" / name).write_bytes(data)
    rig.store.create_topic("t")
    assert rig.store.groups() == []
    assert rig.group().committed() == 0
    rig.store.delete_topic("t")
    for name, data in kept.items():
        (rig.path / "groups" / name).write_bytes(data)
    rig.reopen()
    assert list((rig.path / "groups").iterdir()) == []


def test_retention_waits_for_named_groups_within_a_bound(any_rig: Rig) -> None:
    rig, first, day = any_rig, any_rig.first, 86_400_000
    rig.store.alter_topic(
        "t",
        {"retention.ms": 1000, "retention.wait.groups": "g,h", "retention.wait.ms": day},
    )
    rig.store.append("t", timed([START_MS] * 10))
    rig.store.roll("t")
    rig.store.append("t", timed([START_MS] * 10))
    rig.store.roll("t")
    rig.store.append("t", timed([START_MS + 2 * day]))
    rig.store.roll("t")
    rig.clock.now_ms += 5000
    group, other = rig.group("g"), rig.group("h")
    assert rig.store.apply_retention("t") == 0
    assert "waits for group g" in rig.store.explain_retention("t")[0].why
    group.commit(first + 21)
    assert "waits for group h" in rig.store.explain_retention("t")[0].why
    other.commit(first + 12)
    assert rig.store.apply_retention("t") == 1
    assert rig.store.earliest_offset("t") == first + 10
    rig.clock.now_ms += day
    assert rig.store.apply_retention("t") == 1, "the bound is over"
    assert offsets(other.poll(9)) == rig.at(20)
    assert other.skipped == [Skipped(0, first + 12, first + 20, "retention")]
