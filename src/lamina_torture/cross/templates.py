"""The directories that cells begin with: one of each format, with and without an archive.

    root/data      the store's directory
    root/cold      the cold directory of wal topics
    root/archive   the archive's objects

A template is made once by the store itself, kept as bytes, and laid out again for every cell. It
knows each record's copies: the files that hold it and where. Two topics are in it, the one that is
looked at and a neighbour, whose records no damage may cost that touches none of their bytes. A
third is there for its schemas, and for transactions that are decided and that are open: of it only
the files of these are damaged.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

from lamina.api import ProducerStamp
from lamina.api.memberships import Committed
from lamina.config import ARCHIVE_VARIABLE, WriterSettings
from lamina.formats.documents import topic_file
from lamina.formats.frame import log as frame_log
from lamina.formats.keratin import log as keratin_log
from lamina.formats.strm import segment as strm_segment
from lamina.formats.wal import headers
from lamina.formats.wal import log as wal_log
from lamina.formats.wal.layout import FrameType
from lamina.storage import paths
from lamina.store import transactions
from lamina.store.store import Store
from lamina_torture.faults.transactions import made

TOPIC, NEIGHBOUR, GROUP = "t", "n", "g"
TYPED, TYPED_ROWS = "s", [{"id": number, "item": f"item {number}"} for number in range(5)]
SCHEMA = (
    '{"type": "record", "name": "Order", "fields":'
    ' [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}]}'
)
DECIDED = tuple(f"decided {number}" for number in range(3))
"""The values of a transaction that is decided and not stored yet."""
MINUTE_MS = 60_000
CLASSIC, CLASSIC_AT = "classic", 5
"""A group of Kafka's kind, and the offset that it has committed."""
TAG = b"erase-me"
"""The key, or of a wal topic the tag, of a few records that users delete and erase."""
VALUE_BYTES = 300
SEGMENT_BYTES, SEGMENT_EVENTS = 8 << 10, 24
LOCAL_BYTES = 20 << 10
WAL_BYTES = 24 << 10
NEVER_MS = 1 << 30
ACKED, LEASE_MS = 10, 60_000
NOT_DATA = ("lock", ".lock", "reserve", "recovery.json")
"""Files whose loss or damage means nothing: they are made again without a word."""
PREPARED_BYTES = 64
WAL_PATH = "data/wal/"

Files = dict[str, bytes]
Record = tuple[str, int]
"""A topic and an offset."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The bytes of one record in one file."""

    path: str
    start: int
    end: int
    record: Record


@dataclass(frozen=True)
class Template:
    """What a root holds: files, records, where each lies, and which files make up a tier."""

    format: str
    is_archived: bool
    files: Files
    records: dict[Record, bytes]
    tagged: frozenset[int]
    committed: int
    copies: tuple[Copy, ...] = ()
    tiers: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def touched(self, path: str, start: int, end: int) -> set[Copy]:
        """Returns the copies that have bytes in a range of a file."""
        return {
            copy
            for copy in self.copies
            if copy.path == path and copy.start < end and start < copy.end
        }

    def lay_out(self, root: Path) -> None:
        """Makes a root of it."""
        for path, data in self.files.items():
            at = root / path
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_bytes(data)


@contextmanager
def environment(root: Path, *, archived: bool) -> Iterator[None]:
    """Sets what every door reads from its environment, so that all open the root alike."""
    wanted = {
        "TOPICS_WAL_SHARDS": "1",
        "TOPICS_WAL_BYTES": str(WAL_BYTES),
        "TOPICS_SEGMENT_MAX_EVENTS": str(SEGMENT_EVENTS),
        "TOPICS_COLD_DIR": str(root / "cold"),
        "TOPICS_HOT_SEGMENTS": "3",
        "TOPICS_CHECKPOINT_MIN_BYTES": "0",
        "TOPICS_CHECKPOINT_MS": str(NEVER_MS),
        "TOPICS_SNAPSHOT_MS": str(NEVER_MS),
        "NO_COLOR": "1",
    }
    if archived:
        wanted[ARCHIVE_VARIABLE] = str(root / "archive")
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def open_store(root: Path, **more: Any) -> Store:
    """Opens a root's store, by its environment; nothing happens in it by itself."""
    writer = WriterSettings(flush_ms=NEVER_MS)
    return Store(str(root / "data"), writer=writer, tick_ms=NEVER_MS, **more)


