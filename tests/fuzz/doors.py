"""The network doors of a real server as targets: whatever comes in, the answer is typed.

    flight-append   the metadata of an append, on an open stream
    flight-batch    the same with a batch as an Arrow stream
    flight-held     an action whose body names records by an Arrow stream
    flight-ticket   the ticket of a DoGet
    flight-action   the first line is the action's name, the rest its body
    http            the first line is method and path, the rest the body
    kafka           one frame of Kafka's protocol, without its length (`kafka_frames`)

An answer that says "the server failed" is a defect: nobody foresaw the input.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
from pyarrow import flight

import lamina
from lamina.errors import LaminaError
from lamina.server.service import Service
from lamina.store.store import Store
from lamina.wire import failures, messages
from lamina.wire.operations import OPERATIONS
from tests.fuzz import arrow, kafka_frames
from tests.fuzz.decoders import orders, questions, row_bodies
from tests.fuzz.target import Target
from tests.server.rig import served

UNFORESEEN = "the server failed"
HANGS_S = 30
TOPICS = {"t": "keratin", "w": "wal", "f": "frame"}
ARGUMENTS: dict[str, Any] = {
    "name": "t",
    "topic": "t",
    "partition": 0,
    "partitions": 2,
    "format": "keratin",
    "config": {"retention.ms": 1000},
    "timestamp_ms": 1_700_000_000_000,
    "before": 0,
    "offset": 0,
    "before_offset": 0,
    "dry_run": True,
    "group": "g",
    "producer_id": 1,
}


class Doors:
    """A server, and one client of each kind that stays connected."""

    def __init__(self, service: Service) -> None:
        self._store: Store = service.broker.store
        self._url = service.flight_url
        self._client = flight.connect(service.flight_url)
        self._http = httpx.Client(base_url=service.http_url, timeout=HANGS_S)
        self._kafka = kafka_frames.KafkaFrames(service.kafka_address or "")
        self._stream: Any = None
        self._calls = 0

    def _see_to_topics(self) -> None:
        self._calls += 1
        if self._calls % 100 == 1:
            there = set(self._store.topics())
            for name in there - TOPICS.keys():
                self._store.delete_topic(name)
            for name in TOPICS.keys() - there:
                self._store.create_topic(name, format=TOPICS[name])
                self._store.append(name, [b"x"] * 5, partition=0)

    def _options(self) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=HANGS_S)

    def append(self, data: bytes) -> None:
        """Sends an order; the stream must answer and go on."""
        if not data:
            return  # gRPC sends no message without bytes
        self._see_to_topics()
        if self._stream is None:
            command = flight.FlightDescriptor.for_command(b"append")
            self._stream = self._client.do_exchange(command)
            self._stream[0].begin(messages.NO_COLUMNS)
        writer, reader = self._stream
        try:
            writer.write_metadata(data)
            answer = reader.read_chunk().app_metadata.to_pybytes()
        except (StopIteration, OSError, pa.ArrowException) as error:
            self._stream = None
            raise AssertionError(f"the stream did not go on: {error!r}") from error
        refuse_unforeseen(answer)

    def ticket(self, data: bytes) -> None:
        self._see_to_topics()
        with typed():
            reader = self._client.do_get(flight.Ticket(data), self._options())
            for _ in range(3):
                try:
                    reader.read_chunk()
                except StopIteration:
                    break
            reader.cancel()

    def action(self, data: bytes) -> None:
        self._see_to_topics()
        name, _, body = data.partition(b"\n")
        text = name.decode("ascii", errors="ignore").replace("\0", "")[:100] or "topics"
        with typed():
            for result in self._client.do_action(flight.Action(text, body), self._options()):
                json.loads(result.body.to_pybytes())

    def request(self, data: bytes) -> None:
        """Sends a request; an answer is JSON, or one of the framework's for a path unknown."""
        self._see_to_topics()
        first, _, body = data.partition(b"\n")
        method, _, path = first.decode("latin-1").partition(" ")
        if method not in ("GET", "POST", "PATCH", "DELETE", "PUT", "HEAD") or "watch" in path:
            return
        try:
            answer = self._http.request(method, path or "/", content=body)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError):
            return  # the client does not send it
        is_ours = answer.status_code not in (404, 405) or b'"error"' in answer.content
        if method != "HEAD" and is_ours:
            refuse_unforeseen(answer.content)

    def frame(self, data: bytes) -> None:
        """Sends a frame of Kafka's protocol."""
        self._see_to_topics()
        self._kafka.send(data)

    def works(self) -> bool:
        """Whether the server still serves."""
        self._calls = 0
        self._see_to_topics()
        with lamina.connect(self._url, timeout_s=HANGS_S) as store:
            ack = store.append("t", b"still here")
            read = store.fetch("t", 0, ack.base_offset).column("value")[0].as_py()
        return bool(read == b"still here")

    def close(self) -> None:
        if self._stream is not None:
            self._stream[0].close()
        self._client.close()
        self._http.close()
        self._kafka.close()


