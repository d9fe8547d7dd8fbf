"""A file that may be let go of between two calls, and is opened again when it is used."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lamina.storage.files import LocalFile, LocalFiles
from lamina.storage.kept_file import KeptFile


def kept(tmp_path: Path, name: str = "a", files: LocalFiles | None = None) -> KeptFile:
    files = files or LocalFiles()
    return KeptFile(files, f"{tmp_path}/{name}", files.create(f"{tmp_path}/{name}"))


def is_open(tmp_path: Path, name: str = "a") -> bool:
    links = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
    return f"{tmp_path}/{name}" in [os.readlink(each) for each in links if os.path.islink(each)]


def test_what_is_synced_may_go_and_comes_back_with_the_next_call(tmp_path: Path) -> None:
    file = kept(tmp_path)
    file.write_at(0, b"abc")
    file.sync()
    assert file.let_go()
    assert not is_open(tmp_path)
    assert file.read_at(0, 10) == b"abc"
    assert is_open(tmp_path)
    assert (file.size(), bytes(file.load()), file.identity()[-1]) == (3, b"abc", 3)


def test_what_is_not_synced_keeps_its_descriptor(tmp_path: Path) -> None:
    file = kept(tmp_path)
    file.write_at(0, b"abc")
    assert not file.let_go()
    assert is_open(tmp_path)
    file.begin_sync()
    file.sync()
    file.truncate(2)
    file.reserve(4096)
    assert file.let_go(), "a cut has no write left that could fail"
    assert file.read_at(0, 10) == b"ab"


def test_the_bound_lets_idle_ones_go(tmp_path: Path) -> None:
    files = LocalFiles(open_files=3)
    owners = [kept(tmp_path, str(number), files) for number in range(9)]
    assert sum(is_open(tmp_path, str(number)) for number in range(9)) == 3
    for number, each in enumerate(owners):
        each.write_at(0, b"%d" % number)
        each.sync()
    assert [each.read_at(0, 1) for each in owners] == [b"%d" % number for number in range(9)]
    assert sum(is_open(tmp_path, str(number)) for number in range(9)) <= 4


def test_a_file_that_was_replaced_is_found_by_its_name(tmp_path: Path) -> None:
    files = LocalFiles()
    file = kept(tmp_path, files=files)
    file.write_at(0, b"old")
    files.replace(f"{tmp_path}/a", b"new")
    file.reopen()
    assert file.read_at(0, 10) == b"new"


def test_a_closed_file_is_never_opened_again(tmp_path: Path) -> None:
    file = kept(tmp_path)
    file.write_at(0, b"abc")
    file.close()
    file.close()
    assert file.is_closed
    assert not is_open(tmp_path), "synced or not"
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        file.read_at(0, 1)


def test_opening_for_lack_of_a_descriptor_may_let_go_of_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that opens its file holds no lock then: another may be told to let go meanwhile."""
    files = LocalFiles()
    first, second = kept(tmp_path, "a", files), kept(tmp_path, "b", files)
    assert first.let_go()
    files.kept.enter(first)
    real = files.open

    def opening(path: str) -> LocalFile:
        files.kept.release()
        return real(path)

    monkeypatch.setattr(files, "open", opening)
    assert first.read_at(0, 1) == b""
    assert not is_open(tmp_path, "b")
    assert second.size() == 0
