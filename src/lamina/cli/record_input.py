"""Appending for commands: lines or delimited records from standard input, in batches."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from lamina.errors import InvalidRequest

if TYPE_CHECKING:
    from lamina.api import Ack, Appended, StoreApi

_BATCH_RECORDS = 1000
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes a record of each piece of input."""

    key: bytes | None = None
    headers: list[dict[str, Any]] | None = None
    null_if_empty: bool = False
    key_delimiter: bytes | None = None

    def record(self, piece: bytes) -> dict[str, Any]:
        """Makes the record of one piece."""
        key, value = self.key, piece
        if self.key_delimiter is not None and self.key_delimiter in piece:
            key, _, value = piece.partition(self.key_delimiter)
        made: dict[str, Any] = {"value": None if self.null_if_empty and not value else value}
        if key is not None:
            made["key"] = None if self.null_if_empty and not key else key
        if self.headers:
            made["headers"] = self.headers
        return made


def header_of(text: str, separator: str) -> dict[str, Any]:
    """Reads a header."""
    name, found, value = text.partition(separator)
    if not found or not name:
        raise InvalidRequest(f"a header is NAME{separator}VALUE, not {text!r}")
    return {"key": name, "value": value.encode()}


def pieces(source: BinaryIO, delimiter: bytes) -> Iterator[list[bytes]]:
    """Splits input at a delimiter; yields what has arrived, so that a terminal is prompt."""
    rest = b""
    descriptor = source.fileno()
    while chunk := os.read(descriptor, _READ_BYTES):
        *whole, rest = (rest + chunk).split(delimiter)
        for start in range(0, len(whole), _BATCH_RECORDS):
            yield whole[start : start + _BATCH_RECORDS]
    if rest:
        yield [rest]


def append_lines(
    store: StoreApi,
    topic: str,
    make: Maker,
    *,
    partition: int | None,
    acks: str,
) -> Iterator[Appended]:
    """Appends a record for each line of standard input; yields the answers."""
    for group in pieces(sys.stdin.buffer, b"\n"):
        records = [make.record(piece) for piece in group]
        yield store.append(topic, records, partition=partition, acks=acks)


def success(partition: int, ack: Ack) -> str:
    """The line that rpk prints, once per append."""
    now_ms = time.time_ns() // 1_000_000
    where = f"Produced to partition {partition} at offset {ack.base_offset}"
    more = f" ({ack.count} records)" if ack.count > 1 else ""
    return f"{where} with timestamp {now_ms}.{more}"
