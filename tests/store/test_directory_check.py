"""What a look at a whole directory finds that no single file shows."""

from __future__ import annotations

from pathlib import Path

from lamina.config import WalSettings
from lamina.inspect.findings import NOTE
from lamina.storage.files import LocalFiles
from lamina.store.directory_check import belonging
from tests.support.directories import opened


def found(path: Path, *names: Path) -> list[tuple[str, str]]:
    return [
        (each.severity, each.problem)
        for each in belonging(LocalFiles(), str(path), map(str, names))
    ]


def test_a_file_among_segments_that_nobody_reads_is_named(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="frame")
        store.append("t", [b"value"])
    folder = tmp_path / "topics" / "t" / "0" / "segments"
    strange, own = folder / "backup.log", next(folder.glob("*.log"))
    strange.write_bytes(b"anything")
    assert found(tmp_path, own) == []
    ((severity, problem),) = found(tmp_path, own, strange)
    assert severity == NOTE
    assert "nobody reads it" in problem


def test_a_segment_of_a_wal_topic_that_is_gone_is_missing_without_a_reason(tmp_path: Path) -> None:
    with opened(tmp_path, wal=WalSettings(shards=1, segment_events=10)) as store:
        store.create_topic("t", format="wal")
        for number in range(1, 36):
            store.append("t", b"value %d" % number)
        store.maintain()
    assert found(tmp_path) == []
    folder = next((tmp_path / "segments").iterdir())
    for file in folder.glob(f"seg-{11:020}.*"):
        file.unlink()
    assert any("offsets 11 to 21 are missing" in problem for _, problem in found(tmp_path))
