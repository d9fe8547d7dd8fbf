"""Appending for commands: lines or delimited records from standard input, in batches.

Rule: the time that is printed is the time that is stored. A topic keeps the time it is given
(CreateTime), which is set here; where it sets its own (LogAppendTime), that is read back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from lamina.cli.input_format import Layout
from lamina.cli.output import counted
from lamina.errors import InvalidRequest, LaminaError

if TYPE_CHECKING:
    from lamina.api import Ack, Appended, StoreApi

_BATCH_RECORDS = 1000
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes a record of each piece of input."""

    layout: Layout = Layout()  # noqa: RUF009  # frozen
    key: bytes | None = None
    headers: Sequence[dict[str, Any]] = ()
    null_if_empty: bool = False
    tag: bytes | None = None

    def record(self, piece: bytes, now_ms: int) -> dict[str, Any]:
        """Makes the record of one piece; without a time of its own, with the present one."""
        made: dict[str, Any] = {"timestamp": now_ms, "key": self.key} | self.layout.record(piece)
        for name in ("key", "value") if self.null_if_empty else ():
            made[name] = made[name] or None
        if made["key"] is None:
            del made["key"]
        if self.headers:
            made["headers"] = list(self.headers)
        if self.tag is not None:
            made["tag"] = self.tag
        return made


def encoded(text: str | None) -> bytes | None:
    """The bytes of an argument as they were typed, UTF-8 or not."""
    return None if text is None else os.fsencode(text)


def header_of(text: str, separator: str) -> dict[str, Any]:
    """Reads a header."""
    name, found, value = text.partition(separator)
    if not found or not name:
        raise InvalidRequest(f"a header is NAME{separator}VALUE, not {text!r}")
    return {"key": name, "value": os.fsencode(value)}


def pieces(source: BinaryIO, delimiter: bytes) -> Iterator[list[bytes]]:
    """Splits input at a delimiter; yields what has arrived, so that a terminal is prompt."""
    if not delimiter:
        raise InvalidRequest("the delimiter of records is empty")
    rest = b""
    descriptor = source.fileno()
    while chunk := os.read(descriptor, _READ_BYTES):
        *whole, rest = (rest + chunk).split(delimiter)
        for start in range(0, len(whole), _BATCH_RECORDS):
            yield whole[start : start + _BATCH_RECORDS]
    if rest:
        yield [rest]


class Producing:
    """Appends pieces of input to a topic, and reports where they are."""

    def __init__(self, store: StoreApi, topic: str, partition: int | None, acks: str) -> None:
        from lamina.api import checked_acks

        self._store, self._topic = store, topic
        self._partition, self._acks = partition, checked_acks(acks)
        settings = store.describe_topic(topic).settings
        self._sets_time = settings["message.timestamp.type"] == "LogAppendTime"
        self._done: Appended | None = None
        self._records: list[dict[str, Any]] = []
        self._now_ms = 0

    def append(self, given: list[bytes], make: Maker) -> None:
        """Appends a record for each piece."""
        self._now_ms = time.time_ns() // 1_000_000
        self._records = [make.record(piece, self._now_ms) for piece in given]
        self._done = self._store.append(
            self._topic, self._records, partition=self._partition, acks=self._acks
        )

    def report(self) -> Iterator[dict[str, Any]]:
        """Yields for each partition of the last append where its records are."""
        for number, ack in sorted(self._done.parts.items()) if self._done is not None else ():
            yield {
                "partition": number,
                "offset": ack.base_offset,
                "count": ack.count,
                "timestamp_ms": self._stored_ms(number, ack),
                "durability": ack.durability,
            }

    def _stored_ms(self, partition: int, ack: Ack) -> int | None:
        """The time of the first record; None if it cannot be read back yet."""
        given = {each["timestamp"] for each in self._records}
        if not self._sets_time and len(given) == 1:
            return int(given.pop())
        try:
            batch = self._store.fetch(self._topic, partition, ack.base_offset, max_records=1)
        except LaminaError:  # acks=0 and acks=1 do not wait until it can be read
            return None
        return int(batch.column("timestamp").cast("int64")[0].as_py()) if batch.num_rows else None


def success(done: dict[str, Any]) -> str:
    """The line that rpk prints, once per append."""
    if done["offset"] < 0:
        return f"Sent {counted(done['count'], 'record')} to partition {done['partition']}."
    where = f"Produced to partition {done['partition']} at offset {done['offset']}"
    at = "" if done["timestamp_ms"] is None else f" with timestamp {done['timestamp_ms']}"
    more = f" ({counted(done['count'], 'record')})" if done["count"] > 1 else ""
    return f"{where}{at}.{more}"
