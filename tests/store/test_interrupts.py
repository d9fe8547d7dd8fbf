"""Ctrl-C in opening and in `close`, in every kind of store: nothing of it stays, the next works."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.api.memberships import JoinRequest
from lamina.errors import LaminaError
from lamina.storage.files import LocalFiles
from lamina.store import open_stores
from lamina.store.store import Store
from lamina_torture.interrupted import Bytecodes, left_below
from tests.server.rig import served
from tests.support.directories import values

pytestmark = pytest.mark.filterwarnings(
    # A file that was cut off before it had an owner, or while it was closed, ends by itself.
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
FORMATS = ("keratin", "frame", "wal")
PLACES = 12
"""So many of the places are tried in each case; F15 of the matrix tries all of them."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of every format with groups and idempotent producers, some of it archived."""
    path = tmp_path_factory.mktemp("interrupts")
    with lamina.open(str(path / "data"), archive=str(path / "archive")) as store:
        for name in FORMATS:
            archived = {"remote.storage.enable": "true"} if name != "frame" else {}
            store.create_topic(name, format=name, config=archived)
            store.append(name, [b"a", b"b"], partition=0)
            stamp = lamina.ProducerStamp(7, 0, 0)
            store.append(name, [b"c"], partition=0, producer=stamp)
            store.roll(name)
            group = store.group(name, "g")
            group.ack(group.poll(1))
            store.append(name, [b"d"], partition=0)
        store.archive()
    return path


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path) as service:
        with lamina.connect(service.flight_url) as store:
            for name in FORMATS:
                store.create_topic(name, format=name)
                store.append(name, [b"a", b"b", b"c", b"d"], partition=0)
        yield service.flight_url


Opener = Callable[[Path], Any]
KINDS: dict[str, Opener] = {
    "embedded": lambda path: lamina.open(str(path / "data"), archive=str(path / "archive")),
    "read-only": lambda path: lamina.open(
        str(path / "data"), read_only=True, archive=str(path / "archive")
    ),
    "archive": lambda path: lamina.open(f"file://{path}/archive", read_only=True),
}


def cut_off(action: Callable[[], object], at: int) -> tuple[int, bool]:
    """Runs an action, interrupted at its n-th place; returns how many there are, and if it was."""
    seen = Bytecodes(at)
    sys.settrace(seen.enter)
    try:
        action()
    except KeyboardInterrupt:
        return seen.count, True
    finally:
        sys.settrace(None)
    return seen.count, False


def use(store: Any) -> None:
    """Reads what there is, and has threads and files of every kind."""
    for name in store.topics():
        assert len(values(store, name)) >= 3


@pytest.mark.parametrize("phase", ["open", "close"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_stays_of_what_was_cut_off(made: Path, kind: str, phase: str) -> None:
    _try_places(lambda: KINDS[kind](made), str(made), phase)


@pytest.mark.parametrize("phase", ["open", "close"])
def test_a_served_store_lets_go_of_its_connection(url: str, phase: str) -> None:
    _try_places(lambda: lamina.connect(url), "nowhere", phase)


def _try_places(opening: Callable[[], Any], below: str, phase: str) -> None:
    def whole() -> None:
        opening().close()

    def prepared() -> Any:
        store = opening()
        use(store)
        return store

    use_once = prepared()
    use_once.close()
    before = set(left_below(below))
    total, _ = cut_off(whole if phase == "open" else prepared().close, 0)
    points = random.Random(phase).sample(range(1, total + 1), min(total, PLACES))
    gc.collect()
    gc.disable()  # nothing may wait for it
    try:
        for at in points:
            if phase == "open":
                cut_off(whole, at)
            else:
                store = prepared()
                cut_off(store.close, at)
                store.close()
            assert set(left_below(below)) <= before, f"at place {at} of {total}"
            prepared().close()
    finally:
        gc.enable()


def test_an_opening_that_failed_leaves_no_thread_of_the_coordinator(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    store = Store(str(tmp_path / "data"))
    request = JoinRequest("consumer", (("range", b""),), session_timeout_ms=30_000)
    joining = store._coordinator.join("g", request)
    assert "lamina-coordinator" in {each.name for each in threading.enumerate()}
    store._abandon()
    assert joining.done(), "who waits for a meeting is told"
    assert set(threading.enumerate()) <= before


def test_an_opening_that_is_cut_off_at_its_end_holds_nothing(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then it has a lock, threads and files; nobody will ever close what nobody was given."""

    class CutOff:
        def add(self, store: Store) -> None:
            raise KeyboardInterrupt

    before = Counter(left_below(str(made)))
    with monkeypatch.context() as patched:
        patched.setattr(open_stores, "OPEN", CutOff())
        with pytest.raises(KeyboardInterrupt):
            Store(str(made / "data"), archive=str(made / "archive"))
    assert not Counter(left_below(str(made))) - before
    assert not LocalFiles().is_locked(str(made / "data" / "meta" / "lock"))


# -------------------------------------------------------------------- failing calls


class FailingFiles(LocalFiles):
    """A file system whose calls of one kind fail from the n-th on."""

    def __init__(self, kind: str, at: int, code: int) -> None:
        super().__init__()
        real = getattr(self, kind)
        self.calls = 0

        def failing(*given: Any) -> Any:
            self.calls += 1
            if self.calls >= at:
                raise OSError(code, os.strerror(code))
            return real(*given)

        setattr(self, kind, failing)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EIO])
@pytest.mark.parametrize(
    "kind", ["create", "replace", "make_directory", "open", "open_read_only", "sync_directory"]
)
def test_an_opening_that_fails_anywhere_holds_nothing(made: Path, kind: str, code: int) -> None:
    before = Counter(left_below(str(made)))  # threads of earlier tests of this process
    for at in itertools.count(1):
        files = FailingFiles(kind, at, code)
        with contextlib.suppress(LaminaError):  # some are left for later, others are refused
            Store(str(made / "data"), files=files, archive=str(made / "archive")).close()
        assert not Counter(left_below(str(made))) - before, f"{kind} failed from call {at} on"
        assert not LocalFiles().is_locked(str(made / "data" / "meta" / "lock"))
        if files.calls < at:
            break
    with KINDS["embedded"](made) as store:
        use(store)
        assert store.failures() == {}
