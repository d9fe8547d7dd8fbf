"""Compiles every kernel ahead of time: a small store goes through everything.

Numba compiles a kernel for the types of its first call. No list of types is kept here, which would
become outdated: records go into a store of each format and come back in each way, so that every
kernel sees the types of real calls. A test checks that programs compile nothing afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from lamina.api import ProducerStamp, StoreApi
from lamina.archive.open_archive import open_archive
from lamina.errors import LaminaError
from lamina.formats.kafka import batch as kafka_batch
from lamina.formats.kernels import compile as kernels
from lamina.formats.kernels.first_use import compiled_first
from lamina.storage import machine, paths
from lamina.storage.kept_file import local_files
from lamina.store.archive_store import ArchiveStore
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store

_LOGS = ("keratin", "frame", "wal")
_TOPIC = {"segment.bytes": 1 << 14, "remote.storage.enable": True}


def is_warm() -> bool:
    """Whether everything was compiled on a machine of this kind before."""
    return kernels.CACHE.is_complete(kernels.machine_name())


def warm() -> Iterator[tuple[int, int]]:
    """Compiles everything; yields how many steps are done, of how many."""
    with machine.temporary_directory("lamina-warm-") as folder:
        steps = list(_steps(folder))
        for done, step in enumerate(steps):
            yield done, len(steps)
            with compiled_first():
                step()
        yield len(steps), len(steps)
    kernels.CACHE.note_complete(kernels.machine_name())


def _steps(folder: str) -> Iterator[Callable[[], None]]:
    data, cold = paths.join(folder, "data"), paths.join(folder, "cold")
    for log in _LOGS:
        for step in (_write, _read, _consume):
            yield partial(step, data, cold, log)
    yield partial(_damage, data, cold)
    yield _kafka


def _rows(first: int, log: str) -> list[dict[str, Any]]:
    """Some records with everything that a format keeps."""
    row: dict[str, Any] = {"value": b"value" * 20}
    if log == "keratin":
        row |= {"key": b"key", "headers": [{"key": "name", "value": b"value"}]}
    if log == "wal":
        row |= {"tag": b"tag", "node": b"node"}
    return [row | {"timestamp": first + number} for number in range(200)]


def _write(data: str, cold: str, log: str) -> None:
    """Appends in every way, by several segments, and archives those that are sealed."""
    with Store(data, archive=open_archive(cold)) as store:
        store.create_topic(log, format=log, config=_TOPIC)
        store.create_topic(f"{log}.more", format=log, partitions=1 if log == "wal" else 2)
        store.append(f"{log}.more", _rows(0, log))
        store.append(log, b"alone")
        stamp = ProducerStamp(store.new_producer_id(), 0, 0)
        store.append(log, [{"value": b"stamped"}], producer=stamp)
        for batch in range(5):
            store.append(log, _rows(batch * 200, log))
        store.flush()
        store.archive()
    with Store(data, archive=open_archive(cold)) as store:
        store.append(log, _rows(1_000, log))
        _scan(store, log, 1_100)  # before anything is moved to where it stays


def _scan(store: StoreApi, log: str, start: int) -> None:
    for _ in store.scan(log, 0, start):
        pass


def _read(data: str, cold: str, log: str) -> None:
    """Reads what is hot, sealed and cold, whole, from the middle and by time."""
    stores = (
        Store(data, archive=open_archive(cold)),
        ReadOnlyStore(data, archive=open_archive(cold)),
        _archive(cold),
    )
    for store in stores:
        with store:
            for start in (0, 150, 1_100):
                with contextlib.suppress(LaminaError):  # the archive ends before
                    _scan(store, log, start)
            store.offset_for_time(log, 0, 333)
            with contextlib.suppress(LaminaError):  # only wal topics know nodes and tags
                store.diff(log, 0, 10, exclude_node=b"node")
                store.delete(log, 0, tag=b"other")


def _consume(data: str, cold: str, log: str) -> None:
    """Takes records under a lease, and releases them in every way."""
    with Store(data, archive=open_archive(cold)) as store:
        group = store.group(log, "warm")
        early, late = group.poll(20, lease_ms=60_000), group.poll(20, lease_ms=60_000)
        group.ack(late)  # a hole before it
        group.lag()
        group.ack(early)
        for settle in (group.ack, group.release, group.reject):
            settle(group.poll(20, lease_ms=60_000))
        group.poll(20)
    with Store(data, archive=open_archive(cold)) as store:
        store.group(log, "warm").poll(20)


def _damage(data: str, cold: str) -> None:
    """Flips a bit in every file that holds records, and reads what is left."""
    files = local_files()
    for path in (*machine.files_below(data), *machine.files_below(cold)):
        if paths.suffix_of(path) in paths.RECORD_SUFFIXES and machine.size_of(path) > 1_000:
            content = bytearray(files.read(path))
            content[len(content) // 2] ^= 1
            files.replace(path, bytes(content))
    with contextlib.suppress(LaminaError), Store(data, archive=open_archive(cold)) as store:
        for log in _LOGS:
            with contextlib.suppress(LaminaError):
                _scan(store, log, 0)


def _kafka() -> None:
    """Encodes and decodes a batch as Kafka's clients send and receive it."""
    row = {"offset": 0, "timestamp": 0, "value": b"", "headers": [{"key": "", "value": b""}]}
    columns = pa.RecordBatch.from_pylist([row], schema=kafka_batch.INPUT_SCHEMA)
    kafka_batch.decode(bytes(kafka_batch.encode(columns)), 1 << 10)


def _archive(cold: str) -> ArchiveStore:
    objects = open_archive(cold)
    assert objects is not None
    return ArchiveStore(objects)
