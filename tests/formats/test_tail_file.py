"""A window of a cluster's log: whole or refused, byte by byte, and as it was written for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import CorruptData, InvalidRequest, NewerFormat
from lamina.formats import tail_file
from lamina.formats.kernels.crc import crc32c_of
from lamina.formats.tail_file import HEADER, SECTION, Kind, Section, Tail

GOLDEN = Path(__file__).parent.parent / "golden" / "cluster-tail.bin"
WINDOW = Tail(
    10,
    7,
    (
        Section(Kind.RECORDS, "orders", b"a STRM segment", 3, 10, 12),
        Section(Kind.COPY, "data/orders/topic.json", b"{}"),
        Section(Kind.PRODUCERS, "Zähler", b"", 1),
    ),
)
NUMBERS = st.integers(0, (1 << 63) - 1)
NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=9)
SECTIONS = st.one_of(
    st.builds(
        lambda name, body, part, at, n: Section(Kind.RECORDS, name, body, part, at, at + n),
        *(NAMES, st.binary(max_size=20), st.integers(0, 1 << 20), st.integers(0, 1 << 50)),
        st.integers(1, 1 << 20),
    ),
    st.builds(Section, st.just(Kind.COPY), NAMES, st.binary(max_size=20)),
    st.builds(
        Section, st.just(Kind.PRODUCERS), NAMES, st.binary(max_size=20), st.integers(0, 1 << 20)
    ),
)


def sealed(covered: bytes) -> bytes:
    return covered + crc32c_of(covered).to_bytes(4, "big")


def changed(at: int, data: bytes) -> bytes:
    """The window with other bytes somewhere, under a checksum that fits."""
    raw = bytearray(tail_file.encode(WINDOW))
    raw[at : at + len(data)] = data
    return sealed(bytes(raw[:-4]))


@given(NUMBERS, NUMBERS, st.lists(SECTIONS, max_size=4))
def test_what_was_written_is_read(seq: int, epoch: int, sections: list[Section]) -> None:
    tail = Tail(seq, epoch, tuple(sections))
    assert tail_file.decode(tail_file.encode(tail)) == tail
    assert tail.is_fence == (not sections)


@given(st.lists(SECTIONS, max_size=4))
def test_where_a_body_begins_is_known(sections: list[Section]) -> None:
    tail = Tail(1, 1, tuple(sections))
    data = tail_file.encode(tail)
    for each, at in zip(sections, tail_file.positions(tail), strict=True):
        assert data[at : at + len(each.body)] == each.body
        name = each.name.encode()
        assert data[at - len(name) : at] == name


def test_a_window_is_the_bytes_that_it_always_was() -> None:
    assert tail_file.encode(WINDOW) == GOLDEN.read_bytes()
    assert tail_file.decode(GOLDEN.read_bytes()) == WINDOW


def test_every_prefix_and_every_longer_one_is_refused() -> None:
    raw = tail_file.encode(WINDOW)
    for length in range(len(raw)):
        with pytest.raises(CorruptData):
            tail_file.decode(raw[:length])
    for more in (b"\0", raw, b"\0" * 4):
        with pytest.raises(CorruptData):
            tail_file.decode(raw + more)


@pytest.mark.parametrize("tail", [WINDOW, Tail(0, 1)])
def test_every_changed_bit_is_refused(tail: Tail) -> None:
    raw = tail_file.encode(tail)
    for position in range(len(raw)):
        for bit in range(8):
            spoilt = bytearray(raw)
            spoilt[position] ^= 1 << bit
            with pytest.raises(CorruptData) as refused:
                tail_file.decode(bytes(spoilt))
            assert not isinstance(refused.value, NewerFormat), "damage is not a newer version"


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (HEADER.at("version"), b"\0\2"),
        (HEADER.at("flags"), b"\0\1"),
        (HEADER.size + SECTION.at("kind"), b"\0\4"),
    ],
)
def test_what_a_newer_version_wrote_is_named_as_that(at: int, data: bytes) -> None:
    with pytest.raises(NewerFormat):
        tail_file.decode(changed(at, data))


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (HEADER.at("version"), b"\0\0"),
        (HEADER.at("sections"), b"\0\0\0\2"),
        (HEADER.at("sections"), b"\0\0\0\4"),
        (HEADER.at("sections"), b"\xff\xff\xff\xff"),
        (HEADER.at("seq"), b"\xff"),
        (HEADER.at("epoch"), b"\x80"),
        (HEADER.at("length"), b"\0\1"),
        (HEADER.size + SECTION.at("name_len"), b"\xff\xff"),
        (HEADER.size + SECTION.at("body_len"), b"\xff" * 8),
        (HEADER.size + SECTION.at("next"), b"\0" * 8),
        (HEADER.size + SECTION.at("first"), b"\xff" * 8),
        (HEADER.size + SECTION.size, b"\xff"),
    ],
)
def test_a_contradiction_under_a_good_checksum_is_damage(at: int, data: bytes) -> None:
    with pytest.raises(CorruptData) as refused:
        tail_file.decode(changed(at, data))
    assert not isinstance(refused.value, NewerFormat)


@pytest.mark.parametrize(
    "given_",
    [
        (Kind.RECORDS, "t", b"", 0, 5, 5),
        (Kind.RECORDS, "t", b"", 0, 6, 5),
        (Kind.COPY, "t", b"", 0, 5, 6),
        (Kind.COPY, "t", b"", 1),
        (Kind.PRODUCERS, "t", b"", 0, 0, 1),
        (Kind.RECORDS, "", b"", 0, 5, 6),
    ],
)
def test_no_section_is_made_that_would_not_be_read(given_: Any) -> None:
    with pytest.raises(ValueError, match=r"offsets|section"):
        Section(*given_)


def test_a_name_that_is_too_long_is_refused() -> None:
    section = Section(Kind.COPY, "x" * (tail_file.NAME_BYTES_MAX + 1), b"")
    with pytest.raises(InvalidRequest, match="at most"):
        tail_file.encode(Tail(0, 1, (section,)))
