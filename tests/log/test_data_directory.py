"""A data directory measures spans by the clock that does not jump, where it has one."""

from __future__ import annotations

from pathlib import Path

from lamina.log.data_directory import DataDirectory
from lamina.storage.files import LocalFiles
from tests.support.directories import opened


def test_spans_are_measured_by_the_steady_clock_and_else_by_the_wall_clock() -> None:
    jumping = DataDirectory(LocalFiles(), "data", lambda: 7, lambda: 1000)
    assert (jumping.now_ms(), jumping.steady()) == (7, 1000)
    assert DataDirectory(LocalFiles(), "data", lambda: 7).steady() == 7


def test_only_a_topic_whose_file_says_so_was_deleted(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        for name in ("there", "gone", "damaged"):
            store.create_topic(name)
        store.delete_topic("gone")
    (tmp_path / "data/topics/damaged/topic.json").write_bytes(b"{")
    data = DataDirectory(LocalFiles(), str(tmp_path / "data"), lambda: 0)
    names = ("there", "gone", "damaged", "never")
    assert [data.has_deleted(name) for name in names] == [False, True, False, False]
