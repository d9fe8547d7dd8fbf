"""The pile of layers: in order, without overlap, from the earliest offset to the written end.

For every format, tier and kind of store; and the questions that are asked of a pile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lamina
from lamina.api import SegmentFacts
from lamina.config import WalSettings
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.ledger import Ledger
from lamina.log.layers import (
    NOT_ASKED,
    Kind,
    Known,
    Layer,
    ObjectSource,
    archived_end,
    archived_layers,
    bytes_from,
    object_layer,
    objects_of,
    only_archived,
    sealed_of,
    spans_of,
)
from lamina.store.read_only import ReadOnlyStore
from tests.support.directories import Clock, opened

FORMATS = ["frame", "keratin", "wal"]
EACH_FORMAT = pytest.mark.parametrize("format_name", FORMATS)
ARCHIVED = {
    "remote.storage.enable": "true",
    "local.retention.bytes": 1,
    "archive.delay.ms": 3_600_000,
}


def pile_of(store: Any, isolation: Any = "written", *, ask: bool = True) -> list[Layer]:
    reader = store._lookup.partition("t", 0)
    if ask and reader.cold is not None:
        reader.cold.load()
    found: list[Layer] = reader.layers(isolation)
    return found


def hold_rules(store: Any) -> list[Layer]:
    """Holds a pile to its rules; returns it."""
    pile = pile_of(store)
    info = store.describe_topic("t").partitions[0]
    assert pile[0].base_offset <= info.earliest_offset
    assert pile[-1].next_offset == info.written_offset
    assert all(before.next_offset == after.base_offset for before, after in pairwise(pile))
    assert all(each.base_offset < each.next_offset for each in pile[:-1]), "only the last is empty"
    kinds = [each.kind for each in pile]
    assert kinds == sorted(kinds, key=list(Kind).index), "oldest first: cold, sealed, active"
    assert pile_of(store, "durable")[-1].next_offset == info.durable_offset
    return pile


def kinds_of(pile: list[Layer]) -> list[Kind]:
    return [each.kind for each in pile]


@contextmanager
def reopened(path: Path, how: str) -> Iterator[Any]:
    """Opens what `filled` left behind, as one kind of store."""
    archive = f"file://{path / 'archive'}"
    if how == "archive":
        with lamina.open(archive, read_only=True) as store:
            yield store
    else:
        read_only = how == "read-only"
        with lamina.open(str(path / "data"), archive=archive, read_only=read_only) as store:
            yield store


def filled(path: Path, format_name: str, *, archive: bool) -> Any:
    """A store whose topic has three sealed segments, archived and handed over or not."""
    store = lamina.open(
        str(path / "data"), archive=f"file://{path / 'archive'}" if archive else None
    )
    store.create_topic("t", format=format_name, config=ARCHIVED if archive else {})
    for _ in range(3):
        store.append("t", [b"x" * 100] * 50)
        store.roll("t")
    if archive:
        store.archive()
    return store


# ---------------------------------------------------------------- format × tier × kind of store


@EACH_FORMAT
@pytest.mark.parametrize("how", ["embedded", "read-only"])
def test_what_is_local_is_sealed_and_active(tmp_path: Path, format_name: str, how: str) -> None:
    with filled(tmp_path, format_name, archive=False) as store:
        store.append("t", [b"y"] * 5)
        before = hold_rules(store)
    tail = Kind.WAL if format_name == "wal" else Kind.ACTIVE
    assert kinds_of(before) == [Kind.SEALED] * 3 + [tail]
    with lamina.open(str(tmp_path / "data"), read_only=how == "read-only") as store:
        pile = hold_rules(store)
        assert sum(each.next_offset - each.base_offset for each in pile) == 155
        assert [each.size_bytes for each in pile[:3]] == [each.size_bytes for each in before[:3]]
        assert not any(each.is_cold or each.archived for each in pile)
        assert all(Path(each.where).exists() for each in pile[:3])


@EACH_FORMAT
@pytest.mark.parametrize("how", ["embedded", "read-only", "archive"])
def test_what_is_archived_is_cold_in_every_kind_of_store(
    tmp_path: Path, format_name: str, how: str
) -> None:
    with filled(tmp_path, format_name, archive=True) as store:
        store.append("t", [b"y"] * 5)
    with reopened(tmp_path, how) as store:
        pile = hold_rules(store)
        drawn = store.segments("t")
    cold = [each for each in pile if each.kind is Kind.OBJECT]
    assert cold, "the oldest segments are in the archive alone"
    assert all(each.is_cold and each.is_sealed and each.archived for each in cold)
    assert all(each.where.startswith("data/t/0/") for each in cold)
    assert all(each.newest_ms is not None and each.size_bytes for each in cold)
    assert [each.cold for each in drawn] == [each.is_cold for each in pile]
    assert all(each.sealed for each in drawn if each.cold)
    assert pile[0].base_offset == (1 if format_name == "wal" else 0)


@EACH_FORMAT
@pytest.mark.parametrize("how", ["embedded", "read-only"])
def test_what_is_archived_is_in_the_pile_before_the_archive_is_asked(
    tmp_path: Path, format_name: str, how: str
) -> None:
    filled(tmp_path, format_name, archive=True).close()
    with reopened(tmp_path, how) as store:
        pile = pile_of(store, ask=False)
        assert (pile[0].kind, pile[0].where, pile[0].size_bytes) == (Kind.OBJECT, NOT_ASKED, 0)
        assert pile[0].base_offset == store.earliest_offset("t")
        assert all(before.next_offset == after.base_offset for before, after in pairwise(pile))
        info = store._lookup.partition("t", 0).info()
        assert info.archived_segments > 0, "counting them asks"


@EACH_FORMAT
@pytest.mark.parametrize("read_only", [False, True])
def test_what_is_archived_is_cold_also_while_the_archive_is_away(
    tmp_path: Path, format_name: str, read_only: bool
) -> None:
    with filled(tmp_path, format_name, archive=True) as store:
        store.append("t", [b"y"] * 5)
    with lamina.open(str(tmp_path / "data"), read_only=True) as store:
        there = store.segments("t")
    (tmp_path / "archive").rename(tmp_path / "away")
    with lamina.open(str(tmp_path / "data"), read_only=read_only) as store:
        away = store.segments("t")
    cold = [each for each in away if each.cold]
    assert cold[0].base_offset == there[0].base_offset
    assert cold[-1].next_offset == max(each.next_offset for each in there if each.cold)
    assert (cold[0].size_bytes, cold[0].newest_timestamp_ms) == (0, None), "nobody could be asked"
    assert there[0].size_bytes > 0, "the directory knows its archive, and it was asked"
    assert [each for each in away if not each.cold] == [each for each in there if not each.cold]


def test_what_was_moved_to_the_cold_directory_is_cold_and_local(tmp_path: Path) -> None:
    clock = Clock()
    wal = WalSettings.parse({"cold.dir": str(tmp_path / "cold"), "hot.segments": 1})
    with opened(tmp_path / "data", clock, wal=wal) as store:
        store.create_topic("t", format="wal")
        for _ in range(2):
            store.append("t", [b"x" * 100] * 50)
            store.roll("t")
        clock.now_ms += 10_000
        store.maintain()
        store.append("t", [b"y"])
        pile = hold_rules(store)
        assert Kind.DIRECTORY in kinds_of(pile)
        moved = [each for each in pile if each.kind is Kind.DIRECTORY]
        assert all(each.where.startswith(str(tmp_path / "cold")) for each in moved)
        assert all(each.is_cold and each.is_sealed for each in moved)
        assert sealed_of(pile) == [each for each in pile if each.is_sealed]
        assert store.segments("t")[0].cold
        assert store.describe_topic("t").partitions[0].archived_segments == 0
    with ReadOnlyStore(str(tmp_path / "data"), wal=wal) as view:
        assert hold_rules(view)[0].kind is Kind.DIRECTORY
        sealed = [each.described() for each in pile if each.is_sealed]
        assert view.segments("t")[: len(sealed)] == sealed


@EACH_FORMAT
def test_an_empty_topic_has_one_empty_layer(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        (only,) = hold_rules(store)
        assert only.base_offset == only.next_offset
        assert not only.is_sealed


@EACH_FORMAT
def test_after_a_trim_the_pile_begins_at_what_is_left(tmp_path: Path, format_name: str) -> None:
    with filled(tmp_path, format_name, archive=False) as store:
        first = pile_of(store)[1].base_offset
        store.trim("t", 0, first)
        pile = hold_rules(store)
        assert pile[0].base_offset == first
        assert store.layers("t")[0].state == "gone"


def test_single_deletes_are_counted_where_they_lie(tmp_path: Path) -> None:
    with filled(tmp_path, "wal", archive=False) as store:
        store.delete("t", 0, offsets=[3, 4, 60])
        assert [(each.removed, each.records) for each in hold_rules(store)[:2]] == [
            (2, 48),
            (1, 49),
        ]


# ---------------------------------------------------------------- what archived objects become


def archived(first: int, end: int, times: tuple[int, int] = (5, 9)) -> ArchivedObject:
    return ArchivedObject(first, end - 1, end - first, *times, 1000, 1, 900, 7)


class Cold:
    """A list of objects, as the archive gives it."""

    def __init__(self, *entries: ArchivedObject, is_loaded: bool = True) -> None:
        self.entries = entries
        self.is_loaded = is_loaded


class Here:
    topic, partition = "t", 0


def cold_layers(cold: Any, earliest: int, local: int, known: Ledger = Ledger()) -> list[Layer]:
    return archived_layers(Here, cold, known, (earliest, local))  # type: ignore[arg-type]


OBJECTS = (archived(0, 10), archived(10, 20), archived(20, 30))


@pytest.mark.parametrize(
    ("earliest", "local", "found"),
    [
        (0, 30, (0, 10, 20)),
        (0, 20, (0, 10)),
        (0, 21, (0, 10, 20)),
        (10, 20, (10,)),
        (10, 21, (10, 20)),
        (9, 20, (0, 10)),
        (10, 10, ()),
        (30, 40, ()),
        (0, 0, ()),
    ],
)
def test_an_object_counts_with_an_offset_from_the_earliest_on_and_below_the_local_ones(
    earliest: int, local: int, found: tuple[int, ...]
) -> None:
    there = only_archived(OBJECTS, earliest, local)
    assert tuple(each.base_offset for each in there) == found


def test_what_an_archive_holds_is_known_once_it_has_answered() -> None:
    silent: Any = Cold(*OBJECTS, is_loaded=False)
    asked: Any = Cold(*OBJECTS)
    nothing: Any = Cold()
    assert spans_of(None) is None
    assert spans_of(silent) is None
    assert spans_of(asked) == [(0, 10), (10, 20), (20, 30)]
    assert spans_of(nothing) == []


def test_an_object_counts_as_far_as_nothing_local_holds_it() -> None:
    (found,) = cold_layers(Cold(archived(0, 10)), 0, 4)
    assert found.described() == SegmentFacts(
        *(0, 4, 400, 9), sealed=True, cold=True, least_timestamp_ms=5
    )
    (found,) = cold_layers(Cold(archived(10, 20)), 0, 25)
    assert found.described() == SegmentFacts(
        *(10, 20, 1000, 9), sealed=True, cold=True, least_timestamp_ms=5
    )


@pytest.mark.parametrize(
    ("times", "oldest", "newest"), [((0, 0), None, None), ((0, 3), 0, 3), ((-5, 0), -5, 0)]
)
def test_an_object_without_times_has_no_age(
    times: tuple[int, int], oldest: int | None, newest: int | None
) -> None:
    (found,) = cold_layers(Cold(archived(0, 10, times)), 0, 10)
    assert (found.oldest_ms, found.newest_ms) == (oldest, newest)


def test_an_archive_that_was_not_asked_is_known_by_the_ledger_alone() -> None:
    known = Ledger().with_archived(3, 12, 0)
    for cold in (None, Cold(is_loaded=False)):
        (found,) = cold_layers(cold, 5, 10, known)
        assert (found.base_offset, found.next_offset, found.size_bytes) == (5, 10, 0)
        assert objects_of([found]) == []
    assert cold_layers(Cold(), 5, 10, known) == [], "it was asked and has nothing"
    assert cold_layers(None, 12, 20, known) == [], "nothing of it is left to be read"


# ---------------------------------------------------------------- questions


def layer(kind: Kind, first: int, end: int, size_bytes: int = 100) -> Layer:
    return Layer(kind, first, end, size_bytes, Known("here", 3, 7))


def test_a_layer_is_cut_with_its_share_of_the_bytes() -> None:
    whole = layer(Kind.SEALED, 10, 20)
    assert whole.cut(0, 99) is whole
    part = whole.cut(12, 17)
    assert (part.base_offset, part.next_offset, part.size_bytes) == (12, 17, 50)
    assert (part.where, part.oldest_ms, part.newest_ms) == ("here", 3, 7)
    assert whole.cut(30, 40).size_bytes == 0


@pytest.mark.parametrize(
    ("kind", "is_sealed", "is_cold"),
    [
        (Kind.OBJECT, True, True),
        (Kind.DIRECTORY, True, True),
        (Kind.SEALED, True, False),
        (Kind.ACTIVE, False, False),
        (Kind.WAL, False, False),
    ],
)
def test_a_kind_says_whether_a_layer_changes_and_where_it_is(
    kind: Kind, is_sealed: bool, is_cold: bool
) -> None:
    found = layer(kind, 0, 1)
    assert (found.is_sealed, found.is_cold) == (is_sealed, is_cold)
    assert (found.described().sealed, found.described().cold) == (is_sealed, is_cold)


def test_bytes_are_counted_from_an_offset_on() -> None:
    pile = [layer(Kind.OBJECT, 0, 10), layer(Kind.SEALED, 10, 20), layer(Kind.ACTIVE, 20, 30)]
    assert bytes_from(pile, 0, lambda *_: 0) == 300
    assert bytes_from(pile, 10, lambda *_: 0) == 200
    assert bytes_from(pile, 15, lambda each, at: 10 * max(0, at - each.base_offset)) == 150
    assert bytes_from(pile, 30, lambda *_: 0) == 0
    assert bytes_from(pile, 0, lambda *_: 1000) == 0, "never less than nothing"


def test_the_parts_of_a_pile() -> None:
    there = object_layer(Here.topic, Here.partition, archived(0, 5))
    unasked = layer(Kind.OBJECT, 5, 10)
    local = [layer(Kind.DIRECTORY, 10, 15), layer(Kind.SEALED, 15, 20)]
    pile = [there, unasked, *local, layer(Kind.ACTIVE, 20, 30), layer(Kind.WAL, 30, 40)]
    assert objects_of(pile) == [there]
    assert isinstance(there.source, ObjectSource)
    assert sealed_of(pile) == local


def test_of_an_archive_that_was_not_asked_yet_nobody_knows_what_it_spans() -> None:
    entry = SimpleNamespace(base_offset=3, next_offset=9)
    cold: Any = SimpleNamespace(is_loaded=False, entries=(entry,))
    assert spans_of(None) is None
    assert spans_of(cold) is None
    cold.is_loaded = True
    assert spans_of(cold) == [(3, 9)]


def test_what_is_archived_ends_behind_the_last_object() -> None:
    objects = (archived(0, 4), archived(4, 9), archived(9, 11))
    ends = [archived_end(SimpleNamespace(entries=objects[:count])) for count in range(4)]
    assert ends == [0, 4, 9, 11]
    assert archived_end(None) == 0
