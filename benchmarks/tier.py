"""`make bench-tier`: the object-store tier beside LZ4, Parquet and plain GETs, in one run.

- STRM beside LZ4 over the same raw record bytes and beside Parquet with LZ4, one core each.
- What JSON events save.
- What a seek to 90 % of a 128 MB object fetches.
- A cold scan beside plain GETs of the same objects, from a real S3 server on loopback.
"""

from __future__ import annotations

import io
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from tests.support.failing_objects import FailingObjects
from tests.support.s3_servers import S3Server, weed_server

from benchmarks.bars import Bar, best_of, finish
from lamina import records
from lamina.config import WriterSettings
from lamina.formats.strm import segment as strm_segment
from lamina.formats.strm import write as strm_write
from lamina.formats.strm.layout import Coding, Compression
from lamina.storage.objects import Objects, open_objects
from lamina.store.archive_store import ArchiveStore
from lamina.store.store import Store

NOW_MS = 1_700_000_000_000
EVENTS = 150_000
BATCH = 10_000
BLOCK = 1 << 20
TOPIC = "bench"


def events(count: int) -> list[bytes]:
    """JSON as services log it: the same names again and again, ids and times that differ."""
    luck = random.Random(7)
    cities = ["Berlin", "Lyon", "Oslo", "Porto", "Turin", "Ghent"]
    return [
        json.dumps(
            {
                "event": luck.choice(["page_view", "add_to_cart", "checkout"]),
                "timestamp": f"2026-01-15T10:{number // 6000 % 60:02}:{number // 100 % 60:02}Z",
                "user": {"id": luck.randrange(5000), "city": luck.choice(cities), "plan": "basic"},
                "page": {"url": "https://shop.example.com/products/", "referrer": None},
                "device": {"type": "mobile", "os": "android", "app_version": "4.12.0"},
                "consent": {"analytics": True, "marketing": False},
                "request": number,
            }
        ).encode()
        for number in range(count)
    ]


def batches_of(values: list[bytes]) -> list[pa.RecordBatch]:
    schema = records.INPUT_SCHEMAS["strm"]
    made = []
    for first in range(0, len(values), BATCH):
        part = values[first : first + BATCH]
        columns: dict[str, Any] = {
            "offset": pa.array(range(first, first + len(part)), pa.int64()),
            "timestamp": pa.array([NOW_MS + first + n for n in range(len(part))], pa.int64()).cast(
                records.TIMESTAMP
            ),
            "value": pa.array(part, pa.binary()),
        }
        made.append(
            pa.RecordBatch.from_arrays(
                [columns.get(field.name, pa.nulls(len(part), field.type)) for field in schema],
                schema=schema,
            )
        )
    return made


# ---------------------------------------------------------------- the codec, one core


def write_strm(batches: list[pa.RecordBatch], coding: Coding = Coding()) -> memoryview:
    writer = strm_write.Writer(coding)
    for batch in batches:
        writer.add(batch)
    return writer.finish(topic=TOPIC, partition=0, created_at_ms=NOW_MS)


def read_strm(data: memoryview) -> int:
    return sum(batch.num_rows for batch in strm_segment.read_from(data))


def raw_blocks(batches: list[pa.RecordBatch]) -> list[np.ndarray]:
    """The bytes of each block before compression."""
    data = write_strm(batches, Coding(Compression.NONE))
    segment = strm_segment.open_segment(data)
    ranges = [segment.block_range(number) for number in range(len(segment))]
    return [np.frombuffer(data[start + 16 : end], np.uint8) for start, end in ranges]


