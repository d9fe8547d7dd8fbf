"""One flipped bit is told from anything else, and mended only where nothing else explains it."""

from __future__ import annotations

import zlib

import pytest

from lamina.errors import CorruptData
from lamina.formats.documents.flips import SEARCHED_BYTES_MAX, is_one_flip, one_flip_away


def sealed(body: bytes) -> bytes:
    return body + zlib.crc32(body).to_bytes(4, "little")


def opened(raw: bytes) -> bytes:
    body, seal = raw[:-4], raw[-4:]
    if zlib.crc32(body).to_bytes(4, "little") != seal:
        raise CorruptData("the checksum does not fit")
    return body


def flipped(raw: bytes, bit: int) -> bytes:
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize(
    ("found", "is_one"),
    [(b"\x01\x00", True), (b"\x00\x80", True), (b"\x00\x00", False), (b"\x01\x01", False)],
)
def test_exactly_one_bit_is_one_flip(found: bytes, is_one: bool) -> None:
    assert is_one_flip(found, b"\x00\x00") is is_one


def test_bytes_of_another_length_are_no_flip() -> None:
    assert not is_one_flip(b"\x00\x01", b"\x00")
    assert not is_one_flip(b"\x01", b"\x00\x00")


def test_any_flipped_bit_is_found() -> None:
    raw = sealed(b"what it said")
    for bit in range(8 * len(raw)):
        assert one_flip_away(flipped(raw, bit), opened) == b"what it said"


def test_two_flipped_bits_are_not_mended() -> None:
    raw = sealed(b"what it said")
    assert one_flip_away(flipped(flipped(raw, 3), 50), opened) is None


def test_a_sound_file_needs_no_flip_and_an_empty_one_has_none() -> None:
    assert one_flip_away(sealed(b"sound"), opened) is None
    assert one_flip_away(b"", lambda raw: raw) is None


def test_what_two_flips_would_explain_differently_is_not_mended() -> None:
    def weak(raw: bytes) -> bytes:
        if raw not in (b"\x01", b"\x02"):
            raise CorruptData("neither")
        return raw

    assert one_flip_away(b"\x00", weak) is None
    assert one_flip_away(b"\x09", weak) == b"\x01"
    assert one_flip_away(b"\x0a", weak) == b"\x02"


def test_flips_that_say_the_same_mend_it() -> None:
    def any_letter(raw: bytes) -> str:
        if raw not in (b"\x01", b"\x02"):
            raise CorruptData("neither")
        return "a letter"

    assert one_flip_away(b"\x00", any_letter) == "a letter"


def test_a_file_is_searched_up_to_a_size() -> None:
    tries = []

    def refusing(raw: bytes) -> bytes:
        tries.append(len(raw))
        raise CorruptData("never sound")

    assert one_flip_away(bytes(SEARCHED_BYTES_MAX + 1), refusing) is None
    assert tries == []
    assert one_flip_away(bytes(SEARCHED_BYTES_MAX), refusing) is None
    assert tries == [SEARCHED_BYTES_MAX] * 8 * SEARCHED_BYTES_MAX, "each bit once"
