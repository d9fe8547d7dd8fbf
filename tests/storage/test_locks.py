"""The writer's lock: who holds it is known to whoever asks, and asking is in nobody's way."""

from __future__ import annotations

import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lamina.errors import Locked
from lamina.storage import locks
from lamina.storage.locks import HELD
from lamina.store.store import Store


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "lock")


def test_a_lock_is_held_from_taking_to_releasing(path: str) -> None:
    assert locks.is_held(path) is False, "there is no such file"
    lock = locks.take(path, "me\n")
    assert locks.is_held(path) is True
    assert Path(path).read_bytes() == b"me\n" + HELD
    lock.release()
    assert locks.is_held(path) is False
    lock.release()


def test_a_shorter_name_leaves_nothing_of_a_longer_one(path: str) -> None:
    locks.take(path, "a holder with a long name\n").release()
    lock = locks.take(path, "b\n")
    assert Path(path).read_bytes() == b"b\n" + HELD
    lock.release()


def test_a_lock_that_is_dropped_is_free(path: str) -> None:
    lock = locks.take(path, "me\n")
    del lock
    assert locks.is_held(path) is False
    locks.take(path, "another\n").release()


def test_a_holder_without_a_name_is_unknown(path: str) -> None:
    lock = locks.take(path, "")
    with pytest.raises(Locked, match=r"open: unknown; open it with read_only=True"):
        locks.take(path, "another")
    lock.release()


def test_the_other_kind_of_lock_is_seen_wherever_it_lies(path: str) -> None:
    """The whole file is locked and asked about: a lock of any of its bytes is the lock."""
    Path(path).write_bytes(b"me\n" + HELD)
    with open(path, "r+b") as other:
        for first, count in ((0, 1), (1000, 1)):
            flock = locks._FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, count, 0)
            fcntl.fcntl(other, fcntl.F_OFD_SETLK, flock)
            assert locks.is_held(path) is True
            flock = locks._FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(other, fcntl.F_OFD_SETLK, flock)
            assert locks.is_held(path) is False


def test_a_writer_locks_every_byte(path: str) -> None:
    lock = locks.take(path, "me\n")
    with open(path, "r+b") as other:
        for first in (0, 1, 5000):
            asked = locks._FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, first, 1, 0)
            found = fcntl.fcntl(other, fcntl.F_OFD_GETLK, asked)
            assert locks._FLOCK.unpack(found)[0] == fcntl.F_WRLCK
    lock.release()


# -------------------------------------------------------------------- with older releases


def test_a_writer_of_an_older_release_is_seen(path: str) -> None:
    """It takes only the flock, and writes no `held`."""
    Path(path).write_bytes(b"old writer\n")
    with open(path, "r+b") as old:
        fcntl.flock(old, fcntl.LOCK_EX)
        assert locks.is_held(path) is True
        with pytest.raises(Locked, match="old writer"):
            locks.take(path, "me")
        fcntl.flock(old, fcntl.LOCK_UN)
        assert locks.is_held(path) is False


def test_a_reader_that_looks_for_a_moment_is_waited_for(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the flock to look; the file says of a writer that is gone that it held the lock."""
    Path(path).write_bytes(b"gone\n" + HELD)
    with open(path, "rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            fcntl.flock(reader, fcntl.LOCK_UN)

        monkeypatch.setattr(locks.time, "sleep", pause)
        locks.take(path, "me\n").release()
        assert len(pauses) == 1


def test_a_reader_that_does_not_end_is_waited_for_no_longer_than_a_while(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(path).write_bytes(b"gone\n")
    clock = [100.0]
    monkeypatch.setattr(locks.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(locks.time, "sleep", lambda _: clock.append(clock.pop() + 0.05))
    with open(path, "rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        with pytest.raises(Locked, match="gone"):
            locks.take(path, "me\n")
    assert locks.PROBE_S <= clock[0] - 100.0 <= locks.PROBE_S + 0.1


def test_a_system_without_the_other_kind_of_lock_does_with_one(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise OSError("no such lock")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "fcntl", refuses)
        lock = locks.take(path, "me\n")
        assert Path(path).read_bytes() == b"me\n", "it does not say that it holds both"
        assert locks.is_held(path) is True
        with pytest.raises(Locked):
            locks.take(path, "another\n")
        lock.release()
        assert locks.is_held(path) is False
        Path(path).write_bytes(b"me\n" + HELD)
        assert locks.is_held(path) is False


# -------------------------------------------------------------------- processes


def test_a_childs_release_leaves_the_lock_to_its_parent(path: str) -> None:
    lock = locks.take(path, "me\n")
    child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert locks.is_held(path) is True
    lock.release()


def test_a_release_ends_the_lock_also_for_children_that_have_it_open(path: str) -> None:
    lock = locks.take(path, "me\n")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    lock.release()
    assert locks.is_held(path) is False
    locks.take(path, "another\n").release()
    os.close(writing)
    os.waitpid(child, 0)
    os.close(reading)


def test_no_look_at_the_lock_refuses_its_writer(tmp_path: Path) -> None:
    """Readers look all the time, also while the lock is taken and given up."""
    directory = str(tmp_path / "data")
    with Store(directory):
        path = str(tmp_path / "data" / "meta" / "lock")
    ended = threading.Event()

    def look() -> int:
        looks = 0
        while not ended.is_set():
            locks.is_held(path)
            looks += 1
        return looks

    with ThreadPoolExecutor(4) as pool:
        looking = [pool.submit(look) for _ in range(4)]
        try:
            for _ in range(200):
                lock = locks.take(path, "a writer")
                assert locks.is_held(path)
                lock.release()
            for _ in range(10):
                with Store(directory) as store:
                    assert store.failures() == {}
        finally:
            ended.set()
        assert all(each.result() for each in looking)


def test_a_lock_is_its_process_s_own_until_it_is_released(path: str) -> None:
    lock = locks.take(path, "me\n")
    assert lock.is_own is True
    lock.release()
    assert lock.is_own is False
