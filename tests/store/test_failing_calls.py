"""Calls of the disk fail in turn, for a lack of space or of a descriptor, and the store goes on.

Both pass. So whatever was asked for is done or not done, never half; nothing is poisoned; and the
same call works when it is made again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from lamina.api.memberships import Committed
from lamina.errors import Unavailable
from lamina.store.store import Store
from lamina_torture.disk import Disk
from lamina_torture.scribe import open_store
from lamina_torture.simulated import SimulatedFiles
from tests.archive.rig import memory
from tests.archive.rig import opened as archiving
from tests.support.directories import values

FORMATS = ("frame", "keratin", "wal")
FAULTS = [
    *((kind, errno.ENOSPC) for kind in ("create", "write_at", "rename", "make_directory")),
    *((kind, errno.EMFILE) for kind in ("create", "open", "sync_directory")),
    ("open", errno.ENFILE),
]
Act = Callable[[Store], object]
KEPT = [b"%d" % each * 50 for each in range(40)]


@functools.cache
def filled(format_name: str) -> Disk[SimulatedFiles]:
    """Topics with several segments, groups of both kinds, and a router where there are some."""
    files = SimulatedFiles()
    with open_store(files, shards=1) as store:
        for name in ("t", "other"):
            config = {"segment.bytes": 1024}
            store.create_topic(name, format=format_name, partitions=2, config=config)
            for partition, first in itertools.product(range(2), range(0, 40, 5)):
                store.append(name, KEPT[first : first + 5], partition=partition)
            for group in ("g", "h"):
                store.group(name, group).ack(store.group(name, group).poll(3))
            for group in ("classic", "second"):
                store.commit_offsets(group, [Committed(name, 0, 3), Committed(name, 1, 4)])
        if format_name == "wal":
            store.create_router("r", "t", "other", tag=b"x")
            store.flush()
    return files.snapshot()


def tried(disk: Disk[SimulatedFiles], fault: tuple[str, int], act: Act) -> Any:
    """Yields the store after each call of a kind has failed in turn, and whether `act` was done."""
    kind, error = fault
    for at in itertools.count(1):
        files = disk.restart()
        with open_store(files, shards=1) as store:
            before = files.calls[kind]
            files.fail(kind, at=at, error=error)
            try:
                act(store)
                is_done = True
            except Unavailable:
                is_done = False
            reached = files.calls[kind] - before >= at
            files.faults.clear()
            assert store.failures() == {}, f"{kind} {at}"
            yield files, store, is_done
        if not reached:
            return


def use(store: Store) -> None:
    """What a store is for goes on, in every topic and group that it has."""
    for topic in store.topics():
        for partition in range(2):
            end = store.append(topic, [b"after"], partition=partition)
            assert values(store, topic, partition)[-1] == b"after"
            store.roll(topic, partition)
            store.append(topic, [b"more"], partition=partition)
            assert values(store, topic, partition)[-2:] == [b"after", b"more"]
            assert end.base_offset >= 0
    for topic, name in store.groups():
        if name in ("classic", "second"):
            assert store.commit_offsets(name, [Committed(topic, 0, 9)]) is None
            continue
        group = store.group(topic, name, start="none")
        assert group.ack(group.poll(4)) == 4
    store.maintain()
    assert store.failures() == {}


def state(store: Store) -> dict[str, Any]:
    """What a removal may change, apart from the records."""
    infos = {
        key: [each.committed for each in store.describe_group(*key).partitions]
        for key in store.groups()
    }
    return {
        "topics": store.topics(),
        "groups": infos,
        "routers": [each.name for each in store.routers()],
        "values": {
            (topic, number): values(store, topic, number)
            for topic in store.topics()
            for number in range(2)
        },
    }


REMOVING: dict[str, Act] = {
    "delete_group": lambda store: store.delete_group("t", "g"),
    "delete_classic": lambda store: store.delete_group("t", "classic"),
    "delete_topic": lambda store: store.delete_topic("t"),
    "trim": lambda store: store.trim("t", 0, 20),
    "reset_group": lambda store: store.reset_group(
        "t", "g", to="latest", partitions=[0], execute=True
    ),
    "reset_classic": lambda store: store.reset_group("t", "classic", to="latest", execute=True),
    "delete": lambda store: store.delete("t", 0, before=20),
    "delete_router": lambda store: store.delete_router("r"),
}
CASES = [
    (format_name, name)
    for format_name, name in itertools.product(FORMATS, REMOVING)
    if format_name == "wal" or name not in ("delete", "delete_router")
]


@functools.cache
def ways(format_name: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state without, and with what was asked for."""
    with open_store(filled(format_name).restart(), shards=1) as store:
        before = state(store)
        REMOVING[name](store)
        return before, state(store)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0]}-{fault[1]}")
