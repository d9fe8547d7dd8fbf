"""gRPC calls made of bytes: streams that are opened and left alone, answers that nobody reads."""

from __future__ import annotations

import contextlib
import socket
import struct
from types import TracebackType

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_WINDOW = 4
_SERVICE = b"/arrow.flight.protocol.FlightService/"


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
    return head + struct.pack(">I", stream) + payload


def _header(name: bytes, value: bytes) -> bytes:
    assert max(len(name), len(value)) < 127
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def ticket(data: bytes) -> bytes:
    """A Flight ticket as it travels."""
    size = len(data)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return b"\x0a" + length + data


class Connection:
    """One connection; with `window` 0 it takes nothing of any answer."""

    def __init__(self, port: int, *, window: int = 65535, key: str = "") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        settings = struct.pack(">HI", _WINDOW, window)
        self._socket.sendall(
            _PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_SETTINGS, _ACK, 0)
        )
        self._stream = -1
        self._key = key

    def open(self, method: bytes, message: bytes | None = None) -> None:
        """Opens a stream; without a message nothing follows its headers."""
        self._stream += 2
        pairs = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", _SERVICE + method),
            (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ]
        if self._key:
            pairs.append((b"authorization", b"Bearer " + self._key.encode()))
        block = b"".join(_header(name, value) for name, value in pairs)
        sent = _frame(_HEADERS, _END_HEADERS, self._stream, block)
        if message is not None:
            body = b"\x00" + struct.pack(">I", len(message)) + message
            sent += _frame(_DATA, _END_STREAM, self._stream, body)
        self._socket.sendall(sent)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
