"""The journal of committed offsets: bytes by hand, every cut, every flipped bit, newer entries."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import InvalidRequest, NewerFormat
from lamina.formats import committed_offsets as journal
from lamina.formats.committed_offsets import Entry, Kind, Standing
from lamina.formats.kernels.crc import crc32c_of
from lamina.formats.scan import Budget

ENTRIES = [
    Entry(Kind.COMMIT, "billing", "orders", 3, 2, 41, 0, "note", 1_700_000_000_000),
    Entry(Kind.FORGET_PARTITION, "g", "t", 1, leader_epoch=0),
    Entry(Kind.FORGET_GROUP, "gruppe-ü", leader_epoch=0),
]
HEAD = journal.encode_header(1_700_000_000_000)
RAW = HEAD + journal.encode(ENTRIES)


def ends() -> list[int]:
    return [piece.end for piece in journal.walk(RAW)]


def test_an_entry_is_as_documented() -> None:
    body = struct.pack(">HHHHHHHIIqiq", 0x4B4F, 1, 1, 0, 7, 6, 4, 2, 3, 41, 0, 1_700_000_000_000)
    body += b"billing" + b"orders" + b"note"
    checksum = google_crc32c.value(body[2:])
    assert journal.encode(ENTRIES[:1]) == body + checksum.to_bytes(4, "big")
    assert HEAD[:8] == b"KOFFSET\0"
    assert journal.decode_header(HEAD) == 1_700_000_000_000


def test_entries_come_back_with_their_positions() -> None:
    found = list(journal.walk(RAW))
    assert [piece.entry for piece in found] == ENTRIES
    assert [piece.position for piece in found] == [len(HEAD), *ends()[:-1]]
    assert ends()[-1] == len(RAW)


@pytest.mark.parametrize("zeros", [1, 2, 3, 50, 5000])
def test_prepared_space_is_no_entry(zeros: int) -> None:
    assert list(journal.walk(RAW + bytes(zeros))) == list(journal.walk(RAW))
    assert list(journal.walk(HEAD + bytes(zeros))) == []


def test_every_cut_costs_only_the_entry_that_is_cut() -> None:
    for length in range(len(HEAD), len(RAW)):
        found = list(journal.walk(RAW[:length]))
        whole = [each for each, end in zip(ENTRIES, ends(), strict=True) if end <= length]
        assert [piece.entry for piece in found if piece.entry is not None] == whole


def test_every_flipped_bit_costs_only_its_entry() -> None:
    starts = [len(HEAD), *ends()]
    for bit in range(8 * len(HEAD), 8 * len(RAW)):
        spoilt = bytearray(RAW)
        spoilt[bit // 8] ^= 1 << bit % 8
        hit = next(row for row in range(3) if starts[row] <= bit // 8 < starts[row + 1])
        found = list(journal.walk(spoilt))
        assert [piece.entry for piece in found if piece.entry is not None] == [
            each for row, each in enumerate(ENTRIES) if row != hit
        ]
        (damage,) = [piece for piece in found if piece.entry is None]
        assert damage.position == starts[hit]
        assert bytes(spoilt[damage.end : starts[hit + 1]]).strip(b"\0") == b""


def sealed(body: bytes) -> bytes:
    return body + google_crc32c.value(body[2:]).to_bytes(4, "big")


@pytest.mark.parametrize(("at", "value"), [(2, 2), (4, 9), (4, 0)])
def test_a_sound_entry_of_another_version_or_kind_is_newer(at: int, value: int) -> None:
    body = bytearray(journal.encode(ENTRIES[:1])[:-4])
    body[at : at + 2] = value.to_bytes(2, "big")
    with pytest.raises(NewerFormat, match="unknown kind"):
        list(journal.walk(HEAD + sealed(bytes(body))))


def test_a_standing_that_nobody_knows_yet_is_newer() -> None:
    newer = Entry(Kind.PRODUCER, "t", partition=len(Standing))
    with pytest.raises(NewerFormat, match="unknown kind"):
        list(journal.walk(HEAD + journal.encode([newer])))


def test_what_is_too_long_is_refused_before_anything_is_written() -> None:
    with pytest.raises(InvalidRequest, match="65535"):
        journal.encode([Entry(Kind.COMMIT, "g", "t", metadata="x" * 65_536)])


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
entries = st.builds(
    lambda kind, group, topic, partition, *more: Entry(
        kind, group, topic, partition % len(Standing) if kind is Kind.PRODUCER else partition, *more
    ),
    st.sampled_from(Kind),
    texts,
    texts,
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
    texts,
    st.integers(0, 2**62),
)


@given(st.lists(entries, max_size=5))
def test_whatever_is_encoded_comes_back(given_entries: list[Entry]) -> None:
    data = HEAD + journal.encode(given_entries)
    assert [piece.entry for piece in journal.walk(data)] == given_entries


@given(st.binary(max_size=300))
def test_any_bytes_are_walked_to_their_end(noise: bytes) -> None:
    for piece in journal.walk(HEAD + noise + journal.encode(ENTRIES[:1])):
        assert piece.position < piece.end
    assert piece.entry == ENTRIES[0]


def test_damage_that_claims_large_entries_everywhere_is_not_checked_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim = struct.pack(">HHHHHHH", 0x4B4F, 1, 1, 0, 0xFFFF, 0xFFFF, 0xFFFF)
    data = HEAD + claim * 40_000 + RAW[len(HEAD) :]
    checked_bytes = 0

    def counted(body: memoryview) -> int:
        nonlocal checked_bytes
        checked_bytes += len(body)
        return crc32c_of(body)

    monkeypatch.setattr(journal, "crc32c_of", counted)
    found = list(journal.walk(data))
    assert checked_bytes < (Budget.BYTES_PER_BYTE + 2) * len(data)
    assert [piece.entry for piece in found if piece.entry is not None] == ENTRIES
