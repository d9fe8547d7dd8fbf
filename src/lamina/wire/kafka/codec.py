"""Messages as bytes and back: a function per (API, version, direction), compiled on first use."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn, TypeAlias

from lamina.errors import InvalidRequest
from lamina.wire.kafka.codec_source import Source, parser_of, writer_of
from lamina.wire.kafka.message_schema import Api

ITEMS_MAX = 1 << 17
"""How many items all lists of one message have together: each becomes a Python object."""

Direction: TypeAlias = Literal["request", "response"]
Message: TypeAlias = dict[str, Any]
Parse: TypeAlias = Callable[[memoryview, int], tuple[Message, int]]
Write: TypeAlias = Callable[[Mapping[str, Any], bytearray, list[Any]], None]


class MalformedMessage(InvalidRequest):
    """The bytes are no such message; whoever sent them does not speak this protocol."""


def malformed(what: str, problem: str) -> NoReturn:
    """Raises MalformedMessage."""
    raise MalformedMessage(f"a malformed Kafka message: {what} {problem}")


def uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """Reads an unsigned varint of at most 32 bits; returns it and the position after it."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            malformed("a length", "has more than 5 bytes")
    if value >> 32:
        malformed("a length", "has more than 32 bits")
    return value, position


_SHORT = [bytes([value]) for value in range(128)]


def uvarint_of(value: int) -> bytes:
    """Writes an unsigned varint."""
    if value < 128:
        return _SHORT[value]
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tags(buffer: memoryview, position: int, end: int) -> int:
    """Returns the position after tagged fields that nobody knows."""
    count, position = uvarint(buffer, position)
    for _ in range(count):
        _, position = uvarint(buffer, position)
        size, position = uvarint(buffer, position)
        position += size
        if position > end:
            malformed("a tagged field", "is longer than the message")
    return position


RUNTIME: dict[str, Any] = {
    "ITEMS_MAX": ITEMS_MAX,
    "malformed": malformed,
    "uvarint": uvarint,
    "uvarint_of": uvarint_of,
    "skip_tags": skip_tags,
    "int8": struct.Struct(">b").unpack_from,
    "int16": struct.Struct(">h").unpack_from,
    "int32": struct.Struct(">i").unpack_from,
    "pack_int16": struct.Struct(">h").pack,
    "pack_int32": struct.Struct(">i").pack,
    "pack": struct.pack,
    "unpack_from": struct.unpack_from,
}
"""What compiled functions use."""


@functools.cache
def parser(api: Api, version: int, direction: Direction) -> Parse:
    """Returns the function that parses one version of a message."""
    fields = api.request if direction == "request" else api.response
    source = parser_of(fields, version, flexible=api.is_flexible(version))
    made: Parse = _compiled(source, "parse", f"{api.name} {direction} {version}")
    return made


@functools.cache
def writer(api: Api, version: int, direction: Direction) -> Write:
    """Returns the function that writes one version of a message."""
    fields = api.request if direction == "request" else api.response
    source = writer_of(fields, version, flexible=api.is_flexible(version))
    made: Write = _compiled(source, "write", f"{api.name} {direction} {version}")
    return made


def _compiled(source: Source, name: str, title: str) -> Any:
    """Compiles a function, as `dataclasses` does: its source holds names of our tables only."""
    scope = RUNTIME | source.constants
    exec(compile(source.text(), f"<kafka {title}>", "exec"), scope)  # noqa: S102
    return scope[name]


def parse(
    api: Api, version: int, direction: Direction, buffer: memoryview, position: int = 0
) -> Message:
    """Parses a message; raises MalformedMessage, also for a response that ends before the buffer.

    Records in it are views of the buffer.
    """
    try:
        value, end = parser(api, version, direction)(buffer, position)
    except (struct.error, IndexError):
        malformed(f"{api.name} version {version}", "ends too early")
    except UnicodeDecodeError:
        malformed(f"{api.name} version {version}", "has a string that is not UTF-8")
    # Clients may send more than a request needs, as librdkafka does in Metadata 12; Kafka reads on.
    if end != len(buffer) and direction == "response":
        malformed(f"{api.name} version {version}", f"has {len(buffer) - end} bytes too many")
    return value


def write(
    api: Api, version: int, direction: Direction, value: Mapping[str, Any], out: bytearray
) -> list[Any]:
    """Writes a message behind what `out` holds; returns the buffers that it consists of.

    Fields that are not given have their default. Records are a list of buffers, taken as they are.
    """
    pieces: list[Any] = []
    writer(api, version, direction)(value, out, pieces)
    return pieces
