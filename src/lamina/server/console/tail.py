"""The live tail: new records of a topic as server-sent events, chosen while still in Arrow.

    look ─ at most `STEP_BYTES` a partition ─▶ choose by columns ─▶ the last `ROWS_MAX` ─▶ an event

Rules.
1. A step is bounded, and between two steps nothing is held: no thread, no batch, no lock.
2. What is left out is counted and told: records that did not match, and those there was no room
   for.
3. A tail that starts at the end never reads history; one that starts earlier reads it in steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lamina.errors import InvalidRequest, OffsetOutOfRange, RecordsMissing
from lamina.log.gap_walk import fetch_over
from lamina.server.console import shown
from lamina.store.store import Store

STEP_RECORDS, STEP_BYTES = 20_000, 4 << 20
ROWS_MAX = 100
TEXT_MAX = 256


@dataclass(frozen=True, slots=True)
class Choice:
    """Which records are wanted; an empty field wants any."""

    key: str = ""
    tag: str = ""
    text: str = ""
    since_ms: int | None = None
    until_ms: int | None = None

    def __post_init__(self) -> None:
        for name in ("key", "tag", "text"):
            if len(getattr(self, name)) > TEXT_MAX:
                raise InvalidRequest(f"{name} is longer than {TEXT_MAX} characters")

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the records of a batch that are wanted."""
        wanted = None
        for part in self._parts(batch):
            wanted = part if wanted is None else pc.and_kleene(wanted, part)
        return batch if wanted is None else batch.filter(pc.fill_null(wanted, False))

    def _parts(self, batch: pa.RecordBatch) -> list[pa.Array]:
        found = []
        for name, pattern in (("key", self.key), ("tag", self.tag), ("value", self.text)):
            if not pattern:
                continue
            if name not in batch.schema.names:
                raise InvalidRequest(f"records of this topic have no {name}")
            found.append(pc.match_substring(batch.column(name), pattern.encode()))
        times = batch.column("timestamp").cast(pa.int64())
        if self.since_ms is not None:
            found.append(pc.greater_equal(times, self.since_ms))
        if self.until_ms is not None:
            found.append(pc.less(times, self.until_ms))
        return found


@dataclass(slots=True)
class Tail:
    """Where somebody's tail is, in each partition that it follows."""

    topic: str
    choice: Choice
    next_offsets: dict[int, int] = field(default_factory=dict)

    def begin(self, store: Store, partitions: list[int], start: int | None) -> None:
        """Goes to an offset, to the choice's time, or to the end."""
        for number in partitions:
            end = store.latest_offset(self.topic, number)
            if start is not None:
                at = min(max(start, store.earliest_offset(self.topic, number)), end)
            elif self.choice.since_ms is not None:
                found = store.offset_for_time(self.topic, number, self.choice.since_ms)
                at = end if found is None else found
            else:
                at = end
            self.next_offsets[number] = at

    def step(self, store: Store) -> dict[str, Any]:
        """Looks at what is new; returns the newest rows that are wanted, and what was left out."""
        rows: list[dict[str, Any]] = []
        looked, matched, behind = 0, 0, 0
        for number, start in self.next_offsets.items():
            batch, following = look(store, self.topic, number, start)
            self.next_offsets[number] = following
            behind += max(0, store.latest_offset(self.topic, number) - following)
            if batch is None or not batch.num_rows:
                continue
            looked += batch.num_rows
            chosen = self.choice.of(batch)
            matched += chosen.num_rows
            last = chosen.slice(max(0, chosen.num_rows - ROWS_MAX))
            rows += shown.previews(last, number)
        rows.sort(key=lambda row: (row["timestamp_ms"], row["partition"], row["offset"]))
        kept = rows[-ROWS_MAX:]
        return {
            "rows": kept,
            "looked": looked,
            "matched": matched,
            "unshown": matched - len(kept),
            "behind": behind,
            "next": self.mark(),
        }

    def mark(self) -> str:
        """Returns where the tail is, as `go_on` reads it: `0:120,1:98`."""
        return ",".join(f"{number}:{offset}" for number, offset in self.next_offsets.items())

    def go_on(self, mark: str) -> None:
        """Goes to where a tail was; raises InvalidRequest for what is no mark of this topic's."""
        found = {}
        for part in mark.split(","):
            number, _, offset = part.partition(":")
            numbers = number.isdecimal() and offset.isdecimal() and len(part) < 40
            if not numbers or int(number) not in self.next_offsets:
                raise InvalidRequest(f"{mark[:40]!r} is not where a tail was")
            found[int(number)] = int(offset)
        self.next_offsets |= found


def look(store: Store, topic: str, partition: int, start: int) -> tuple[pa.RecordBatch | None, int]:
    """Fetches what is new in one partition, and says where to go on; steps over gaps."""
    fetch = partial(store.fetch, topic, partition, max_records=STEP_RECORDS, max_bytes=STEP_BYTES)
    try:
        step, following = fetch_over(fetch, start)
    except OffsetOutOfRange:  # the topic was deleted and made again
        return None, store.earliest_offset(topic, partition)
    is_there = not isinstance(step, RecordsMissing) and step.num_rows
    return step if is_there else None, following
