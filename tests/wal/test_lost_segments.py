"""Segments of a wal topic that are gone: told as lost, and no offset is given twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wal.stores import contents, looked_at, opened

ROWS = [b"record %d" % number for number in range(25)]


def purged(path: Path) -> Path:
    """A closed store with twenty-five records in three segments, and none in the WAL."""
    with opened(path) as store:
        store.create_topic("t", format="wal")
        for first in range(0, 25, 5):
            store.append("t", ROWS[first : first + 5])
        store.purge_wal()
    return path


def lose(path: Path, first: int) -> None:
    for file in path.glob(f"segments/*/seg-{first:020}.*"):
        file.unlink()


@pytest.mark.parametrize("snapshots", [2, 1], ids=["both snapshots", "the older snapshot"])
@pytest.mark.parametrize("first", [1, 11, 21])
def test_a_lost_segment_is_told_and_its_offsets_are_not_given_again(
    tmp_path: Path, first: int, snapshots: int
) -> None:
    path = purged(tmp_path / "data")
    lose(path, first)
    for file in sorted(path.glob("meta/snapshot-*"))[snapshots:]:
        file.unlink()
    end = min(first + 10, 26)
    with looked_at(path) as reader:
        assert reader.latest_offset("t") == 26
        assert [(gap.first, gap.end, gap.reason) for gap in reader.gaps("t")] == [
            (first, end, "lost")
        ]
    for _ in range(2):
        with opened(path) as store:
            found, gaps = contents(store)
            assert [(gap.first, gap.end, gap.reason) for gap in gaps] == [(first, end, "lost")]
            assert found == {
                at + 1: row for at, row in enumerate(ROWS) if not first <= at + 1 < end
            }
    with opened(path) as store:
        assert store.append("t", [b"more"]).base_offset == 26


def test_what_was_evicted_is_not_called_lost(tmp_path: Path) -> None:
    path = purged(tmp_path / "data")
    with opened(path) as store:
        store.trim("t", 0, 26)
        store.purge_wal()
    lose(path, 21)  # nothing in it could be read any more
    with opened(path) as store:
        assert [gap.reason for gap in store.gaps("t")] == ["trim"]
        assert store.append("t", [b"more"]).base_offset == 26


def test_a_snapshot_that_says_nothing_of_it_is_read_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lamina.wal import engine, metadata

    plain = metadata.config_of
    monkeypatch.setattr(engine, "config_of", lambda about, _=None: plain(about))
    path = purged(tmp_path / "data")
    monkeypatch.undo()
    with opened(path) as store:
        assert contents(store) == ({at + 1: row for at, row in enumerate(ROWS)}, [])
