"""The demo's chapters on formats: write a file of each, look at it, damage it, verify it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pyarrow as pa
from rich.console import Console

from lamina import records
from lamina.cli import file_reports
from lamina.formats.frame import log as frame_log
from lamina.formats.keratin import log as keratin_log
from lamina.formats.strm import write as strm_write
from lamina.formats.wal import log as wal_log
from lamina.storage.files import LocalFiles
from lamina.storage.paths import ObjectKey, SegmentFile, wal_file

_EPOCH_MS = 1_700_000_000_000
_EVENTS = ("created", "paid", "packed", "shipped", "returned")


@dataclass(frozen=True, slots=True)
class Chapter:
    """One format: where its file lies and what is in it."""

    title: str
    path: str
    data: bytes


def tell(console: Console, directory: str) -> None:
    """Writes a file of each format, shows it, flips one bit in it and shows what verify finds."""
    for chapter in _chapters(directory):
        _show(console, chapter)
    console.rule("all of these files")
    console.print(f"$ lamina verify {directory}")
    file_reports.verify(directory, as_json=False)
    console.print(
        "One flipped bit cost one record (or, compressed, one block): the others are still read."
    )


def _show(console: Console, chapter: Chapter) -> None:
    store = LocalFiles()
    path = os.path.abspath(chapter.path)
    store.make_directory(os.path.dirname(path))
    store.replace(path, chapter.data)
    console.rule(chapter.title)
    console.print(f"$ lamina dump {chapter.path} --limit 3")
    file_reports.dump(chapter.path, first=0, limit=3, verify=False, as_json=False)
    damaged = bytearray(chapter.data)
    damaged[len(damaged) // 2] ^= 0x10
    store.replace(path, bytes(damaged))
    console.print(f"… one bit of byte {len(damaged) // 2} flips …")
    console.print(f"$ lamina verify {chapter.path}")
    file_reports.verify(chapter.path, as_json=False)


def _rows(format_name: str) -> pa.RecordBatch:
    """Twelve events of a small shop, with what the format keeps."""
    rows = []
    for number in range(12):
        event = f'{{"order": {number // 5 + 1}, "event": "{_EVENTS[number % 5]}"}}'
        row = {"timestamp": _EPOCH_MS + 250 * number, "value": event.encode()}
        if format_name == "wal":
            row |= {"tag": f"order-{number // 5 + 1}".encode(), "node": b"shop-1"}
        else:
            row |= {"key": f"order-{number // 5 + 1}".encode()}
        if format_name == "keratin":
            row["headers"] = [{"key": "source", "value": b"shop"}]
        if format_name == "strm":
            row["offset"] = number
        rows.append(row)
    return records.prepare(rows, format_name, now_ms=_EPOCH_MS)


def _chapters(directory: str) -> list[Chapter]:
    frames = frame_log.encode(_rows("frame"), 0)[0].tobytes()
    keratin = keratin_log.encode_header(0, _EPOCH_MS) + (
        keratin_log.encode(_rows("keratin"), 0)[0].tobytes()
    )
    wal = wal_log.encode(_rows("wal"), topic_id=1, base_sequence=1, durable=True)[0].tobytes()
    cold = strm_write.encode(
        _rows("strm"), topic="orders", partition=0, created_at_ms=_EPOCH_MS
    ).tobytes()
    segment = SegmentFile(0, "log").name
    return [
        Chapter(
            "frame: a topic one can read with a hex editor",
            f"{directory}/topics/orders-frame/0/segments/{segment}",
            frames,
        ),
        Chapter(
            "keratin: the default, with headers and CRC-32C",
            f"{directory}/topics/orders/0/segments/{segment}",
            keratin,
        ),
        Chapter("wal: many topics behind one fsync", f"{directory}/wal/{wal_file(1)}", wal),
        Chapter(
            "strm: compressed, for the object store",
            f"{directory}/archive/{ObjectKey('orders', 0, 0).name}",
            cold,
        ),
    ]
