"""Groups on wal topics: what deletes, eviction, tags and nodes mean for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lamina.api import Skipped
from lamina.groups.group import Group
from lamina.store.store import Store
from tests.support.directories import Clock, timed
from tests.wal.stores import SMALL, fill

LEASE_MS = 1000
DAY_MS = 86_400_000


class Rig:
    """A store with one wal topic: offsets 1 to 30, with the tags 0 to 2 in turn."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path / "data", Clock()
        self.store = self._opened()
        self.store.create_topic("t", format="wal")
        fill(self.store, 1, 31)

    def _opened(self) -> Store:
        return Store(str(self.path), wal=SMALL, tick_ms=1 << 30, now_ms=self.clock)

    def reopen(self) -> None:
        self.store.close()
        self.store = self._opened()

    def group(self) -> Group:
        return self.store.group("t", "g")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.store.close()


def offsets(batch: pa.RecordBatch) -> list[int]:
    found: list[int] = batch.column("offset").to_pylist()
    return found


def everything(group: Group, count: int = 7) -> list[int]:
    found: list[int] = []
    while (batch := group.poll(count)).num_rows:
        found += offsets(batch)
    return found


DELETIONS = [
    ({"before": 12}, set(range(1, 12))),
    ({"tag": b"tag 1"}, {each for each in range(1, 31) if each % 3 == 1}),
    ({"tag_prefix": b"tag"}, set(range(1, 31))),
    ({"offsets": [1, 2, 9, 10, 11, 20, 30]}, {1, 2, 9, 10, 11, 20, 30}),
]


@pytest.mark.parametrize("in_segments", [False, True])
@pytest.mark.parametrize(("deletion", "gone"), DELETIONS)
def test_deleted_records_are_never_delivered_and_the_frontier_goes_over_them(
    rig: Rig, deletion: dict[str, Any], gone: set[int], in_segments: bool
) -> None:
    if in_segments:
        rig.store.roll("t")
    rig.store.delete("t", **deletion)
    group = rig.group()
    left = sorted(set(range(1, 31)) - gone)
    assert group.lag()[0].records == len(left)
    assert everything(group) == left
    assert all(each.reason == "deleted" for each in group.skipped)
    told = [offset for each in group.skipped for offset in range(each.first, each.end)]
    earliest = rig.store.earliest_offset("t")
    assert sorted(told) == [each for each in sorted(gone) if each >= min(earliest, 31)]
    group.ack(left)
    group.poll(1)
    assert group.committed() == 31
    assert group.lag()[0].records == 0
    rig.reopen()
    assert rig.group().committed() == 31


def test_records_deleted_before_the_group_got_there_are_told_with_their_reason(rig: Rig) -> None:
    group = rig.group()
    assert group.committed() == 1, "the first offset of a wal topic"
    group.ack(group.poll(2))
    rig.store.delete("t", before=12)
    assert offsets(group.poll(2)) == [12, 13]
    assert group.skipped == [Skipped(0, 3, 12, "trim")]
    assert group.committed() == 12


@pytest.mark.parametrize("reopened", [False, True])
def test_a_held_record_that_is_deleted_does_not_come_again(rig: Rig, reopened: bool) -> None:
    group = rig.group()
    batch = group.poll(6, LEASE_MS)
    rig.store.delete("t", offsets=[2, 5])
    group.ack(batch.slice(0, 1))
    assert group.committed() == 2
    if reopened:
        rig.reopen()
        group = rig.group()
    rig.clock.now_ms += LEASE_MS
    again = group.poll(6)
    assert offsets(again)[:3] == [3, 4, 6]
    group.ack([3, 4, 6])
    group.poll(1)
    assert group.committed() == 7


def test_what_is_acked_and_deleted_counts_once_in_the_lag(rig: Rig) -> None:
    group = rig.group()
    group.ack([5, 6, 7])
    rig.store.delete("t", offsets=[6, 7, 8])
    (lag,) = group.lag()
    assert (lag.records, lag.acked_ahead) == (30 - 4, 3)


def test_a_group_over_all_layers_sees_each_record_once(rig: Rig) -> None:
    group = rig.group()
    first = offsets(group.poll(5))
    rig.store.roll("t")
    fill(rig.store, 31, 46)
    rig.store.delete("t", offsets=[33])
    assert first + everything(group) == [each for each in range(1, 46) if each != 33]


# ---------------------------------------------------------------- eviction


def aged(rig: Rig, config: dict[str, Any]) -> Group:
    """Two sealed segments of the past, one that stays young, and a group."""
    rig.store.create_topic("u", format="wal", config=config)
    for _ in range(2):
        rig.store.append("u", timed([rig.clock.now_ms] * 10))
        rig.store.roll("u")
    rig.store.append("u", timed([rig.clock.now_ms + 2 * DAY_MS] * 10))
    rig.store.roll("u")
    return rig.store.group("u", "g")