def bench_codec(console: Console) -> list[Bar]:
    values = events(EVENTS)
    batches = batches_of(values)
    raw = raw_blocks(batches)
    raw_bytes = sum(map(len, raw))
    content_bytes = sum(map(len, values))
    codec = pa.Codec("lz4_raw")
    packed = [(codec.compress(block), len(block)) for block in raw]
    strm = write_strm(batches)
    plain = pa.Table.from_batches(batches).select(["offset", "timestamp", "key", "value"])

    def write_parquet() -> bytes:
        out = io.BytesIO()
        pq.write_table(plain, out, compression="lz4")
        return out.getvalue()

    parquet = write_parquet()
    times = best_of(
        {
            "strm write": lambda: write_strm(batches),
            "lz4 write": lambda: [codec.compress(block) for block in raw],
            "parquet write": write_parquet,
            "strm read": lambda: read_strm(strm),
            "lz4 read": lambda: [codec.decompress(part, size) for part, size in packed],
            "parquet read": lambda: pq.read_table(io.BytesIO(parquet), use_threads=False),
        },
        rounds=15,
        repeat=1,
    )
    table = Table("JSON events", "MB/s", "million records/s", "bytes")
    sizes = {
        "strm": len(strm),
        "lz4": sum(len(part) for part, _ in packed),
        "parquet": len(parquet),
    }
    for name, seconds in times.items():
        rate = f"{raw_bytes / seconds / 1e6:,.0f}"
        table.add_row(name, rate, f"{EVENTS / seconds / 1e6:.2f}", f"{sizes[name.split()[0]]:,}")
    console.print(table)
    saved = 1 - len(strm) / content_bytes
    console.print(f"{EVENTS:,} events, {content_bytes:,} bytes; example {values[0].decode()}")
    return [
        Bar("strm_write_vs_lz4", times["lz4 write"] / times["strm write"], 0.6),
        Bar("strm_read_vs_lz4", times["lz4 read"] / times["strm read"], 0.6),
        Bar("strm_write_vs_parquet", times["parquet write"] / times["strm write"], 1.0),
        Bar("strm_read_vs_parquet", times["parquet read"] / times["strm read"], 1.0),
        Bar("strm_size_vs_parquet", len(strm) / len(parquet), 1.2, at_most=True),
        Bar("json_saved", saved, 0.8),
    ]


# ---------------------------------------------------------------- seeks and scans


def payloads(count: int) -> Iterator[list[bytes]]:
    """Values of 1 KiB that hardly compress, as images and encrypted fields do."""
    source = np.random.default_rng(7)
    for _ in range(0, count, 1000):
        data = source.bytes(1000 << 10)
        yield [data[start : start + 1024] for start in range(0, len(data), 1024)]


def fill(objects: Objects, count: int, data: Path) -> None:
    """Archives records of 1 KiB as objects of 128 MB."""
    config = {
        "remote.storage.enable": True,
        "segment.bytes": 1 << 28,
        "archive.object.bytes": 128 << 20,
        "local.retention.bytes": 0,
    }
    writer = WriterSettings(flush_ms=1 << 31)
    with Store(str(data), archive=objects, tick_ms=1 << 31, writer=writer) as store:
        store.create_topic(TOPIC, config=config)
        for values in payloads(count):
            store.append(TOPIC, values, acks=1)
        store.roll(TOPIC)
        store.archive()
        (status,) = store.tier_status()
        assert not status.last_error, status.last_error


class Counting(FailingObjects):
    """Adds up what ranges bring."""

    fetched = 0

    def read_range(self, key: str, start: int, end: int) -> Any:
        self.fetched += end - start
        return super().read_range(key, start, end)


def bench_seek(console: Console, folder: Path) -> list[Bar]:
    objects = Counting(open_objects("memory://"))
    fill(objects, 131_000, folder / "seek")
    with ArchiveStore(objects) as store:
        end = store.latest_offset(TOPIC)
        objects.calls.clear()
        objects.fetched = 0
        store.fetch(TOPIC, 0, end * 9 // 10, max_records=1)
        ranges = [kind for kind, _ in objects.calls].count("read_range")
    console.print(f"seek to 90 %: {ranges} ranges, {objects.fetched:,} bytes")
    return [
        Bar("seek_ranges", ranges, 3, at_most=True),
        Bar("seek_mb", objects.fetched / 1e6, 2.5, at_most=True),
    ]


def bench_scan(console: Console, folder: Path) -> list[Bar]:
    server: S3Server = weed_server(folder)
    try:
        objects = server.objects("bench")
        fill(objects, 262_000, folder / "scan")
        keys = sorted(info.key for info in objects.list("data") if info.key.endswith(".seg"))
        store: Any = objects._store  # type: ignore[attr-defined]
        sizes = sum(objects.size(key) for key in keys)

        def get() -> int:
            return sum(len(obstore.get(store, key).bytes()) for key in keys)

        def scan() -> int:
            with ArchiveStore(objects) as archive:
                return sum(batch.num_rows for batch in archive.scan(TOPIC, max_bytes=4 << 20))

        times = best_of({"plain GET": get, "cold scan": scan}, rounds=4, repeat=1)
    finally:
        server.kill()
    for name, seconds in times.items():
        console.print(f"{name}: {sizes / seconds / 1e6:,.0f} MB/s of {sizes:,} bytes")
    return [Bar("scan_vs_get", times["plain GET"] / times["cold scan"], 0.8)]


def main() -> None:
    console = Console(width=100)
    started = time.perf_counter()
    bars = bench_codec(console)
    with tempfile.TemporaryDirectory() as folder:
        bars += bench_seek(console, Path(folder))
        bars += bench_scan(console, Path(folder))
    console.print(f"{time.perf_counter() - started:.0f} s")
    finish(bars)


if __name__ == "__main__":
    main()
