"""Reading step by step: runs of offsets, a search by time, a diff, and which segment is next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lamina.errors import InvalidRequest, RecordsMissing
from lamina.formats.scan import Limit
from lamina.log.batch_offsets import after, first_of, runs
from lamina.log.segment import Bound
from lamina.log.segment_pile import Layout
from lamina.log.time_search import FIRST_LOOK, FURTHER, first_at_or_after
from lamina.records import OUTPUT_SCHEMAS
from lamina.store.reads import diff

TIME = pa.timestamp("ms", "UTC")


def batch(*offsets: int, format_name: str = "keratin", node: bytes | None = None) -> pa.RecordBatch:
    """Records with these offsets, each as old as its offset says."""
    rows = [
        {"offset": each, "timestamp": each, "key": None, "value": b"v%d" % each, "headers": None}
        | {"tag": None, "node": node}
        for each in offsets
    ]
    schema = OUTPUT_SCHEMAS[format_name]
    return pa.RecordBatch.from_pylist(
        [{name: row[name] for name in schema.names} for row in rows], schema=schema
    )


def offsets_of(found: pa.RecordBatch) -> list[int]:
    return found.column("offset").to_pylist()


# -------------------------------------------------------------------- batches


@pytest.mark.parametrize(
    ("offsets", "parts"),
    [
        ([0], [[0]]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([5, 7, 8], [[5], [7, 8]]),
        ([0, 1, 4], [[0, 1], [4]]),
        ([3, 5, 9], [[3], [5], [9]]),
    ],
)
def test_a_batch_is_split_where_its_offsets_have_a_hole(
    offsets: list[int], parts: list[list[int]]
) -> None:
    whole = batch(*offsets)
    assert [offsets_of(each) for each in runs(whole)] == parts
    assert (first_of(whole), after(whole)) == (offsets[0], offsets[-1] + 1)


# -------------------------------------------------------------------- a reader of given steps


@dataclass
class Reader:
    """Gives batches or gaps for what is read from an offset on."""

    steps: dict[int, list[pa.RecordBatch] | RecordsMissing]
    end: int
    format_name: str = "keratin"
    asked: list[tuple[int, Limit, int | None]] = field(default_factory=list)

    def end_offset(self, isolation: str) -> int:
        assert isolation == "durable"
        return self.end

    def scan(self, start: int, limit: Limit, *, end: int | None = None) -> Iterator[pa.RecordBatch]:
        self.asked.append((start, limit, end))
        found = self.steps[start]
        if isinstance(found, RecordsMissing):
            raise found
        return iter(found)


def missing(first: int, end: int, reason: str = "lost") -> RecordsMissing:
    return RecordsMissing("gone", first=first, end=end, reason=reason)


def seek(steps: Any, time: int, start: int = 0, end: int = 100) -> tuple[int | None, Reader]:
    reader = Reader(steps, end)
    return first_at_or_after(reader, time, start, end), reader  # type: ignore[arg-type]


def test_the_first_record_that_is_not_older_is_found() -> None:
    found, reader = seek({3: [batch(3, 4, 7)]}, 4, start=3)
    assert found == 4
    assert reader.asked == [(3, FIRST_LOOK, 100)]
    assert seek({3: [batch(3, 4, 7)]}, 5, start=3)[0] == 7
    assert seek({3: [batch(3, 4, 7)]}, 0, start=3)[0] == 3


def test_after_a_first_look_more_is_read_at_a_time() -> None:
    steps = {0: [batch(0, 1), batch(2)], 2: [batch(2, 3), batch(9, 10)]}
    found, reader = seek(steps, 9)
    assert found == 9
    assert [(start, limit) for start, limit, _ in reader.asked] == [(0, FIRST_LOOK), (2, FURTHER)]


def test_a_search_goes_on_behind_gaps() -> None:
    steps = {0: missing(0, 5), 5: missing(5, 8), 8: [batch(8, 9)]}
    found, reader = seek(steps, 9)
    assert found == 9
    assert [(start, limit) for start, limit, _ in reader.asked] == [
        (0, FIRST_LOOK),
        (5, FURTHER),
        (8, FURTHER),
    ]
    assert seek(steps, 10)[0] is None, "the reader has nothing more"


def test_nothing_is_found_in_nothing() -> None:
    assert seek({0: []}, 1)[0] is None
    found, reader = seek({}, 1, start=7, end=7)
    assert (found, reader.asked) == (None, [])
    assert seek({0: missing(0, 9)}, 1, end=9)[0] is None
    assert seek({0: [batch().slice(0, 0)], 1: []}, 5, end=1)[0] is None


# -------------------------------------------------------------------- diff


def read(steps: Any, limit: Limit = Limit(), **more: Any) -> Any:
    exclude = more.pop("exclude", None)
    start = more.pop("start", 0)
    return diff(Reader(steps, more.pop("end", 10), **more), start, limit, exclude)  # type: ignore[arg-type]


def test_a_diff_goes_on_over_gaps_and_names_them() -> None:
    steps = {0: [batch(0, 1)], 2: missing(2, 5), 5: [batch(5, 6)], 7: missing(7, 10, "trim")}
    found = read(steps)
    assert offsets_of(found.records) == [0, 1, 5, 6]
    assert [(gap.first, gap.end, gap.reason) for gap in found.gaps] == [
        (2, 5, "lost"),
        (7, 10, "trim"),
    ]
    assert (found.next_offset, found.caught_up) == (10, True)


def test_a_diff_ends_at_its_number_of_records() -> None:
    steps = {0: [batch(0, 1)], 2: [batch(2)]}
    found = read(steps, Limit(max_records=3))
    assert (offsets_of(found.records), found.next_offset) == ([0, 1, 2], 3)
    assert not found.caught_up


def test_a_diff_ends_at_its_number_of_bytes() -> None:
    size = batch(0, 1).nbytes
    steps = {0: [batch(0, 1)], 2: [batch(2)], 3: [batch(3)]}
    assert read(steps, Limit(max_bytes=size)).next_offset == 2
    assert read(steps, Limit(max_bytes=size + 1)).next_offset == 3


def test_each_step_asks_for_what_is_left() -> None:
    reader = Reader({0: [batch(0, 1)], 2: [batch(2)]}, 10)
    size = batch(0, 1).nbytes
    diff(reader, 0, Limit(max_records=3, max_bytes=5000), None)  # type: ignore[arg-type]
    assert reader.asked == [
        (0, Limit(max_records=3, max_bytes=5000), 10),
        (2, Limit(max_records=1, max_bytes=5000 - size), 10),
    ]


def test_a_reader_that_has_nothing_more_has_caught_up() -> None:
    found = read({0: []})
    assert (found.records.num_rows, found.next_offset, found.caught_up) == (0, 10, True)
    assert found.records.schema == OUTPUT_SCHEMAS["keratin"]


@pytest.mark.parametrize("start", [10, 12])
def test_a_diff_from_the_end_reads_nothing_and_goes_not_back(start: int) -> None:
    found = read({}, start=start)
    assert (found.records.num_rows, found.next_offset, found.caught_up) == (0, start, True)


def test_records_of_a_node_are_left_out_but_not_those_without_one() -> None:
    steps = {
        0: [batch(0, 1, format_name="wal", node=b"me")],
        2: [batch(2, format_name="wal", node=b"you")],
        3: [batch(3, format_name="wal")],
    }
    found = read(steps, format_name="wal", exclude=b"me", end=4)
    assert offsets_of(found.records) == [2, 3]
    assert offsets_of(read(steps, format_name="wal", end=4).records) == [0, 1, 2, 3]
    with pytest.raises(InvalidRequest, match="keeps no node"):
        read({}, exclude=b"me")


# -------------------------------------------------------------------- which segment


def layout(*spans: tuple[int, int], active: int = 30, durable: int = 33, written: int = 35) -> Any:
    sealed = tuple(
        SimpleNamespace(base_offset=first, next_offset=end, end=Bound(end, 100 * end))
        for first, end in spans
    )
    tail = SimpleNamespace(
        base_offset=active,
        durable=Bound(durable, 100 * durable),
        written=Bound(written, 100 * written),
        segment="active",
    )
    return Layout(sealed, tail)  # type: ignore[arg-type]


def test_the_layer_that_holds_an_offset_is_found_or_the_next() -> None:
    pile = layout((0, 10), (10, 18), (20, 30))
    bases = [pile.layer_for(offset, "durable").base_offset for offset in (0, 9, 10, 17)]
    assert bases == [0, 0, 10, 10]
    assert [pile.layer_for(offset, "durable").base_offset for offset in (18, 29)] == [20, 20]
    assert pile.layer_for(20, "durable").bound == (30, 3000)
    assert pile.layer_for(20, "durable").source is pile.sealed[2]
    assert layout((5, 10)).layer_for(0, "durable").base_offset == 5


def test_behind_the_sealed_ones_the_active_one_answers_up_to_its_bound() -> None:
    pile = layout((0, 10))
    assert pile.layer_for(30, "durable").source == "active"
    assert pile.layer_for(32, "durable").next_offset == 33
    assert pile.layer_for(33, "durable") is None
    assert pile.layer_for(34, "written").next_offset == 35
    assert pile.layer_for(35, "written") is None
    assert layout().layer_for(0, "durable").source == "active"


def test_every_layer_of_a_layout_is_what_is_found_for_its_offsets() -> None:
    pile = layout((0, 10), (10, 18), (20, 30))
    every = pile.layers("durable", 0)
    assert [(each.base_offset, each.next_offset) for each in every] == [
        *((0, 10), (10, 18), (20, 30), (30, 33))
    ]
    assert every == [pile.layer_for(each.base_offset, "durable") for each in every]
    assert [each.archived for each in pile.layers("durable", 18)] == [True, True, False, False]


def test_the_earliest_offset_is_that_of_the_oldest_segment() -> None:
    assert layout((5, 10), (10, 20)).earliest_offset == 5
    assert layout().earliest_offset == 30
