"""The `.idx` of a segment: built from `.data`, checked, and harmless when wrong."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.errors import CorruptData, InvalidRequest
from lamina.formats.scan import Limit, Scan
from lamina.formats.wal import index, log
from lamina.formats.wal.headers import headers_segment
from tests.formats.test_wal_golden import INDEX, SEGMENT, TOPIC, frame_by_hand, joined
from tests.support.contract import grows_at_most

DATA = joined(SEGMENT)
Row = tuple[int, int, bytes | None]


def segment_of(rows: list[Row]) -> bytes:
    frames = [
        frame_by_hand(1, sequence, b"v" * (sequence % 5), timestamp_ms=time, tag=tag)
        for sequence, time, tag in rows
    ]
    return b"".join(frame[1:] for frame in frames)


def by_hand(rows: list[Row], first_sequence: int) -> bytes:
    """The document's entries, with running maxima, one `struct.pack` each."""
    out, position, latest = b"", 0, -(1 << 63)
    known = {row[0]: row for row in rows}
    for sequence in range(first_sequence, rows[-1][0] + 1 if rows else first_sequence):
        length, flags = 0, 0
        if sequence in known:
            _, time, tag = known[sequence]
            length = 45 + sequence % 5 + len(tag or b"")
            flags, latest = int(tag is not None), max(latest, time)
        out += struct.pack("<IIqB3x", position, length, latest, flags)
        position += length
    return out


ROWS = st.lists(
    st.tuples(
        st.integers(10, 60),
        st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 50),
        st.none() | st.binary(max_size=3),
    ),
    max_size=20,
    unique_by=lambda row: row[0],
).map(sorted)


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_an_index_is_built_as_by_hand(rows: list[Row]) -> None:
    data = segment_of(rows)
    entries = index.build(data, log.scan_segment(data), first_sequence=10)
    assert index.encode(entries) == by_hand(rows, 10)
    index.check(entries, len(data))
    assert np.array_equal(index.decode(index.encode(entries)), entries)


def test_an_entry_is_as_large_as_the_document_says() -> None:
    assert index.ENTRY.itemsize == struct.calcsize("<IIQB3x")


def test_an_index_grows_piece_by_piece_into_the_same_entries() -> None:
    rows: list[Row] = [(3, 50, None), (4, 40, b"t"), (7, 30, None), (8, 60, b"")]
    data = segment_of(rows)
    whole = index.build(data, log.scan_segment(data), first_sequence=3)
    head = log.scan_segment(data, limit=Limit(max_records=2))
    first = index.build(data, head, first_sequence=3)
    rest = data[head.end :]
    second = index.build(
        rest,
        log.scan_segment(rest),
        first_sequence=5,
        base_position=head.end,
        timestamp_floor_ms=int(first["timestamp_ms"][-1]),
    )
    assert index.encode(first) + index.encode(second) == index.encode(whole)
    assert whole["timestamp_ms"].tolist() == [50, 50, 50, 50, 50, 60]


def test_the_last_entry_and_the_time_before_it_are_read_from_the_end() -> None:
    entries = np.zeros(3, dtype=index.ENTRY)
    entries["position"], entries["length"] = [0, 60, 130], [60, 70, 80]
    entries["timestamp_ms"] = [5, 6, 9]
    raw = index.encode(entries)
    assert index.last_of(raw) == index.last_of(raw[20:]) == (130, 80, 9, 6)
    assert index.last_of(raw[:20]) == (0, 60, 5, -(1 << 63))


def test_an_entry_is_found_by_arithmetic() -> None:
    entries = index.decode(joined(INDEX))
    assert index.position_of(3, 1) == 40
    assert entries[index.position_of(3, 1) // 20]["length"] == len(DATA) - 48


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(-5, 60))
def test_what_counts_as_expired_is_a_prefix_that_holds_nothing_younger(
    rows: list[Row], cutoff: int
) -> None:
    data = segment_of(rows)
    entries = index.build(data, log.scan_segment(data), first_sequence=10)
    count = index.expired(entries, cutoff)
    times = {sequence: time for sequence, time, _ in rows}
    assert all(times.get(10 + i, -(1 << 63)) < cutoff for i in range(count))
    if count < len(entries):
        assert times.get(10 + count, cutoff) >= cutoff


