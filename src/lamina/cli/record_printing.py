"""Reading for commands: ranges of partitions one by one, or all partitions for ever.

Every record becomes a Python object here: this is for eyes and pipes, not for speed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lamina.cli.offsets import Range, resolve
from lamina.cli.output import shown
from lamina.cli.percent import Row
from lamina.errors import RecordsMissing

if TYPE_CHECKING:
    import pyarrow as pa

    from lamina.api import StoreApi

_BATCH_RECORDS, _BATCH_BYTES = 1000, 1 << 20
_FOLLOW_MS = 200


@dataclass(slots=True)
class Span:
    """One partition to read: the next offset, and where to stop, if ever."""

    topic: str
    partition: int
    start: int
    end: int | None


def spans(store: StoreApi, topics: list[str], partitions: list[int], asked: Range) -> list[Span]:
    """Finds the offsets of a range in each partition."""
    found = []
    for topic in topics:
        numbers = partitions or [part.partition for part in store.describe_topic(topic).partitions]
        for number in numbers:
            start = resolve(asked.start, store, topic, number)
            start = max(start, store.earliest_offset(topic, number))
            end = None if asked.end is None else resolve(asked.end, store, topic, number)
            found.append(Span(topic, number, start, end))
    return found


def rows(store: StoreApi, wanted: list[Span], count: int | None) -> Iterator[Row]:
    """Yields records: each range to its end; ranges without one in turn, for ever."""
    number = 0
    while wanted and (count is None or number < count):
        is_last_round = all(span.end is not None for span in wanted)
        wait_ms = 0 if is_last_round else max(1, _FOLLOW_MS // len(wanted))
        for span in list(wanted):
            limit = _BATCH_RECORDS if count is None else min(_BATCH_RECORDS, count - number)
            if span.end is not None:
                limit = min(limit, span.end - span.start)
            batch = _fetch(store, span, limit, wait_ms) if limit > 0 else None
            for row in rows_of(batch) if batch is not None else ():
                number += 1
                yield row | {"topic": span.topic, "partition": span.partition, "number": number}
            if _is_done(store, span):
                wanted.remove(span)


def _is_done(store: StoreApi, span: Span) -> bool:
    if span.end is None:
        return False
    return span.start >= min(span.end, store.latest_offset(span.topic, span.partition))


def _fetch(store: StoreApi, span: Span, limit: int, wait_ms: int) -> pa.RecordBatch | None:
    """Fetches the next batch; reports a gap and steps over it."""
    from lamina.log.gap_walk import fetch_over

    fetch = partial(
        store.fetch,
        span.topic,
        span.partition,
        max_records=limit,
        max_bytes=_BATCH_BYTES,
        wait_ms=wait_ms,
    )
    step, span.start = fetch_over(fetch, span.start)
    if isinstance(step, RecordsMissing):
        sys.stderr.write(f"lamina: {shown(str(step))}\n")
        return None
    return step


def rows_of(batch: Any) -> Iterator[Row]:
    """Yields the records of a batch, each with a key and headers, even if they are empty."""
    from lamina.inspect.render import plain_rows

    empty: Row = {"key": None, "headers": None}
    return (empty | row for row in plain_rows(batch))