def _rows(format_name: str, luck: random.Random, count: int, name: str) -> list[dict[str, Any]]:
    """Rows of which every seventh is tagged; values that do not compress."""
    label = "tag" if format_name == "wal" else "key"
    rows: list[dict[str, Any]] = []
    for number in range(count):
        row: dict[str, Any] = {"value": b"%s %d " % (name.encode(), number)}
        row["value"] += luck.randbytes(VALUE_BYTES)
        if number % 7 == 3:
            row[label] = TAG
        rows.append(row)
    return rows


def make(root: Path, format_name: str, *, archived: bool) -> Template:
    """Makes a template: a store's life, and the files that it leaves when it is killed.

    Killed, because of a store that was closed no record is in the write-ahead log alone. It is made
    where cells will lay it out again: a store remembers where its archive is.
    """
    with environment(root, archived=archived):
        try:
            return _live(root, format_name, archived=archived)
        finally:
            shutil.rmtree(root, ignore_errors=True)


def _live(root: Path, format_name: str, *, archived: bool) -> Template:
    luck = random.Random(f"{format_name} {archived}")  # noqa: S311
    config: dict[str, Any] = {} if format_name == "wal" else {"segment.bytes": SEGMENT_BYTES}
    if archived:
        config |= {"remote.storage.enable": "true", "archive.object.bytes": SEGMENT_BYTES}
        config |= {"local.retention.bytes": LOCAL_BYTES}
    with open_store(root) as store:
        for topic in (TOPIC, NEIGHBOUR):
            store.create_topic(topic, format=format_name, config=config)
        store.create_topic(TYPED, partitions=2, format=format_name, schema=SCHEMA, config=config)
        store.append(TYPED, TYPED_ROWS, partition=0)
        store.new_producer_id()
        store.append(NEIGHBOUR, _rows(format_name, luck, 30, "n0"), partition=0)
        for part in range(10):
            store.append(TOPIC, _rows(format_name, luck, 12, f"a{part}"), partition=0)
        store.append(TOPIC, [b"once"], partition=0, producer=ProducerStamp(1, 0, 0))
        store.maintain()
        if archived:
            store.archive()
            store.maintain()
        group = store.group(TOPIC, GROUP)
        group.ack(group.poll(ACKED, LEASE_MS))
        store.commit_offsets(CLASSIC, [Committed(TOPIC, 0, CLASSIC_AT)])
        store.coordinator.share_settings.alter(GROUP, {"share.auto.offset.reset": "earliest"})
        if archived:
            store.archive()  # of the groups, too
        store.append(NEIGHBOUR, _rows(format_name, luck, 10, "n1"), partition=0)
        for part in range(4):
            store.append(TOPIC, _rows(format_name, luck, 12, f"b{part}"), partition=0)
        store.maintain()
        store.append(NEIGHBOUR, _rows(format_name, luck, 3, "n2"), partition=0)
        store.append(TOPIC, _rows(format_name, luck, 8, "last"), partition=0)
        store.flush()
        records: dict[Record, bytes] = {}
        tagged: set[int] = set()
        for topic in (TOPIC, NEIGHBOUR):
            for batch in store.scan(topic):
                rows = batch.to_pylist()
                records |= {(topic, row["offset"]): row["value"] for row in rows}
                if topic == TOPIC:
                    tagged |= {
                        row["offset"] for row in rows if TAG in (row.get("tag"), row.get("key"))
                    }
        (part_of_group,) = store.describe_group(TOPIC, GROUP).partitions
        _begin_transactions(store)
        files = files_of(root)
    bare = Template(
        format_name, archived, files, records, frozenset(tagged), part_of_group.committed
    )
    copies = _without_spent(
        [copy for path, data in files.items() for copy in _copies(bare, path, data)]
    )
    return replace(bare, copies=copies, tiers=_tiers(files, copies))


def _begin_transactions(store: Store) -> None:
    """Leaves a transaction that is decided and not stored, and one that is open."""
    own = store.transactions
    with mock.patch.object(transactions, "MEMORY_BYTES_MAX", 0):  # what is open has a file
        for name in ("decided", "open"):
            claim = own.init(name, MINUTE_MS)
            own.add_partitions(claim, [(TYPED, 1)])
            data, batch = made(list(DECIDED), 0)
            own.stage(claim, (TYPED, 1), batch, data)
            if name == "decided":
                with mock.patch.object(transactions.Transactions, "_finish"):
                    own.end(claim, commit=True)


def files_of(root: Path) -> Files:
    """Reads all files that mean anything; of prepared space, which may be long, only a little."""
    found = {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in NOT_DATA
    }
    return {path: data[: len(data.rstrip(b"\0")) + PREPARED_BYTES] for path, data in found.items()}


