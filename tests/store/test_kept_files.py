"""Small files that are damaged, or somebody else's: a copy is kept before they are replaced."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lamina.formats.documents import topic_file
from tests.support.directories import opened

FOREIGN = b"Dear reader, this is a letter and no log.\n" * 40
FORMATS = ("frame", "keratin", "wal")


def made(path: Path, format_name: str) -> Path:
    with opened(path / "data", archive=str(path / "archive")) as store:
        config = {"remote.storage.enable": "true"}
        store.create_topic("t", format=format_name, config=config)
        store.append("t", [b"one", b"two"], partition=0)
        store.group("t", "g").poll(1)
        store.archive()
    return path


def is_kept(path: Path, data: bytes = FOREIGN) -> bool:
    return any(data in file.read_bytes() for file in path.rglob("*") if file.is_file())


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize(
    "name",
    [
        "data/meta/checkpoint.json",
        "data/meta/archive.json",
        "data/topics/t/topic.json",
        "data/groups/t-0_g.delta",
        "data/groups/t-0_g.snap",
        "archive/data/t/topic.json",
    ],
)
def test_foreign_bytes_are_set_aside_before_they_are_replaced(
    tmp_path: Path, format_name: str, name: str
) -> None:
    root = made(tmp_path, format_name)
    file = root / name
    file.write_bytes(FOREIGN)
    for _ in range(2):
        with opened(root / "data", archive=str(root / "archive")) as store:
            store.group("t", "g").poll(1)
            store.archive()
            store.maintain()
            assert [batch.num_rows for batch in store.scan("t")] == [2]
    assert file.read_bytes() != FOREIGN, "it was made again"
    assert is_kept(root)


def test_a_location_that_a_newer_version_wrote_stays(tmp_path: Path) -> None:
    root = made(tmp_path, "keratin")
    file = root / "data/meta/archive.json"
    newer = file.read_bytes().replace(b'"version": 1', b'"version": 2')
    assert newer != file.read_bytes()
    file.write_bytes(newer)
    with opened(root / "data", archive=str(root / "archive")):
        pass
    assert is_kept(root, newer)


@pytest.mark.parametrize("format_name", ["frame", "keratin"])
def test_a_topic_of_which_nothing_but_a_damaged_file_is_left_is_reported(
    tmp_path: Path, format_name: str
) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"one"], partition=0)
    file = path / "topics/t/topic.json"
    damaged = file.read_bytes()[:-7]
    file.write_bytes(damaged)
    shutil.rmtree(path / "topics/t/0")
    with opened(path) as store:
        (event,) = store.recovery_report.of("quarantined")
        assert event.path == str(file)
        assert "no file shows what the topic was" in event.why
        store.create_topic("t", format=format_name)
    topic_file.decode(file.read_bytes())
    assert is_kept(path, damaged)
