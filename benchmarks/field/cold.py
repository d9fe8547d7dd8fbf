"""Archiving a topic and reading it back from its objects, in a directory on the same disk."""

from __future__ import annotations

import os
import shutil
import time

import lamina
from benchmarks.field.embedded import TOPIC, batch_of
from benchmarks.field.suite import values_of

BATCHES = 500
SETTINGS = {"remote.storage.enable": True, "segment.bytes": 16 << 20}


def measure(folder: str) -> dict[str, float]:
    """Archives half a million records of 100 B and reads the archive; records a second, ratio."""
    batch = batch_of(values_of(100, 1)[0])
    archive = os.path.join(folder, "archive")
    os.makedirs(archive)
    with lamina.open(os.path.join(folder, "data"), archive=archive) as store:
        store.create_topic(TOPIC, format="keratin", config=SETTINGS)
        for _ in range(BATCHES):
            store.append(TOPIC, batch, partition=0, acks=1)
        store.append(TOPIC, b"last")
        started = time.perf_counter()
        store.archive()
        taken = time.perf_counter() - started
        (status,) = store.tier_status()
        archived = status.archived_offset
    shutil.rmtree(os.path.join(folder, "data"))
    size = sum(
        os.path.getsize(os.path.join(path, name))
        for path, _, names in os.walk(archive)
        for name in names
    )
    with lamina.open(f"file://{archive}", read_only=True) as cold:
        started = time.perf_counter()
        found = sum(
            part.num_rows for part in cold.scan(TOPIC, max_bytes=4 << 20, max_records=1 << 20)
        )
        read = time.perf_counter() - started
    shutil.rmtree(folder)
    assert found == archived, f"{found} of {archived} archived records were read"
    return {
        "archive records/s": archived / taken,
        "cold read records/s": found / read,
        "bytes a record in the archive": size / found,
    }
