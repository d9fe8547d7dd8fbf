"""The local file system: the contract of every file system, and what only an OS can do wrong."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import Locked
from lamina.storage import files as files_module
from lamina.storage.files import Files, LocalFile, LocalFiles, lasting
from lamina_torture.simulated import SimulatedFiles
from tests.support.file_system import FileSystemContract


class TestLocalFiles(FileSystemContract):
    @pytest.fixture
    def files(self) -> Files:
        return LocalFiles()

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path)


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_a_short_write_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    real, calls = os.pwrite, []

    def short(descriptor: int, data: Any, position: int) -> int:
        calls.append(position)
        return real(descriptor, bytes(data)[:step], position)

    monkeypatch.setattr(os, "pwrite", short)
    data = bytes(range(20))
    LocalFiles().create(f"{tmp_path}/a").write_at(5, data)
    assert (tmp_path / "a").read_bytes() == bytes(5) + data
    assert calls == list(range(5, 25, step))


def test_a_short_write_of_wide_items_is_continued_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:3], at))
    data = bytes(range(16))
    LocalFiles().create(f"{tmp_path}/a").write_at(0, memoryview(data).cast("Q"))
    assert (tmp_path / "a").read_bytes() == data


@pytest.mark.parametrize("taken", [0, 4])
def test_a_write_that_makes_no_progress_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    answers = iter([taken] + [0] * 9)
    monkeypatch.setattr(os, "pwrite", lambda *_: next(answers))
    with pytest.raises(OSError, match="no more bytes") as caught:
        LocalFiles().create(f"{tmp_path}/a").write_at(0, b"0123456789")
    assert caught.value.errno == errno.EIO


def test_a_short_read_before_the_end_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, at: real(fd, min(length, 3), at))
    file = LocalFiles().open(f"{tmp_path}/a")
    assert file.read_at(1, 8) == b"12345678"
    assert file.read_at(1, 99) == b"123456789"
    assert LocalFiles().read(f"{tmp_path}/a") == b"0123456789"


def refuse(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("broken", ["pwrite", "fdatasync", "replace"])
def test_a_replacement_that_fails_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    files = LocalFiles()
    files.replace(f"{tmp_path}/a", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, broken, refuse)
        with pytest.raises(OSError, match="No space"):
            files.replace(f"{tmp_path}/a", b"new and longer")
    assert files.read(f"{tmp_path}/a") == b"old"
    files.replace(f"{tmp_path}/a", b"new")
    assert files.read(f"{tmp_path}/a") == b"new"


def test_a_replacement_is_written_then_synced_then_renamed_then_its_name_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def watch(name: str) -> None:
        real = getattr(os, name)

        def watched(*arguments: Any) -> Any:
            of_directory = name == "fsync" and os.path.isdir(f"/proc/self/fd/{arguments[0]}")
            steps.append("fsync directory" if of_directory else name)
            return real(*arguments)

        monkeypatch.setattr(os, name, watched)

    for name in ("pwrite", "fdatasync", "fsync", "replace"):
        watch(name)
    LocalFiles().replace(f"{tmp_path}/a", b"data")
    assert steps == ["pwrite", "fdatasync", "replace", "fsync directory"]


def test_each_new_directory_is_synced_into_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    files = LocalFiles()
    monkeypatch.setattr(files, "sync_directory", synced.append)
    files.make_directory(f"{tmp_path}/a/b")
    assert synced == [str(tmp_path), f"{tmp_path}/a"]


def test_a_failed_fsync_is_raised_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="Input/output"):
        LocalFiles().create(f"{tmp_path}/a").sync()
    assert len(calls) == 1


def test_a_lock_that_fails_for_another_reason_is_not_called_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No locks"):
        LocalFiles().lock(f"{tmp_path}/lock", "me")
    assert len(os.listdir("/proc/self/fd")) == before, "the descriptor is closed"


HOLD = """
import sys
from lamina.storage.files import LocalFiles
held = LocalFiles().lock(sys.argv[1], "process seventeen")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_the_lock_until_the_first_is_gone(tmp_path: Path) -> None:
    path = f"{tmp_path}/lock"
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(Locked, match=r"process seventeen.*read_only=True"):
            LocalFiles().lock(path, "the test")
        first.kill()
    LocalFiles().lock(path, "the test").release()