def _copies(bare: Template, path: str, data: bytes) -> Iterator[Copy]:
    """Finds the records of a file by the format's own walk, on bytes that are sound."""
    name = path.rpartition("/")[2]
    if path.startswith("archive/"):
        yield from _archived_copies(path, data)
        return
    if name.endswith(".log") and "/segments/" in path:
        module: Any = frame_log if bare.format == "frame" else keratin_log
        found = module.scan(data)
        topic = path.split("/")[2]
        offsets = module.decode(data, found).column("offset").to_pylist()
        records = [(topic, offset) for offset in offsets]
    elif name.endswith(".data"):
        found = wal_log.scan_segment(data)
        topic = _topics_by_id(bare.files).get(int(path.split("/")[-2], 16), "")
        offsets = wal_log.decode_segment(data, found).column("offset").to_pylist()
        records = [(topic, offset) for offset in offsets]
    elif path.startswith("data/wal/") and name.endswith(".log"):
        found = wal_log.scan(data)
        columns = headers.headers(data, found)
        by_id = _topics_by_id(bare.files)
        records = [
            (by_id.get(topic_id, "") if kind == FrameType.APPEND else "", sequence)
            for kind, topic_id, sequence in zip(
                columns.types.tolist(),
                columns.topic_ids.tolist(),
                columns.sequences.tolist(),
                strict=True,
            )
        ]
    else:
        return
    edges = [*found.positions.tolist(), found.end]
    for (start, end), record in zip(pairwise(edges), records, strict=True):
        if record in bare.records:
            yield Copy(path, start, end, record)


def _without_spent(copies: list[Copy]) -> tuple[Copy, ...]:
    """Leaves out what the WAL still has of records that segments hold: nobody counts on that."""
    in_segments = {
        copy.record for copy in copies if not copy.path.startswith((WAL_PATH, "archive/"))
    }
    return tuple(
        copy
        for copy in copies
        if not (copy.path.startswith(WAL_PATH) and copy.record in in_segments)
    )


def _archived_copies(path: str, data: bytes) -> Iterator[Copy]:
    """The objects are small, of one block each: their bytes are those of all their records."""
    key = paths.object_key(path.removeprefix("archive/"))
    if key is None:
        return
    for batch in strm_segment.read_from(data):
        for offset in batch.column("offset").to_pylist():
            yield Copy(path, 0, len(data), (key.topic, offset))


def _topics_by_id(files: Files) -> dict[int, str]:
    found: dict[int, str] = {}
    for topic in (TOPIC, NEIGHBOUR):
        about = topic_file.decode(files[f"data/topics/{topic}/topic.json"])
        found |= dict.fromkeys(about.topic_ids, topic)
    return found


def _tiers(files: Files, copies: tuple[Copy, ...]) -> dict[str, tuple[str, ...]]:
    """Sorts the files into tiers; a segment's indexes belong to it."""
    in_archive = {copy.record for copy in copies if copy.path.startswith("archive/")}
    held: dict[str, list[Record]] = {}
    for copy in copies:
        held.setdefault(_stem(copy.path), []).append(copy.record)
    newest: dict[str, int] = {}
    for stem, records in held.items():
        folder = stem.rpartition("/")[0]
        newest[folder] = max(newest.get(folder, -1), *(offset for _, offset in records))
    found: dict[str, list[str]] = {}
    unlooked = _of_typed(files)
    for path in files:
        stem = _stem(path)
        records = held.get(stem, [])
        if path.startswith(unlooked) and not path.endswith(paths.TOPIC_SCHEMAS):
            continue
        if path.startswith("archive/"):
            tier = "object" if records else "shelf"
        elif path.startswith("cold/"):
            tier = "cold"
        elif path.startswith("data/wal/") and path.endswith(".log"):
            tier = "wal"
        elif not records:
            tier = "metadata"
        elif newest[stem.rpartition("/")[0]] in {offset for _, offset in records}:
            tier = "active"
        else:
            tier = "copied" if set(records) <= in_archive else "sealed"
        found.setdefault(tier, []).append(path)
    return {tier: tuple(found) for tier, found in found.items()}


def _of_typed(files: Files) -> tuple[str, ...]:
    """Where the files of the third topic lie: what happens to its records, the others show."""
    about = topic_file.decode(files[f"data/topics/{TYPED}/topic.json"])
    ids = [paths.wal_topic_directory(number) for number in about.topic_ids]
    folders = (f"data/{paths.TOPICS}/{TYPED}", f"archive/data/{TYPED}")
    return (
        *(f"{each}/" for each in folders),
        *(f"{where}/{each}/" for each in ids for where in (f"data/{paths.SEGMENTS}", "cold")),
    )


def _stem(path: str) -> str:
    """What a segment's files have in common."""
    return path if path.startswith("archive/") else path.rpartition(".")[0]
