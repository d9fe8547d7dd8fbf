"""The one walk over gaps: batches and gaps in order, always further, and other errors raised."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lamina
from lamina.api import Gap
from lamina.errors import UNREADABLE, RecordsMissing, Unavailable
from lamina.log.gap_walk import fetch_over, first_not_removed, records_over, scan_over


def batch(*offsets: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"offset": pa.array(offsets, pa.int64())})


class Log:
    """Records by offset, and gaps; remembers where it was scanned from."""

    def __init__(self, offsets: set[int], gaps: dict[int, tuple[int, str]]) -> None:
        self.offsets = offsets
        self.gaps = gaps
        self.asked: list[int] = []

    def scan(self, start: int) -> Iterator[pa.RecordBatch]:
        self.asked.append(start)
        for offset in range(start, max(self.offsets) + 1):
            if offset in self.gaps:
                end, reason = self.gaps[offset]
                raise RecordsMissing("gone", first=offset, end=end, reason=reason)
            if offset in self.offsets:
                yield batch(offset)


def seen(log: Log, start: int, end: int | None = None) -> list[object]:
    return [
        (each.first, each.end, each.reason)
        if isinstance(each, RecordsMissing)
        else each.column("offset")[0].as_py()
        for each in scan_over(log.scan, start, end)
    ]


def test_batches_and_gaps_come_in_their_order_and_reading_goes_on_behind_each_gap() -> None:
    log = Log({0, 1, 5, 6, 9}, {2: (5, "lost"), 7: (9, "trim")})
    assert seen(log, 0) == [0, 1, (2, 5, "lost"), 5, 6, (7, 9, "trim"), 9]
    assert log.asked == [0, 5, 9]


def test_a_gap_that_ends_where_it_was_asked_for_does_not_hold_the_walk_up() -> None:
    """A damaged list may name a gap that ends too early; rule 1."""
    log = Log({0, 3}, {1: (0, "lost"), 2: (2, "lost")})
    assert seen(log, 0) == [0, (1, 0, "lost"), (2, 2, "lost"), 3]


def test_a_walk_asks_for_nothing_from_its_end_on() -> None:
    log = Log({0, 9}, {1: (7, "lost")})
    assert seen(log, 0, 7) == [0, (1, 7, "lost")]
    assert log.asked == [0]
    assert seen(log, 7, 7) == []


def test_an_empty_batch_is_passed_on_and_moves_nothing() -> None:
    def scan(start: int) -> Iterator[pa.RecordBatch]:
        yield batch()
        if start == 4:
            raise RecordsMissing("gone", first=4, end=5, reason="lost")

    steps = list(scan_over(scan, 4, 6))
    assert [isinstance(each, RecordsMissing) for each in steps] == [False, True, False]


def test_a_caller_may_raise_what_it_is_given_and_loses_nothing_of_it() -> None:
    cause = OSError("sector")

    def scan(start: int) -> Iterator[pa.RecordBatch]:
        raise RecordsMissing("gone", first=start, end=start + 1, reason=UNREADABLE) from cause

    with pytest.raises(RecordsMissing) as raised:
        list(records_over(scan, 3, 5))
    assert (raised.value.first, raised.value.__cause__) == (3, cause)


def test_records_over_leaves_out_what_is_gone_and_raises_at_what_is_only_not_delivered() -> None:
    log = Log({0, 4, 8}, {1: (4, "deleted"), 5: (8, UNREADABLE)})
    found = records_over(log.scan, 0, 9)
    assert [next(found).column("offset")[0].as_py() for _ in range(2)] == [0, 4]
    with pytest.raises(RecordsMissing, match=r"offsets 5 to 8 \(unreadable\)"):
        next(found)


def test_any_other_error_ends_the_walk() -> None:
    def scan(start: int) -> Iterator[pa.RecordBatch]:
        yield batch(start)
        raise Unavailable("the device is away")

    walk = scan_over(scan, 0, 5)
    assert next(walk) == batch(0)
    with pytest.raises(Unavailable):
        next(walk)


def test_one_step_says_where_to_go_on() -> None:
    def fetch(at: int) -> pa.RecordBatch:
        if at == 3:
            raise RecordsMissing("gone", first=3, end=7, reason="trim")
        if at == 8:
            raise RecordsMissing("gone", first=8, end=8, reason="lost")
        return batch(*range(at, 3))

    assert fetch_over(fetch, 1) == (batch(1, 2), 3)
    step, at = fetch_over(fetch, 3)
    assert isinstance(step, RecordsMissing)
    assert at == 7
    assert fetch_over(fetch, 8)[1] == 9
    assert fetch_over(fetch, 7) == (batch(), 7), "an empty batch is no step"


def test_a_loss_in_front_of_everything_is_where_readers_begin() -> None:
    def gaps(*ranges: tuple[int, int, str]) -> list[Gap]:
        return [Gap(first, end, reason, 0) for first, end, reason in ranges]

    assert first_not_removed([], 7) == 7
    assert first_not_removed(gaps((0, 7, "lost")), 7) == 0
    assert first_not_removed(gaps((0, 3, "retention"), (3, 7, "lost")), 7) == 3
    assert first_not_removed(gaps((0, 3, "lost"), (3, 5, "lost"), (5, 9, "lost")), 9) == 0
    assert first_not_removed(gaps((0, 3, "lost"), (3, 7, "trim")), 7) == 7
    assert first_not_removed(gaps((9, 12, "lost")), 7) == 7


def test_no_other_module_steps_over_a_gap_by_itself() -> None:
    source = Path(lamina.__file__).parent
    step = re.compile(r"max\(\w+\.end, [\w.]+ \+ 1\)")
    found = [path.name for path in source.rglob("*.py") if step.search(path.read_text())]
    assert found == ["gap_walk.py"]
