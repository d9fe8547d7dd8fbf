"""The machine as jobs see it: trees of files, versions of files, the holder of a lock."""

from __future__ import annotations

import os
from pathlib import Path

from lamina.storage import machine


def tree(root: Path) -> list[str]:
    for name in ("b", "a", "set-aside/c", "deep/er/d"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return [str(root / name) for name in ("a", "b", "set-aside/c", "deep/er/d")]


def test_every_file_of_a_tree_is_found(tmp_path: Path) -> None:
    assert sorted(machine.files_below(str(tmp_path))) == []
    wanted = tree(tmp_path)
    assert sorted(machine.files_below(str(tmp_path))) == sorted(wanted)
    kept = machine.files_below(str(tmp_path), leave="set-aside")
    assert sorted(kept) == sorted(name for name in wanted if "set-aside" not in name)


def test_a_folder_that_cannot_be_listed_is_reported(tmp_path: Path) -> None:
    told: list[OSError] = []
    assert list(machine.files_below(str(tmp_path / "none"), on_error=told.append)) == []
    assert [type(error) for error in told] == [FileNotFoundError]


def test_a_tree_is_removed_and_one_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    tree(tmp_path / "root")
    machine.remove_tree(str(tmp_path / "root"))
    assert not (tmp_path / "root").exists()
    machine.remove_tree(str(tmp_path / "root"))


def test_a_version_changes_when_a_file_is_written_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert machine.version_of(str(path)) is None
    path.write_bytes(b"one")
    first = machine.version_of(str(path))
    assert first == machine.version_of(str(path))
    (tmp_path / "other").write_bytes(b"two")
    os.replace(tmp_path / "other", path)
    assert machine.version_of(str(path)) != first
    ((named, _, size),) = machine.versions_in(str(tmp_path))
    assert (named, size) == (str(path), 3)


def test_a_lock_names_the_process_that_holds_it() -> None:
    assert machine.holder() == f"pid {os.getpid()}\n"
    assert machine.processors() >= 1


def test_the_room_of_a_place_is_what_its_file_system_says(tmp_path: Path) -> None:
    found, told = machine.space_of(str(tmp_path)), os.statvfs(tmp_path)
    assert found.total_bytes == told.f_blocks * told.f_frsize
    assert found.total_files == told.f_files
    assert 0 < found.free_bytes <= found.total_bytes
    assert found.free_files <= found.total_files