def test_an_evicted_range_is_skipped_with_its_reason(rig: Rig) -> None:
    group = aged(rig, {"retention.ms": 1000})
    group.ack(group.poll(4))
    rig.clock.now_ms += 5000
    assert rig.store.apply_retention("u") == 2
    assert offsets(group.poll(3)) == [21, 22, 23]
    assert group.skipped == [Skipped(0, 5, 21, "retention")]
    assert (group.committed(), group.lag()[0].records) == (21, 10)


def test_a_cap_of_records_waits_for_the_group(rig: Rig) -> None:
    group = aged(rig, {"retention.records": 10, "retention.wait.groups": "g"})
    assert rig.store.apply_retention("u") == 0
    assert rig.store.earliest_offset("u") == 1
    group.commit(11)
    assert rig.store.apply_retention("u") == 1
    assert rig.store.earliest_offset("u") == 11
    group.commit(20)
    assert rig.store.apply_retention("u") == 0, "20 itself is not acked"
    group.commit(21)
    assert rig.store.apply_retention("u") == 1


def test_a_cap_of_bytes_waits_for_the_group_within_its_bound(rig: Rig) -> None:
    waits = {"retention.wait.groups": "g", "retention.wait.ms": 4000}
    group = aged(rig, {"retention.bytes": 1, **waits})
    assert rig.store.apply_retention("u") == 0
    assert "waits for group g" in rig.store.explain_retention("u")[0].why
    rig.clock.now_ms += 5000
    assert rig.store.apply_retention("u") == 2, "the bound is over"
    assert everything(group) == list(range(21, 31))


def test_the_age_boundary_inside_a_segment_is_not_applied_while_groups_are_waited_for(
    rig: Rig,
) -> None:
    now_ms = rig.clock.now_ms
    names = {"u": {}, "w": {"retention.wait.groups": "g"}}
    for name, more in names.items():
        rig.store.create_topic(name, format="wal", config={"retention.ms": 1000, **more})
        rig.store.append(name, timed([now_ms] * 5 + [now_ms + DAY_MS] * 5))
        rig.store.roll(name)
        rig.store.append(name, timed([now_ms + DAY_MS]))
        rig.store.roll(name)
    group = rig.store.group("w", "g")
    rig.clock.now_ms += 5000
    for name in names:
        rig.store.apply_retention(name)
    assert rig.store.earliest_offset("u") == 6
    assert rig.store.earliest_offset("w") == 1
    assert everything(group) == list(range(1, 12))


# ---------------------------------------------------------------- dead letters


ROWS = [
    {"value": b"a", "tag": b"red", "node": b"n1"},
    {"value": b"b", "tag": None, "node": None},
]


def test_a_dead_letter_keeps_tag_and_node_as_headers(rig: Rig) -> None:
    rig.store.create_topic("u", format="wal")
    rig.store.append("u", ROWS)
    group = rig.store.group("u", "g")
    assert group.reject(group.poll(2), "bad") == 2
    letters = next(rig.store.scan("u.dlq")).to_pylist()
    assert [(each["key"], each["value"]) for each in letters] == [(None, b"a"), (None, b"b")]
    headers = [{each["key"]: each["value"] for each in one["headers"]} for one in letters]
    assert len({each.pop("lamina.dlq.life") for each in headers}) == 1
    shared = {
        "lamina.dlq.reason": b"bad",
        "lamina.dlq.group": b"g",
        "lamina.dlq.topic": b"u",
        "lamina.dlq.partition": b"0",
        "lamina.dlq.epoch": b"1",
    }
    first = {"lamina.dlq.offset": b"1", "lamina.dlq.tag": b"red", "lamina.dlq.node": b"n1"}
    second = {"lamina.dlq.offset": b"2", "lamina.dlq.tag": None, "lamina.dlq.node": None}
    assert headers == [shared | first, shared | second]
    assert group.committed() == 3


def test_a_dead_letter_topic_of_format_wal_gets_documents(rig: Rig) -> None:
    rig.store.create_topic("u", format="wal")
    rig.store.create_topic("u.dlq", format="wal")
    rig.store.append("u", ROWS)
    group = rig.store.group("u", "g")
    group.reject(group.poll(2), "bad")
    letters = [json.loads(each["value"]) for each in next(rig.store.scan("u.dlq")).to_pylist()]
    assert [(each["offset"], each["reason"]) for each in letters] == [(1, "bad"), (2, "bad")]
    assert (letters[0]["value"], letters[0]["tag"], letters[0]["node"]) == ("YQ==", "cmVk", "bjE=")
    assert "tag" not in letters[1]


def test_what_was_delivered_too_often_and_is_deleted_is_no_dead_letter(rig: Rig) -> None:
    rig.store.alter_topic("t", {"group.share.delivery.count.limit": 1})
    group = rig.group()
    group.poll(3, LEASE_MS)
    rig.store.delete("t", offsets=[2])
    rig.clock.now_ms += LEASE_MS
    assert offsets(group.poll(3)) == [4, 5, 6]
    values = next(rig.store.scan("t.dlq")).column("value").to_pylist()
    assert values == [b"value 1", b"value 3"]
    assert group.committed() == 4
