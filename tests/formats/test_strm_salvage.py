"""What is still read of a damaged object: every record at its own offset, or not at all."""

from __future__ import annotations

import zlib
from itertools import combinations, pairwise

import pytest

from lamina.errors import CorruptData
from lamina.formats.strm import layout, salvage, segment
from lamina.formats.strm.layout import BLOCK, FOOTER, HEADER, UNCOVERED_BYTES, Header
from tests.formats.test_strm_by_hand import TIME, Row, object_by_hand, row
from tests.support.contract import plain

DENSE = [row(100 + each, TIME + each, b"k%d" % each, b"value %d" % each) for each in range(10)]
HOLES = [each | {"offset": each["offset"] + (5 if each["offset"] >= 103 else 0)} for each in DENSE]
KINDS = {"dense": DENSE, "holes": HOLES}
EACH = pytest.mark.parametrize("kind", KINDS)
BLOCKS = 5


class Made:
    """An object of five blocks of two records, and where each block lies."""

    def __init__(self, kind: str, codec: int = 1) -> None:
        self.rows = KINDS[kind]
        self.data = object_by_hand(self.rows, codec, rows_a_block=2)
        self.header: Header = layout.decode_header(self.data[: HEADER.size])
        self.opened = segment.open_segment(self.data)
        self.index_offset = self.opened.footer.index_offset
        self.ranges = [self.opened.block_range(number) for number in range(BLOCKS)]

    def raw_index(self) -> bytes:
        return self.data[self.index_offset :]

    def table(self, data: bytes, *, raw_index: bytes | None = None) -> layout.Segment:
        raw = self.raw_index() if raw_index is None else raw_index
        return salvage.table(memoryview(data), self.header, self.index_offset, raw)

    def read(self, data: bytes, *, raw_index: bytes | None = None) -> list[Row]:
        """The records of all blocks that the table calls readable, which must then be sound."""
        found = self.table(data, raw_index=raw_index)
        rows: list[Row] = []
        for number in range(len(found)):
            start, end = found.block_range(number)
            if number not in found.unreadable:
                rows += plain(segment.read_block(found, number, data[start:end]))
        return rows

    def of(self, *blocks: int) -> list[Row]:
        return [each for number in blocks for each in self.rows[2 * number : 2 * number + 2]]


def spoilt(data: bytes, *positions: int) -> bytes:
    damaged = bytearray(data)
    for position in positions:
        damaged[position] ^= 0x55
    return bytes(damaged)


SUBSETS = [some for size in range(BLOCKS) for some in combinations(range(BLOCKS), size)]


@pytest.mark.parametrize("bad", SUBSETS, ids=str)
def test_damage_in_blocks_costs_only_those_blocks_of_an_object_without_holes(
    bad: tuple[int, ...],
) -> None:
    """Between others that are sound, a block behind two damaged neighbours is not certain."""
    made = Made("dense")
    data = spoilt(made.data, *(made.ranges[number][0] + BLOCK.size + 1 for number in bad))
    sound = [each for each in range(BLOCKS) if each not in bad]
    if any(after == before + 1 for before, after in pairwise(bad)):
        sound = [each for each in sound if each < bad[0] or each > bad[-1]]
    if sound:
        assert made.read(data) == made.of(*sound)
    else:
        with pytest.raises(CorruptData, match="no block of the object is sound"):
            made.read(data)


@EACH
@pytest.mark.parametrize("bad", range(BLOCKS))
def test_a_block_that_lies_about_its_size_costs_itself(bad: int, kind: str) -> None:
    """The damaged index still says where the next one begins."""
    made = Made(kind)
    at = made.ranges[bad][0] + BLOCK.at("compressed_size") + 3
    sound = [each for each in range(BLOCKS) if each != bad]
    if kind == "holes":  # offsets are certain only at both ends
        sound = [each for each in (0, BLOCKS - 1) if each != bad]
    assert made.read(spoilt(made.data, at)) == made.of(*sound)


def test_without_an_index_what_lies_behind_such_a_block_is_lost() -> None:
    made = Made("dense")
    at = made.ranges[2][0] + BLOCK.at("compressed_size") + 3
    assert made.read(spoilt(made.data, at), raw_index=b"") == made.of(0, 1)


@pytest.mark.parametrize("bad", SUBSETS[1:], ids=str)
def test_in_an_object_with_holes_no_record_gets_another_offset(bad: tuple[int, ...]) -> None:
    made = Made("holes")
    data = spoilt(made.data, *(made.ranges[number][0] + BLOCK.size + 1 for number in bad))
    certain = [each for each in (0, BLOCKS - 1) if each not in bad]
    if certain:
        assert made.read(data) == made.of(*certain)
    else:
        with pytest.raises(CorruptData, match="no block of the object is sound"):
            made.read(data)


@EACH
def test_a_sound_object_reads_the_same_by_its_table(kind: str) -> None:
    made = Made(kind)
    found = made.table(made.data)
    if kind == "dense":
        assert made.read(made.data) == made.rows
        assert found.offsets.tolist() == made.opened.offsets.tolist()
        assert found.positions.tolist() == made.opened.positions.tolist()
        assert found.unreadable == frozenset()
    assert found.footer.index_offset == made.index_offset
    assert made.read(made.data)[:2] == made.rows[:2]
    assert made.read(made.data)[-2:] == made.rows[-2:]


