"""Records that a page has searched for, as a file: JSON lines, which lose nothing, or CSV.

    step ─ at most `STEP_BYTES` ─▶ choose by columns ─▶ rows ─▶ lines of the file

Partition after partition, each in the order of its offsets, up to what was durable when it began.

Rules.
1. A file is bounded in records, in bytes and in the time that is spent looking. One that is not
   all of it says so, and where to go on.
2. Of a step's records only those that are wanted become Python, and only until they are lines.
3. A program that opens CSV may take a cell for a formula: a cell that begins like one gets an
   apostrophe. JSON lines are exact.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from lamina.inspect.render import plain_rows, render_value
from lamina.server.console.tail import STEP_BYTES, Choice, look
from lamina.store.store import Store

RECORDS_MAX = 10_000
BYTES_MAX = 16 << 20
LOOKING_S = 10.0
ROOM_BYTES = BYTES_MAX + 8 * STEP_BYTES
"""What an export takes at most while it is made: its lines, and one step as Python objects."""
KINDS = ("jsonl", "csv")
_COLUMNS = ("partition", "offset", "time", "key", "value", "tag", "node", "headers")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Export:
    """One file on its way. `next_offsets` says where to go on in each partition, `ends` how far."""

    topic: str
    choice: Choice
    kind: str
    next_offsets: dict[int, int]
    ends: dict[int, int]
    limit: int = RECORDS_MAX
    clock: Callable[[], float] = time.monotonic
    records: int = 0
    looked: int = 0
    _lines: list[bytes] = field(default_factory=list)
    _size_bytes: int = 0

    def made(self, store: Store) -> bytes:
        """Makes the file; afterwards `is_whole` says whether it holds everything wanted."""
        if self.kind == "csv":
            self._add(_csv_line(_COLUMNS))
        until = self.clock() + LOOKING_S
        for number in self.next_offsets:
            while self._goes_on(number) and self.clock() < until:
                self._step(store, number)
        return b"".join(self._lines)

    @property
    def is_whole(self) -> bool:
        """Whether every partition was looked at up to its end."""
        return all(self.next_offsets[number] >= end for number, end in self.ends.items())

    def _goes_on(self, number: int) -> bool:
        has_room = self.records < self.limit and self._size_bytes < BYTES_MAX
        return has_room and self.next_offsets[number] < self.ends[number]

    def _step(self, store: Store, number: int) -> None:
        at, end = self.next_offsets[number], self.ends[number]
        batch, following = look(store, self.topic, number, at)
        if batch is None and following <= at:  # the topic was made again, or cut short
            following = end
        following = min(following, end)
        if batch is not None:
            batch = _before(batch, end)
            self.looked += batch.num_rows
            following = self._take(self.choice.of(batch), number, following)
        self.next_offsets[number] = following

    def _take(self, chosen: pa.RecordBatch, number: int, following: int) -> int:
        """Adds records as lines; returns where to go on, which is earlier where room ran out."""
        for row in plain_rows(chosen):
            if self.records >= self.limit or self._size_bytes >= BYTES_MAX:
                return int(row["offset"])
            self._add(_LINES[self.kind]({"partition": number, **row}))
            self.records += 1
        return following

    def _add(self, line: bytes) -> None:
        self._lines.append(line)
        self._size_bytes += len(line)

    def mark(self) -> str:
        """Returns where to go on, as a tail's mark."""
        return ",".join(f"{number}:{offset}" for number, offset in self.next_offsets.items())


def _before(batch: pa.RecordBatch, end: int) -> pa.RecordBatch:
    """Leaves out what was appended after the export began; offsets grow."""
    offsets = batch.column("offset").to_numpy()
    return batch.slice(0, int(offsets.searchsorted(end)))


def _json_line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(render_value(row), ensure_ascii=False).encode() + b"\n"


def _csv_row(row: Mapping[str, Any]) -> bytes:
    moment = _EPOCH + timedelta(milliseconds=min(max(row["timestamp_ms"], 0), 253_402_300_799_999))
    told = {"time": moment.isoformat(timespec="milliseconds"), **row}
    return _csv_line([_cell(name, told.get(name)) for name in _COLUMNS])


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "headers":
        return json.dumps(render_value(value), ensure_ascii=False)
    if not isinstance(value, bytes):
        return str(value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _csv_line(cells: Any) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().encode()


_LINES: dict[str, Callable[[Mapping[str, Any]], bytes]] = {"jsonl": _json_line, "csv": _csv_row}
