"""A wal partition is whole when its constructor returns: new, or with what recovery found of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina.formats.scan import Limit
from lamina.store.store import Store
from lamina.wal.reader import TopicReader
from lamina.wal.topic import Contents, TopicState
from lamina.wal.wal_partition import Home, Opened, WalPartition


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(str(tmp_path / "data")) as opened:
        opened.create_topic("t", format="wal")
        opened.append("t", [b"a", b"b", b"c"])
        opened.delete("t", 0, offsets=[2])
        yield opened


def partition_of(store: Store) -> WalPartition:
    (found,) = store.write_ahead_log()._topics.values()
    return found


def slots_of(kind: type) -> set[str]:
    return {name for each in kind.__mro__ for name in getattr(each, "__slots__", ())}


def values_of(reader: TopicReader) -> list[bytes]:
    return [
        value for batch in reader.scan(1, Limit()) for value in batch.column("value").to_pylist()
    ]


def home_of(known: WalPartition) -> Home:
    return Home(known.sources, known.log, known.changing, known.compact, dict)


def test_a_new_partition_lacks_nothing(store: Store) -> None:
    known = partition_of(store)
    made = WalPartition(known.place, 99, known.settings, home_of(known))
    assert {name for name in slots_of(WalPartition) if not hasattr(made, name)} == set()
    assert made.contents() == Contents()
    assert (made.earliest_offset(), made.end_offset(), made.end_offset("written")) == (1, 1, 1)
    assert (made.routes, made.producers, made.flags_due) == ((), None, False)
    assert values_of(made) == []


def test_what_a_topic_holds_is_a_value_that_another_object_can_begin_with(store: Store) -> None:
    known = partition_of(store)
    opened = Opened(known.contents(), flags_due=True)
    again = WalPartition(known.place, known.topic_id, known.settings, home_of(known), opened)
    assert again.contents() == known.contents()
    assert again.flags_due
    assert (again.written_end, again.durable_end) == (4, 4)
    assert values_of(again) == values_of(known) == [b"a", b"c"]
    reader = TopicReader(
        known.place, known.topic_id, known.settings, known.sources, known.contents()
    )
    assert {name for name in slots_of(TopicReader) if not hasattr(reader, name)} == set()
    assert values_of(reader) == [b"a", b"c"]


def test_every_field_of_the_contents_is_taken(store: Store) -> None:
    known = partition_of(store)
    held = known.contents()
    other = Contents(held.layout, 9, 5, 4, held.deleted, held.ledger, 77)
    made = TopicState(known.place, known.topic_id, known.settings, other)
    assert made.contents() == other
    assert (made.written_end, made.durable_end) == (9, 9)
    assert (made.earliest, made.evict_floor, made.wal_bytes) == (5, 4, 77)


def test_what_was_open_is_whole_after_the_store_was_opened_again(tmp_path: Path) -> None:
    with Store(str(tmp_path / "data")) as first:
        first.create_topic("t", format="wal")
        first.append("t", [b"a", b"b"])
        before = partition_of(first).contents()
    with Store(str(tmp_path / "data")) as again:
        known = partition_of(again)
        assert {name for name in slots_of(WalPartition) if not hasattr(known, name)} == set()
        assert (known.contents().end, before.end) == (3, 3)
        assert values_of(known) == [b"a", b"b"]


def test_where_nothing_expired_nothing_is_dropped_and_no_snapshot_is_due(store: Store) -> None:
    known = partition_of(store)
    assert not known.drop_expired()
    assert known.earliest == 1
