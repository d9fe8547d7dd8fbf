"""What this machine allows, measured in the same run: every figure is also a share of these."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from pyarrow import flight

from benchmarks.field.system import needs_package

MIB = 1 << 20


def measure(folder: str) -> dict[str, float]:
    """Measures everything once; throughputs in MB/s, times in microseconds."""
    os.makedirs(folder, exist_ok=True)
    return {
        "memcpy MB/s": memcpy(),
        "write MB/s": written(folder, sync_every=0),
        "write, fdatasync every 2 MiB MB/s": written(folder, sync_every=2 * MIB),
        "write + fdatasync of 148 B us": lone_write(folder),
        "LZ4 compress MB/s": lz4(),
        "loopback round trip us": round_trip(),
        "Flight put MB/s": flight_put(),
        **kafka_codec(),
    }


def _rate(work: Callable[[], object], size_bytes: int, rounds: int = 5) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return size_bytes / best / 1e6


def memcpy() -> float:
    """Copying 256 MB in memory."""
    source = np.ones(256 * MIB, dtype=np.uint8)
    target = np.empty_like(source)
    return _rate(lambda: np.copyto(target, source), source.nbytes)


def written(folder: str, *, sync_every: int) -> float:
    """Appending 64 MB to a new file, in pieces of 128 KiB."""
    piece = os.urandom(128 << 10)
    path = os.path.join(folder, "limit")

    def work() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        since = 0
        for _ in range(64 * MIB // len(piece)):
            os.write(descriptor, piece)
            since += len(piece)
            if sync_every and since >= sync_every:
                os.fdatasync(descriptor)
                since = 0
        os.close(descriptor)

    rate = _rate(work, 64 * MIB, 3)
    os.unlink(path)
    return rate


@contextlib.contextmanager
def bare_writes(path: str) -> Iterator[Callable[[], None]]:
    """A small write + fdatasync, over and over, into a file whose blocks are there already."""
    data = os.urandom(148)
    size = 4 * MIB
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.pwrite(descriptor, bytes(size), 0)
    os.fsync(descriptor)
    positions = itertools.cycle(range(0, size - len(data), len(data)))

    def write() -> None:
        os.pwrite(descriptor, data, next(positions))
        os.fdatasync(descriptor)

    try:
        yield write
    finally:
        os.close(descriptor)
        os.unlink(path)


def lone_write(folder: str, times: int = 500) -> float:
    """The median of such a write."""
    taken = []
    with bare_writes(os.path.join(folder, "limit")) as write:
        for _ in range(times):
            started = time.perf_counter()
            write()
            taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e6


def lz4() -> float:
    """Compressing lines of names and random numbers in blocks of 1 MiB."""
    numbers = random.Random(1)
    lines = (f'"voltage": {numbers.randrange(100_000)}, "station": {n}\n' for n in range(120_000))
    raw = "".join(lines).encode()[: 4 * MIB]
    codec = pa.Codec("lz4_raw")
    blocks = [raw[at : at + MIB] for at in range(0, len(raw), MIB)]
    return _rate(lambda: [codec.compress(block) for block in blocks], len(raw))


def round_trip(times: int = 2000) -> float:
    """The median of a 64-byte question and answer over a TCP connection on loopback."""
    server = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        peer, _ = server.accept()
        with peer:
            while data := peer.recv(64):
                peer.sendall(data)

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    taken = []
    with socket.create_connection(server.getsockname()) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(times):
            started = time.perf_counter()
            client.sendall(bytes(64))
            client.recv(64)
            taken.append(time.perf_counter() - started)
    server.close()
    return statistics.median(taken) * 1e6


class _Sink(flight.FlightServerBase):  # type: ignore[misc]
    """Takes batches and does nothing with them."""

    def do_put(self, context: object, descriptor: object, reader: object, writer: object) -> None:
        for _ in reader:  # type: ignore[attr-defined]
            pass


def flight_put() -> float:
    """Sending Arrow batches of 10,000 records of 100 B to a Flight server that drops them."""
    batch = pa.record_batch({"value": pa.array([b"v" * 100] * 10_000, pa.binary())})
    with _Sink("grpc://127.0.0.1:0") as server:
        client = flight.connect(f"grpc://127.0.0.1:{server.port}")
        descriptor = flight.FlightDescriptor.for_path("limit")

        def work() -> None:
            writer, reader = client.do_put(descriptor, batch.schema)
            for _ in range(100):
                writer.write_batch(batch)
            writer.done_writing()
            reader.read()
            writer.close()

        rate = _rate(work, 100 * 100 * 10_000, 3)
        client.close()
    return rate


def kafka_codec() -> dict[str, float]:
    """Encoding and decoding Kafka batches of 1,000 records of 100 B by aiokafka's Cython codec."""
    if needs_package("aiokafka"):
        return {}
    from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

    def encode() -> bytes:
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
        for offset in range(1000):
            builder.append(offset, 0, None, value, [])
        return bytes(builder.build())

    value = b"v" * 100
    encoded = encode()

    def decode() -> None:
        for _ in DefaultRecordBatch(encoded):
            pass

    return {
        "aiokafka codec encode records/s": _rate(encode, 10**9, 20),
        "aiokafka codec decode records/s": _rate(decode, 10**9, 20),
    }
