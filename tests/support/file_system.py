"""What every file system must show that the engine may run on: the real one and simulated ones.

A subclass gives a file system and an empty directory in it. Paths are absolute. Nothing here asks
what survives a power cut: that is for the simulation's own tests.
"""

from __future__ import annotations

import errno
import os

import pytest

from lamina.errors import Locked
from lamina.storage.files import File, Files


class FileSystemContract:
    """Subclasses override the two fixtures."""

    @pytest.fixture
    def files(self) -> Files:
        raise NotImplementedError

    @pytest.fixture
    def root(self) -> str:
        raise NotImplementedError

    def made(self, files: Files, path: str, data: bytes = b"") -> File:
        file = files.create(path)
        file.write_at(0, data)
        return file

    # ------------------------------------------------------------------ files

    def test_a_created_file_is_empty_and_there(self, files: Files, root: str) -> None:
        file = files.create(f"{root}/a")
        assert (file.size(), file.read_at(0, 10)) == (0, b"")
        assert files.exists(f"{root}/a")
        assert files.size(f"{root}/a") == 0

    def test_creating_what_exists_is_refused_and_harms_nothing(
        self, files: Files, root: str
    ) -> None:
        self.made(files, f"{root}/a", b"old")
        with pytest.raises(FileExistsError):
            files.create(f"{root}/a")
        assert files.read(f"{root}/a") == b"old"

    @pytest.mark.parametrize("method", ["open", "open_read_only", "read", "size", "remove"])
    def test_a_missing_file_is_an_error(self, files: Files, root: str, method: str) -> None:
        with pytest.raises(FileNotFoundError):
            getattr(files, method)(f"{root}/missing")
        assert not files.exists(f"{root}/missing")

    @pytest.mark.parametrize("method", ["create", "lock"])
    def test_a_file_needs_its_directory(self, files: Files, root: str, method: str) -> None:
        extra = ["me"] if method == "lock" else []
        with pytest.raises(FileNotFoundError):
            getattr(files, method)(f"{root}/missing/a", *extra)

    def test_what_is_written_is_read_by_every_descriptor(self, files: Files, root: str) -> None:
        file = self.made(files, f"{root}/a", b"hello world")
        file.write_at(6, b"W")
        assert file.read_at(0, 100) == b"hello World"
        assert files.open(f"{root}/a").read_at(6, 3) == b"Wor"
        assert files.open_read_only(f"{root}/a").read_at(0, 5) == b"hello"
        assert files.read(f"{root}/a") == b"hello World"
        assert (file.size(), files.size(f"{root}/a")) == (11, 11)

    def test_opening_does_not_change_a_file(self, files: Files, root: str) -> None:
        self.made(files, f"{root}/a", b"abc").close()
        file = files.open(f"{root}/a")
        file.write_at(3, b"d")
        assert files.read(f"{root}/a") == b"abcd"

    def test_any_buffer_is_written_byte_for_byte(self, files: Files, root: str) -> None:
        file = files.create(f"{root}/a")
        file.write_at(0, bytearray(b"ab"))
        file.write_at(2, memoryview(b"..cd..")[2:4])
        file.write_at(4, memoryview(b"\1\0\2\0").cast("H"))
        file.write_at(8, b"")
        assert file.read_at(0, 99) == b"abcd\1\0\2\0"

    def test_a_read_is_short_only_at_the_end(self, files: Files, root: str) -> None:
        file = self.made(files, f"{root}/a", b"abc")
        assert file.read_at(1, 2) == b"bc"
        assert file.read_at(1, 3) == b"bc"
        assert file.read_at(3, 1) == b""
        assert file.read_at(99, 1) == b""
        assert file.read_at(0, 0) == b""

    def test_a_write_beyond_the_end_leaves_zeros_between(self, files: Files, root: str) -> None:
        file = self.made(files, f"{root}/a", b"a")
        file.write_at(4, b"b")
        assert file.read_at(0, 9) == b"a\0\0\0b"

    def test_truncating_cuts_and_extends_with_zeros(self, files: Files, root: str) -> None:
        file = self.made(files, f"{root}/a", b"abcdef")
        file.truncate(2)
        assert (file.size(), file.read_at(0, 9)) == (2, b"ab")
        file.truncate(4)
        assert file.read_at(0, 9) == b"ab\0\0", "cut bytes do not come back"

    def test_a_map_shows_the_file_and_outlives_it(self, files: Files, root: str) -> None:
        file = self.made(files, f"{root}/a", b"abc")
        mapped = file.load()
        assert bytes(mapped) == b"abc"
        assert memoryview(mapped).readonly
        file.close()
        files.remove(f"{root}/a")
        assert bytes(mapped) == b"abc"

    def test_an_empty_file_can_be_mapped(self, files: Files, root: str) -> None:
        assert bytes(files.create(f"{root}/a").load()) == b""

    def test_syncing_and_closing_change_nothing(self, files: Files, root: str) -> None:
        file = self.made(files, f"{root}/a", b"abc")
        file.begin_sync()
        file.sync()
        files.sync_directory(root)
        file.close()
        file.close()
        assert files.read(f"{root}/a") == b"abc"

    def test_a_closed_file_is_not_written(self, files: Files, root: str) -> None:
        file = self.made(files, f"{root}/a", b"abc")
        file.close()
        with pytest.raises((OSError, ValueError)):
            file.write_at(0, b"x")
        assert files.read(f"{root}/a") == b"abc"

    def test_a_file_opened_for_reading_cannot_be_written(self, files: Files, root: str) -> None:
        self.made(files, f"{root}/a", b"abc").close()
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            files.open_read_only(f"{root}/a").write_at(0, b"x")
        assert files.read(f"{root}/a") == b"abc"

    # ------------------------------------------------------------------ names

    def test_replacing_makes_or_replaces_a_file_whole(self, files: Files, root: str) -> None:
        files.replace(f"{root}/a", b"a long first content")
        assert files.read(f"{root}/a") == b"a long first content"
        files.replace(f"{root}/a", b"new")
        assert files.read(f"{root}/a") == b"new"
        assert files.list(root) == ["a"], "the temporary file is gone"

    def test_a_reader_of_a_replaced_file_keeps_the_old_one(self, files: Files, root: str) -> None:
        files.replace(f"{root}/a", b"old")
        reader = files.open_read_only(f"{root}/a")
        files.replace(f"{root}/a", b"new")
        assert reader.read_at(0, 9) == b"old"

    def test_a_temporary_left_by_a_crash_is_in_nobodys_way(self, files: Files, root: str) -> None:
        self.made(files, f"{root}/a.tmp", b"a much longer leftover of a crash").close()
        files.replace(f"{root}/a", b"new")
        assert files.read(f"{root}/a") == b"new"

    def test_a_listing_is_sorted_and_of_one_directory_only(self, files: Files, root: str) -> None:
        for name in ("b", "a", "B", "10", "9"):
            files.create(f"{root}/{name}")
        files.make_directory(f"{root}/c")
        files.create(f"{root}/c/below")
        assert files.list(root) == ["10", "9", "B", "a", "b", "c"]

    def test_a_missing_directory_lists_as_empty(self, files: Files, root: str) -> None:
        assert files.list(f"{root}/missing") == []

    def test_a_directory_is_made_with_its_parents_and_may_exist(
        self, files: Files, root: str
    ) -> None:
        files.make_directory(f"{root}/a/b/c")
        files.create(f"{root}/a/b/c/file")
        files.make_directory(f"{root}/a/b/c")
        assert files.exists(f"{root}/a/b")
        assert files.list(f"{root}/a/b/c") == ["file"]

    def test_a_file_is_not_taken_for_a_directory(self, files: Files, root: str) -> None:
        files.create(f"{root}/a")
        with pytest.raises(FileExistsError):
            files.make_directory(f"{root}/a")
        with pytest.raises((FileExistsError, NotADirectoryError)):
            files.make_directory(f"{root}/a/b")

    def test_renaming_moves_a_file_and_replaces_the_target(self, files: Files, root: str) -> None:
        self.made(files, f"{root}/a", b"new")
        self.made(files, f"{root}/b", b"old")
        files.make_directory(f"{root}/c")
        files.rename(f"{root}/a", f"{root}/b")
        files.rename(f"{root}/b", f"{root}/c/d")
        assert files.read(f"{root}/c/d") == b"new"
        assert files.list(root) == ["c"]
        with pytest.raises(FileNotFoundError):
            files.rename(f"{root}/a", f"{root}/b")

    def test_a_removed_file_is_gone(self, files: Files, root: str) -> None:
        self.made(files, f"{root}/a", b"abc")
        files.remove(f"{root}/a")
        assert files.list(root) == []
        files.create(f"{root}/a")
        assert files.read(f"{root}/a") == b""

    def test_only_an_empty_directory_is_removed(self, files: Files, root: str) -> None:
        files.make_directory(f"{root}/a")
        files.create(f"{root}/a/b")
        with pytest.raises(OSError, match=os.strerror(errno.ENOTEMPTY)):
            files.remove_directory(f"{root}/a")
        files.remove(f"{root}/a/b")
        files.remove_directory(f"{root}/a")
        assert not files.exists(f"{root}/a")

    # ------------------------------------------------------------------ the lock

    def test_a_second_lock_is_refused_naming_the_holder(self, files: Files, root: str) -> None:
        held = files.lock(f"{root}/lock", "writer 17 on alpha")
        with pytest.raises(Locked, match="writer 17 on alpha"):
            files.lock(f"{root}/lock", "another")
        with pytest.raises(Locked, match="writer 17 on alpha"):
            files.lock(f"{root}/lock", "the refused one did not put its name in")
        held.release()

    def test_a_released_lock_can_be_taken_and_names_its_new_holder(
        self, files: Files, root: str
    ) -> None:
        held = files.lock(f"{root}/lock", "the first holder, with a long name")
        held.release()
        held.release()
        again = files.lock(f"{root}/lock", "second")
        with pytest.raises(Locked, match="open: second;"):
            files.lock(f"{root}/lock", "third")
        again.release()

    def test_locks_of_two_directories_do_not_meet(self, files: Files, root: str) -> None:
        first = files.lock(f"{root}/a", "one")
        second = files.lock(f"{root}/b", "two")
        first.release()
        second.release()