def test_a_file_that_is_cut_while_it_is_mapped_is_mapped_as_it_then_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LocalFiles().create(f"{tmp_path}/a")
    file.write_at(0, b"0123456789")
    sizes = iter([4096 * 1024, 10])
    monkeypatch.setattr(file, "size", lambda: next(sizes))
    loaded = file.load()
    assert bytes(memoryview(loaded)) == b"0123456789"
    file.write_at(0, b"other")
    assert bytes(memoryview(loaded)) == b"0123456789", "it is memory of its own"


@pytest.mark.skipif(sys.platform != "linux", reason="a system call of Linux")
def test_beginning_a_sync_reaches_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, answers = files_module._sync_file_range, []
    assert real is not None
    monkeypatch.setattr(
        files_module, "_sync_file_range", lambda *arguments: answers.append(real(*arguments))
    )
    file = LocalFiles().create(f"{tmp_path}/a")
    file.write_at(0, b"abc")
    file.begin_sync()
    assert answers == [0]


def test_a_system_without_a_begin_of_syncs_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "_sync_file_range", None)
    file = LocalFiles().create(f"{tmp_path}/a")
    file.write_at(0, b"abc")
    file.begin_sync()
    file.sync()
    assert file.read_at(0, 3) == b"abc"


def test_a_directory_whose_name_was_not_made_durable_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LocalFiles()
    path = str(tmp_path / "made")

    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="I/O error"):
            files.make_directory(path)
    assert not files.exists(path), "who needs it next must sync its name"
    files.make_directory(path)
    assert files.is_directory(path)


def test_a_file_that_was_never_made_whole_goes_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """F15/no-memory: no memory for its first attribute, and then an error that nobody can catch."""
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    LocalFile.__new__(LocalFile)
    gc.collect()
    assert not unraisable


def test_files_are_sent_to_other_processes_without_what_is_open(tmp_path: Path) -> None:
    """Spark pickles a sink for its workers, and with it the files that it writes by."""
    files = LocalFiles(open_files=7)
    sent = pickle.loads(pickle.dumps(files))
    assert (sent.kept.limit, len(sent.kept)) == (7, 0)
    sent.replace(str(tmp_path / "there"), b"sound")
    assert files.read(str(tmp_path / "there")) == b"sound"


# -------------------------------------------------------------------- descriptors and space


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_no_call_leaves_a_descriptor_open(tmp_path: Path) -> None:
    files, root = LocalFiles(), str(tmp_path)
    files.replace(f"{root}/a", b"abc")
    before = descriptors()
    files.replace(f"{root}/a", b"abcd")
    assert files.read(f"{root}/a") == b"abcd"
    assert files.read_end(f"{root}/a", 2) == (4, b"cd")
    assert files.read_end(f"{root}/a", 9) == (4, b"abcd")
    assert files.list(root) == ["a"]
    files.sync_directory(root)
    files.make_directory(f"{root}/b/c")
    assert descriptors() == before
    file = files.open(f"{root}/a")
    assert descriptors() == before + 1
    del file
    assert descriptors() == before, "a file that nobody holds is closed"


def test_a_descriptor_that_is_missing_is_taken_from_one_that_is_only_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LocalFiles()
    released: list[bool] = []
    real = os.open
    failures = [OSError(errno.EMFILE, "too many"), OSError(errno.ENFILE, "too many at all")]

    def opening(*given: Any, **named: Any) -> int:
        if failures and not released:
            raise failures[0]
        return real(*given, **named)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(files.kept, "release", lambda: released.append(True))
    while failures:
        released.clear()
        files.create(f"{tmp_path}/{len(failures)}").close()
        assert released == [True]
        failures.pop(0)


