"""The names that the log's document gives its two primitives, on partitions and on readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lamina
from lamina.errors import InvalidRequest, OffsetOutOfRange, RecordsMissing
from lamina.storage.objects import open_objects
from lamina.store.archive_store import ArchiveStore
from lamina.store.store import Store
from tests.support.directories import opened, read_only

FORMATS = pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
ARCHIVED = {"remote.storage.enable": True, "archive.delay.ms": 0, "local.retention.bytes": 0}


def values(batches: Any) -> list[bytes]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def partition_of(store: Store, number: int = 0) -> Any:
    return store._partitions["t", number]


@FORMATS
def test_a_partition_appends_a_batch_and_says_where(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format=format_name, partitions=2)
        first = store.earliest_offset("t", 1)
        partition = partition_of(store, 1)
        assert partition.append_batch([b"a", b"b", b"c"]) == (first, 3)
        assert partition.append_batch(b"d", acks="all", timeout_s=5) == (first + 3, 1)
        assert partition.append_batch(pa.table({"value": [b"e"]}), acks=1) == (first + 4, 1)
        unwaited = first + 5 if format_name == "wal" else -1  # a wal topic waits as it promises
        assert partition.append_batch([b"f"], acks=0) == (unwaited, 1)
        store.flush()
        assert values(store.scan("t", 1)) == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert values(store.scan("t", 0)) == []


@FORMATS
def test_a_partition_refuses_what_it_cannot_append(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format=format_name, config={"max.message.bytes": 10})
        partition = partition_of(store)
        for records, more in (
            ([], {}),
            (7, {}),
            ([b"x" * 11], {}),
            ([b"a"], {"acks": "archived"}),
            ([b"a"], {"acks": "most"}),
            ([b"a"], {"timeout_s": "soon"}),
        ):
            with pytest.raises(InvalidRequest):
                partition.append_batch(records, **more)
        assert values(store.scan("t")) == []


def check_stream(scan_from: Any, first: int) -> None:
    """Ten records of one letter each begin at an offset."""
    letters = [b"%c" % (ord("a") + number) for number in range(10)]
    assert values(scan_from(first)) == letters
    assert values(scan_from(np.int64(first + 3))) == letters[3:]
    assert values(scan_from(first + 1, max_msgs=2)) == letters[1:3]
    assert values(scan_from(first, max_bytes=1)) == letters[:1]
    assert values(scan_from(first, max_bytes=1 << 30, max_msgs=1 << 30)) == letters
    assert values(scan_from(first + 10)) == []
    for limits in ({"max_msgs": 0}, {"max_bytes": -1}, {"max_msgs": "2"}):
        with pytest.raises(InvalidRequest):
            scan_from(first, **limits)
    with pytest.raises(InvalidRequest):
        scan_from("a")
    for offset in (-1, first + 11):
        with pytest.raises(OffsetOutOfRange):
            values(scan_from(offset))


def fill(store: Store, format_name: str, **settings: Any) -> int:
    """Makes a topic of ten records in two segments; returns the first one's offset."""
    store.create_topic("t", format=format_name, config=settings)
    first, _ = partition_of(store).append_batch([b"a", b"b", b"c", b"d", b"e"])
    store.roll("t")
    partition_of(store).append_batch([b"f", b"g", b"h", b"i", b"j"])
    return first


@FORMATS
def test_a_partition_streams_from_an_offset(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path) as store:
        first = fill(store, format_name)
        check_stream(partition_of(store).scan_from, first)
        if format_name != "wal":  # there every append is durable, and what is trimmed is deleted
            store.append("t", b"k", acks=1)
            assert len(values(partition_of(store).scan_from(first))) == 10, "durable ones alone"
            store.trim("t", 0, first + 5)
            with pytest.raises(RecordsMissing) as caught:
                values(partition_of(store).scan_from(first + 2))
            assert caught.value.end == first + 5
    with pytest.raises(lamina.Closed):
        partition_of(store).append_batch([b"late"])


@FORMATS
def test_a_read_only_store_streams_from_an_offset(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path) as store:
        first = fill(store, format_name)
    with read_only(tmp_path) as beside:
        check_stream(lambda offset, **limits: beside.scan_from("t", 0, offset, **limits), first)
        check_stream(beside._lookup.partition("t", 0).scan_from, first)
        assert not hasattr(beside._lookup.partition("t", 0), "append_batch")
        with pytest.raises(InvalidRequest):
            beside.append_batch("t", [b"k"])


@FORMATS
def test_an_archive_streams_from_an_offset(tmp_path: Path, format_name: str) -> None:
    objects = open_objects("memory://")
    with lamina.open(str(tmp_path), archive=objects) as store:
        first = fill(store, format_name, **ARCHIVED)
        store.roll("t")
        store.archive()
        check_stream(partition_of(store).scan_from, first)
    with ArchiveStore(objects) as archive:
        check_stream(lambda offset, **limits: archive.scan_from("t", 0, offset, **limits), first)
        check_stream(archive._lookup.partition("t", 0).scan_from, first)
        with pytest.raises(InvalidRequest):
            archive.append_batch("t", [b"k"])
