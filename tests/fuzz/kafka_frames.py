"""The Kafka door as a target: an input is one frame, of any API and version of the tables.

A client that is refused may be disconnected; what nobody foresaw is an error in the server's log.
"""

from __future__ import annotations

import logging
import socket
import struct
from typing import Any

from lamina.errors import InvalidRequest
from lamina.wire.kafka import framing
from lamina.wire.kafka.apis import APIS
from lamina.wire.kafka.connection_apis import API_VERSIONS
from lamina.wire.kafka.message_schema import Field
from tests.server.kafka.raw_client import made

ANSWER_S = 2.0
"""A group may have its members wait: who hears nothing for so long connects again."""
_NAMES = {"name": "t", "topic": "t", "group_id": "g", "key": "g", "resource_name": "t"}
_NUMBERS = {"acks": -1, "min_bytes": 1, "max_bytes": 1 << 16, "num_partitions": 1, "timestamp": -1}
_PROBE = 0x7E57
_log = logging.getLogger("lamina.server")


class _Failures(logging.Handler):
    """Keeps what the server says of requests that failed inside."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


class KafkaFrames:
    """A client that sends a frame, and asks for versions to see whether the connection lives."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._address = host, int(port)
        self._socket: socket.socket | None = None
        self._failures = _Failures()
        _log.addHandler(self._failures)

    def close(self) -> None:
        _log.removeHandler(self._failures)
        self._hang_up()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, data: bytes) -> None:
        """Sends one frame; raises InvalidRequest where it ends the connection."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=ANSWER_S)
        probe = b"".join(framing.request_frame(API_VERSIONS, (0, _PROBE), None, {}))
        refused = False
        try:
            self._socket.sendall(struct.pack(">i", len(data)) + data + probe)
            while self._answer(self._socket) != _PROBE:
                pass
        except TimeoutError:
            self._hang_up()
        except (ConnectionError, EOFError):
            self._hang_up()
            refused = True
        found, self._failures.found = self._failures.found, []
        assert not found, f"a request failed inside: {found[0]}"
        if refused:
            raise InvalidRequest("the server hung up")

    @staticmethod
    def _answer(connection: socket.socket) -> int:
        size = int.from_bytes(_exactly(connection, 4))
        return int.from_bytes(_exactly(connection, size)[:4])


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def frames() -> list[bytes]:
    """A sound request of every API in every version, without its length."""
    found = []
    for api in APIS.values():
        for version in range(api.first, api.last + 1):
            value = _struct(api.request, version)
            pieces = framing.request_frame(api, (version, 1), "fuzz", value)
            found.append(b"".join(pieces)[4:])
    return found


def _struct(fields: tuple[Field, ...], version: int) -> dict[str, Any]:
    return {each.name: _value(each, version) for each in fields}


def _value(field: Field, version: int) -> Any:
    if not field.is_in(version):
        return field.default
    one = _struct(field.inside, version) if field.kind == "{}" else _scalar(field)
    return [one] if field.is_list else one


def _scalar(field: Field) -> Any:
    return {
        "bool": False,
        "uuid": bytes(16),
        "string": _NAMES.get(field.name, "x"),
        "bytes": b"bytes",
        "records": [made([b"value"], keys=[b"key"])],
    }.get(field.kind, _NUMBERS.get(field.name, 0))
