"""The one walk over damage: every stop, every prefix and every changed byte, for every log."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.formats.frame import log as frame_log
from lamina.formats.keratin import delta
from lamina.formats.keratin import log as keratin_log
from lamina.formats.offset_log import OffsetLog
from lamina.formats.scan import Damage, Limit, Run, Step, Stop, Timed, Walkable, runs
from lamina.formats.wal.walks import SegmentFrames, WalFrames
from tests.formats import test_frame_log as frame
from tests.formats import test_keratin_golden as keratin
from tests.formats import test_wal_golden as wal

FIRST = 7
"""The number of the first record."""


@dataclass(frozen=True)
class Format:
    """A small log by hand, and what can be wrong with a record of it.

    `record` makes one, given its number and its value; `wrong` are the fields that give each stop.
    """

    name: str
    record: Callable[..., bytes]
    walkable: Callable[[bytes], Walkable]
    wrong: dict[Stop, dict[str, int]]
    is_numbered: bool = True

    def log(self, sizes: Sequence[int]) -> tuple[bytes, list[int]]:
        """The bytes of some records, and where each of them begins and the last one ends."""
        made = [self.record(FIRST + row, b"v" * size) for row, size in enumerate(sizes)]
        return b"".join(made), [0, *accumulate(map(len, made))]

    def walk(self, data: bytes, limit: Limit = Limit()) -> list[Step]:
        return list(runs(self.walkable(data), 0, FIRST, limit=limit))

    def numbers(self, first: int, end: int) -> tuple[int, int]:
        """What a run says of records: those numbers, or nothing."""
        return (first, end) if self.is_numbered else (0, 1)


def _keratin(number: int, value: bytes, **wrong: int) -> bytes:
    cut = wrong.pop("payload_len", None)
    made = bytearray(keratin.joined(keratin.record(number, 5, b"", value, **wrong)))
    if cut is not None:
        at = keratin_log.HEADER.at("payload_len")
        made[at : at + 4] = struct.pack(">I", cut)
    return bytes(made)


def _event(number: int, _: bytes, **wrong: int) -> bytes:
    payload = struct.pack(">q", wrong.pop("offset", number))
    return keratin.joined(keratin.event(2, "", payload, **wrong))


def _wal(number: int, value: bytes, **wrong: int) -> bytes:
    return wal.frame_by_hand(1, number, value, **wrong)


def _segment(number: int, value: bytes, **wrong: int) -> bytes:
    return _wal(number, value, **wrong)[1:]


FORMATS = [
    Format(
        "frame",
        lambda number, value, **wrong: frame.frame_by_hand(number, 5, b"k", value, **wrong),
        lambda data: OffsetLog(frame_log, data),
        {
            Stop.BAD_MAGIC: {"magic": 0xB10B5E02},
            Stop.BAD_VERSION: {"version": 2},
            Stop.BAD_LENGTH: {"frame_len": 43},
        },
    ),
    Format(
        "keratin",
        _keratin,
        lambda data: OffsetLog(keratin_log, data),
        {
            Stop.BAD_MAGIC: {"magic": 0x4B53},
            Stop.BAD_VERSION: {"version": 2},
            Stop.BAD_LENGTH: {"payload_len": 1 << 31},
        },
    ),
    Format(
        "wal",
        _wal,
        WalFrames,
        {
            Stop.BAD_VERSION: {"flags": 4 | 64},
            Stop.BAD_LENGTH: {"frame_len": 43},
        },
        is_numbered=False,
    ),
    Format(
        "segment",
        _segment,
        lambda data: SegmentFrames(data, wal.TOPIC),
        {
            Stop.BAD_VERSION: {"flags": 4 | 64},
            Stop.BAD_LENGTH: {"frame_len": 43},
            Stop.BAD_OFFSET: {"topic_id": wal.TOPIC + 1},
        },
    ),
    Format(
        "delta",
        _event,
        delta.EventLog,
        {
            Stop.BAD_MAGIC: {"magic": 0x4B46},
            Stop.BAD_VERSION: {"version": 2},
            Stop.BAD_OFFSET: {"offset": -1},
        },
        is_numbered=False,
    ),
]
every_format = pytest.mark.parametrize("each", FORMATS, ids=lambda each: each.name)


def shown(steps: Sequence[Step]) -> list[tuple[int, int] | tuple[int, int, int | None]]:
    """Runs as (first byte, end byte), damage with the number that follows it."""
    return [
        (int(step.found.positions[0]), step.found.end)
        if isinstance(step, Run)
        else (step.position, step.end, step.following)
        for step in steps
    ]


@every_format
def test_a_sound_log_is_one_run(each: Format) -> None:
    data, edges = each.log([3, 0, 40])
    (step,) = each.walk(data)
    assert isinstance(step, Run)
    assert step.found.stop is Stop.END
    assert step.found.positions.tolist() == edges[:-1]
    assert (step.first, step.end) == each.numbers(FIRST, FIRST + 3)
    assert each.walk(b"") == []


@every_format
def test_a_limit_bounds_each_run_and_not_the_walk(each: Format) -> None:
    data, edges = each.log([3, 0, 40, 1])
    steps = each.walk(data, Limit(max_records=1))
    assert shown(steps) == list(pairwise(edges))
    assert [step.found.stop for step in steps if isinstance(step, Run)][:-1] == [Stop.LIMIT] * 3
    assert len(each.walk(data, Limit(max_records=3))) == 2


@every_format
def test_every_prefix_is_whole_records_and_a_torn_one(each: Format) -> None:
    data, edges = each.log([3, 0, 40])
    for size in range(1, len(data) + 1):
        whole = [edge for edge in edges if edge <= size]
        steps = each.walk(data[:size])
        assert shown(steps)[: len(whole) > 1] == ([(0, whole[-1])] if len(whole) > 1 else [])
        rest = steps[len(whole) > 1 :]
        if size == whole[-1]:
            assert rest == []
            continue
        expected = FIRST + len(whole) - 1 if each.is_numbered or len(whole) == 1 else 1
        assert rest == [Damage(whole[-1], size, Stop.TORN, expected)]


@every_format
@pytest.mark.parametrize("change", [0x01, 0x80, 0xFF])
def test_a_changed_byte_costs_its_record_alone(each: Format, change: int) -> None:
    data, edges = each.log([3, 0, 40, 2])
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= change
        row = int(np.searchsorted(edges, position, side="right")) - 1
        first, after = edges[row], edges[row + 1]
        following = FIRST + row + 1 if each.is_numbered else 0
        expected: list[object] = [(0, first)] if row else []
        if row < 3:
            expected += [(first, after, following), (after, len(data))]
        else:
            expected += [(first, len(data), None)]
        steps = each.walk(bytes(damaged))
        assert shown(steps) == expected, position
        (spot,) = (step for step in steps if isinstance(step, Damage))
        assert spot.stop.is_damage
        assert not spot.is_blank


STOPS = [
    pytest.param(each, stop, id=f"{each.name}-{stop.name}")
    for each in FORMATS
    for stop in (Stop.TORN, Stop.BAD_CHECKSUM, *sorted({*each.wrong, Stop.BAD_OFFSET}))
    if stop is not Stop.BAD_OFFSET or stop in each.wrong or each.is_numbered
]


@pytest.mark.parametrize(("each", "stop"), STOPS)
def test_each_stop_is_told_with_what_follows_it(each: Format, stop: Stop) -> None:
    before, after = each.record(FIRST, b"a"), each.record(FIRST + 2, b"c")
    if stop is Stop.TORN:
        bad = bytes(len(each.record(FIRST + 1, b"b")))
    elif stop is Stop.BAD_CHECKSUM:
        whole = bytearray(each.record(FIRST + 1, b"b"))
        whole[-5] ^= 1  # of the checksum, or of what it is over
        bad = bytes(whole)
    elif stop in each.wrong:
        bad = each.record(FIRST + 1, b"b", **each.wrong[stop])
    else:
        bad = each.record(FIRST - 1, b"b")  # a leftover of older times
    steps = each.walk(before + bad + after)
    at, end = len(before), len(before + bad)
    following = FIRST + 2 if each.is_numbered else 0
    expected = FIRST + 1 if each.is_numbered else 1
    assert steps[1] == Damage(at, end, stop, expected, following)
    assert shown(steps) == [(0, at), (at, end, following), (end, end + len(after))]
    (alone,) = each.walk(bad)[-1:]
    assert isinstance(alone, Damage)
    assert (alone.following, alone.is_blank) == (None, stop is Stop.TORN)


@every_format
def test_zeros_to_the_end_are_blank_and_nothing_is_searched_for(
    each: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _ = each.log([3])
    records = each.walkable(data + bytes(5000))
    monkeypatch.setattr(type(records), "resync", None)
    _, blank = runs(records, 0, FIRST)
    assert isinstance(blank, Damage)
    assert (blank.position, blank.end) == (len(data), len(data) + 5000)
    assert (blank.stop, blank.following, blank.is_blank) == (Stop.TORN, None, True)


@pytest.mark.parametrize("each", FORMATS[:2], ids=lambda each: each.name)
def test_a_sound_record_that_is_out_of_order_is_no_loss(each: Format) -> None:
    data = each.record(FIRST, b"a") + each.record(FIRST + 9, b"b")
    at = len(each.record(FIRST, b"a"))
    steps = each.walk(data)
    assert steps[1] == Damage(at, at, Stop.BAD_OFFSET, FIRST + 1, FIRST + 9)
    assert shown(steps) == [(0, at), (at, at, FIRST + 9), (at, len(data))]


@pytest.mark.parametrize("each", [FORMATS[0], FORMATS[1], FORMATS[3]], ids=lambda each: each.name)
def test_behind_damage_records_of_the_next_file_do_not_count(each: Format) -> None:
    data, edges = each.log([3, 4, 5])
    damaged = bytearray(data)
    damaged[edges[2] - 1] ^= 1
    for end_number, counts in ((FIRST + 2, False), (FIRST + 3, True)):
        steps = list(runs(each.walkable(bytes(damaged)), 0, FIRST, end_number=end_number))
        assert len(steps) == (3 if counts else 2)
        spot = steps[1]
        assert isinstance(spot, Damage)
        assert (spot.end, spot.following) == (
            (edges[2], FIRST + 2) if counts else (len(data), None)
        )


@pytest.mark.parametrize("each", FORMATS[:2], ids=lambda each: each.name)
def test_a_walk_notes_times_and_takes_any_first_number(each: Format) -> None:
    data, _ = each.log([3, 4])
    (step,) = runs(each.walkable(data), 0, limit=Timed())
    assert isinstance(step, Run)
    assert step.found.timestamps.tolist() == [5, 5]
    assert (step.first, step.end) == (FIRST, FIRST + 2)


def test_a_frame_within_a_damaged_frame_of_the_wal_is_not_taken() -> None:
    inner = _wal(99, b"no frame of the WAL")
    data = bytearray(_wal(FIRST, b"xx" + inner) + _wal(FIRST + 1, b"next"))
    end = len(_wal(FIRST, b"xx" + inner))
    data[end - 1] ^= 1
    assert shown(list(runs(WalFrames(bytes(data)), 0))) == [(0, end, 0), (end, len(data))]


@every_format
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8),
    spots=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=4),
    kept=st.floats(0.3, 1.0),
)
def test_a_walk_covers_all_bytes_once_and_keeps_every_sound_record(
    each: Format, sizes: list[int], spots: list[tuple[int, int]], kept: float
) -> None:
    whole, edges = each.log(sizes)
    damaged = bytearray(whole)
    for position, change in spots:
        damaged[position % len(damaged)] ^= change
    data = bytes(damaged[: max(1, int(len(damaged) * kept))])
    steps = each.walk(data)
    at = 0
    for step in steps:
        begin, end = shown([step])[0][:2]
        assert begin == at
        at = end
    assert at == len(data)
    sound = [
        first
        for first, end in pairwise(edges)
        if end <= len(data) and data[first:end] == whole[first:end]
    ]
    found = [p for step in steps if isinstance(step, Run) for p in step.found.positions.tolist()]
    assert found == sound
    numbers = [n for step in steps if isinstance(step, Run) for n in (step.first, step.end)]
    assert not each.is_numbered or numbers == sorted(numbers)