def test_an_open_that_fails_otherwise_releases_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LocalFiles()
    monkeypatch.setattr(files.kept, "release", lambda: pytest.fail("nobody is short of them"))
    with pytest.raises(FileNotFoundError):
        files.open(f"{tmp_path}/none")


def test_space_is_reserved_without_a_change_of_the_length(tmp_path: Path) -> None:
    file = LocalFiles().create(f"{tmp_path}/a")
    file.write_at(0, b"abc")
    file.reserve(1 << 20)
    assert file.size() == 3
    assert os.stat(f"{tmp_path}/a").st_blocks * 512 >= 1 << 20
    file.close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        file.reserve(1 << 20)


def test_a_system_that_cannot_reserve_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "_fallocate", None)
    LocalFiles().create(f"{tmp_path}/a").reserve(1 << 20)
    assert os.stat(f"{tmp_path}/a").st_blocks == 0


def test_a_file_is_known_by_its_identity(tmp_path: Path) -> None:
    files = LocalFiles()
    file = files.create(f"{tmp_path}/a")
    file.write_at(0, b"abc")
    other = files.create(f"{tmp_path}/b")
    assert file.identity()[-1] == 3
    assert file.identity() == files.open(f"{tmp_path}/a").identity()
    stays = len(file.identity()) - files_module.GROWING
    assert file.identity()[:stays] != other.identity()[:stays]
    before = file.identity()
    file.write_at(3, b"d")
    assert file.identity()[:stays] == before[:stays]
    assert file.identity()[-1] == 4


@pytest.mark.parametrize("size", [1, 7, 8, 9, 20])
def test_a_file_of_any_size_is_loaded_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """One beyond what is held in memory is read through once, and mapped."""
    monkeypatch.setattr(files_module, "LOAD_BYTES", 3)
    monkeypatch.setattr(files_module, "LOAD_BYTES_MAX", 8)
    steps: list[tuple[int, int]] = []
    real = os.preadv

    def reading(descriptor: int, buffers: Any, position: int) -> int:
        steps.append((position, buffers[0].nbytes))
        return real(descriptor, buffers, position)

    monkeypatch.setattr(os, "preadv", reading)
    data = bytes(range(size))
    file = LocalFiles().create(f"{tmp_path}/a")
    file.write_at(0, data)
    loaded = memoryview(file.load())
    assert bytes(loaded) == data
    assert loaded.readonly
    assert [position for position, _ in steps] == list(range(0, size, 3))
    assert all(wanted <= 3 for _, wanted in steps)
    file.write_at(0, b"\xff")
    assert (loaded[0] == 0) == (size <= 8), "memory of its own up to that size"


def test_a_page_that_is_not_delivered_is_named_by_its_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    file = LocalFiles().create(f"{tmp_path}/a")
    file.write_at(0, bytes(10))
    monkeypatch.setattr(os, "preadv", fails)
    with pytest.raises(OSError, match="Input/output error at byte 0") as caught:
        file.load()
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, f"{tmp_path}/a")
    monkeypatch.setattr(os, "pread", fails)
    with pytest.raises(OSError, match="at byte 4"):
        file.read_at(4, 2)


def test_prepared_space_is_zeros_or_none_at_all(tmp_path: Path) -> None:
    file = LocalFiles().create(f"{tmp_path}/a")
    file.write_at(0, b"abc")
    assert files_module.prepare_space(file, 3, 10) == 10
    assert file.read_at(0, 99) == b"abc" + bytes(7)
    disk = SimulatedFiles(capacity_bytes=12)
    disk.make_directory("/srv")
    full = disk.create("/srv/a")
    full.write_at(0, b"abc")
    assert files_module.prepare_space(full, 3, 100) == 3
    assert full.size() == 3
    full.write_at(3, bytes(9))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_what_passes_passes_no_more_behind_a_replacement(code: int) -> None:
    with pytest.raises(OSError, match="a file was replaced") as found, lasting():
        raise OSError(code, os.strerror(code))
    assert found.value.errno == errno.EIO
    other = OSError(errno.EACCES, "no")
    with pytest.raises(PermissionError) as found, lasting():
        raise other
    assert found.value is other