def refuse_unforeseen(answer: bytes) -> None:
    """Raises the error of an answer, a typed one; AssertionError for one that nobody foresaw."""
    described = failures.decode(answer) if b'"error"' in answer else None
    assert UNFORESEEN.encode() not in answer, f"an untyped failure: {answer[:200]!r}"
    if described is not None:
        assert type(described) is not LaminaError, f"an error of no family: {answer[:200]!r}"
        raise described


@contextlib.contextmanager
def typed() -> Iterator[None]:
    try:
        yield
    except flight.FlightError as error:
        refuse_unforeseen(error.extra_info or UNFORESEEN.encode())
    except (OSError, pa.ArrowException) as error:
        raise AssertionError(f"an untyped failure: {error}") from error


_DOORS: list[Doors] = []


def _door() -> Doors:
    return _DOORS[-1]


@contextlib.contextmanager
def opened(targets: list[Target]) -> Iterator[None]:
    """Serves a directory for as long as targets need it."""
    if not any(target.name in DOORS for target in targets):
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        limits = {"request_bytes": 1 << 20, "inflight_bytes": 8 << 20, "wait_ms": 20}
        limits["kafka_port"] = 0
        with served(Path(folder) / "data", **limits) as service:
            _DOORS.append(Doors(service))
            try:
                yield
                assert _door().works(), "the server serves no more"
            finally:
                _DOORS.pop().close()


def batches() -> list[bytes]:
    """Appends of batches, to the topic that keeps their columns."""
    made = []
    for stream in arrow.streams():
        topic = "w" if b"node" in stream else "t"
        made.append(f'{{"topic": "{topic}", "partition": 0}}\n'.encode() + stream)
    return made


def holdings() -> list[bytes]:
    """Calls of a group that name records by Arrow."""
    where = b'{"topic": "t", "group": "g"}\n'
    return [
        *(b"group.ack\n" + where + stream for stream in arrow.held_streams()),
        b'group\n{"topic": "t", "name": "g"}',
    ]


def calls() -> list[bytes]:
    made = []
    for name, operation in OPERATIONS.items():
        needed = operation.signature.parameters
        given = {each: ARGUMENTS[each] for each in needed if each in ARGUMENTS}
        made.append(b"\n".join((name.encode(), json.dumps(given).encode())))
    return made


def requests() -> list[bytes]:
    made = [b"POST /v1/topics/t/records\n" + body for body in row_bodies()]
    made += [b"POST /v1/topics/w/records\n" + body for body in row_bodies()]
    made.append(b"GET /v1/topics/t/partitions/0/records?start=0&max_records=3&wait_ms=5\n")
    for operation in OPERATIONS.values():
        path = operation.path.format(**ARGUMENTS)
        names = [each for each in operation.signature.parameters if each in ARGUMENTS]
        rest = {each: ARGUMENTS[each] for each in names if f"{{{each}}}" not in operation.path}
        query = "&".join(f"{each}={value}" for each, value in rest.items())
        if operation.verb == "GET":
            made.append(f"GET {path}?{query}\n".encode())
        else:
            made.append(f"{operation.verb} {path}\n".encode() + json.dumps(rest).encode())
    return made


DOORS: dict[str, Target] = {
    each.name: each
    for each in (
        Target("flight-append", orders, lambda data: _door().append(data), is_text=True),
        Target("flight-batch", batches, lambda data: _door().append(data)),
        Target("flight-held", holdings, lambda data: _door().action(data)),
        Target("flight-ticket", questions, lambda data: _door().ticket(data), is_text=True),
        Target("flight-action", calls, lambda data: _door().action(data), is_text=True),
        Target("http", requests, lambda data: _door().request(data), is_text=True),
        Target("kafka", kafka_frames.frames, lambda data: _door().frame(data)),
    )
}
"""Each way into a server by name."""
