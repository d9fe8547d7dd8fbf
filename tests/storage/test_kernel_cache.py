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

    def replace(source: str, target: str) -> None:
        if str(target).startswith(below):
            raise OSError(30, "Read-only file system", target)
        real(source, target)

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
from lamina.formats.kernels.compile import kernel

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
