"""The archive on a real S3 protocol server, with a proxy in front that spoils its answers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina.errors import ArchiveUnavailable, ObjectConflict, ObjectMissing, RecordsMissing
from lamina.server.metrics import store_gauges
from lamina.storage.files import LocalFiles
from lamina.storage.object_directory import DirectoryObjects
from lamina.storage.objects import SINGLE_PUT_BYTES, Objects, ObstoreObjects, open_objects
from lamina.storage.paths import ObjectKey
from lamina.store.archive_store import ArchiveStore
from lamina.store.opening import Boot
from lamina.store.orphans import clean, orphans
from lamina.store.restore import restore
from lamina_torture.simulated import SimulatedFiles
from tests.archive import test_wal as wal_topics
from tests.archive.rig import (
    NOW_MS,
    SETTINGS,
    TOPIC,
    archived,
    attempt,
    memory,
    numbered,
    opened,
    read,
    values,
)
from tests.support.fault_proxy import FAULTS, FaultProxy
from tests.support.s3_servers import BUCKET, CREDENTIALS, S3Server, moto_server, weed_server

_PREFIXES = itertools.count()
BEHIND = ("records_behind", "bytes_behind", "failing")


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


@pytest.fixture(params=["memory", "directory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "memory":
        return memory()
    if request.param == "directory":
        return DirectoryObjects(LocalFiles(), str(tmp_path / "archive"))
    server: S3Server = request.getfixturevalue("moto")
    return server.objects(f"contract{next(_PREFIXES)}")


# ---------------------------------------------------------------- what each store must show


def test_an_object_is_created_once(objects: Objects) -> None:
    objects.create("a/b", b"first")
    with pytest.raises(ObjectConflict):
        objects.create("a/b", b"second")
    assert objects.read("a/b").data == b"first"
    assert objects.size("a/b") == 5
    assert bytes(objects.read_range("a/b", 1, 4)) == b"irs"


def test_a_large_object_is_created_once_and_leaves_nothing_staged(objects: Objects) -> None:
    data = bytes(range(256)) * (SINGLE_PUT_BYTES // 256) + b"more"
    objects.create("big", data)
    with pytest.raises(ObjectConflict):
        objects.create("big", b"x" * (SINGLE_PUT_BYTES + 1))
    assert objects.size("big") == len(data)
    assert bytes(objects.read_range("big", len(data) - 6, len(data))) == data[-6:]
    assert [info.key for info in objects.list("")] == ["big"]


def test_a_replacement_names_what_it_replaces(objects: Objects) -> None:
    first = objects.replace("list", b"one", None)
    with pytest.raises(ObjectConflict):
        objects.replace("list", b"two", None)
    second = objects.replace("list", b"two", first)
    with pytest.raises(ObjectConflict):
        objects.replace("list", b"three", first)
    assert objects.read("list").data == b"two"
    assert objects.read("list").etag == second


def test_what_is_missing_is_missing(objects: Objects) -> None:
    for call in (objects.read, objects.size, lambda key: objects.read_range(key, 0, 1)):
        with pytest.raises(ObjectMissing):
            call("nothing/here")
    objects.delete("nothing/here")
    assert list(objects.list("nothing")) == []


def test_listing_names_everything_below_a_prefix(objects: Objects) -> None:
    for key in ("data/a/0/x", "data/a/1/y", "data/ab/0/z"):
        objects.create(key, b"1")
    assert sorted(info.key for info in objects.list("data/a")) == ["data/a/0/x", "data/a/1/y"]
    objects.delete("data/a/0/x")
    assert sorted(info.key for info in objects.list("data")) == ["data/a/1/y", "data/ab/0/z"]


# ---------------------------------------------------------------- faults on the wire


def test_three_tries_with_100_and_200_ms_between(proxy: FaultProxy) -> None:
    found = open_objects(f"s3://{BUCKET}/tries", endpoint=proxy.url, **CREDENTIALS)
    assert isinstance(found, ObstoreObjects)
    pauses: list[float] = []
    found._sleep = pauses.append
    for fault, tries in (("503", 3), ("500", 3), ("reset", 3), ("403", 1)):
        proxy.requests.clear()
        pauses.clear()
        proxy.plan = lambda method, path, fault=fault: fault
        with pytest.raises(ArchiveUnavailable, match=r"creating key (failed|is refused)"):
            found.create("key", b"x")
        assert (len(proxy.requests), pauses) == (tries, [0.1, 0.2][: tries - 1])
    proxy.plan = lambda method, path: None
    assert found.read("key").data == b"x", "the lost answers were to puts that were done"


def test_no_server_at_all_is_unavailable() -> None:
    objects = open_objects(f"s3://{BUCKET}/none", endpoint="http://127.0.0.1:9", **CREDENTIALS)
    with pytest.raises(ArchiveUnavailable, match="reading key failed"):
        objects.read("key")


@pytest.mark.parametrize("fault", ["403", "507"])
def test_a_store_that_refuses_credentials_or_is_full_holds_up_uploads_only(
    fault: str, proxy: FaultProxy, moto: S3Server
) -> None:
    direct, refusing = moto.objects(f"refused{fault}"), moto.objects(f"refused{fault}", proxy.url)
    assert isinstance(refusing, ObstoreObjects)
    refusing._sleep = lambda _: None
    with opened(SimulatedFiles(), refusing) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        store.append(TOPIC, values(0, 20))
        store.roll(TOPIC)
        store.archive()
        proxy.plan = lambda method, path: fault if fault == "403" or method != "GET" else None
        store.append(TOPIC, values(20, 20))
        store.roll(TOPIC)
        attempt(store)
        (status,) = store.tier_status()
        assert (status.archived_offset, status.records_behind) == (20, 20)
        assert fault in status.last_error
        gauges = {each.name: each.samples for each in store_gauges(store)}
        found = {name: gauges[f"lamina_archive_{name}"][0].value for name in BEHIND}
        assert found == {"records_behind": 20, "bytes_behind": status.bytes_behind, "failing": 1}
        assert store.append(TOPIC, values(40, 5)).base_offset == 40
        assert read(store, 20) == numbered(20, 45), "what is local is read"
        if fault == "403":
            with pytest.raises(ArchiveUnavailable, match=fault):
                read(store, 0)
        else:
            assert read(store, 0) == numbered(0, 45), "a full store can be read"
        proxy.plan = lambda method, path: None
        store.archive()
        (status,) = store.tier_status()
        assert (status.archived_offset, status.last_error) == (40, "")
        assert read(store, 0) == numbered(0, 45)
    assert archived(direct) == numbered(0, 40)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_kind_of_request_may_be_spoiled_once(
    fault: str, proxy: FaultProxy, moto: S3Server
) -> None:
    prefix = f"fault{fault}"
    direct, spoiled = moto.objects(prefix), moto.objects(prefix, proxy.url)
    seen: set[tuple[str, str]] = set()

    def plan(method: str, path: str) -> str | None:
        kind = method, re.sub(r"\d+|\?.*", "", path)
        if kind in seen:
            return None
        seen.add(kind)
        return fault

    proxy.plan = plan
    files = SimulatedFiles()
    with opened(files, spoiled) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        for first in (0, 20):
            store.append(TOPIC, values(first, 20))
            store.roll(TOPIC)
            for _ in range(8):
                attempt(store)
        (status,) = store.tier_status()
        assert (status.archived_offset, status.last_error) == (40, "")
        assert store._partitions[TOPIC, 0].layout.earliest_offset == 40
        seen.clear()
        for _ in range(4):
            try:
                found = read(store, 0)
            except (ArchiveUnavailable, ValueError):
                continue
            assert found == numbered(0, 40)
        assert read(store, 0) == numbered(0, 40)
    assert len(seen) >= 1
    clean(direct, orphans(direct, NOW_MS * 2, 0))
    assert archived(direct) == numbered(0, 40)


# ---------------------------------------------------------------- a store that is killed


def test_a_store_that_is_killed_comes_back_and_nothing_is_lost(tmp_path: Path) -> None:
    server = weed_server(tmp_path)
    try:
        objects = server.objects("load")
        assert isinstance(objects, ObstoreObjects)
        objects._sleep = lambda _: None
        with opened(SimulatedFiles(), objects) as store:
            store.create_topic(TOPIC, config=SETTINGS)
            end = 0
            for round_ in range(4):
                store.append(TOPIC, values(end, 30))
                end += 30
                if round_ == 2:
                    server.kill()
                    attempt(store)
                    assert store.tier_status()[0].last_error
                    assert store.tier_status()[0].records_behind >= 30
                    store.append(TOPIC, values(end, 10))
                    end += 10
                    assert read(store, end - 10) == numbered(end - 10, end), "hot reads go on"
                    server.start()
                store.roll(TOPIC)
                for _ in range(50):
                    attempt(store)
                    if not store.tier_status()[0].last_error:
                        break
            assert store.tier_status()[0].archived_offset == end
            assert read(store, 0) == archived(objects) == numbered(0, end)
    finally:
        server.kill()


def test_a_wal_topic_goes_to_s3_and_comes_back_without_what_was_deleted(moto: S3Server) -> None:
    objects = moto.objects("wal")
    with wal_topics.created(objects) as store:
        wal_topics.grow(store, 24)
        store.delete(TOPIC, offsets=[5])
        wal_topics.settle(store, roll=True)
        assert wal_topics.local(store) > 1
        assert store.delete(TOPIC, tag=b"red") == 5
        store.archive()
        expected = wal_topics.live(store)
        assert len(expected) == 18
    assert wal_topics.held(objects) == expected
    files = SimulatedFiles()
    restore(objects, Boot(files, "/back", lambda: NOW_MS))
    with wal_topics.opened(files, objects, "/back") as store:
        assert wal_topics.live(store) == expected
        wal_topics.grow(store, 3)
        wal_topics.settle(store, roll=True)
    assert wal_topics.held(objects) == [*expected, 25, 26, 27]


# ---------------------------------------------------------------- damaged objects


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "index", "foreign"])
def test_a_damaged_object_hides_none_of_its_neighbours(damage: str, moto: S3Server) -> None:
    objects = moto.objects(f"damaged-{damage}")
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=SETTINGS | {"archive.object.bytes": 1 << 20})
        for first in (0, 20, 40):
            store.append(TOPIC, values(first, 20))
            store.roll(TOPIC)
            store.archive()
    key = ObjectKey(TOPIC, 0, 20).name
    good = objects.read(key).data
    bad = bytearray(good)
    bad[-40] ^= 1
    objects.delete(key)
    if damage != "gone":
        kinds = {"cut": good[:-200], "empty": b"", "index": bytes(bad), "foreign": b"?" * 3000}
        objects.create(key, kinds[damage])
    with ArchiveStore(objects) as store:
        assert read(store, 0, end=20) == numbered(0, 20)
        found: list[tuple[int, bytes]] = []
        start, lost = 0, set()
        while start < 60:
            try:
                for batch in store.scan(TOPIC, 0, start):
                    found += zip(
                        batch.column("offset").to_pylist(),
                        batch.column("value").to_pylist(),
                        strict=True,
                    )
                    start = found[-1][0] + 1
            except RecordsMissing as missing:
                lost |= set(range(missing.first, missing.end))
                start = missing.end
    assert lost == (set() if damage == "index" else set(range(20, 40)))
    assert found == [row for row in numbered(0, 60) if row[0] not in lost]
