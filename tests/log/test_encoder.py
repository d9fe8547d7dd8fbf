"""A group is encoded in pieces; what is on the disk, and what a failure leaves, must not tell."""

from __future__ import annotations

import errno
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lamina.api import DURABLE, Ack
from lamina.config import TopicSettings
from lamina.errors import InvalidRequest, Poisoned, StorageFull
from lamina.log import encoder
from lamina.log.appending import make_request
from lamina.log.requests import Request
from lamina.records import HEADERS
from lamina.storage.files import LocalFile
from lamina.store.store import Store
from tests.support.directories import FORMATS, START_MS, opened, segments, values
from tests.support.writer_rig import SOON_S, wait_until

BOTH = pytest.mark.parametrize("format_name", FORMATS)
PLAIN = [b"plain one " * 30, b"plain two " * 20]
OF_ARROW = b"of arrow " * 25
BATCH = pa.record_batch({"value": pa.array([OF_ARROW] * 3, pa.binary())})
APPENDS: tuple[Any, ...] = (PLAIN, BATCH, [b"x" * 1200], BATCH.slice(1), [b"last"], PLAIN)
STORED = [
    *PLAIN,
    *([OF_ARROW] * 3),
    b"x" * 1200,
    *([OF_ARROW] * 2),
    b"last",
    *PLAIN,
]


def group_of(format_name: str) -> list[Request]:
    settings = TopicSettings()
    return [
        make_request(records, format_name, settings, acks=DURABLE, now_ms=START_MS)
        for records in APPENDS
    ]


def made(path: Path, format_name: str, segment_bytes: int) -> Store:
    store = opened(path)
    store.create_topic("t", format=format_name, config={"segment.bytes": segment_bytes})
    return store


def write(store: Store, format_name: str) -> list[Any]:
    (partition,) = store.segmented()
    found = partition.exclusively(lambda: partition.write(group_of(format_name)))
    partition.exclusively(partition.sync)
    return found


def files_of(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted(segments(path).iterdir())}


@BOTH
@pytest.mark.parametrize("segment_bytes", [1 << 20, 2000, 1024])
def test_any_pieces_make_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str, segment_bytes: int
) -> None:
    made_of = {}
    for piece_bytes in (1, 900, 1 << 20):
        monkeypatch.setattr(encoder, "PIECE_BYTES", piece_bytes)
        path = tmp_path / str(piece_bytes)
        with made(path, format_name, segment_bytes) as store:
            outcomes = write(store, format_name)
            assert [each.base_offset for each in outcomes] == [0, 2, 5, 6, 8, 9]
            assert values(store) == STORED
        made_of[piece_bytes] = files_of(path)
    assert made_of[1] == made_of[900] == made_of[1 << 20]
    assert len(made_of[1]) == 3 or segment_bytes < 1 << 20


@BOTH
@pytest.mark.parametrize("segment_bytes", [1 << 20, 1024])
@pytest.mark.parametrize("written", range(1, 6))
def test_without_space_for_a_later_piece_nothing_of_the_group_is_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format_name: str,
    segment_bytes: int,
    written: int,
) -> None:
    monkeypatch.setattr(encoder, "PIECE_BYTES", 1)
    with made(tmp_path / "data", format_name, segment_bytes) as store:
        store.append("t", b"before")
        pieces = 0
        append = LocalFile.write_at

        def fills(file: LocalFile, position: int, data: Any) -> None:
            nonlocal pieces
            if isinstance(data, memoryview):  # as records are written, and nothing else
                pieces += 1
                if pieces > written:
                    raise OSError(errno.ENOSPC, "full")
            append(file, position, data)

        with monkeypatch.context() as full:
            full.setattr(LocalFile, "write_at", fills)
            with pytest.raises(StorageFull):
                write(store, format_name)
        assert pieces == written + 1
        assert values(store) == [b"before"]
        assert [type(each) for each in write(store, format_name)] == [Ack] * len(APPENDS)
        assert values(store) == [b"before", *STORED]


