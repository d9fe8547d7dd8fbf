"""The journal of committed offsets is recognised, verified and dumped like any other file."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina.formats import committed_offsets as journal
from lamina.formats.committed_offsets import Entry, Kind
from lamina.formats.documents import producer_ids
from lamina.inspect.kinds import kind_of, verify_file

ENTRIES = [
    Entry(Kind.COMMIT, "g", "t", 0, 1, 5, 0, "note", 7),
    Entry(Kind.FORGET_GROUP, "g", leader_epoch=0),
]
WHOLE = journal.encode_header(1) + journal.encode(ENTRIES)


def written(tmp_path: Path, data: bytes, name: str = "offsets.log") -> str:
    path = tmp_path / "groups" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return str(path)


def dumped(path: str, data: bytes, first: int = 0) -> list[dict[str, object]]:
    kind = kind_of(path, data)
    assert kind is not None
    return list(kind.dump(path, data, first))


def test_a_sound_journal_has_no_findings_and_a_row_per_entry(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE + bytes(100))
    assert verify_file(path) == []
    commit, forget = dumped(path, WHOLE)
    assert (commit["kind"], commit["offset"], commit["metadata"]) == ("commit", 5, "note")
    assert (forget["kind"], forget["group"], forget["checksum"]) == ("forget_group", "g", "ok")
    assert dumped(path, WHOLE, 1) == [forget]


@pytest.mark.parametrize("size", range(0, journal.FILE_HEADER_BYTES + 1, 3))
def test_a_journal_that_is_cut_in_its_header_is_a_finding(tmp_path: Path, size: int) -> None:
    path = written(tmp_path, WHOLE[:size])
    kind = kind_of(path, WHOLE[:size])
    assert kind is not None
    found = list(kind.verify(path, WHOLE[:size]))
    assert len(found) == (size < journal.FILE_HEADER_BYTES)


def test_damage_is_found_where_it_is_and_where_reading_goes_on(tmp_path: Path) -> None:
    spoilt = bytearray(WHOLE)
    first, second = (piece.position for piece in journal.walk(WHOLE))
    spoilt[first + 9] ^= 1
    path = written(tmp_path, bytes(spoilt))
    (finding,) = verify_file(path) or []
    assert (finding.position, finding.resumes_at) == (first, second)
    assert "no entry" in str(dumped(path, bytes(spoilt))[0])


def test_a_damaged_header_and_a_newer_entry_are_findings(tmp_path: Path) -> None:
    spoilt = bytearray(WHOLE)
    spoilt[9] ^= 1
    assert len(verify_file(written(tmp_path, bytes(spoilt))) or []) == 1
    newer = bytearray(journal.encode(ENTRIES[:1]))
    newer[3] = 2
    newer[-4:] = journal.crc32c_of(bytes(newer[2:-4])).to_bytes(4, "big")
    path = written(tmp_path, WHOLE + bytes(newer))
    (finding,) = verify_file(path) or []
    assert "unknown kind" in finding.problem
    assert len(dumped(path, WHOLE + bytes(newer))) == 3


def test_the_ids_of_producers_are_a_document(tmp_path: Path) -> None:
    data = producer_ids.encode(producer_ids.Reserved(3000))
    path = written(tmp_path, data, "producers.json")
    assert verify_file(path) == []
    assert "3000" in str(dumped(path, data))
    assert len(verify_file(written(tmp_path, data[:-20], "producers.json")) or []) == 1