def test_the_deleted_flag_is_exactly_the_ranges() -> None:
    rows: list[Row] = [(sequence, 1, b"t") for sequence in range(5, 15)]
    data = segment_of(rows)
    entries = index.build(data, log.scan_segment(data), first_sequence=5)
    marked = index.mark_deleted(entries, 5, [(1, 6), (8, 10), (14, 1 << 60)])
    assert (marked["flags"] >= index.DELETED).tolist() == [
        sequence in (5, 8, 9, 14) for sequence in range(5, 15)
    ]
    assert entries["flags"].tolist() == [1] * 10
    index.check(marked, len(data))
    assert np.array_equal(index.mark_deleted(marked, 5, [(1, 3)]), entries)


def test_every_length_but_a_multiple_of_twenty_is_refused() -> None:
    raw = joined(INDEX)
    for size in range(len(raw)):
        if size % 20:
            with pytest.raises(CorruptData, match="inside an entry") as caught:
                index.decode(raw[:size])
            assert caught.value.position == size // 20 * 20
        else:
            assert len(index.decode(raw[:size])) == size // 20


def lookup(entries: index.Entries, row: int) -> Scan | None:
    """How a reader uses an entry: the frame there must be sound and be the one that was asked."""
    entry = entries[row]
    start, end = int(entry["position"]), int(entry["position"]) + int(entry["length"])
    found = log.scan_segment(DATA[:end], start, topic_id=TOPIC, minimum_sequence=row + 1)
    whole = len(found) == 1 and found.end == end
    right = whole and headers_segment(DATA, found).sequences.tolist() == [row + 1]
    return found if right else None


def test_every_single_byte_change_is_refused_or_harmless() -> None:
    raw = joined(INDEX)
    sound = index.decode(raw)
    for position in range(len(raw)):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(raw)
            damaged[position] ^= change
            entries = index.decode(bytes(damaged))
            row, at = divmod(position, 20)
            try:
                index.check(entries, len(DATA))
            except CorruptData:
                continue
            assert at < 17, "padding is checked"
            if at < 8:
                assert lookup(entries, row) is None or sound["length"][row] == 0
            if at == 16:
                marked = index.mark_deleted(entries, 1, ())
                assert (marked["flags"] & 4 == 0).all()


@pytest.mark.parametrize(
    ("row", "field", "value", "problem"),
    [
        (0, "length", 44, "length no frame"),
        (0, "length", 49, "past the next"),
        (2, "length", 54, "past the next"),
        (2, "position", 49, "past the next"),
        (2, "timestamp_ms", 1, "later than"),
        (1, "flags", 8, "unknown flags"),
        (1, "padding", 1, "padding"),
    ],
)
def test_each_contradiction_is_named(row: int, field: str, value: int, problem: str) -> None:
    entries = index.decode(joined(INDEX)).copy()
    index.check(entries, len(DATA))
    entries[field][row] = value
    with pytest.raises(CorruptData, match=problem):
        index.check(entries, len(DATA))


def test_an_index_longer_than_its_segment_is_refused() -> None:
    with pytest.raises(CorruptData, match=r"end of \.data"):
        index.check(index.decode(joined(INDEX)), len(DATA) - 1)
    index.check(index.decode(b""), 0)


def test_a_hole_too_wide_for_an_index_is_refused_and_costs_nothing() -> None:
    data = segment_of([(1, 1, None), (1 << 50, 1, None)])
    found = log.scan_segment(data)
    with pytest.raises(InvalidRequest, match="cannot cover"):
        index.build(data, found, first_sequence=1)
    with pytest.raises(InvalidRequest, match="cannot cover"):
        index.build(data, found, first_sequence=2)
    with pytest.raises(InvalidRequest, match="4 GiB"):
        index.build(DATA, log.scan_segment(DATA), first_sequence=1, base_position=1 << 32)


def test_a_span_is_bounded_by_the_frames_there_are() -> None:
    most = index.entries_max(2)
    assert most < 1 << 17
    assert index.entries_max(1 << 30) == index.ENTRIES_MAX
    for last, fits in ((most, True), (most + 1, False), (1 << 24, False)):
        data = segment_of([(1, 1, None), (last, 1, None)])
        found = log.scan_segment(data)
        if fits:
            assert len(index.build(data, found, first_sequence=1)) == most
            continue
        with grows_at_most(4 << 10), pytest.raises(InvalidRequest, match="cannot cover"):
            index.build(data, found, first_sequence=1)


def test_nothing_found_is_an_empty_index() -> None:
    assert len(index.build(b"", log.scan_segment(b""), first_sequence=4)) == 0
    assert index.expired(np.empty(0, dtype=index.ENTRY), 5) == 0