@pytest.mark.parametrize("codec", [0, 1, 2])
def test_every_cut_keeps_the_whole_blocks_before_it(codec: int) -> None:
    made = Made("dense", codec)
    for size in range(HEADER.size, made.index_offset + 1):
        whole = [number for number, (_, end) in enumerate(made.ranges) if end <= size]
        if whole:
            found = made.table(made.data[:size])
            assert made.read(made.data[:size]) == made.of(*whole)
            first = found.offsets.tolist()[-1]
            assert (first == 100 + 2 * len(whole)) == (len(whole) < BLOCKS), "the rest is one run"
            assert (len(found) - 1 in found.unreadable) == (len(whole) < BLOCKS)
        else:
            with pytest.raises(CorruptData, match="no block of the object is sound"):
                made.table(made.data[:size])


def test_what_is_between_sound_blocks_is_one_run() -> None:
    made = Made("dense")
    data = spoilt(made.data, made.ranges[1][0] + BLOCK.size, made.ranges[2][0] + BLOCK.size)
    found = made.table(data)
    assert found.offsets.tolist() == [100, 102, 106, 108]
    assert found.unreadable == frozenset({1})
    assert found.positions.tolist() == [made.ranges[number][0] for number in (0, 1, 3, 4)]
    assert found.footer.index_size == 4 + 16 * 4


# -------------------------------------------------------------------- one bit


@EACH
def test_every_flipped_bit_of_an_index_is_turned_back(kind: str) -> None:
    raw = Made(kind).raw_index()
    for bit in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        assert salvage.corrected(bytes(damaged), zlib.crc32(raw)) == raw
    assert salvage.corrected(raw, zlib.crc32(raw)) is None, "there is nothing to turn back"
    assert salvage.corrected(spoilt(raw, 3, 9), zlib.crc32(raw)) is None


def test_an_index_is_searched_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bytes(range(40))
    damaged = b"\x01" + raw[1:]
    monkeypatch.setattr(salvage, "CORRECTED_BYTES_MAX", 40)
    assert salvage.corrected(damaged, zlib.crc32(raw)) == raw
    monkeypatch.setattr(salvage, "CORRECTED_BYTES_MAX", 39)
    assert salvage.corrected(damaged, zlib.crc32(raw)) is None


@pytest.mark.parametrize("codec", [0, 1])
def test_every_flipped_bit_outside_of_the_blocks_is_mended(codec: int) -> None:
    made = Made("dense", codec)
    outside = [*range(HEADER.size), *range(made.index_offset, len(made.data) - 4)]
    for position in outside:
        for bit in range(8):
            damaged = bytearray(made.data)
            damaged[position] ^= 1 << bit
            assert salvage.mended(bytes(damaged)) == made.data


def test_damage_in_a_block_or_twice_is_not_mended() -> None:
    made = Made("dense")
    assert salvage.mended(made.data) == made.data
    assert salvage.mended(spoilt(made.data, made.ranges[1][0] + 20)) is None
    assert salvage.mended(spoilt(made.data, 20, made.index_offset + 9)) is None
    for size in (0, HEADER.size, HEADER.size + layout.BLOCK_BYTES_MIN + FOOTER.size - 1):
        assert salvage.mended(made.data[:size]) is None


def test_only_windows_that_are_not_too_large_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made("dense")
    covered = len(made.data) - UNCOVERED_BYTES
    monkeypatch.setattr(salvage, "CORRECTED_BYTES_MAX", covered - made.index_offset)
    assert salvage.mended(spoilt_bit(made.data, made.index_offset + 9)) == made.data
    monkeypatch.setattr(salvage, "CORRECTED_BYTES_MAX", covered - made.index_offset - 1)
    assert salvage.mended(spoilt_bit(made.data, made.index_offset + 9)) is None
    assert salvage.mended(spoilt_bit(made.data, 9)) == made.data


def spoilt_bit(data: bytes, position: int) -> bytes:
    damaged = bytearray(data)
    damaged[position] ^= 1
    return bytes(damaged)


def test_a_sound_object_is_known() -> None:
    made = Made("dense")
    assert salvage.is_sound(made.data)
    assert not salvage.is_sound(spoilt(made.data, 20))


# -------------------------------------------------------------------- whose object it is


def test_an_object_is_known_by_its_header_damaged_as_it_may_be() -> None:
    made = Made("dense")
    assert salvage.is_of(memoryview(made.data), made.header)
    assert salvage.is_of(memoryview(made.data[: HEADER.size]), made.header)
    assert salvage.is_of(memoryview(made.data[:5]), made.header), "nothing says that it is not"
    for position in range(HEADER.size):
        assert salvage.is_of(memoryview(spoilt(made.data, position)), made.header)


def test_a_sound_object_of_others_or_other_fields_is_not_it() -> None:
    made = Made("dense")
    moved = [each | {"offset": each["offset"] + 1000} for each in DENSE]
    other = object_by_hand(moved, 1, rows_a_block=2)
    assert not salvage.is_of(memoryview(other), made.header), "two fields differ"
    cut = other[: HEADER.size]
    assert not salvage.is_of(memoryview(cut), made.header)
    one = bytearray(made.data)
    one[HEADER.at("partition") + 3] = 9
    resealed = one[:-UNCOVERED_BYTES]
    sealed = bytes(resealed) + zlib.crc32(resealed).to_bytes(4, "big") + made.data[-16:]
    assert salvage.is_sound(sealed)
    assert not salvage.is_of(memoryview(sealed), made.header), "sound, and of another partition"


def test_an_object_without_a_topics_hash_is_of_any() -> None:
    made = Made("dense")
    unset = bytearray(made.data)
    unset[HEADER.at("topic_hash") : HEADER.at("topic_hash") + 8] = bytes(8)
    resealed = unset[:-UNCOVERED_BYTES]
    sealed = bytes(resealed) + zlib.crc32(resealed).to_bytes(4, "big") + made.data[-16:]
    assert salvage.is_of(memoryview(sealed), made.header)