@BOTH
def test_a_group_that_cannot_be_taken_back_stops_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    monkeypatch.setattr(encoder, "PIECE_BYTES", 1)
    with made(tmp_path / "data", format_name, 1 << 20) as store:
        store.append("t", b"before")
        append = LocalFile.write_at
        pieces = 0

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "full")

        def fills(file: LocalFile, position: int, data: Any) -> None:
            nonlocal pieces
            pieces += isinstance(data, memoryview)
            if pieces == 3:
                full()
            append(file, position, data)

        with monkeypatch.context() as failing:
            failing.setattr(LocalFile, "write_at", fills)
            failing.setattr(LocalFile, "sync", full)
            with pytest.raises(Poisoned):
                write(store, format_name)
        with pytest.raises(Poisoned):
            store.append("t", b"behind a hole")
    with opened(tmp_path / "data") as store:
        assert values(store)[0] == b"before"
        ack = store.append("t", b"after")
        assert values(store)[ack.base_offset] == b"after"
        assert store.gaps("t") == ()


@pytest.mark.parametrize("rows", [1500, 2048, 4096])
def test_a_large_append_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    batch = pa.record_batch({"value": pa.array([b"v" * 1024] * rows, pa.binary())})
    with made(tmp_path / "data", "keratin", 64 << 20) as store:
        append, written = LocalFile.write_at, 0

        def counts(file: LocalFile, position: int, data: Any) -> None:
            nonlocal written
            written += len(data)
            append(file, position, data)

        with monkeypatch.context() as counting:
            counting.setattr(LocalFile, "write_at", counts)
            for _ in range(3):
                store.append("t", batch)
        assert written < 3 * rows * 1100


@BOTH
def test_a_piece_that_cannot_be_encoded_takes_back_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    monkeypatch.setattr(encoder, "PIECE_BYTES", 1)
    with made(tmp_path / "data", format_name, 1 << 20) as store:
        (partition,) = store.segmented()
        encode = partition._encoder._encode
        encoded = 0

        def refuses(*arguments: Any) -> encoder.Piece:
            nonlocal encoded
            encoded += 1
            if encoded == 3:
                raise InvalidRequest("more than one batch can hold")
            return encode(*arguments)

        with monkeypatch.context() as refusing:
            refusing.setattr(partition._encoder, "_encode", refuses)
            with pytest.raises(InvalidRequest):
                write(store, format_name)
        assert values(store) == []
        assert partition.active.file.size() <= partition.codec.header_bytes
        write(store, format_name)
        assert values(store) == STORED


def named(value: bytes, name: bytearray) -> pa.RecordBatch:
    """A record with a header whose name stays in its owner's hands."""
    names = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(struct.pack("<2i", 0, 2)), pa.py_buffer(name)]
    )
    items = pa.StructArray.from_arrays([names, pa.array([b"x"])], fields=list(HEADERS.value_type))
    headers = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), items)
    return pa.record_batch({"value": pa.array([value]), "headers": headers.cast(HEADERS)})


def test_a_record_that_cannot_be_encoded_is_refused_to_its_own_producer_alone(
    tmp_path: Path,
) -> None:
    with opened(tmp_path / "data") as store, ThreadPoolExecutor(4) as users:
        store.create_topic("t", format="keratin")
        writer = store._partitions["t", 0].writer
        entered, leave = threading.Event(), threading.Event()

        def hold() -> None:
            entered.set()
            assert leave.wait(SOON_S)

        held = users.submit(writer.exclusively, hold)
        assert entered.wait(SOON_S)
        futures = []
        name = bytearray(b"ok")
        for records in ([b"one"], named(b"two", name), [b"three"]):
            futures.append(users.submit(store.append, "t", records, partition=0))
            wait_until(lambda: writer.depth == len(futures))
        name[:] = b"\xff\xfe"  # was text when it was checked
        leave.set()
        held.result(SOON_S)
        with pytest.raises(InvalidRequest, match="UTF-8"):
            futures[1].result(SOON_S)
        assert futures[0].result(SOON_S).durability == "fsynced"
        assert futures[2].result(SOON_S).base_offset == futures[0].result().base_offset + 1
        assert values(store) == [b"one", b"three"]


def test_small_requests_are_encoded_together_up_to_a_piece() -> None:
    size = encoder.PIECE_BYTES // 4
    requests = [Request([b"x"], size_bytes=size, acks=DURABLE) for _ in range(9)]
    assert [len(run) for run in encoder._runs(requests)] == [4, 4, 1]
