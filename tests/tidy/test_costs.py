"""What an append and a read may cost, in calls: a gate that no noise of a machine can move.

A call of a Python or C function is counted where a program's own thread runs it. Two things are
held: how many calls a small operation makes at most, and that their number does not grow with the
records of a batch: no record is a Python object on the hot path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pytest

from lamina.engine.store import Store

FORMATS = ("frame", "keratin", "wal")
LONE_APPEND = {"frame": 110, "keratin": 110, "wal": 150}
BATCH_APPEND = {"frame": 152, "keratin": 142, "wal": 195}
READ_ONE = {"frame": 142, "keratin": 146, "wal": 136}
SLACK = 50
"""What may differ between two calls of the same thing: an index entry, a segment's first use."""


def calls(work: Callable[[], object]) -> int:
    """How many functions a piece of work calls in this thread; the least of several times."""
    counts = []
    for _ in range(5):
        count = 0

        def note(frame: FrameType, event: str, argument: object) -> None:
            nonlocal count
            if event in ("call", "c_call"):
                count += 1

        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(None)
        counts.append(count)
    return min(counts)


def batch_of(records: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"v" * 20] * records, pa.binary())})


@pytest.fixture(scope="module", params=FORMATS)
def logged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    path: Path = tmp_path_factory.mktemp("costs") / "data"
    with Store(str(path)) as store:
        store.create_topic("t", format=request.param)
        for _ in range(3):  # kernels are compiled, buffers have grown
            store.append("t", batch_of(20_000), partition=0)
            store.append("t", b"one", partition=0)
        yield request.param, store


def test_a_lone_append_stays_cheap(logged: tuple[str, Store]) -> None:
    name, store = logged
    assert calls(lambda: store.append("t", b"one", partition=0)) <= LONE_APPEND[name]


def test_an_append_costs_the_same_calls_however_many_records_it_has(
    logged: tuple[str, Store],
) -> None:
    name, store = logged
    small, large = batch_of(100), batch_of(20_000)
    few = calls(lambda: store.append("t", small, partition=0))
    many = calls(lambda: store.append("t", large, partition=0))
    assert few <= BATCH_APPEND[name]
    assert many <= few + SLACK


def test_reading_costs_calls_for_batches_and_not_for_records(logged: tuple[str, Store]) -> None:
    name, store = logged
    start = store.earliest_offset("t")

    def read(records: int) -> int:
        end = start + records
        return sum(
            batch.num_rows for batch in store.scan("t", start=start, end=end, max_records=records)
        )

    assert read(10_000) == 10_000
    few, many = calls(lambda: read(10)), calls(lambda: read(10_000))
    assert few <= READ_ONE[name]
    assert many <= few + SLACK
