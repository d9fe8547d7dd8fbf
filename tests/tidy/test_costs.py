"""What an append and a read may cost, in bytecodes: a gate that no noise of a machine can move.

The steps of Python's own machine are counted where a program's thread runs them. Two things are
held: how many of them a small operation takes at most, and that their number does not grow with
the records of a batch: no record is a Python object on the hot path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pytest

from lamina.store.store import Store
from tests.support.writer_rig import Rig, close, request_of

FORMATS = ("frame", "keratin", "wal")
LONE_APPEND = {"frame": 1440, "keratin": 1435, "wal": 1960}
BATCH_APPEND = {"frame": 2075, "keratin": 1950, "wal": 2490}
READ_ONE = {"frame": 1910, "keratin": 1985, "wal": 1850}
SOLE_PARTITION = 20
"""What it may cost to see that a topic has one partition alone."""
GROUPED = 55 + 32
"""What one request more may add to its leader's steps, and what it takes to make it."""
SLACK = 850
"""What a larger batch may add: entries of an index, and the segment or buffer it makes full."""


def steps(work: Callable[[], object], of: str = "") -> int:
    """How many bytecodes a piece of work runs in this thread; the least of several times.

    Only those of files whose path has `of` in it are counted.
    """
    work()  # compiles whatever it needs
    counts = []
    for _ in range(3):
        count = 0

        def trace(frame: FrameType, event: str, argument: object) -> object:
            nonlocal count
            frame.f_trace_opcodes = True
            count += event == "opcode" and of in frame.f_code.co_filename
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(before)
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


needs_311 = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the limits are of 3.11")


@needs_311
def test_small_operations_stay_cheap(logged: tuple[str, Store]) -> None:
    name, store = logged
    batch = batch_of(100)
    assert steps(lambda: store.append("t", b"one", partition=0)) <= LONE_APPEND[name]
    assert steps(lambda: store.append("t", b"one")) <= LONE_APPEND[name] + SOLE_PARTITION
    assert steps(lambda: store.append("t", batch, partition=0)) <= BATCH_APPEND[name]
    assert steps(lambda: read(store, 10)) <= READ_ONE[name]


def test_an_append_takes_the_same_steps_however_many_records_it_has(
    logged: tuple[str, Store],
) -> None:
    _, store = logged
    small, large = batch_of(100), batch_of(20_000)
    few = steps(lambda: store.append("t", small, partition=0))
    assert steps(lambda: store.append("t", large, partition=0)) <= few + SLACK


def test_reading_takes_steps_for_batches_and_not_for_records(logged: tuple[str, Store]) -> None:
    _, store = logged
    assert read(store, 10_000) == 10_000
    assert steps(lambda: read(store, 10_000)) <= steps(lambda: read(store, 10)) + SLACK


@needs_311
def test_a_request_more_in_a_group_takes_few_steps_of_its_leader() -> None:
    """Taken, counted and answered: what is done for each of them runs in C where it can."""

    def led(requests: int) -> int:
        made = Rig(linger_ms=0)
        queue = made.writer._queue

        def commit() -> None:
            waiting = [request_of(b"x") for _ in range(requests)]
            queue.extend(waiting)
            queue.size_bytes = requests
            made.writer._commit(made.writer._next_group(), None, hands_on=False)
            assert all(each.answered for each in waiting)
            assert (len(queue), queue.size_bytes) == (0, 0)

        counted = steps(commit, of="/lamina/log/")
        close(made)
        return counted

    few, many = led(10), led(110)
    assert (many - few) / 100 <= GROUPED


def read(store: Store, records: int) -> int:
    start = store.earliest_offset("t")
    found = store.scan("t", start=start, end=start + records, max_records=records)
    return sum(batch.num_rows for batch in found)
