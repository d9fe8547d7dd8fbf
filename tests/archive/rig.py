"""A store with an archive, driven by hand: no thread does anything by itself."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa

from lamina.config import WriterSettings
from lamina.errors import LaminaError
from lamina.storage.files import Files
from lamina.storage.objects import Objects, open_objects
from lamina.store.archive_store import ArchiveStore
from lamina.store.store import Store

NOW_MS = 1_700_000_000_000
DATA = "/srv/data"
NEVER = 1 << 31
SETTINGS: dict[str, Any] = {
    "remote.storage.enable": True,
    "segment.bytes": 1024,
    "archive.object.bytes": 1024,
    "archive.delay.ms": 0,
    "local.retention.bytes": 0,
}
TOPIC = "orders"


def memory() -> Objects:
    return open_objects("memory://")


def opened(files: Files | None, objects: Objects | None, data: str = DATA, **more: Any) -> Store:
    writer = WriterSettings(flush_ms=NEVER)
    return Store(
        data,
        files=files,
        now_ms=lambda: NOW_MS,
        writer=writer,
        tick_ms=NEVER,
        archive=objects,
        **more,
    )


def values(first: int, count: int) -> list[bytes]:
    """Values that tell their offset and do not compress away."""
    return [
        (b"%d " % number) + bytes((number * 7 + each * each) % 251 for each in range(60))
        for number in range(first, first + count)
    ]


def read(store: Any, start: int | None = None, **more: Any) -> list[tuple[int, bytes]]:
    rows: list[tuple[int, bytes]] = []
    for batch in store.scan(TOPIC, 0, start, **more):
        rows += zip(
            batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
        )
    return rows


def numbered(first: int, end: int) -> list[tuple[int, bytes]]:
    return list(zip(range(first, end), values(first, end - first), strict=True))


def table(batches: Any) -> pa.Table:
    return pa.Table.from_batches(list(batches)).combine_chunks()


def attempt(store: Store) -> None:
    """Archives as far as that goes now; `tier_status` says why it did not go further."""
    with contextlib.suppress(LaminaError):
        store.archive()


def archived(objects: Objects) -> list[tuple[int, bytes]]:
    """What the archive alone gives; nothing when the topic is not there yet."""
    with ArchiveStore(objects) as store:
        return read(store) if TOPIC in store.topics() else []
