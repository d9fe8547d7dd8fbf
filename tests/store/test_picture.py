"""The layers, blocks and bytes that a store shows of a partition, and the counts of its writers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import lamina
from lamina.api import Block, Layer, Window, bucket_of, least_of, percentile
from lamina.errors import OffsetOutOfRange
from lamina.log.requests import RunningPulse

SMALL = {"segment.bytes": 20_000}
ARCHIVED = {
    "remote.storage.enable": "true",
    "local.retention.bytes": 50_000,
    "archive.delay.ms": 3_600_000,
}


def one_unbroken_run(parts: list[Layer] | list[Block]) -> bool:
    return all(before.next_offset == after.base_offset for before, after in pairwise(parts))


@pytest.mark.parametrize("format_name", ["frame", "keratin"])
def test_layers_follow_records_from_active_to_sealed_to_cold(
    tmp_path: Path, format_name: str
) -> None:
    with lamina.open(str(tmp_path / "data"), archive=str(tmp_path / "archive")) as store:
        store.create_topic("t", format=format_name, config=SMALL | ARCHIVED)
        store.append("t", [b"x" * 100])
        assert [each.state for each in store.layers("t")] == ["active"]
        for _ in range(100):
            store.append("t", [b"x" * 100] * 20)
        sealed = store.layers("t")
        assert [each.state for each in sealed] == ["sealed"] * (len(sealed) - 1) + ["active"]
        assert not any(each.archived for each in sealed)
        store.archive()
        after = store.layers("t")
        states = [each.state for each in after]
        assert set(states) == {"cold", "sealed", "active"}
        assert states == sorted(states, key=["cold", "sealed", "active"].index)
        assert one_unbroken_run(after)
        assert (after[0].base_offset, after[-1].next_offset) == (0, 2001)
        assert {each.compression for each in after if each.state == "cold"} == {"lz4"}
        assert all(each.archived for each in after if each.state != "active")
        for layer in after:
            blocks = store.blocks("t", 0, layer.base_offset)
            assert one_unbroken_run(blocks)
            assert blocks[0].base_offset == layer.base_offset
            assert blocks[-1].next_offset == layer.next_offset


def test_a_trimmed_layer_is_gone_and_says_why(tmp_path: Path) -> None:
    with lamina.open(str(tmp_path)) as store:
        store.create_topic("t", config=SMALL)
        for _ in range(30):
            store.append("t", [b"x" * 100] * 20)
        left = store.trim("t", 0, 300)
        first, *rest = store.layers("t")
        assert (first.state, first.where, first.next_offset) == ("gone", "trim", left)
        assert one_unbroken_run([first, *rest])
        with pytest.raises(OffsetOutOfRange):
            store.blocks("t", 0, first.base_offset)


def test_blocks_are_joined_to_fit_and_a_window_parts_them_again(tmp_path: Path) -> None:
    with lamina.open(str(tmp_path)) as store:
        store.create_topic("t", format="frame")
        for _ in range(100):
            store.append("t", [b"x" * 200] * 50)
        every = store.blocks("t", 0, 0, Window(limit=1 << 20))
        assert len(every) > 50
        assert {each.joined for each in every} == {1}
        joined = store.blocks("t", 0, 0, Window(limit=8))
        assert 4 <= len(joined) <= 8
        assert one_unbroken_run(joined)
        assert sum(each.size_bytes for each in joined) == sum(each.size_bytes for each in every)
        inner = store.blocks("t", 0, 0, Window(joined[2].base_offset, joined[2].next_offset, 1000))
        assert len(inner) == joined[2].joined
        assert inner[0].base_offset == joined[2].base_offset
        assert inner[-1].next_offset == joined[2].next_offset


def test_layers_of_a_wal_topic_end_in_the_write_ahead_log(tmp_path: Path) -> None:
    with lamina.open(str(tmp_path)) as store:
        store.create_topic("t", format="wal")
        store.append("t", [b"x" * 100] * 1000)
        assert [(each.state, each.where) for each in store.layers("t")] == [
            ("active", "the write-ahead log")
        ]
        store.roll("t")
        store.append("t", [b"y"] * 10)
        sealed, active = store.layers("t")
        assert (sealed.state, sealed.next_offset) == ("sealed", 1001)
        assert (active.state, active.base_offset, active.next_offset) == ("active", 1001, 1011)
        blocks = store.blocks("t", 0, 1, Window(limit=2))
        assert [each.joined for each in blocks] == [2, 2]
        assert one_unbroken_run(blocks)
        assert blocks[-1].next_offset == 1001


def test_an_archived_wal_topic_begins_with_its_objects(tmp_path: Path) -> None:
    with lamina.open(str(tmp_path / "data"), archive=str(tmp_path / "archive")) as store:
        store.create_topic("t", format="wal", config=ARCHIVED | {"local.retention.bytes": 1})
        for _ in range(3):
            store.append("t", [b"x" * 100] * 500)
            store.roll("t")
        store.archive()
        found = store.layers("t")
        assert found[0].state == "cold"
        assert (found[0].base_offset, found[0].compression) == (1, "lz4")
        assert one_unbroken_run(found)
        blocks = store.blocks("t", 0, 1)
        assert (blocks[0].base_offset, blocks[-1].next_offset) == (1, found[0].next_offset)


def test_the_bytes_of_a_record_are_those_in_its_file(tmp_path: Path) -> None:
    with lamina.open(str(tmp_path)) as store:
        store.create_topic("t", config=SMALL)
        store.append("t", [b"record %d" % number for number in range(2000)])
        for offset in (0, 777, 1999):
            raw = store.raw_record("t", 0, offset)
            assert raw is not None
            assert b"record %d" % offset in raw.data
            end = raw.position + len(raw.data)
            assert Path(raw.path).read_bytes()[raw.position : end] == raw.data


def test_a_writer_counts_its_groups_and_its_fsyncs(tmp_path: Path) -> None:
    with lamina.open(str(tmp_path)) as store:
        store.create_topic("t")
        store.append("t", [b"x"] * 5)
        store.append("t", [b"x"] * 7, acks=1)
        (facts,) = store.writers()
        assert (facts.name, facts.topic, facts.unsynced_records) == ("t-0", "t", 7)
        pulse = facts.pulse
        assert (pulse.groups, pulse.requests, pulse.records, pulse.syncs) == (2, 2, 12, 1)
        store.append("t", [b"x"])
        since = store.writers()[0].pulse.minus(pulse)
        assert (since.groups, since.records, since.syncs) == (1, 1, 1)
        assert sum(since.sync_microseconds) == 1


def test_buckets_are_a_quarter_of_a_doubling_wide() -> None:
    assert [bucket_of(amount) for amount in range(9)] == list(range(9))
    for amount in (8, 100, 12_345, 1 << 20, (1 << 27) + 1):
        least = least_of(bucket_of(amount))
        assert least <= amount < least * 1.25 + 1
        assert bucket_of(least) == bucket_of(amount)


def test_percentiles_are_of_what_was_counted() -> None:
    pulse = RunningPulse()
    assert percentile(pulse.sync_microseconds, 0.5) is None
    for _ in range(98):
        pulse.note_sync(64_000)
    for _ in range(2):
        pulse.note_sync(1_048_576_000)
    assert percentile(pulse.sync_microseconds, 0.5) == 64
    assert percentile(pulse.sync_microseconds, 0.99) == 1_048_576
    doubled = pulse.plus(pulse)
    assert (doubled.syncs, sum(doubled.sync_microseconds)) == (200, 200)
