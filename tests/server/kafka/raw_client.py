"""A Kafka client of a few lines: one socket, our own codec, any request in any version."""

from __future__ import annotations

import socket
import struct
from typing import Any, Self

import pyarrow as pa

from lamina.formats.kafka import batch
from lamina.records import HEADERS, TIMESTAMP
from lamina.wire.kafka import codec, framing
from lamina.wire.kafka.connection_apis import API_VERSIONS
from lamina.wire.kafka.message_schema import Api


class RawClient:
    """One connection; requests may be sent without waiting for their answers."""

    def __init__(self, address: str | None, timeout_s: float = 60) -> None:
        assert address is not None
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, api: Api, version: int, value: dict[str, Any]) -> None:
        self._count += 1
        pieces = framing.request_frame(api, (version, self._count), "raw", value)
        self.socket.sendall(b"".join(pieces))

    def receive(self, api: Api, version: int) -> tuple[int, dict[str, Any]]:
        """The correlation id and the answer."""
        data = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        start = 5 if api.is_flexible(version) and api is not API_VERSIONS else 4
        answer = codec.parse(api, version, "response", memoryview(data)[start:])
        return int.from_bytes(data[:4]), answer

    def ask(self, api: Api, version: int, value: dict[str, Any]) -> dict[str, Any]:
        self.send(api, version, value)
        number, answer = self.receive(api, version)
        assert number == self._count
        return answer

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("closed")
            data += part
        return data

    def is_closed(self) -> bool:
        """Whether the server ends the connection, having sent nothing more."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


def made(values: list[bytes | None], **columns: list[Any]) -> bytes:
    """A batch as a producer sends it."""
    rows = len(values)
    arrays = [
        pa.array(range(rows), pa.int64()),
        pa.array(columns.get("times", [1_700_000_000_000] * rows), TIMESTAMP),
        pa.array(columns.get("keys", [None] * rows), pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(columns.get("headers", [None] * rows), HEADERS),
    ]
    return bytes(batch.encode(pa.RecordBatch.from_arrays(arrays, schema=batch.INPUT_SCHEMA)))


def produced(topic: str, *batches: bytes, acks: int = -1, partition: int = 0) -> dict[str, Any]:
    """A Produce request, each batch for the next partition."""
    parts = [{"index": partition + n, "records": [data]} for n, data in enumerate(batches)]
    return {
        "acks": acks,
        "timeout_ms": 10_000,
        "topic_data": [{"name": topic, "partition_data": parts}],
    }


def fetched(topic: str, offset: int, **more: Any) -> dict[str, Any]:
    """A Fetch request of partition 0, up to version 12."""
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    partition |= {name: more.pop(name) for name in ("partition_max_bytes",) if name in more}
    return {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "topics": [{"topic": topic, "partitions": [partition]}],
        **more,
    }


def offsets_of(records: memoryview) -> list[tuple[int, int, int]]:
    """The batches of an answer: first offset, last offset, count."""
    found, data = [], bytes(records)
    while data:
        head = batch.HEADER.unpack(data)
        first = head["base_offset"]
        found.append((first, first + head["last_offset_delta"], head["count"]))
        data = data[12 + head["batch_length"] :]
    return found
