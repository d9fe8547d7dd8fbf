"""The file of a transaction is recognised, verified and dumped like any other file."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina.formats import tail_file, transaction_file
from lamina.formats.transaction_file import Entry, Kind
from lamina.inspect.kinds import kind_of, verify_file
from lamina.storage import paths

ENTRIES = [
    Entry(Kind.PRODUCER, "copier", partition=3, number=1000),
    Entry(Kind.BATCH, "orders", 2, 7, 41, b"a batch"),
    Entry(Kind.END, number=2),
]
WHOLE = transaction_file.encode_header(1) + b"".join(map(transaction_file.encode, ENTRIES))
STEM = "00000000000000000007"


def written(tmp_path: Path, data: bytes, suffix: str) -> str:
    path = tmp_path / "transactions" / f"{STEM}.{suffix}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return str(path)


def dumped(path: str, data: bytes, first: int = 0) -> list[dict[str, object]]:
    kind = kind_of(path, data)
    assert kind is not None
    return list(kind.dump(path, data, first))


@pytest.mark.parametrize("suffix", ["commit", "staged"])
def test_a_sound_file_has_no_findings_and_a_row_per_entry(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path, WHOLE, suffix)
    assert verify_file(path) == []
    producer, batch, end = dumped(path, WHOLE)
    assert (producer["kind"], producer["name"], producer["number"]) == ("producer", "copier", 1000)
    assert (batch["partition"], batch["body"], batch["checksum"]) == (7, "7 bytes", "ok")
    assert dumped(path, WHOLE, 2) == [end]


def test_a_file_without_its_end_is_damaged_only_where_it_was_decided(tmp_path: Path) -> None:
    cut = WHOLE[:-9]
    (finding,) = verify_file(written(tmp_path, cut, "commit")) or []
    assert "not an entry" in finding.problem
    assert verify_file(written(tmp_path, cut, "staged")) == []
    rows = dumped(written(tmp_path, cut, "commit"), cut)
    assert [row.get("kind") for row in rows[:2]] == ["producer", "batch"]
    assert "not an entry" in str(rows[2])


# ---------------------------------------------------------------------- windows of a cluster's log


def test_a_window_is_verified_and_shown(tmp_path: Path) -> None:
    section = tail_file.Section(tail_file.Kind.RECORDS, "orders", b"body", 3, 10, 12)
    file = tmp_path / paths.base_name(paths.tail(4))
    file.write_bytes(tail_file.encode(tail_file.Tail(4, 7, (section,))))
    assert verify_file(str(file)) == []
    (row,) = dumped(str(file), file.read_bytes())
    assert (row["kind"], row["name"], row["next_offset"]) == ("records", "orders", 12)
    other = tmp_path / paths.base_name(paths.tail(5))
    other.write_bytes(file.read_bytes())
    assert "its name says another" in problem_of(other)
    other.write_bytes(file.read_bytes()[:-1])
    assert "checksum" in problem_of(other)
    (row,) = dumped(str(other), other.read_bytes())
    assert "checksum" in str(row["problem"])


def problem_of(file: Path) -> str:
    (found,) = verify_file(str(file)) or []
    return found.problem
