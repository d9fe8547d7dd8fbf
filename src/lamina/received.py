"""Arrow that somebody else made: looked at in full before anything of Lamina or Arrow reads it.

Arrow trusts its buffers. `take`, `cast`, `concat` and our own kernels follow the offsets that a
batch brings, so that one which lies makes them read whatever lies beside it in memory. Everything
that comes from a network, a file or foreign code passes through here first:

    bytes of a stream ──▶ `announced` ──▶ its schema, and its size when it is unpacked
                              └──▶ `unpacked` ──▶ a batch whose every buffer was checked
    a batch in memory ──▶ `refuse_broken`

Rules.
1. Nothing is decompressed before the lengths that its buffers announce were added up and bounded.
   Arrow takes memory for a buffer as it announces, and fails when it holds more or less.
2. Types are exactly those expected: no dictionary, view, union, extension or run-end encoding.
3. What passed has offsets that rise and stay inside their data, bitmaps and buffers as long as
   the rows need, null counts that are true and text that is UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa

from lamina.errors import InvalidRequest

_LENGTH = struct.Struct("<q")
_PAIR = struct.Struct("<qq")
_PREFIX_BYTES = 8
_NOT_COMPRESSED = -1
_SLACK_BYTES = 1024
_CONTINUES = b"\xff\xff\xff\xff"
_END = _CONTINUES + bytes(4)


def refuse_broken(records: pa.RecordBatch | pa.Table) -> None:
    """Raises InvalidRequest for a batch or table that does not hold what it says."""
    try:
        records.validate(full=True)
        _ = records.schema.names  # those that are no text would fail where they are read first
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the Arrow data is broken: {str(error)[:300]}") from error


def shown(kind: pa.DataType) -> str:
    """Names a type; fields inside of it may have names that are no text."""
    try:
        return f"{kind!s:.80}"
    except UnicodeDecodeError:
        return "a type with fields whose names are no text"


def packed(batch: pa.RecordBatch, header: bytes, pool: pa.MemoryPool) -> pa.Buffer:
    """Encodes a batch as an Arrow stream behind a header, in one block of memory."""
    size = len(header) + _SLACK_BYTES + batch.schema.serialize().size
    block = pa.allocate_buffer(size + pa.ipc.get_record_batch_size(batch), memory_pool=pool)
    with pa.FixedSizeBufferWriter(block) as sink:
        sink.write(header)
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        end = sink.tell()
    return block.slice(0, end)


@dataclass(frozen=True, slots=True)
class Announced:
    """One batch that arrived, as its metadata describes it; nothing of its body was looked at."""

    schema: pa.Schema
    message: pa.Message
    size_bytes: int
    """What its buffers take when they are unpacked."""
    is_compressed: bool
    """Whether they take that beside the bytes that arrived."""


def announced(stream: pa.Buffer) -> Announced:
    """Reads the metadata of an Arrow stream of exactly one batch."""
    try:
        described, at = _message_at(stream, 0)
        if described.type != "schema":  # Arrow would read any other as if it were one
            _refuse("it does not begin with its schema")
        _refuse_swapped(described)
        schema = pa.ipc.read_schema(described)
        _ = schema.names  # those that are no text fail here
        message, at = _message_at(stream, at)
        if message.type != "record batch":
            _refuse("its schema is not followed by a batch")
        if stream.slice(at).to_pybytes() not in (b"", _END):
            _refuse("it holds more than one batch")
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, struct.error) as error:
        _refuse(str(error)[:300], error)
    return Announced(schema, message, *_size_of(message))


def _message_at(stream: pa.Buffer, at: int) -> tuple[pa.Message, int]:
    """Reads the message at a byte, and returns where it ends.

    Arrow believes the length in front of a message, whatever it is: a wild one is the end of the
    process. So it is held against what arrived first.
    """
    head = stream.slice(at, 8).to_pybytes() if at < stream.size else b""
    length = int.from_bytes(head[4:], "little", signed=True)
    if len(head) < 8 or head[:4] != _CONTINUES or not 0 < length <= stream.size - at - 8:
        _refuse("it ends before its batch")
    message = pa.ipc.read_message(stream.slice(at))
    body = message.body
    return message, at + 8 + length + (body.size if body is not None else 0)


def unpacked(
    arrived: Announced, expected: Mapping[str, pa.DataType], max_bytes: int
) -> pa.RecordBatch:
    """Decodes a batch of columns that are all `expected`, each at most once, of exactly that type.

    Raises InvalidRequest for anything else, and for a batch that would take over `max_bytes`.
    """
    if arrived.size_bytes > max_bytes:
        raise InvalidRequest(
            f"the Arrow data takes {arrived.size_bytes} bytes when it is unpacked; at most"
            f" {max_bytes} are allowed: send it in parts"
        )
    for field in arrived.schema:
        wanted = expected.get(field.name)
        if wanted is None:
            known = ", ".join(expected)
            raise InvalidRequest(f"unknown column {field.name[:80]!r}; there are {known}")
        if field.type != wanted:
            raise InvalidRequest(f"column {field.name!r} must be {wanted}, not {shown(field.type)}")
    names = arrived.schema.names
    if len(set(names)) != len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"column {double!r} is given {names.count(double)} times")
    return _decoded(arrived.message, arrived.schema)


def unpacked_message(data: pa.Buffer, schema: pa.Schema, max_bytes: int) -> pa.RecordBatch:
    """Decodes one record batch message of a schema that is known, with the same checks."""
    try:
        message, _ = _message_at(data, 0)
    except (pa.ArrowException, OSError, EOFError) as error:
        _refuse(str(error)[:300], error)
    size_bytes, _ = _size_of(message)
    if size_bytes > max_bytes:
        raise InvalidRequest(f"the Arrow data takes {size_bytes} bytes, over {max_bytes}")
    return _decoded(message, schema)


def _decoded(message: pa.Message, schema: pa.Schema) -> pa.RecordBatch:
    try:
        batch = pa.ipc.read_record_batch(message, schema)
    except (pa.ArrowException, OSError, MemoryError) as error:
        _refuse(str(error)[:300], error)
    refuse_broken(batch)
    return batch


def _refuse(problem: str, cause: BaseException | None = None) -> NoReturn:
    raise InvalidRequest(f"no Arrow stream of one batch: {problem}") from cause


# ---------------------------------------------------------------------- the message's metadata
#
# A flatbuffer: a table begins with the distance back to its vtable, which lists where each field
# lies (0: absent). Arrow has verified it when it made the message; an index that leads outside
# raises struct.error all the same.

_HEADER, _BUFFERS, _NODES, _COMPRESSION, _VARIADIC, _ROWS = 2, 2, 1, 3, 4, 0
_ENDIANNESS = 0


class _Table:
    """One table of a flatbuffer."""

    def __init__(self, data: memoryview, at: int) -> None:
        self.data = data
        self.at = at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        self._size = struct.unpack_from("<H", data, self._fields)[0]

    def place_of(self, number: int) -> int:
        """The position of a field, 0 for one that is absent."""
        entry = 4 + 2 * number
        if entry + 2 > self._size:
            return 0
        distance: int = struct.unpack_from("<H", self.data, self._fields + entry)[0]
        return self.at + distance if distance else 0

    def table(self, number: int) -> _Table | None:
        """The table that a field refers to."""
        at = self.place_of(number)
        return _Table(self.data, at + struct.unpack_from("<I", self.data, at)[0]) if at else None

    def pairs(self, number: int) -> list[tuple[int, int]]:
        """The pairs of integers that a field's vector holds."""
        at = self.place_of(number)
        if not at:
            return []
        at += struct.unpack_from("<I", self.data, at)[0]
        count: int = struct.unpack_from("<I", self.data, at)[0]
        end = at + 4 + count * _PAIR.size
        if end > len(self.data):
            raise struct.error("a vector leaves the message")
        return list(_PAIR.iter_unpack(self.data[at + 4 : end]))


