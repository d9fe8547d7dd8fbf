"""Small stores with wal topics, and what they hold, for the tests beside this file."""

from __future__ import annotations

from typing import Any

from lamina.api import Gap, StoreApi
from lamina.config import WalSettings, WriterSettings
from lamina.errors import RecordsMissing
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store

QUIET = WriterSettings(flush_ms=1 << 31)
SMALL = WalSettings(shards=1, wal_bytes=1 << 12, segment_events=10)


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


def opened(path: Any, wal: WalSettings = SMALL, **more: Any) -> Store:
    """Opens a store that does nothing by itself."""
    return Store(str(path), wal=wal, **{"tick_ms": 1 << 30, "writer": QUIET, **more})


def looked_at(path: Any, wal: WalSettings = SMALL, **more: Any) -> ReadOnlyStore:
    """Opens a store for reading."""
    return ReadOnlyStore(str(path), wal=wal, **more)


def contents(
    store: StoreApi, topic: str = "t", partition: int = 0
) -> tuple[dict[int, bytes], list[Gap]]:
    """Reads everything: the records by offset, and the gaps that a reader is told of."""
    found: dict[int, bytes] = {}
    gaps: list[Gap] = []
    start = 0
    while True:
        try:
            for batch in store.scan(topic, partition, start, max_records=7):
                assert batch.num_rows > 0
                offsets = batch.column("offset").to_pylist()
                found |= dict(zip(offsets, batch.column("value").to_pylist(), strict=True))
            return found, gaps
        except RecordsMissing as missing:
            gaps.append(Gap(missing.first, missing.end, missing.reason, 0))
            start = missing.end


def values(store: StoreApi, topic: str = "t", partition: int = 0) -> dict[int, bytes]:
    """Reads everything of a topic that has no gaps."""
    found, gaps = contents(store, topic, partition)
    assert gaps == []
    return found


def numbered(first: int, end: int) -> dict[int, bytes]:
    """What `fill` appends as the offsets `first` up to `end`."""
    return {offset: b"value %d" % offset for offset in range(first, end)}


def fill(store: Store, first: int, end: int, topic: str = "t", **more: Any) -> None:
    """Appends values that name their own offsets, some with tags."""
    rows = [
        {"value": b"value %d" % offset, "tag": b"tag %d" % (offset % 3)}
        for offset in range(first, end)
    ]
    assert store.append(topic, rows, partition=0, **more).base_offset == first


def crash(store: Store) -> None:
    """Leaves a store as a killed process does: nothing is written, the lock ends."""
    store._maintenance.stop()
    store._lookup.is_closed = True
    store._lock.release()
