"""The file of a transaction: bytes by hand, every cut, every flipped bit, newer entries."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import CorruptData, InvalidRequest, NewerFormat
from lamina.formats import transaction_file as format_
from lamina.formats.transaction_file import Entry, Kind

ENTRIES = [
    Entry(Kind.PRODUCER, "copier-ü", partition=3, number=1000),
    Entry(Kind.BATCH, "orders", 2, 7, 41, b"a batch"),
    Entry(Kind.OFFSETS, "billing", body=b"offsets"),
    Entry(Kind.END, number=3),
]
HEAD = format_.encode_header(1_700_000_000_000)
RAW = HEAD + b"".join(map(format_.encode, ENTRIES))


def read(data: bytes, *, is_decided: bool = True) -> list[Entry]:
    return [each.entry for each in format_.walk(data, is_decided=is_decided)]


def test_an_entry_is_as_documented() -> None:
    body = struct.pack(">HHHHHIIIq", 0x4B54, 1, 2, 0, 6, 7, 2, 7, 41) + b"orders" + b"a batch"
    checksum = google_crc32c.value(body[2:])
    assert format_.encode(ENTRIES[1]) == body + checksum.to_bytes(4, "big")
    assert HEAD[:8] == b"KTXN\0\0\0\0"


def test_entries_come_back_with_their_positions() -> None:
    assert read(RAW) == ENTRIES
    found = list(format_.walk(RAW))
    assert [each.position for each in found] == [len(HEAD), *(each.end for each in found[:-1])]
    assert found[-1].end == len(RAW)
    assert [format_.decode(RAW[each.position : each.end]) for each in found] == ENTRIES
    format_.check(RAW)


def test_every_cut_of_a_decided_transaction_is_damage() -> None:
    for length in range(len(RAW)):
        with pytest.raises(CorruptData):
            format_.check(RAW[:length])


def test_of_a_staged_transaction_every_cut_costs_only_the_entry_that_is_cut() -> None:
    ends = [each.end for each in format_.walk(RAW)]
    for length in range(len(HEAD), len(RAW)):
        whole = [each for each, end in zip(ENTRIES, ends, strict=True) if end <= length]
        assert read(RAW[:length], is_decided=False) == whole


def test_every_flipped_bit_is_damage() -> None:
    for bit in range(8 * len(RAW)):
        spoilt = bytearray(RAW)
        spoilt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData) as found:
            format_.check(bytes(spoilt))
        assert not isinstance(found.value, NewerFormat), bit


@pytest.mark.parametrize(
    "entries",
    [
        ENTRIES[1:],
        [ENTRIES[0], *ENTRIES],
        [*ENTRIES[:2], ENTRIES[3]],
        [*ENTRIES, ENTRIES[3]],
        ENTRIES[:3],
        [],
    ],
)
def test_what_is_no_whole_transaction_is_damage(entries: list[Entry]) -> None:
    with pytest.raises(CorruptData):
        format_.check(HEAD + b"".join(map(format_.encode, entries)))


def test_bytes_behind_the_end_are_damage() -> None:
    with pytest.raises(CorruptData, match="behind the end"):
        format_.check(RAW + b"\0")


@pytest.mark.parametrize(("at", "value"), [(2, 2), (4, 9), (4, 0)])
def test_a_sound_entry_of_another_version_or_kind_is_newer(at: int, value: int) -> None:
    body = bytearray(format_.encode(ENTRIES[1])[:-4])
    body[at : at + 2] = value.to_bytes(2, "big")
    sealed = bytes(body) + google_crc32c.value(bytes(body[2:])).to_bytes(4, "big")
    with pytest.raises(NewerFormat, match="unknown kind"):
        format_.check(HEAD + format_.encode(ENTRIES[0]) + sealed)


def test_a_name_that_is_too_long_is_refused_before_anything_is_written() -> None:
    with pytest.raises(InvalidRequest, match="65535"):
        format_.encode(Entry(Kind.OFFSETS, "x" * 65_536))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(0, 2**32 - 1)
middles = st.builds(
    Entry,
    st.sampled_from([Kind.BATCH, Kind.OFFSETS]),
    texts,
    numbers,
    numbers,
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=40),
)


@given(st.lists(middles, max_size=5))
def test_whatever_is_encoded_comes_back(given_entries: list[Entry]) -> None:
    entries = [ENTRIES[0], *given_entries, Entry(Kind.END, number=len(given_entries) + 1)]
    assert read(HEAD + b"".join(map(format_.encode, entries))) == entries


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_read(noise: bytes) -> None:
    with pytest.raises(CorruptData):
        format_.check(HEAD + noise)
    assert isinstance(read(HEAD + noise, is_decided=False), list)
