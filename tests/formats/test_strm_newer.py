"""STRM: a flipped bit is damage, only a sound object of another version is a newer one."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator

import pytest

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.scan import Stop
from lamina.formats.strm import salvage, segment
from lamina.formats.strm.layout import FOOTER, HEADER, UNCOVERED_BYTES, Coding
from lamina.inspect.object_files import STRM
from tests.formats.test_strm_by_hand import CODECS, PLAIN, encoded

OBJECTS = {codec.name: bytes(encoded(PLAIN, Coding(codec))) for codec in CODECS}
EACH = pytest.mark.parametrize("name", OBJECTS)
RESERVED = range(-FOOTER.size + FOOTER.at("reserved"), -4)


def flipped(data: bytes, position: int, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[position] ^= 1 << bit
    return bytes(damaged)


def resealed(data: bytes) -> bytes:
    """The object with the checksum that its writer would have given it."""
    covered = data[:-UNCOVERED_BYTES]
    return covered + struct.pack(">I", zlib.crc32(covered)) + data[-UNCOVERED_BYTES + 4 :]


def doubtful(data: bytes) -> Iterator[bytes]:
    """One bit of all that a newer writer would have set is another one."""
    for position in (*range(HEADER.at("version"), HEADER.at("topic_hash")), *RESERVED):
        for bit in range(8):
            yield flipped(data, position, bit)


def refusal(use: Callable[[bytes], object], data: bytes) -> type[Exception] | None:
    try:
        use(data)
    except CorruptData as error:
        return type(error)
    return None


@EACH
def test_a_flipped_bit_is_never_called_a_newer_format(name: str) -> None:
    data = OBJECTS[name]
    for damaged in doubtful(data):
        assert refusal(segment.verify, damaged) is CorruptData
        assert refusal(segment.open_segment, damaged) is not NewerFormat
        assert refusal(lambda raw: list(segment.read_from(raw)), damaged) is not NewerFormat
        assert segment.scan(damaged).stop is not Stop.BAD_VERSION
        assert salvage.mended(damaged) == data


@EACH
def test_a_flipped_bit_is_told_and_costs_no_record(name: str) -> None:
    data = OBJECTS[name]
    records = [each for each in STRM.dump("0.seg", data, 0) if "offset" in each]
    assert len(records) == len(PLAIN)
    for position in (HEADER.at("version"), HEADER.at("flags"), RESERVED[0]):
        damaged = flipped(data, position, 5)
        (finding,) = STRM.verify("0.seg", damaged)
        assert "damaged" in finding.problem
        assert "newer" not in finding.problem
        found = list(STRM.dump("0.seg", damaged, 0))
        assert "damaged" in str(found[0])
        assert [each for each in found if "offset" in each] == records


@EACH
@pytest.mark.parametrize(("field", "value"), [("version", 2), ("version", 3), ("flags", 0x4001)])
def test_a_sound_object_of_another_version_is_newer(name: str, field: str, value: int) -> None:
    at = HEADER.at(field)
    data = resealed(OBJECTS[name][:at] + struct.pack(">H", value) + OBJECTS[name][at + 2 :])
    for use in (segment.verify, segment.open_segment, lambda raw: list(segment.read_from(raw))):
        with pytest.raises(NewerFormat) as caught:
            use(data)
        assert caught.value.position == at
    assert segment.scan(data).stop is Stop.BAD_VERSION
    assert salvage.mended(data) is None
    (finding,) = STRM.verify("0.seg", data)
    assert finding.problem.startswith("a newer format")
    (row,) = STRM.dump("0.seg", data, 0)
    assert "a newer format" in str(row)
    expected = segment.open_segment(OBJECTS[name]).header
    with pytest.raises(NewerFormat):
        salvage.is_of(memoryview(data), expected)


def test_more_than_a_bit_in_the_reserved_bytes_is_newer() -> None:
    data = bytearray(OBJECTS["LZ4"])
    data[RESERVED[0]] = 3
    with pytest.raises(NewerFormat):
        segment.verify(data)
    data[HEADER.size + 20] ^= 1  # and now it is not as it was written
    with pytest.raises(CorruptData) as caught:
        segment.verify(data)
    assert not isinstance(caught.value, NewerFormat)


def test_an_object_cut_off_is_not_a_newer_one() -> None:
    data = flipped(OBJECTS["NONE"], HEADER.at("version"), 3)
    for size in (HEADER.size, HEADER.size + 10, len(data) - 1):
        with pytest.raises(CorruptData) as caught:
            segment.open_segment(data[:size])
        assert not isinstance(caught.value, NewerFormat)


def test_an_object_of_a_header_and_a_footer_alone_has_a_checksum() -> None:
    least = HEADER.size + FOOTER.size
    assert segment.has_own_checksum(resealed(bytes(least)))
    assert not segment.has_own_checksum(bytes(least - 1))
