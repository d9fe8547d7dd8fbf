"""The state of consumer groups on disk: snapshots, and the delta log with its own contract."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.keratin import delta, snapshot
from lamina.formats.keratin.delta import Event
from lamina.formats.keratin.snapshot import Snapshot
from lamina.formats.kernels.fnv import fnv1a_64
from lamina.formats.scan import Limit, Stop
from tests.formats.test_keratin_golden import NOW, SNAPSHOT, crc, event, golden, joined
from tests.support.contract import grows_at_most, mutate

SNAP = golden("keratin-snap.bin")
DELTA = golden("keratin-delta.bin")
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
OFFSETS = st.integers(0, (1 << 63) - 1)
HASHES = st.integers(0, (1 << 64) - 1)
EPOCHS = st.integers(0, (1 << 32) - 1)


def plain(found: Snapshot) -> list[Any]:
    arrays = [found.offsets, found.deadlines_ms, found.epochs]
    numbers = [found.created_ms, found.tp_hash, found.group_hash, found.acked_until]
    return [*numbers, *(array.tolist() for array in arrays)]


def columns(rows: list[tuple[int, ...]], width: int) -> list[Any]:
    return list(np.array(rows, dtype=np.int64).reshape(len(rows), width).T)


def test_the_hash_is_the_published_one() -> None:
    assert fnv1a_64(b"") == 0xCBF29CE484222325
    assert fnv1a_64(b"a") == 0xAF63DC4C8601EC8C
    assert fnv1a_64(b"foobar") == 0x85944171F73967E8
    assert fnv1a_64(b"orders") == 0x00125D9250BE8B4C


# ---------------------------------------------------------------- snapshot


@settings(max_examples=100, deadline=None)
@given(
    st.tuples(INT64, HASHES, HASHES, OFFSETS),
    st.lists(st.tuples(OFFSETS, INT64, EPOCHS), max_size=20),
)
def test_any_snapshot_comes_back_as_it_went_in(
    numbers: tuple[int, int, int, int], rows: list[tuple[int, ...]]
) -> None:
    drawn = Snapshot(*numbers, *columns(rows, 3))
    data = snapshot.encode(drawn)
    assert len(data) == 76 + 16 + 24 * len(rows) + 12
    found = snapshot.decode(data)
    assert plain(found) == plain(drawn)
    earliest = min((row[1] for row in rows), default=None)
    assert found.min_deadline_ms == earliest
    assert struct.unpack(">q", data[-12:-4])[0] == (0 if earliest is None else earliest)


def test_every_prefix_and_every_longer_snapshot_is_refused() -> None:
    for size in range(len(SNAP)):
        with pytest.raises(CorruptData):
            snapshot.decode(SNAP[:size])
    for more in (b"\0", bytes(24)):
        with pytest.raises(CorruptData, match="size does not fit"):
            snapshot.decode(SNAP + more)


def test_every_single_byte_change_of_a_snapshot_is_refused() -> None:
    for position in range(len(SNAP)):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(SNAP)
            damaged[position] ^= change
            with pytest.raises(CorruptData) as refused:
                snapshot.decode(damaged)
            assert not isinstance(refused.value, NewerFormat)


def test_hostile_snapshots_with_good_checksums_are_refused_or_consistent() -> None:
    drawn = random.Random(20_240_605)
    with grows_at_most(64 << 10):
        accepted = 0
        for round_number in range(2_000):
            payload = mutate(SNAP[76:-4], drawn)
            hostile = (
                SNAP[:76] + payload + crc(payload) if round_number % 2 else mutate(SNAP, drawn)
            )
            try:
                found = snapshot.decode(hostile)
            except CorruptData:
                continue
            accepted += 1
            assert len(found.offsets) * 24 == len(hostile) - 104
            assert np.all(found.offsets >= 0)
            snapshot.encode(found)
        assert accepted > 0


def test_offsets_of_more_than_63_bits_are_damage() -> None:
    for position in (76, 76 + 16):
        payload = bytearray(SNAP[76:-4])
        payload[position - 76] |= 0x80
        with pytest.raises(CorruptData, match="out of range"):
            snapshot.decode(SNAP[:76] + payload + crc(bytes(payload)))


def test_a_snapshot_that_cannot_be_stored_is_refused() -> None:
    good = plain(SNAPSHOT)[:4]
    one = np.array([1])
    for wrong in (
        Snapshot(*good, np.array([-1]), one, one),
        Snapshot(*good, one, one, np.array([-1])),
        Snapshot(*good, one, one, np.array([1 << 32])),
        Snapshot(*good, one, np.array([1, 2]), one),
        Snapshot(*good, np.array([1, 2]), one, one),
        Snapshot(*good, np.array([1, 2]), np.array([1, 2]), one),
        Snapshot(*good[:3], -1, one, one, one),
    ):
        with pytest.raises(ValueError, match=r".+"):
            snapshot.encode(wrong)


# ---------------------------------------------------------------- delta


def read(data: bytes) -> tuple[list[tuple[int, ...]], Any]:
    found = delta.scan(data, min(60, len(data)))
    return list(zip(*(c.tolist() for c in delta.decode(data, found)), strict=True)), found


def by_hand(kind: int, *numbers: int) -> bytes:
    forms = {1: ">qqI", 2: ">q", 3: ">q", 4: ">q", 5: ">"}
    return joined(event(kind, "", struct.pack(forms[kind], *numbers)))


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just(1), OFFSETS, INT64, EPOCHS),
        st.tuples(st.sampled_from([2, 3, 4]), OFFSETS, st.just(0), st.just(0)),
        st.just((5, 0, 0, 0)),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
def test_any_events_come_back_and_are_the_bytes_made_by_hand(rows: list[tuple[int, ...]]) -> None:
    data = delta.encode(*columns(rows, 4)).tobytes()
    widths = {1: 4, 2: 2, 3: 2, 4: 2, 5: 1}
    assert data == b"".join(by_hand(*row[: widths[row[0]]]) for row in rows)
    got, found = read(delta.encode_header(NOW) + data)
    assert (got, found.stop) == (rows, Stop.END)


def test_many_acks_are_one_call() -> None:
    data = delta.encode(Event.ACK, np.arange(5, 1_005)).tobytes()
    assert data == b"".join(by_hand(2, offset) for offset in range(5, 1_005))
    assert len(delta.encode(Event.RESET)) == 16
    assert len(delta.encode(Event.ACK, [])) == 0


def test_every_prefix_of_a_delta_holds_a_whole_number_of_events() -> None:
    whole, found = read(DELTA)
    ends = [*found.positions.tolist()[1:], found.end]
    for size in range(60, len(DELTA)):
        got, cut = read(DELTA[:size])
        assert got == whole[: sum(end <= size for end in ends)]
        assert cut.stop is (Stop.END if size in (60, *ends) else Stop.TORN)
    for size in range(60):
        with pytest.raises(CorruptData):
            delta.decode_header(DELTA[:size])


def test_every_single_byte_change_of_a_delta_is_detected() -> None:
    whole, found = read(DELTA)
    starts = found.positions.tolist()
    for position in range(len(DELTA)):
        for change in (0x01, 0x80, 0xFF, DELTA[position]):
            damaged = bytearray(DELTA)
            damaged[position] ^= change
            if damaged == DELTA:
                continue
            if position < 60:
                with pytest.raises(CorruptData):
                    delta.decode_header(damaged)
                continue
            got, cut = read(bytes(damaged))
            assert got == whole[: sum(start <= position for start in starts) - 1]
            assert cut.stop.is_damage


def test_hostile_deltas_stop_cleanly_and_cost_no_memory() -> None:
    whole, _ = read(DELTA)
    drawn = random.Random(20_240_606)
    with grows_at_most(64 << 10):
        for _ in range(2_000):
            hostile = DELTA[:60] + mutate(DELTA[60:], drawn)
            got, found = read(hostile)
            assert 60 <= found.end <= len(hostile)
            assert all(row in whole for row in got), "an event that was never written"


@pytest.mark.parametrize(
    ("data", "stop"),
    [
        (joined(event(6, "", b"")), Stop.BAD_VERSION),
        (joined(event(0, "", b"")), Stop.BAD_VERSION),
        (joined(event(0xFFFF, "", bytes(20))), Stop.BAD_VERSION),
        (joined(event(2, "", bytes(16))), Stop.BAD_VERSION),
        (joined(event(1, "", bytes(8))), Stop.BAD_VERSION),
        (joined(event(5, "", bytes(8))), Stop.BAD_VERSION),
        (joined(event(2, "", bytes(8), version=2)), Stop.BAD_VERSION),
        (joined(event(2, "", bytes(8), magic=0x4B52)), Stop.BAD_MAGIC),
        (joined(event(2, "", b"\x80" + bytes(7))), Stop.BAD_OFFSET),
        (joined(event(2, "", bytes(8), flags=9)), Stop.END),
        (joined(event(2, "", bytes(8)))[:8] + b"\x00\x10\x00\x01" + bytes(12), Stop.BAD_LENGTH),
        (joined(event(2, "", bytes(8)))[:8] + b"\xff\xff\xff\xff" + bytes(12), Stop.BAD_LENGTH),
        (joined(event(2, "", bytes(8)))[:8] + b"\x00\x10\x00\x00" + bytes(12), Stop.TORN),
        (joined(event(2, "", bytes(8)))[:-1] + b"\x00", Stop.BAD_CHECKSUM),
        (bytes(100), Stop.TORN),
    ],
)
def test_each_kind_of_bad_event_has_its_own_stop(data: bytes, stop: Stop) -> None:
    good = by_hand(2, 7)
    found = delta.scan(good + data, 0)
    assert found.stop is stop
    assert found.end == (len(good + data) if stop is Stop.END else len(good))


def test_limits_split_a_scan_into_the_same_events() -> None:
    whole, _ = read(DELTA)
    for limit in (Limit(max_records=2), Limit(max_bytes=1)):
        got: list[tuple[int, ...]] = []
        position, stop = 60, Stop.LIMIT
        while stop is Stop.LIMIT:
            found = delta.scan(DELTA, position, limit=limit)
            got += zip(*(c.tolist() for c in delta.decode(DELTA, found)), strict=True)
            position, stop = found.end, found.stop
        assert (got, stop) == (whole, Stop.END)


@pytest.mark.parametrize(
    "wrong", [(0, 1, 0, 0), (6, 1, 0, 0), (2, -1, 0, 0), (1, 1, 1, -1), (1, 1, 1, 1 << 32)]
)
def test_events_that_cannot_be_stored_are_refused(wrong: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="event 1"):
        delta.encode([2, wrong[0]], [1, wrong[1]], [0, wrong[2]], [0, wrong[3]])


@pytest.mark.parametrize("start", [-1, 61, 1 << 62])
def test_a_start_outside_of_a_delta_is_refused(start: int) -> None:
    head = delta.encode_header(5)
    with pytest.raises(ValueError, match="starts at"):
        delta.scan(head, start)
    assert delta.scan(head[:59]).stop is Stop.TORN
