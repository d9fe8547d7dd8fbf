"""Interpreted kernels give the same bytes, positions, columns and verdicts as compiled ones."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import InvalidRequest
from lamina.formats import sparse_choice
from lamina.formats.frame import log as frame
from lamina.formats.keratin import delta
from lamina.formats.keratin import log as keratin
from lamina.formats.kernels import arrow, crc, interpret, xxh3
from lamina.formats.kernels.binary import wrapping_add, wrapping_subtract
from lamina.formats.kernels.interpret import interpreted
from lamina.formats.scan import Limit
from lamina.formats.sparse_choice import Stride
from lamina.formats.wal import headers, index, located, places
from lamina.formats.wal import log as wal
from tests.support.strategies import batch_of, rows


def batches(name: str) -> st.SearchStrategy[Any]:
    return rows(name).map(lambda drawn: batch_of(drawn, name))


KERNELS = (
    *((keratin, name) for name in ("_encode", "_scan", "_measure", "_gather", "_gather_headers")),
    *((frame, name) for name in ("_encode", "_scan", "_gather")),
    *((wal, name) for name in ("_encode", "_scan", "_gather")),
    *((delta, name) for name in ("_encode", "_scan", "_gather")),
    *((located, name) for name in ("_sound_at", "_gather", "_time_of_segment_frame")),
    *((places, name) for name in ("_take", "_count_rows", "_scatter")),
    *((headers, "_gather_headers"), (index, "_build")),
    *((crc, "_crc32c_of"), (xxh3, "_xxh3_of"), (sparse_choice, "_select"), (arrow, "_release")),
)


@contextlib.contextmanager
def all_interpreted() -> Iterator[None]:
    """Within this, the kernels that answer at once are those of the interpreter."""
    kept = [getattr(module, name) for module, name in KERNELS]
    try:
        for (module, name), kernel in zip(KERNELS, kept, strict=True):
            setattr(module, name, interpreted(kernel))
        yield
    finally:
        for (module, name), kernel in zip(KERNELS, kept, strict=True):
            setattr(module, name, kernel)


def test_the_kernels_tried_here_are_those_that_answer_at_once() -> None:
    found = {
        (module.__name__, name)
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType) and module.__name__.startswith("lamina.formats.")
        for name, value in vars(module).items()
        if hasattr(value, "_rows") and value.py_func.__module__ == module.__name__
    }
    assert found == {(module.__name__, name) for module, name in KERNELS}


def both(call: Any) -> Any:
    """What compiled kernels answer, after interpreted ones were seen to answer the same."""
    with all_interpreted():
        plain = call()
    compiled = call()
    assert plain == compiled
    return compiled


def told(scan: Any) -> Any:
    times = scan.timestamps.tolist()
    return scan.positions.tolist(), scan.end, scan.stop, scan.column_bytes, times


def columns_of(found: Any) -> Iterator[Any]:
    return (getattr(found, each.name) for each in dataclasses.fields(found))


def placed(data: bytes, others: int) -> Iterator[Any]:
    """Where the records of a WAL lie, by topic: those of `data` and of another topic among them."""
    batch = batch_of([{"value": b"x", "timestamp": 1}] * others, "wal")
    more, _ = wal.encode(batch, topic_id=9, base_sequence=1, durable=True)
    whole = more.tobytes() + data + more.tobytes()
    found = places.Places()
    found.take(whole, wal.scan(whole), 100)
    for each in found.by_topic():
        yield each.topic_id, each.sequences.tolist(), each.locations.tolist(), each.size_bytes
        yield each.ascending


def hurt(content: bytes, at: float, bit: int) -> bytes:
    damaged = bytearray(content)
    if damaged:
        damaged[int(at * len(damaged))] ^= 1 << bit
    return bytes(damaged)


@given(batches("keratin"), st.integers(0, 1 << 62), st.floats(0, 1, exclude_max=True))
def test_keratin_is_the_same(batch: Any, base_offset: int, at: float) -> None:
    data, _ = both(lambda: tuple(each.tobytes() for each in keratin.encode(batch, base_offset)))
    content = keratin.encode_header(base_offset, 0) + data
    limits = (Limit(), Limit(max_records=2), Limit(max_bytes=100))
    for limit in limits:
        both(lambda limit=limit: told(keratin.scan(content, limit=limit)))
    both(lambda: keratin.decode(content, keratin.scan(content)))
    both(lambda: keratin.decode(content, keratin.scan(content), ["key"]))
    both(lambda: told(keratin.scan(hurt(content, at, base_offset & 7))))


@given(batches("frame"), st.integers(0, 1 << 62), st.floats(0, 1, exclude_max=True))
def test_frame_is_the_same(batch: Any, base_offset: int, at: float) -> None:
    data, _ = both(lambda: tuple(each.tobytes() for each in frame.encode(batch, base_offset)))
    both(lambda: told(frame.scan(data, expected_offset=base_offset)))
    both(lambda: frame.decode(data, frame.scan(data)))
    both(lambda: told(frame.scan(hurt(data, at, base_offset & 7))))


@given(batches("wal"), st.integers(0, (1 << 64) - 1), st.floats(0, 1, exclude_max=True))
def test_wal_is_the_same(batch: Any, topic_id: int, at: float) -> None:
    def encoded() -> Any:
        made = wal.encode(batch, topic_id=topic_id, base_sequence=7, durable=True)
        return tuple(each.tobytes() for each in made)

    data, _ = both(encoded)
    both(lambda: told(wal.scan(data)))
    both(lambda: wal.decode(data, wal.scan(data)))
    both(lambda: [each.tolist() for each in columns_of(headers.headers(data, wal.scan(data)))])
    both(lambda: list(map(repr, placed(data, topic_id & 3))))
    both(lambda: told(wal.scan(hurt(data, at, topic_id & 7))))
    positions = wal.scan(data).positions
    expected = located.Expected(topic_id, 7)

    def segment() -> Any:
        out = np.zeros(len(data), dtype=np.uint8)
        made = located.gather(data, positions, expected, out)
        return told(made.scan), made.is_sound, made.needed_bytes, out.tobytes()

    frames = both(segment)[3]
    both(lambda: told(located.sound_at(data, positions, expected, max_bytes=1 << 20)))
    both(lambda: located.time_of_segment_frame(frames, expected))
    if len(positions):
        end = int(positions[1]) if len(positions) > 1 else len(data)
        assert both(lambda: located.time_of_segment_frame(frames[: end - 1], expected)) is not None
        found = wal.scan_segment(frames[: len(data) - len(positions)], topic_id=topic_id)
        both(lambda: index.build(frames, found, first_sequence=7).tobytes())


EVENT = st.tuples(
    st.sampled_from(list(delta.Event)),
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 32) - 1),
)


@given(st.lists(EVENT, min_size=1), st.floats(0, 1, exclude_max=True))
def test_a_group_s_journal_is_the_same(rows: list[Any], at: float) -> None:
    columns = np.array(rows, dtype=np.int64).T
    data = both(lambda: delta.encode(*columns).tobytes())
    for content in (data, hurt(data, at, 3)):
        found = both(lambda content=content: told(delta.scan(content, 0)))
        assert len(found[0]) <= len(rows)
        both(lambda content=content: delta.decode(content, delta.scan(content, 0)).offsets.tolist())


@given(st.binary(max_size=2_000), st.integers(0, (1 << 64) - 1))
def test_checksums_are_the_same(content: bytes, seed: int) -> None:
    both(lambda: crc.crc32c_of(content))
    both(lambda: xxh3.xxh3_of(content, seed))
    both(lambda: xxh3.xxh3_of(content))


@pytest.mark.parametrize("length", [0, 1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 1024, 1025])
def test_hashes_are_the_same_at_every_change_of_the_way(length: int) -> None:
    content = bytes(number * 31 & 0xFF for number in range(length))
    for seed in (0, 3, (1 << 64) - 1):
        both(lambda seed=seed: xxh3.xxh3_of(content, seed))


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_sums_wrap_as_machine_words_do(first: int, second: int) -> None:
    for helper in (wrapping_add, wrapping_subtract):
        assert interpret._plain(helper)(first, second) == helper(first, second)


@pytest.mark.parametrize("log", [keratin, frame, wal], ids=["keratin", "frame", "wal"])
def test_records_that_a_format_refuses_are_refused_alike(log: Any) -> None:
    name = log.__name__.split(".")[-2]
    row = {"timestamp": None, "value": b""}
    batch = batch_of([row], name)

    def refusal() -> str:
        how = {"topic_id": 1, "base_sequence": 1, "durable": True} if log is wal else {}
        with pytest.raises(InvalidRequest) as caught:
            log.encode(batch, **(how or {"base_offset": 0}))
        return str(caught.value)

    assert "the timestamp is null" in both(refusal)


@pytest.mark.parametrize("stride", [Stride(65536), Stride(4096, 100)], ids=["keratin", "frame"])
def test_entries_of_indexes_are_the_same(stride: Stride) -> None:
    positions = np.arange(0, 300 * 40, 40, dtype=np.int64)
    times = (positions * 7919) % 1_000

    def entries() -> Any:
        made = sparse_choice.select(
            positions, times, sparse_choice.START, stride, base_offset=5, origin=68
        )
        return made[0].tobytes(), made[1].tobytes(), made[2]

    both(entries)
