"""The user behind Kafka's door: a client of a few lines that fetches and reads batches by itself.

It is told of a loss by CORRUPT_MESSAGE, once; what it then gets is an empty batch over the lost
offsets. It takes both together for what other doors raise as one error. Told again and again, there
is something that this version does not read, or that the disk does not deliver. What was before the
first offset is told by ListOffsets, which says where the log begins. An answer has numbers and no
words: the file is named in the server's log.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from lamina.errors import LaminaError, NewerFormat, RecordsMissing, Unavailable
from lamina.formats.kafka.batch import HEADER
from lamina.server.service import Service
from lamina.server.setting_table import ServerSettings
from lamina.wire.kafka import codec, framing
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.message_schema import Api
from lamina.wire.kafka.record_apis import FETCH, LIST_OFFSETS
from lamina_torture.cross.ground import Ground, Saw, read_over
from lamina_torture.cross.readers import BOTH
from lamina_torture.rows import demand

WAIT_S = 60
_FETCH_VERSION, _LIST_VERSION = 11, 5
_LATER = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)
_EARLIEST, _LATEST = -2, -1


class Client:
    """One connection; bounds and records of partition 0."""

    def __init__(self, address: str, stuck: LaminaError) -> None:
        self._stuck = stuck
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), WAIT_S)
        self._count = 0

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def _ask(self, api: Api, version: int, asked: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        frame = framing.request_frame(api, (version, self._count), "cross", asked)
        self._socket.sendall(b"".join(frame))
        answer = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        return codec.parse(api, version, "response", memoryview(answer)[4:])

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            demand(bool(part), "I12", "the Kafka door hung up")
            data += part
        return data

    def earliest_offset(self, topic: str, partition: int = 0) -> int:
        """Returns the first offset that can be read."""
        return self._bound(topic, partition, _EARLIEST)

    def latest_offset(self, topic: str, partition: int = 0) -> int:
        """Returns one past the last offset."""
        return self._bound(topic, partition, _LATEST)

    def _bound(self, topic: str, partition: int, which: int) -> int:
        part = {"partition_index": partition, "timestamp": which}
        asked = {"topics": [{"name": topic, "partitions": [part]}]}
        told = self._ask(LIST_OFFSETS, _LIST_VERSION, asked)["topics"][0]["partitions"][0]
        demand(told["error_code"] == 0, "I12", f"a bound of {topic} is error {told['error_code']}")
        return int(told["offset"])

    def pages(self, topic: str, at: int) -> Iterator[pa.RecordBatch]:
        """Fetches from an offset to the end; raises what a client was told instead of records."""
        lost_at: int | None = None
        while at < self.latest_offset(topic):
            code, data = self._fetch(topic, at)
            if code == ErrorCode.CORRUPT_MESSAGE:
                if lost_at == at:
                    raise self._stuck
                lost_at = at
                continue
            if code in _LATER:
                raise Unavailable(f"the Kafka door says error {code} at {at} of {topic}")
            demand(code == 0, "I12", f"offset {at} of {topic} is error {code} to a Kafka client")
            rows, end = _read(data)
            demand(end > at, "I12", f"a Kafka client stands still at {at} of {topic}")
            if lost_at == at and not rows:
                problem = f"{topic}: told to a Kafka client"
                raise RecordsMissing(problem, first=at, end=end, reason="lost")
            wanted = [row for row in rows if row[0] >= at]
            if wanted:
                columns = {
                    "offset": [row[0] for row in wanted],
                    "value": [row[1] for row in wanted],
                }
                yield pa.RecordBatch.from_pydict(columns)
            at = end

    def _fetch(self, topic: str, at: int) -> tuple[int, bytes]:
        part = {"partition": 0, "fetch_offset": at, "partition_max_bytes": 1 << 20}
        asked = {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "topics": [{"topic": topic, "partitions": [part]}],
        }
        answer = self._ask(FETCH, _FETCH_VERSION, asked)
        told = answer["responses"][0]["partitions"][0]
        return int(told["error_code"]), bytes(told["records"] or b"")


def _read(data: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """Returns the records of batches with their offsets, and one past the last that they span."""
    rows: list[tuple[int, bytes]] = []
    end = at = 0
    while at < len(data):
        head = HEADER.unpack(data[at:])
        position = at + HEADER.size
        for _ in range(head["count"]):
            delta, value, position = _record(data, position)
            rows.append((head["base_offset"] + delta, value))
        end = head["base_offset"] + head["last_offset_delta"] + 1
        at += 12 + head["batch_length"]
    return rows, end


def _record(data: bytes, position: int) -> tuple[int, bytes, int]:
    """Returns a record's offset delta, its value, and the position behind it."""
    size, position = _varint(data, position)
    end = position + size
    _, position = _varint(data, position + 1)  # behind its attributes: the time
    delta, position = _varint(data, position)
    key_size, position = _varint(data, position)
    value_size, position = _varint(data, position + max(0, key_size))
    return delta, data[position : position + max(0, value_size)], end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def _stuck(ground: Ground) -> LaminaError:
    """What it means to be told the same number again and again."""
    path = ground.damaged.path
    if ground.damaged.kind == "newer":
        return NewerFormat("a Kafka client gets nothing of it").at_path(path)
    return Unavailable(f"{path}: a Kafka client gets nothing of it")


def fetch(ground: Ground) -> Saw:
    """Fetch of all records by a Kafka client."""
    service = Service(ground.data, ServerSettings(flight_port=0, http_port=0, kafka_port=0))
    service.start()
    try:
        assert service.kafka_address is not None
        client = Client(service.kafka_address, _stuck(ground))
        try:
            saw = read_over(client, client.pages, BOTH)
            for topic in BOTH:
                saw.told |= {(topic, each) for each in range(client.earliest_offset(topic))}
            return saw
        finally:
            client.close()
    finally:
        service.stop()
