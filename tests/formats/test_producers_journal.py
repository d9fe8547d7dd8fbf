"""The producers' journal: a damaged entry costs itself, prepared space is no entry."""

from __future__ import annotations

import google_crc32c
import pytest

from lamina.formats import producer_journal
from lamina.formats.producer_journal import ENTRY, Entry

ENTRIES = [
    Entry(0x1122334455667788, 3, 40, 5, 2),
    Entry(9, 0, 0, 1, 0),
    Entry((1 << 64) - 1, (1 << 64) - 1, (1 << 63) - 1, (1 << 32) - 1, (1 << 32) - 1),
]
RAW = producer_journal.encode(ENTRIES)


def test_an_entry_is_as_documented() -> None:
    first = producer_journal.encode(ENTRIES[:1])
    assert (len(first), ENTRY.size) == (36, 36)
    assert first[:32].hex() == (
        "8877665544332211" + "0300000000000000" + "2800000000000000" + "05000000" + "02000000"
    )
    assert int.from_bytes(first[32:], "little") == google_crc32c.value(first[:32])


def test_entries_come_back_with_their_positions() -> None:
    assert list(producer_journal.walk(RAW)) == [(0, ENTRIES[0]), (36, ENTRIES[1]), (72, ENTRIES[2])]
    assert producer_journal.decode(RAW) == ENTRIES
    assert producer_journal.decode(b"") == []


def test_prepared_space_is_no_entry() -> None:
    for more in (1, 35, 36, 1000):
        assert list(producer_journal.walk(RAW + bytes(more))) == list(producer_journal.walk(RAW))
    assert list(producer_journal.walk(bytes(100))) == []


@pytest.mark.parametrize("cut", range(1, 36))
def test_a_cut_entry_is_none(cut: int) -> None:
    found = list(producer_journal.walk(RAW[:-cut]))
    assert found == [(0, ENTRIES[0]), (36, ENTRIES[1]), (72, None)]


def test_a_damaged_entry_costs_only_itself() -> None:
    for position in range(36, 72):
        spoilt = bytearray(RAW)
        spoilt[position] ^= 0x10
        assert list(producer_journal.walk(spoilt)) == [
            (0, ENTRIES[0]),
            (36, None),
            (72, ENTRIES[2]),
        ]
        assert producer_journal.decode(spoilt) == [ENTRIES[0], ENTRIES[2]]


def test_an_entry_below_every_offset_is_none() -> None:
    assert producer_journal.decode(producer_journal.encode([Entry(1, 1, -1, 1, 1)])) == []
