"""What is refused for good is told at once, and `archive()` never hides a failure."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lamina.errors import (
    ArchiveRefused,
    ArchiveUnavailable,
    Closed,
    Fenced,
    InvalidRequest,
    LaminaError,
)
from lamina.storage.objects import ObstoreObjects
from lamina.store.store import Store
from tests.archive.rig import SETTINGS, TOPIC, attempt, read, values
from tests.support.fault_proxy import FaultProxy
from tests.support.s3_servers import S3Server, moto_server

BOUND_S = 20.0
COPIED = shutil.ignore_patterns("lock", "*.tmp")
"""What a copy of a live store leaves out: its lock, and files that may be renamed meanwhile."""


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = moto_server(tmp_path_factory.mktemp("moto"))
    yield server
    server.kill()


@pytest.fixture
def proxy(moto: S3Server) -> Iterator[FaultProxy]:
    between = FaultProxy(moto.address)
    yield between
    between.close()


def _in_time(action: Callable[[], object]) -> LaminaError:
    """The error that an action without a time limit of its own ends with."""
    found: list[LaminaError] = []

    def run() -> None:
        try:
            action()
        except LaminaError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(BOUND_S)
    assert not thread.is_alive(), "it waits for ever"
    assert found, "it was not refused"
    return found[0]


@pytest.mark.parametrize("format", ["keratin", "wal"])
def test_a_bucket_that_refuses_ends_the_wait_for_it(
    format: str, proxy: FaultProxy, moto: S3Server, tmp_path: Path
) -> None:
    objects = moto.objects(f"refusing{format}", proxy.url)
    assert isinstance(objects, ObstoreObjects)
    with Store(str(tmp_path), archive=objects, tick_ms=50) as store:
        store.create_topic(TOPIC, format=format, config=SETTINGS)
        store.append(TOPIC, values(0, 3), acks="archived")
        proxy.plan = lambda method, path: "403"
        error = _in_time(lambda: store.append(TOPIC, values(3, 3), acks="archived"))
        assert isinstance(error, ArchiveRefused)
        assert "durable but not archived" in str(error)
        assert "403" in str(error)
        proxy.plan = lambda method, path: None  # the right was given back
        store.append(TOPIC, values(6, 3), acks="archived")
        first = 1 if format == "wal" else 0
        assert [value for _, value in read(store, first)] == values(0, 9)


def test_a_try_that_began_before_an_append_does_not_refuse_it(
    proxy: FaultProxy, moto: S3Server, tmp_path: Path
) -> None:
    """The right is given back while an older try is still on its way to being refused."""
    asked, go_on = threading.Event(), threading.Event()

    def hold(method: str, path: str) -> str:
        asked.set()
        go_on.wait(BOUND_S)
        return "403"

    objects = moto.objects("late-refusal", proxy.url)
    with Store(str(tmp_path), archive=objects, tick_ms=50) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        store.append(TOPIC, values(0, 3), acks="archived")
        proxy.plan = hold
        store.append(TOPIC, values(3, 3))
        store.roll(TOPIC)
        assert asked.wait(BOUND_S)
        store.append(TOPIC, values(6, 3))
        done: list[object] = []
        waiting = threading.Thread(
            target=lambda: done.append(store.append(TOPIC, values(9, 3), acks="archived"))
        )
        waiting.start()
        assert store.tier is not None
        while not any(kept.wanted >= 12 for kept in store.tier._kept.values()):
            assert waiting.is_alive()
        proxy.plan = lambda method, path: None
        go_on.set()
        waiting.join(BOUND_S)
        assert done, "the append was refused by a try that it did not ask for"


def test_a_taken_key_and_another_store_end_the_wait(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with Store(str(tmp_path / "a"), archive=str(archive), tick_ms=50) as store:
        for name in (TOPIC, "taken"):
            store.create_topic(name, config=SETTINGS | {"archive.window.ms": 0})
            store.append(name, values(0, 3), acks="archived")
        taken = archive / "data/taken/0"
        shutil.copy(taken / f"{0:020}.seg", taken / f"{3:020}.seg")  # sound, and of other records
        error = _in_time(lambda: store.append("taken", values(3, 3), acks="archived"))
        assert isinstance(error, ArchiveRefused)
        assert f"{3:020}.seg" in str(error)
        shutil.copytree(tmp_path / "a", tmp_path / "copy", ignore=COPIED)
        with Store(str(tmp_path / "copy"), tick_ms=50) as other:
            attempt(other)  # takes the archive over
            error = _in_time(lambda: store.append(TOPIC, values(3, 3), acks="archived"))
            assert isinstance(error, Fenced)


def test_whoever_waits_for_a_topic_that_is_deleted_is_told(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    with Store(str(tmp_path / "data"), archive=str(tmp_path / "archive"), tick_ms=20) as store:
        store.create_topic(TOPIC, config=SETTINGS | {"archive.window.ms": 60_000})

        def remove() -> None:
            store.fetch(
                TOPIC, 0, 2, wait_ms=int(1000 * BOUND_S)
            )  # until the append has its records stored
            store.delete_topic(TOPIC)

        other = threading.Thread(target=remove)
        other.start()
        error = _in_time(lambda: store.append(TOPIC, values(0, 3), acks="archived"))
        other.join()
        assert isinstance(error, Closed)


def test_archive_raises_what_failed_after_all_partitions_were_tried(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with Store(str(tmp_path / "data"), archive=str(archive), tick_ms=1 << 31) as store:
        store.create_topic("a", config=SETTINGS)
        store.create_topic("b", config=SETTINGS)
        store.create_topic("c", config=SETTINGS)
        for name in "abc":
            store.append(name, values(0, 20))
            store.roll(name)
        (archive / "data").mkdir(parents=True)
        (archive / "data/b").write_bytes(b"a file where a folder should be")
        with pytest.raises(ArchiveUnavailable, match=r"^b/0: .*data/b/"):
            store.archive()
        offsets = {each.topic: each.archived_offset for each in store.tier_status()}
        assert offsets == {"a": 20, "b": 0, "c": 20}
        (archive / "data/b").unlink()
        store.archive()
        assert {each.archived_offset for each in store.tier_status()} == {20}


def test_acks_archived_needs_an_archive_and_an_archived_topic(tmp_path: Path) -> None:
    with Store(str(tmp_path / "none"), archive="") as store:
        store.create_topic(TOPIC)
        with pytest.raises(InvalidRequest):
            store.append(TOPIC, values(0, 1), acks="archived")
    with Store(str(tmp_path / "one"), archive=str(tmp_path / "archive")) as store:
        store.create_topic(TOPIC)
        with pytest.raises(InvalidRequest, match=r"remote\.storage\.enable"):
            store.append(TOPIC, values(0, 1), acks="archived")
