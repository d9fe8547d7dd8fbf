"""Compiled kernels are kept where that is possible; nothing that goes wrong there is an error."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lamina.storage import kernel_cache
from lamina.storage.kernel_cache import KernelCache

VERSION = "0123456789abcdef" * 4


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in (kernel_cache.VARIABLE, "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path


def kept(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("*") if each.is_file()]


def test_a_kernel_comes_back(home: Path) -> None:
    KernelCache(VERSION).save("scan", b"code")
    assert KernelCache(VERSION).load("scan") == b"code"
    assert KernelCache("f" * 64).load("scan") is None
    assert kept(home)[0].parent == home / "home/.cache/lamina/kernels" / VERSION[:32]


@pytest.mark.parametrize("variable", [kernel_cache.VARIABLE, "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"])
def test_a_variable_says_where(home: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, str(home / "there"))
    KernelCache(VERSION).save("scan", b"code")
    assert len(kept(home / "there")) == len(kept(home)) == 1


def test_a_place_that_cannot_be_written_gives_way_to_the_next(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").write_bytes(b"")
    monkeypatch.setenv(kernel_cache.VARIABLE, str(home / "file"))
    KernelCache(VERSION).save("scan", b"code")
    assert KernelCache(VERSION).load("scan") == b"code"
    assert kept(home / "home")


def test_what_an_image_brought_is_used_although_it_cannot_be_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernel_cache.VARIABLE, str(home / "image"))
    KernelCache(VERSION).save("scan", b"code")
    refuse_writing(monkeypatch, below=str(home / "image"))
    KernelCache(VERSION).save("index", b"more")
    assert KernelCache(VERSION).load("scan") == b"code"
    assert KernelCache(VERSION).load("index") == b"more"
    assert [each.name for each in kept(home / "image")] == ["scan"]
    assert len(kept(home / "home")) == 1


def refuse_writing(monkeypatch: pytest.MonkeyPatch, below: str) -> None:
    """Root may write everywhere, so the system's refusal is put in its way."""
    real = os.replace

    def replace(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{dst_dir_fd}").startswith(below):
            raise OSError(30, "Read-only file system", target)
        real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "replace", replace)


def test_without_a_place_one_sentence_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_writing(monkeypatch, below=str(home))
    cache = KernelCache(VERSION)
    cache.save("scan", b"code")
    cache.save("index", b"code")
    assert len(caplog.records) == 1
    assert "Read-only file system" in caplog.text
    assert kernel_cache.VARIABLE in caplog.text
    assert kept(home) == []


@pytest.mark.parametrize("size", [0, 1, 7, 8, 39, 40, 43])
def test_a_torn_file_is_removed(home: Path, size: int) -> None:
    cache = KernelCache(VERSION)
    cache.save("scan", b"code")
    path = kept(home)[0]
    path.write_bytes(path.read_bytes()[:size])
    assert cache.load("scan") is None
    assert kept(home) == []


def test_every_changed_byte_is_noticed(home: Path) -> None:
    cache = KernelCache(VERSION)
    cache.save("scan", b"code")
    path = kept(home)[0]
    sound = path.read_bytes()
    for position in range(len(sound)):
        damaged = bytearray(sound)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        assert cache.load("scan") is None
    path.write_bytes(sound)
    assert cache.load("scan") == b"code"


@pytest.mark.parametrize("made_by_others", ["link", "open to all", "file"])
def test_a_directory_that_others_can_write_is_not_believed(
    home: Path, monkeypatch: pytest.MonkeyPatch, made_by_others: str
) -> None:
    monkeypatch.setenv("HOME", str(home / "nowhere"))
    mine = home / "tmp" / f"lamina-kernels-{os.getuid()}"
    if made_by_others == "file":
        mine.write_bytes(b"")
    elif made_by_others == "link":
        (home / "theirs").mkdir()
        mine.symlink_to(home / "theirs")
    else:
        mine.mkdir()
        mine.chmod(0o777)
    KernelCache(VERSION).save("scan", b"code")
    assert KernelCache(VERSION).load("scan") is None
    mine.unlink() if not mine.is_dir() or mine.is_symlink() else mine.rmdir()
    KernelCache(VERSION).save("scan", b"code")
    assert KernelCache(VERSION).load("scan") == b"code"
    assert mine.stat().st_mode & 0o777 == 0o700


