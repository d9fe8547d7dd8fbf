"""The same records in every mix of tiers: cold, cold and hot, hot; wal topics in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lamina.config import WalSettings, WriterSettings
from lamina.store.store import Store
from tests.spark.logs import NEVER_MS, START_MS, records

COUNT = 3000
SEGMENTED = {"k": "keratin", "f": "frame"}
CONFIG: dict[str, Any] = {
    "segment.bytes": 16 << 10,
    "remote.storage.enable": True,
    "archive.object.bytes": 24 << 10,
    "archive.delay.ms": 0,
}
ALL_KEPT, NONE_KEPT = -1, 0
WAL = WalSettings.parse({"wal.shards": 2, "segment.max.bytes": 8 << 10, "segment.max.events": 400})


@contextmanager
def by_hand(path: Path, **more: Any) -> Iterator[Store]:
    """Opens a store that does nothing by itself."""
    writer = WriterSettings(flush_ms=NEVER_MS)
    with Store(str(path / "data"), writer=writer, tick_ms=NEVER_MS, wal=WAL, **more) as store:
        yield store


def append(store: Store, topic: str, format_name: str, first: int, count: int) -> None:
    for start in range(first, first + count, 250):
        wanted = records(start, 250, headers=format_name == "keratin")
        if format_name == "wal":
            wanted = [
                {"value": each["value"], "timestamp": each["timestamp"], "tag": each["key"]}
                for each in wanted
            ]
        store.append(topic, wanted)


def make_mix(
    path: Path, kept_bytes: int, *, tail: int = 500, topics: str = "kf", archive: Any = None
) -> None:
    """A directory with an archive beside it; local copies of archived records go by a limit.

    The last `tail` records are appended after the rest was archived.
    """
    with by_hand(path, archive=archive or str(path / "cold")) as store:
        config = CONFIG | {"local.retention.bytes": kept_bytes}
        chosen = {name: SEGMENTED[name] for name in topics}
        for name, format_name in chosen.items():
            parts = 2 if name == "k" else 1
            store.create_topic(name, partitions=parts, format=format_name, config=config)
            append(store, name, format_name, 0, COUNT - tail)
            for number in range(parts):
                store.roll(name, number)
        store.archive()
        for name, format_name in chosen.items():
            append(store, name, format_name, COUNT - tail, tail)
        store.maintain()


def make_wal(path: Path) -> None:
    """A wal topic with sealed segments, an active one, and records only in the WAL."""
    with by_hand(path) as store:
        store.create_topic("w", partitions=2, format="wal")
        append(store, "w", "wal", 0, COUNT - 500)
        store.maintain()
        append(store, "w", "wal", COUNT - 500, 500)


def numbers(first: int = 0, end: int = COUNT) -> list[int]:
    return list(range(START_MS + first, START_MS + end))
