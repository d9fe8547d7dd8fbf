"""Archiving records and reading them back from their objects, in a directory on the same disk.

Beside Lamina's archive the same records are made into Parquet files of the size of its objects:
what a program without it would do to have them in an object store.
"""

from __future__ import annotations

import os
import shutil
import time

import pyarrow as pa
import pyarrow.parquet as pq

import lamina
from benchmarks.field.embedded import TOPIC, Keratin, batch_of, counted_in
from benchmarks.field.files import ParquetFiles
from benchmarks.field.suite import BATCH_RECORDS, Figures, batches_of, cycle
from benchmarks.field.system import FSYNC, NotOffered

BATCHES = 1_000
PARQUET_BATCHES = 125
SETTINGS = {"remote.storage.enable": True, "segment.bytes": 16 << 20}


def archive(figures: Figures, folder: str) -> None:
    """Archives a million records of 100 B and reads the archive."""
    if figures.durability != FSYNC or figures.system not in (Keratin, ParquetFiles):
        raise NotOffered
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    objects = _made(folder, "archive")
    try:
        work = _of_log if figures.system is Keratin else _of_parquet
        work(os.path.join(folder, "warm"), _made(folder, "warm-archive"), PARQUET_BATCHES)
        archived, taken = work(folder, objects, BATCHES)
        figures.add("archive", archived / taken)
        figures.add("archive_bytes", _size(objects) / archived)
        for _ in range(3):
            started = time.perf_counter()
            found, length = _read(figures, objects)
            figures.add("cold_read", found / (time.perf_counter() - started))
            assert found == archived, f"{found} of {archived} archived records were read"
            assert length == found * 100, f"{length} bytes of {found} records"
    finally:
        shutil.rmtree(folder)


def _made(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    os.makedirs(path)
    return path


def _of_log(folder: str, objects: str, batches: int) -> tuple[int, float]:
    with lamina.open(os.path.join(folder, "data"), archive=objects) as store:
        store.create_topic(TOPIC, format="keratin", config=SETTINGS)
        ready = [batch_of(batch) for batch in batches_of(100)]
        for batch in cycle(ready, batches):
            store.append(TOPIC, batch, partition=0, acks=1)
        store.append(TOPIC, b"last")
        started = time.perf_counter()
        store.archive()
        taken = time.perf_counter() - started
        (status,) = store.tier_status()
        return status.archived_offset, taken


def _of_parquet(folder: str, objects: str, batches: int) -> tuple[int, float]:
    ready = [batch_of(batch) for batch in batches_of(100)]
    started = time.perf_counter()
    for number in range(batches // PARQUET_BATCHES):
        table = pa.Table.from_batches(cycle(ready, PARQUET_BATCHES))
        with open(f"{objects}/{number}.parquet", "wb") as file:
            pq.write_table(table, file, compression="lz4")
            file.flush()
            os.fsync(file.fileno())
    return batches * BATCH_RECORDS, time.perf_counter() - started


def _read(figures: Figures, objects: str) -> tuple[int, int]:
    found = length = 0
    if figures.system is ParquetFiles:
        for name in sorted(os.listdir(objects)):
            count, size = counted_in(pq.read_table(os.path.join(objects, name)))
            found, length = found + count, length + size
        return found, length
    with lamina.open(f"file://{objects}", read_only=True) as cold:
        for part in cold.scan(TOPIC, max_bytes=4 << 20, max_records=1 << 20):
            count, size = counted_in(part)
            found, length = found + count, length + size
    return found, length


def _size(folder: str) -> int:
    return sum(
        os.path.getsize(os.path.join(path, name))
        for path, _, names in os.walk(folder)
        for name in names
    )
