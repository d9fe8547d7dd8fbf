"""Power is lost after every step of the write-ahead log's life, and again in its recovery.

The workload takes a store through appends to several shards, rotation, checkpoint, snapshot, seal,
delete, eviction, the move to the cold directory, and the end and return of a topic; it is opened
with other numbers of shards in between, and after each crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pytest

from lamina.config import WalSettings
from lamina.engine.store import Store
from lamina.torture.simulated import SimulatedFiles
from tests.crash.losing_power import (
    REPLAY,
    Life,
    Scribe,
    kill_recoveries,
    open_store,
    read,
    run,
)

TAGS = (None, b"red", b"green", b"redder")


def wal_settings(shards: int) -> WalSettings:
    return WalSettings(
        shards=shards,
        wal_bytes=2048,
        segment_events=4,
        segment_bytes=1024,
        cold_directory="/srv/cold",
        hot_segments=1,
    )


@dataclass(frozen=True, repr=False)
class WalLife(Life):
    """Offsets count from 1. Of single deletes, some have returned and one may be under way."""

    durable: int = 1
    gone: int = 1
    going: int = 1
    deleted: frozenset[int] = frozenset()
    deleting: frozenset[int] = frozenset()


@dataclass(repr=False)
class WalScribe(Scribe):
    """Writes down what wal topics have promised."""

    format_name: str = "wal"
    shards: int = 2
    life_of: ClassVar[type[Life]] = WalLife

    def open_on(self, files: SimulatedFiles, turn: int | None = None) -> Store:
        shards = self.shards if turn is None else 1 + turn // 3 % 3
        return open_store(files, wal=wal_settings(shards))

    def wal_life(self, topic: str) -> WalLife:
        return cast("WalLife", self.life(topic))

    def append(
        self, topic: str, sizes: list[int], acks: object = "all", sequence: int | None = None
    ) -> list[bytes]:
        assert self.store is not None
        life = self.life(topic)
        first = 1 + len(life.values)
        values = [
            f"{topic} {life.epoch} {first + row} ".encode().ljust(size, b"%d" % (row % 10))
            for row, size in enumerate(sizes)
        ]
        rows = [{"value": value, "tag": tag_of(first + n)} for n, value in enumerate(values)]
        self._know(topic, values=life.values + tuple(values))
        ack = self.store.append(topic, rows, partition=0, acks=acks)
        assert ack.base_offset == first
        if acks == "all":
            self._know(topic, durable=first + len(values))
        return values

    def remove(self, topic: str, chosen: Iterable[int], **which: Any) -> None:
        """Deletes single records."""
        assert self.store is not None
        life = self.wal_life(topic)
        live = frozenset(chosen) - life.deleted - frozenset(range(life.gone))
        self._know(topic, deleting=live)
        assert self.store.delete(topic, **which) == len(live)
        self._know(topic, deleting=frozenset(), deleted=life.deleted | live)

    def remove_tag(self, topic: str, tag: bytes) -> None:
        count = len(self.life(topic).values)
        self.remove(topic, (at for at in range(1, count + 1) if tag_of(at) == tag), tag=tag)

    def trim(self, topic: str, before: int) -> None:
        assert self.store is not None
        self._know(topic, going=before)
        assert self.store.trim(topic, 0, before) == before
        self._know(topic, gone=before)

    def evict(self, topic: str, records: int) -> None:
        """Lets eviction by number happen, as the store does it by itself."""
        assert self.store is not None
        self._know(topic, going=1 + len(self.life(topic).values))
        self.store.alter_topic(topic, {"retention.records": records})
        self.store.maintain()
        earliest = self.store.earliest_offset(topic)
        assert earliest > self.life(topic).gone, "the workload evicts something"
        self._know(topic, gone=earliest)
        self.store.alter_topic(topic, {"retention.records": -1})
        self._know(topic, going=earliest)

    def verify_records(self, store: Store, topic: str, life: Life) -> None:
        verify_wal_records(store, topic, cast("WalLife", life))

    def look_after(self, store: Store) -> None:
        """Goes on until what was in the WAL at the crash is only in segments and snapshots."""
        for _ in range(3):
            for topic in store.topics():
                store.append(topic, [b"y" * 900], partition=0, acks="all")
            store.maintain()


def tag_of(offset: int) -> bytes | None:
    return TAGS[offset % len(TAGS)]


def verify_wal_records(store: Store, topic: str, life: WalLife) -> None:
    earliest, end = store.earliest_offset(topic), store.latest_offset(topic)
    assert life.durable <= end <= 1 + len(life.values), "acknowledged or seen, and lost"
    assert store.latest_offset(topic, isolation="written") == end
    assert life.gone <= earliest <= max(life.gone, life.going), "back again, or gone unasked"
    found = read(store, topic)
    is_same = all(value == life.values[at - 1] for at, value in found.items())
    assert is_same, "what is read is not what was appended"
    assert not life.deleted & found.keys(), "deleted, and back again"
    deleting = {at for at in life.deleting if at >= earliest}
    undone = deleting & found.keys()
    assert undone in (set(), deleting), "a delete that is half done"
    told = {at: gap.reason for gap in store.gaps(topic) for at in range(gap.first, gap.end)}
    assert told.keys().isdisjoint(found), "there, and said to be missing"
    for at in range(earliest, end):
        if at not in found and at not in life.deleted | deleting:
            assert at >= life.durable, f"{at} was durable and is missing"
            assert told[at] == "truncated", f"{at} was never durable, {told[at]}"
    below = {told.get(at) for at in range(1, earliest)}
    assert below <= {"retention", "trim", "truncated"}, f"gone because of {below}"


def workload(scribe: WalScribe) -> None:
    """Everything that changes a disk, at least once."""
    store = scribe.open()
    scribe.create("orders")
    scribe.create("other", durability="disk")
    scribe.append("orders", [100, 40, 10])
    scribe.append("other", [30, 20])
    scribe.append("other", [300], acks=1)
    scribe.append("orders", [60])
    store.maintain()
    scribe.remove_tag("orders", b"red")
    scribe.append("orders", [700, 20, 20])
    scribe.append("other", [10], acks=1)
    scribe.append("orders", [900])
    scribe.remove("other", [1], offsets=[1])
    store.maintain()
    scribe.append("other", [1500], acks=1)
    scribe.append("other", [900])  # rotates, with an unsynced group in the file before
    scribe.append("orders", [40] * 5)
    store.roll("orders")
    scribe.append("other", [500, 20, 20, 5])
    scribe.trim("orders", 4)
    store.maintain()
    scribe.evict("orders", 6)
    scribe.remove_tag("other", b"green")
    scribe.close()

    scribe.shards = 3
    store = scribe.open()
    scribe.append("orders", [10, 20])
    scribe.remove_tag("orders", b"redder")
    store.maintain()
    scribe.delete("other")
    scribe.create("other")
    scribe.append("other", [50, 60, 70, 80, 90])
    store.maintain()
    scribe.append("orders", [800])
    scribe.append("other", [5], acks="all")
    scribe.kill()

    scribe.shards = 1
    store = scribe.open()
    scribe.append("other", [11, 12])
    scribe.append("orders", [13])
    scribe.evict("other", 2)
    scribe.delete("orders")
    scribe.create("orders")
    scribe.append("orders", [33])
    scribe.close()


@pytest.fixture(scope="module")
def history() -> WalScribe:
    scribe = WalScribe()
    workload(scribe)
    return scribe


def test_the_workload_goes_through_everything(history: WalScribe) -> None:
    changed = {(moment.kind, moment.path) for moment in history.moments}
    assert any(kind == "rename" and "/srv/cold/" in path for kind, path in changed), "moved"
    assert any(kind == "remove" and "/wal-" in path for kind, path in changed), "freed"
    assert any(kind == "remove" and path.endswith(".data") for kind, path in changed), "evicted"
    assert {path for kind, path in changed if path.endswith("CURRENT") and kind == "rename"}
    snapshots = {path for kind, path in changed if "snapshot-" in path and kind == "rename"}
    assert len(snapshots) > 5


def test_nothing_promised_is_lost_whenever_power_fails(history: WalScribe) -> None:
    assert run(history, seeds=0) > 500 or REPLAY


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nothing_promised_is_lost_by_more_seeds(history: WalScribe) -> None:
    assert run(history, 20) > 5_000 or REPLAY


def test_recovery_can_be_killed_at_every_step(history: WalScribe) -> None:
    assert kill_recoveries(history, history.moments[20::60]) > 50
