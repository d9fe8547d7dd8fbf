"""Small data directories for tests, what they hold, and the ways to hurt them."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa

from lamina.api import StoreApi
from lamina.errors import RecordsMissing
from lamina.formats.log_format import CODECS, Codec
from lamina.formats.scan import Limit
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from tests.support.contract import plain

FORMATS = ("frame", "keratin")
START_MS = 1_700_000_000_000
NEVER_MS = 1 << 30
"""No tick comes by itself; tests call `maintain`."""

_copies = itertools.count()


class Clock:
    """A clock that only tests move."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def opened(path: Path, clock: Clock | None = None, **arguments: Any) -> Store:
    """Opens a store whose clock and ticks are the test's."""
    from lamina.config import WriterSettings

    settings = WriterSettings.parse({"flush.ms": NEVER_MS})
    arguments = {"tick_ms": NEVER_MS, "writer": settings} | arguments
    return Store(str(path), now_ms=clock or Clock(), **arguments)


def copied(path: Path) -> Path:
    """Copies a data directory, also one that is open: what a killed process leaves behind."""
    target = path.parent / f"{path.name.split('-')[0]}-copy-{next(_copies)}"
    shutil.copytree(path, target)
    return target


def segments(path: Path, topic: str = "t", partition: int = 0) -> Path:
    return path / "topics" / topic / str(partition) / "segments"


def files_of(path: Path, suffix: str, topic: str = "t") -> list[Path]:
    return sorted(segments(path, topic).glob(f"*.{suffix}"))


def time_suffix(format_name: str) -> str:
    return CODECS[format_name].time_suffix


def rows(
    store: StoreApi,
    topic: str = "t",
    partition: int = 0,
    start: int | None = None,
    **limits: Any,
) -> list[dict[str, Any]]:
    """All records as plain rows, over gaps."""
    found: list[dict[str, Any]] = []
    at = store.earliest_offset(topic, partition) if start is None else start
    while True:
        try:
            for batch in store.scan(topic, partition, at, **limits):
                found += plain(batch)
            return found
        except RecordsMissing as missing:
            at, before = missing.end, at
        assert at > before, f"there is no way on from {before}"


def values(store: StoreApi, topic: str = "t", partition: int = 0) -> list[bytes]:
    return [row["value"] for row in rows(store, topic, partition)]


def offsets(store: StoreApi, topic: str = "t", partition: int = 0) -> list[int]:
    return [row["offset"] for row in rows(store, topic, partition)]


def timed(times: list[int], *, size: int = 3) -> pa.RecordBatch:
    """A batch of records with these times and values that differ."""
    contents = [bytes([number % 251]) * size for number in range(len(times))]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(contents, pa.binary()),
            pa.array(times, pa.int64()).cast(pa.timestamp("ms", "UTC")),
        ],
        ["value", "timestamp"],
    )


def positions(path: Path, codec: Codec) -> list[int]:
    """Where each record of a `.log` starts, and where the last one ends."""
    data = path.read_bytes()
    found = codec.scan(data, codec.header_bytes, expected_offset=None, limit=Limit())
    return [*found.positions.tolist(), found.end]


def flip(path: Path, position: int, change: int = 0xFF) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= change
    path.write_bytes(data)


def tree(path: Path) -> dict[str, bytes]:
    """Every file with its bytes, but for those that any open may replace."""
    changing = ("meta/lock", "meta/recovery.json", "manifest.bin")
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and not str(file.relative_to(path)).endswith(changing)
    }


def report_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads((path / "meta/recovery.json").read_text())["events"]
    return events


def read_only(path: Path) -> ReadOnlyStore:
    return ReadOnlyStore(str(path))
