"""Headers of requests and responses, and whole frames.

    frame     = length i32, header, message
    request   = api key i16, version i16, correlation id i32, client id nullable string, tags (v2)
    response  = correlation id i32, tags (v1)

Headers with tags belong to flexible versions. The one exception is ApiVersions: its response never
has tags, because whoever asks does not know yet what the other side speaks.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from lamina.wire.kafka.codec import malformed, skip_tags, write
from lamina.wire.kafka.connection_apis import API_VERSIONS
from lamina.wire.kafka.message_schema import Api

LENGTH = struct.Struct(">i")
_REQUEST = struct.Struct(">hhih")
_RESPONSE = struct.Struct(">ii")


class RequestHeader(NamedTuple):
    """Which request follows; `position` is where its tags, if any, or its message begin."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    position: int


def request_header(frame: memoryview) -> RequestHeader:
    """Reads the part of a header that all versions share; `frame` begins after its length."""
    if len(frame) < _REQUEST.size:
        malformed("a request", "is shorter than its header")
    key, version, correlation_id, size = _REQUEST.unpack_from(frame)
    position = _REQUEST.size
    if size > len(frame) - position:
        malformed("client_id", "is longer than the message")
    client = None
    if size >= 0:
        client = str(frame[position : position + size], "utf-8", "replace")
        position += size
    return RequestHeader(key, version, correlation_id, client, position)


def message_position(header: RequestHeader, api: Api, frame: memoryview) -> int:
    """Returns where the message begins, behind the header's tags."""
    if not api.is_flexible(header.version):
        return header.position
    try:
        return skip_tags(frame, header.position, len(frame))
    except IndexError:
        malformed("a request", "ends within its header")


def response_frame(
    api: Api, version: int, correlation_id: int, value: Mapping[str, Any]
) -> list[Any]:
    """Returns the buffers of a whole response, its length in front."""
    out = bytearray(_RESPONSE.pack(0, correlation_id))
    if api.is_flexible(version) and api is not API_VERSIONS:
        out += b"\0"
    pieces = write(api, version, "response", value, out)
    LENGTH.pack_into(pieces[0], 0, sum(map(len, pieces)) - LENGTH.size)
    return pieces


def request_frame(
    api: Api, header: tuple[int, int], client_id: str | None, value: Mapping[str, Any]
) -> list[Any]:
    """Returns the buffers of a whole request; `header` is its version and correlation id."""
    version, correlation_id = header
    name = None if client_id is None else client_id.encode()
    size = -1 if name is None else len(name)
    out = bytearray(LENGTH.size)
    out += _REQUEST.pack(api.key, version, correlation_id, size) + (name or b"")
    if api.is_flexible(version):
        out += b"\0"
    pieces = write(api, version, "request", value, out)
    LENGTH.pack_into(pieces[0], 0, sum(map(len, pieces)) - LENGTH.size)
    return pieces