STRANGERS = 65_534
"""The user id of nobody: whatever it owns was made by somebody else."""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("where", ["HOME", "XDG_CACHE_HOME", "tmp"])
def test_machine_code_of_another_user_is_never_run(
    home: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """As with `sudo`, which may leave HOME as it was, or below /tmp, where anybody comes first."""
    if where == "tmp":
        monkeypatch.setenv("HOME", str(home / "nowhere"))
    elif where == "XDG_CACHE_HOME":
        monkeypatch.setenv(where, str(home / "there"))
    KernelCache(VERSION).save("scan", b"code")
    path = kept(home)[0]
    for each in (path, path.parent):
        os.chown(each, STRANGERS, STRANGERS)
    assert KernelCache(VERSION).load("scan") is None
    for each in (path, path.parent):
        os.chown(each, 0, 0)
    assert KernelCache(VERSION).load("scan") == b"code"


def test_a_directory_that_the_world_can_write_is_not_believed_though_it_was_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(kernel_cache.VARIABLE, str(home / "there"))
    monkeypatch.setenv("HOME", str(home / "nowhere"))
    KernelCache(VERSION).save("scan", b"code")
    path = kept(home)[0]
    assert path.parent.stat().st_mode & 0o777 == 0o755, "an image is run by another user"
    assert path.stat().st_mode & 0o777 == 0o644
    path.parent.chmod(0o777)
    assert KernelCache(VERSION).load("scan") is None
    refuse_writing(monkeypatch, below=str(home / "tmp"))
    KernelCache(VERSION).save("scan", b"code")
    assert "others can write to this directory" in caplog.text


@pytest.mark.parametrize("kind", ["pipe", "link", "directory", "huge"])
def test_what_is_no_plain_file_is_not_read(home: Path, kind: str) -> None:
    cache = KernelCache(VERSION)
    cache.save("scan", b"code")
    path = kept(home)[0]
    sound = path.read_bytes()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        (home / "elsewhere").write_bytes(sound)
        path.symlink_to(home / "elsewhere")
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_bytes(sound)
        os.truncate(path, kernel_cache.KERNEL_BYTES_MAX + 1)
    assert cache.load("scan") is None


@pytest.mark.parametrize("wrong", ["", "relative/cache", "~"])
def test_a_cache_directory_that_is_relative_is_ignored(
    home: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """Else what is run would depend on where a program is started."""
    monkeypatch.chdir(home)
    (home / "~").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", wrong)
    monkeypatch.setenv("HOME", wrong or "~")
    KernelCache(VERSION).save("scan", b"code")
    assert [each.relative_to(home).parts[0] for each in kept(home)] == ["tmp"]


def test_the_directory_that_a_program_is_started_in_is_no_place_for_kernels(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nothing else can be written, Python takes it for the temporary one."""
    monkeypatch.setenv("HOME", str(home / "nowhere"))
    monkeypatch.chdir(home)
    monkeypatch.setattr("tempfile.tempdir", str(home))
    KernelCache(VERSION).save("scan", b"code")
    assert kept(home) == []
    assert kernel_cache.VARIABLE in caplog.text


def test_what_is_complete_is_checked_kernel_by_kernel(home: Path) -> None:
    cache = KernelCache(VERSION)
    cache.save("scan", b"code")
    cache.save("index", b"code")
    assert not cache.is_complete("machine")
    cache.note_complete("machine")
    assert KernelCache(VERSION).is_complete("machine")
    assert not KernelCache(VERSION).is_complete("another")
    torn = next(each for each in kept(home) if each.name == "scan")
    torn.write_bytes(torn.read_bytes()[:-1])
    assert not KernelCache(VERSION).is_complete("machine")


def test_a_full_disk_below_the_cache_costs_nothing_but_the_keeping(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    small = home / "small"
    small.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        monkeypatch.setenv(kernel_cache.VARIABLE, str(small))
        KernelCache(VERSION).save("scan", bytes(100_000))
        assert kept(small) == [], "nothing half-written is left"
        assert len(kept(home / "home")) == 1, "the next place took it"
        for each in ("HOME", "XDG_CACHE_HOME"):
            monkeypatch.setenv(each, str(small))
        monkeypatch.setattr("tempfile.tempdir", str(small))
        KernelCache(VERSION).save("index", bytes(100_000))
        assert "No space left on device" in caplog.text
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_kernels_that_nobody_uses_any_more_are_removed(home: Path) -> None:
    for version in ("a" * 64, "b" * 64):
        KernelCache(version).save("scan", b"code")
    place = home / "home/.cache/lamina/kernels"
    (place / "of-somebody-else").mkdir()
    long_ago = time.time() - 40 * 86_400
    for each in place.iterdir():
        if not each.name.startswith("b"):
            os.utime(each, (long_ago, long_ago))
    KernelCache(VERSION).save("scan", b"code")
    assert sorted(each.name for each in place.iterdir()) == sorted(
        [VERSION[:32], "b" * 32, "of-somebody-else"]
    )


PROGRAM = """
import sys
import tempfile
tempfile.tempdir = sys.argv[1]
import lamina.formats.kernels.compile
from lamina.formats.kernels.compile_notice import when_compiling
when_compiling(lambda: print("compiling"))
from lamina.formats.kernels.declare import kernel

@kernel
def double(number):
    return 2 * number

print(double(21))
"""


def run(folder: Path, outside: Path | str) -> list[str]:
    """Runs a program whose kernel has no place but `folder`/cache and those below `outside`."""
    (folder / "program.py").write_text(PROGRAM)
    variables = {kernel_cache.VARIABLE: str(folder / "cache"), "HOME": str(outside)}
    elsewhere = {"NUMBA_CACHE_DIR", "XDG_CACHE_HOME"}
    done = subprocess.run(
        [sys.executable, str(folder / "program.py"), str(outside)],
        env={k: v for k, v in os.environ.items() if k not in elsewhere} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_a_kernel_whose_file_is_torn_is_compiled_again(tmp_path: Path) -> None:
    assert run(tmp_path, tmp_path) == ["compiling", "42"]
    assert run(tmp_path, tmp_path) == ["42"]
    for path in kept(tmp_path / "cache"):
        path.write_bytes(path.read_bytes()[:100])
    assert run(tmp_path, tmp_path) == ["compiling", "42"]
    assert run(tmp_path, tmp_path) == ["42"]


def test_a_kernel_runs_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    assert run(tmp_path, "/proc/nowhere") == ["compiling", "42"]
    assert run(tmp_path, "/proc/nowhere") == ["compiling", "42"]


def test_a_program_that_asked_nothing_finds_the_wait_in_its_log_once(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        PROGRAM.replace('when_compiling(lambda: print("compiling"))', "")
        + "@kernel\ndef triple(number):\n    return 3 * number\nprint(triple(14))\n"
    )
    for expected in (1, 0):
        done = subprocess.run(
            [sys.executable, str(tmp_path / "program.py"), str(tmp_path)],
            env=os.environ | {kernel_cache.VARIABLE: str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == ["42", "42"]
        assert done.stderr.count("compiling kernels, once on this machine") == expected


def test_processes_that_compile_at_once_do_not_hinder_each_other(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    started = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "program.py"), str(tmp_path)],
            env=os.environ | {kernel_cache.VARIABLE: str(tmp_path / "cache")},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert [each.communicate()[0].split()[-1] for each in started] == ["42", "42"]
    assert run(tmp_path, tmp_path) == ["42"]
    assert len(kept(tmp_path / "cache")) == 1, "one kernel, and nothing temporary"