def _refuse_swapped(described: pa.Message) -> None:
    """Refuses a stream whose numbers are big-endian: decoded by itself, a batch is not swapped."""
    data = memoryview(described.metadata)
    schema = _Table(data, struct.unpack_from("<I", data, 0)[0]).table(_HEADER)
    at = schema.place_of(_ENDIANNESS) if schema is not None else 0
    if at and struct.unpack_from("<h", data, at)[0] != 0:
        _refuse("its numbers are big-endian")


def _size_of(message: pa.Message) -> tuple[int, bool]:
    """Adds up what the buffers of a batch take when they are unpacked; refuses what lies.

    Also returns whether they are compressed.
    """
    if message.type != "record batch":
        _refuse(f"a {message.type} message where a batch should be")
    data = memoryview(message.metadata)
    try:
        root = _Table(data, struct.unpack_from("<I", data, 0)[0])
        batch = root.table(_HEADER)
        if batch is None:
            raise struct.error("the message is empty")
        buffers, nodes = batch.pairs(_BUFFERS), batch.pairs(_NODES)
        is_compressed = batch.place_of(_COMPRESSION) > 0
        has_views = batch.place_of(_VARIADIC) > 0
        rows = batch.place_of(_ROWS)
        count = _LENGTH.unpack_from(data, rows)[0] if rows else 0
    except struct.error as error:
        _refuse(str(error), error)
    if has_views:
        _refuse("views are not taken")
    if count < 0 or any(not 0 <= nulls <= length for length, nulls in nodes):
        _refuse("its lengths cannot be")
    body = message.body
    available = 0 if body is None else body.size
    if any(at < 0 or length < 0 or at + length > available for at, length in buffers):
        _refuse("a buffer lies outside of its body")
    if sum(length for _, length in buffers) > available:
        _refuse("its buffers lie upon each other")
    if not is_compressed:
        return sum(length for _, length in buffers), False
    return sum(_unpacked_size(body, at, length) for at, length in buffers), True


def _unpacked_size(body: pa.Buffer, at: int, length: int) -> int:
    """What a compressed buffer says it takes; -1 stands for one that is not compressed."""
    if length == 0:
        return 0
    if length < _PREFIX_BYTES:
        _refuse("a compressed buffer is too short")
    size: int = _LENGTH.unpack(body.slice(at, _PREFIX_BYTES).to_pybytes())[0]
    if size == _NOT_COMPRESSED:
        return length - _PREFIX_BYTES
    if size < 0:
        _refuse("a compressed buffer has a negative length")
    return size
