"""Directories with an archive for bulk jobs, and what they hold."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lamina
from lamina.store.store import Store
from tests.spark.logs import fill, stored

CONFIG: dict[str, Any] = {
    "remote.storage.enable": True,
    "segment.bytes": 16 << 10,
    "archive.object.bytes": 16 << 10,
}
NEVER_MS = 1 << 31
LARGE = {"archive.object.bytes": 128 << 20}


def opened(data: Path, cold: Path, **more: Any) -> Store:
    """A store whose archiver does nothing by itself."""
    return Store(str(data), archive=str(cold), tick_ms=NEVER_MS, **more)


def make(data: Path, cold: Path, count: int = 1000, **config: Any) -> None:
    """A topic `k` with sealed segments and a tail, of which nothing is archived yet."""
    with opened(data, cold) as store:
        store.create_topic("k", config={**CONFIG, **config})
        fill(store, "k", count, headers=True)


def archived_only(data: Path, cold: Path, count: int = 1000) -> None:
    """The same, all of it in small objects and not on the local disk; objects may be large now."""
    make(data, cold, count, **{"local.retention.bytes": 0})
    with opened(data, cold) as store:
        store.roll("k")
        store.archive()
        (status,) = store.tier_status()
        assert status.records_behind == 0
        assert status.objects > 1
        store.alter_topic("k", LARGE)


def rows(data: Path, cold: Path, topic: str = "k") -> list[tuple[Any, ...]]:
    """Every record of a topic as a reader of the directory sees it."""
    with lamina.open(str(data), archive=str(cold), read_only=True) as store:
        return stored(store, topic, 0, "offset", "key", "value")


def cold_rows(cold: Path, topic: str = "k") -> list[tuple[Any, ...]]:
    """Every record of a topic as a reader of the archive alone sees it."""
    with lamina.open(f"file://{cold}", read_only=True) as store:
        return stored(store, topic, 0, "offset", "key", "value")


def tree(*folders: Path) -> dict[str, bytes]:
    """All files with their bytes, but for what every open writes anew, with its time."""
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            anew = {"meta", "wal"} & {*path.parts} or path.name in (".lock", "manifest.bin")
            if path.is_file() and not anew:
                found[os.fspath(path)] = path.read_bytes()
    return found


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)
