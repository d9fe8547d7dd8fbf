"""A small data directory with a file of each kind that a format has, and where its records lie.

It is made once a trial, kept as bytes, and laid out again with one thing changed. What then comes
out of it is held against what went in: a record may be missing only if its own bytes were changed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lamina.api import ProducerStamp
from lamina.config import WalSettings, WriterSettings
from lamina.errors import RecordsMissing
from lamina.formats.frame import log as frame_log
from lamina.formats.keratin import log as keratin_log
from lamina.formats.wal import headers
from lamina.formats.wal import log as wal_log
from lamina.store.store import Store
from lamina_torture.rows import demand, violated

TOPIC, GROUP = "t", "g"
NEVER_MS = 1 << 30
PREPARED_BYTES = 64
NOT_DATA = ("lock", "reserve", "recovery.json")
ACKED, LEASE_MS = 5, 60_000

Files = dict[str, bytes]


def open_small(directory: str) -> Store:
    """Opens the directory; nothing happens in it by itself."""
    wal = WalSettings(
        shards=1, wal_bytes=2 << 10, segment_events=8, segment_bytes=1 << 10, hot_segments=1
    )
    writer = WriterSettings(flush_ms=NEVER_MS)
    return Store(directory, writer=writer, wal=wal, tick_ms=NEVER_MS)


@dataclass(frozen=True)
class Span:
    """The bytes of one record in one file."""

    path: str
    start: int
    end: int
    offset: int


@dataclass(frozen=True)
class Small:
    """What a small directory holds: its files, its records, and where each of them lies."""

    format: str
    files: Files
    records: dict[int, bytes]
    earliest: int
    spans: tuple[Span, ...]
    committed: int

    def touched(self, path: str, start: int, end: int) -> set[int]:
        """Returns the offsets of the records that have bytes in a range of a file."""
        return {
            span.offset
            for span in self.spans
            if span.path == path and span.start < end and start < span.end
        }

    @contextmanager
    def laid_out(
        self, directory: Path, changed: Files, gone: tuple[str, ...] = ()
    ) -> Iterator[str]:
        """Lays the files out, some with other bytes and some missing."""
        shutil.rmtree(directory, ignore_errors=True)
        for path, data in (self.files | changed).items():
            if path not in gone:
                at = directory / path
                at.parent.mkdir(parents=True, exist_ok=True)
                at.write_bytes(data)
        yield str(directory)


def scratch_of(fallback: Path, name: str) -> Path:
    """Returns a place in memory where there is one: nothing here is about the disk's own syncs."""
    memory = Path("/dev/shm")  # noqa: S108
    if memory.is_dir() and os.access(memory, os.W_OK):
        return memory / f"lamina-torture-{os.getpid()}-{name}"
    return fallback / name


def make_small(directory: Path, format_name: str) -> Small:
    """Makes the directory: sealed segments, an active one, a group, a ledger, a producer.

    Of a wal topic the last records are in the WAL only.
    """
    config = {} if format_name == "wal" else {"segment.bytes": 1 << 10}
    with open_small(str(directory)) as store:
        store.create_topic(TOPIC, format=format_name, config=config)
        for number in range(20):
            values = [b"v%d.%d " % (number, row) + b"." * 20 for row in range(4)]
            store.append(TOPIC, values, partition=0)
        store.append(TOPIC, [b"once"], partition=0, producer=ProducerStamp(1, 0, 0))
        first = store.earliest_offset(TOPIC)
        store.trim(TOPIC, 0, first + 20)
        group = store.group(TOPIC, GROUP)
        group.ack(group.poll(ACKED, LEASE_MS))
        store.maintain()
        store.append(TOPIC, [b"last %d " % row + b"." * 20 for row in range(8)], partition=0)
        store.flush()
        records = read_all(store)[0]
        earliest = store.earliest_offset(TOPIC)
        (part,) = store.describe_group(TOPIC, GROUP).partitions
    made = small_of(format_name, files_of(directory), records, part.committed, earliest)
    demand({each.offset for each in made.spans} >= records.keys(), "I12", "a record lies nowhere")
    return made


def small_of(
    format_name: str, files: Files, records: dict[int, bytes], committed: int, earliest: int = 0
) -> Small:
    """Returns what files hold, and where in them."""
    spans = tuple(span for path, data in files.items() for span in _spans(format_name, path, data))
    return Small(format_name, files, records, earliest, spans, committed)


def files_of(directory: Path) -> Files:
    """Reads all files that hold anything; of prepared space, which may be long, only a little."""
    found = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in NOT_DATA
    }
    return {path: data[: len(data.rstrip(b"\0")) + PREPARED_BYTES] for path, data in found.items()}


def _spans(format_name: str, path: str, data: bytes) -> Iterator[Span]:
    """Finds the records of a file by the format's own walk, on bytes that are sound."""
    if path.endswith(".log") and "/segments/" in path:
        module = frame_log if format_name == "frame" else keratin_log
        found = module.scan(data)
        offsets = module.decode(data, found).column("offset").to_pylist()
    elif path.endswith(".data"):
        found = wal_log.scan_segment(data)
        offsets = wal_log.decode_segment(data, found).column("offset").to_pylist()
    elif path.startswith("wal") and path.endswith(".log"):
        found = wal_log.scan(data)
        offsets = headers.headers(data, found).sequences.tolist()
    else:
        return
    ends = [*found.positions.tolist()[1:], found.end]
    for start, end, offset in zip(found.positions.tolist(), ends, offsets, strict=True):
        yield Span(path, start, end, offset)


def read_all(store: Store) -> tuple[dict[int, bytes], set[int]]:
    """Returns what is read by offset, and the offsets that the ledger gives a reason for."""
    found: dict[int, bytes] = {}
    told: set[int] = set()
    at = store.earliest_offset(TOPIC)
    while True:
        try:
            for batch in store.scan(TOPIC, start=at):
                offsets = batch.column("offset").to_pylist()
                found.update(zip(offsets, batch.column("value").to_pylist(), strict=True))
            break
        except RecordsMissing as missing:
            demand(missing.end > at, "I12", f"after offset {at} there is no way on")
            at = missing.end
    for gap in store.gaps(TOPIC):
        told |= set(range(gap.first, gap.end))
    return found, told


def hold(small: Small, store: Store, excused: set[int]) -> set[int]:
    """Holds a directory with one damaged spot against what was in it; returns what is missing."""
    if TOPIC not in store.topics():
        violated("I1", "the topic is gone")
    found, told = read_all(store)
    for at, value in found.items():
        demand(small.records.get(at) == value, "I2", f"{at} reads as {value[:40]!r}")
    missing = small.records.keys() - found.keys()
    lost = sorted(missing - excused)
    demand(not lost, "I4", f"{lost[:5]} are missing, and their bytes were not touched")
    silent = sorted(missing - told)
    demand(not silent, "I4", f"{silent[:5]} are missing, and the ledger gives no reason")
    end = store.latest_offset(TOPIC)
    last = max(small.records) + 1
    demand(end >= last, "I5", f"it ends at {end}, and {last} was durable")
    demand(store.earliest_offset(TOPIC) >= small.earliest, "I8", "what was trimmed is back")
    return set(missing)


def hold_group(small: Small, store: Store) -> None:
    """The group is where it was: what was acked is not given out again."""
    (part,) = store.describe_group(TOPIC, GROUP).partitions
    demand(part.committed >= small.committed, "I6", f"the group went back to {part.committed}")
    end = store.latest_offset(TOPIC)
    demand(part.committed <= end, "I6", f"the group is at {part.committed}, the log ends at {end}")