@pytest.mark.parametrize(("format_name", "name"), CASES)
def test_a_removal_that_meets_a_full_disk_is_done_or_not_done(
    format_name: str, name: str, fault: tuple[str, int]
) -> None:
    act = REMOVING[name]
    before, after = ways(format_name, name)
    for files, store, is_done in tried(filled(format_name), fault, act):
        found = state(store)
        if name == "trim" and not is_done:  # segment by segment: what is gone stays gone
            left = found["values"].pop(("t", 0))
            assert left == before["values"]["t", 0][-len(left) :]
            found["values"]["t", 0] = before["values"]["t", 0]
        assert found == (after if is_done else before)
        with open_store(files.snapshot().crash("dropped"), shards=1) as again:
            if name != "trim" or is_done:
                assert state(again) in ((after,) if is_done else (before, after))
        if not is_done:
            for group in ("g", "h"):  # it lives on
                store.group("t", group, start="none").commit(0)
            act(store)
            assert state(store) == after
        use(store)


def _scan(store: Store) -> None:
    assert values(store, "t", 0)[:40] == KEPT


def _consume(store: Store) -> None:
    group = store.group("t", "g")
    group.ack(group.poll(2))


def _make_group(store: Store) -> None:
    store.group("t", "new")


def _retain(store: Store) -> None:
    store.alter_topic("t", {"retention.bytes": 2048})
    store.apply_retention("t", 0)


WORKING: dict[str, Act] = {
    "append": lambda store: store.append("t", [b"x" * 2000], partition=0),
    "roll": lambda store: store.roll("t", 0),
    "scan": _scan,
    "consume": _consume,
    "make group": _make_group,
    "retention": _retain,
    "maintain": lambda store: store.maintain(),
    "commit": lambda store: store.commit_offsets("classic", [Committed("t", 0, 7)]),
    "create topic": lambda store: store.create_topic("made", partitions=2),
}


@pytest.mark.parametrize("kind", ["create", "open", "sync_directory"])
@pytest.mark.parametrize("name", WORKING)
@pytest.mark.parametrize("format_name", FORMATS)
def test_a_descriptor_that_is_missing_once_poisons_nothing(
    format_name: str, name: str, kind: str
) -> None:
    act = WORKING[name]
    for files, store, is_done in tried(filled(format_name), (kind, errno.EMFILE), act):
        if not is_done:
            act(store)
        use(store)
        assert open_store(files.snapshot().crash("dropped"), shards=1).close() is None


@pytest.mark.parametrize("kind", ["create", "open", "sync_directory"])
@pytest.mark.parametrize("format_name", FORMATS)
def test_archiving_goes_on_after_a_missing_descriptor(format_name: str, kind: str) -> None:
    for at in itertools.count(1):
        files = SimulatedFiles()
        config = {"segment.bytes": 1024, "remote.storage.enable": "true"}
        with archiving(files, memory()) as store:
            store.create_topic("t", format=format_name, config=config)
            store.append("t", KEPT, partition=0)
            store.roll("t", 0)
            before = files.calls[kind]
            files.fail(kind, at=at, error=errno.EMFILE)
            with contextlib.suppress(Unavailable):
                store.archive()
            reached = files.calls[kind] - before >= at
            files.faults.clear()
            assert store.failures() == {}
            store.archive()
            assert values(store, "t", 0) == KEPT
            store.append("t", [b"after"], partition=0)
        if not reached:
            return
