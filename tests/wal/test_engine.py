"""Opening without any snapshot: what the indexes of segments say of deleted records counts."""

from __future__ import annotations

from pathlib import Path

from tests.wal.stores import crash, fill, numbered, opened, values


def test_deletes_outlive_both_snapshots_and_the_wal_file_that_said_so(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for topic in ("t", "filler"):
        store.create_topic(topic, format="wal")
    fill(store, 1, 26)
    assert store.delete("t", tag=b"tag 1") == 9
    fill(store, 1, 100, "filler")
    for offset in range(26, 29):
        store.maintain()
        fill(store, offset, offset + 1)
    store.maintain()
    expected = {key: each for key, each in numbered(1, 29).items() if key > 25 or key % 3 != 1}
    assert values(store) == expected
    assert not (tmp_path / "wal" / "wal-1.log").exists(), "the delete is in no file of the WAL"
    crash(store)
    for snapshot in tmp_path.glob("meta/snapshot-*.bin"):
        snapshot.unlink()
    with opened(tmp_path) as again:
        assert values(again) == expected
