"""The small values that users of confluent-kafka know: TopicPartition, Message, the offsets' names.

A `Message` is a record as one Python object, made where a program asks for single records; the
batch forms of Producer and Consumer make none.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from lamina.arguments import Rule, many, text, whole
from lamina.errors import InvalidRequest, LaminaError

OFFSET_BEGINNING = -2
OFFSET_END = -1
OFFSET_STORED = -1000
TIMESTAMP_CREATE_TIME = 1

Header: TypeAlias = tuple[str, bytes | None]
FrameKind: TypeAlias = Literal["arrow", "pandas", "polars"]


@dataclass(slots=True)
class TopicPartition:
    """A partition of a topic, and an offset or time in it."""

    topic: str
    partition: int = -1
    offset: int = OFFSET_STORED


@dataclass(slots=True)
class Message:
    """One record, or one delivery; asked by calls, as confluent-kafka's is."""

    _topic: str
    _partition: int
    _offset: int
    _key: bytes | None
    _value: bytes | None
    _timestamp_ms: int = 0
    _headers: list[Header] = field(default_factory=list)
    _error: LaminaError | None = None

    def topic(self) -> str:
        """The topic's name."""
        return self._topic

    def partition(self) -> int:
        """The partition's number."""
        return self._partition

    def offset(self) -> int:
        """The record's number in its partition; -1 when it was not stored."""
        return self._offset

    def key(self) -> bytes | None:
        """The key."""
        return self._key

    def value(self) -> bytes | None:
        """The value."""
        return self._value

    def timestamp(self) -> tuple[int, int]:
        """The kind of time, and milliseconds since 1970."""
        return TIMESTAMP_CREATE_TIME, self._timestamp_ms

    def headers(self) -> list[Header]:
        """The headers in order."""
        return self._headers

    def error(self) -> LaminaError | None:
        """Why the record was not delivered, if it was not."""
        return self._error


def place(name: str, value: Any) -> TopicPartition:
    """Checks a TopicPartition that a caller hands in."""
    if not isinstance(value, TopicPartition):
        raise InvalidRequest(f"{name} must be a TopicPartition, not a {type(value).__name__}")
    return TopicPartition(
        text("a TopicPartition's topic", value.topic),
        whole("a TopicPartition's partition", value.partition),
        whole("a TopicPartition's offset", value.offset),
    )


def message(name: str, value: Any) -> Message:
    """Checks a message that a caller hands back."""
    if not isinstance(value, Message):
        raise InvalidRequest(f"{name} must be a Message, not a {type(value).__name__}")
    return value


PLACES: dict[str, Rule] = {
    "TopicPartition": place,
    "Iterable[TopicPartition]": many(place),
    "Message": message,
}
"""What a consumer's annotations ask of an argument."""


def messages_of(topic: str, partition: int, batch: pa.RecordBatch) -> list[Message]:
    """Makes a message of each record of a batch."""
    index = batch.schema.get_field_index("timestamp")
    rows = batch.set_column(index, "timestamp", batch.column(index).cast(pa.int64())).to_pylist()
    return [
        Message(
            topic,
            partition,
            row["offset"],
            row.get("key"),
            row["value"],
            row["timestamp"],
            [(header["key"], header["value"]) for header in row.get("headers") or ()],
        )
        for row in rows
    ]


def arrow_of(frame: Any) -> pa.RecordBatch | pa.Table:
    """Takes Arrow, pandas or polars: whatever can hand its columns over as Arrow."""
    if isinstance(frame, pa.RecordBatch | pa.Table):
        return frame
    if not hasattr(frame, "__arrow_c_stream__"):
        raise InvalidRequest(f"a batch is Arrow, pandas or polars, not {type(frame).__name__}")
    try:
        return pa.table(frame).replace_schema_metadata(None)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRequest(f"a batch has columns of records: {error}") from error


def frame_of(table: pa.Table, kind: FrameKind) -> Any:
    """Gives a table as what the caller works with; pandas and polars are theirs to install."""
    if kind == "arrow":
        return table
    if kind not in ("pandas", "polars"):
        raise InvalidRequest(f"a batch can be arrow, pandas or polars, not {kind!r}")
    try:
        library = importlib.import_module(kind)
    except ImportError as error:
        raise InvalidRequest(f"{kind} is not installed") from error
    return table.to_pandas() if kind == "pandas" else library.from_arrow(table)
