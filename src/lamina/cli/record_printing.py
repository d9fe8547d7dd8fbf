"""Reading for commands: ranges of partitions one by one, or all partitions for ever.

A command renders whole batches (`json_lines`, or `percent.Format` over `rows_of`) and flushes once
per batch: what is rendered for eyes and pipes is made of Python objects, but never one by one.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from json.encoder import encode_basestring_ascii as quoted
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
_FIELDS = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
_OF_WAL = ("tag", "node")
_ENVELOPE = (
    '{"topic": %s, "partition": %s, "offset": %s, "tstype": "create", "ts": %s, "broker": 0%s,'
    ' "key": %s, "payload": %s}\n'
)


@dataclass(slots=True)
class Span:
    """One partition to read: the next offset, the first that is wanted, and where to stop."""

    topic: str
    partition: int
    start: int
    end: int | None
    first: int


@dataclass(frozen=True, slots=True)
class Read:
    """Records of one partition; `number` is how many were read before them.

    Without a `partition`, the batch says in a column which record is of which.
    """

    topic: str
    partition: int | None
    batch: pa.RecordBatch
    number: int


def spans(store: StoreApi, topics: list[str], partitions: list[int], asked: Range) -> list[Span]:
    """Finds the offsets of a range in each partition.

    A partition that ends before the range begins is read from its end on, without what comes before
    the range: other partitions of the topic may be longer.
    """
    found, is_beyond = [], True
    for topic in topics:
        numbers = partitions or [part.partition for part in store.describe_topic(topic).partitions]
        for number in numbers:
            first = resolve(asked.start, store, topic, number)
            latest = store.latest_offset(topic, number)
            earliest = _first_told(store, topic, number)
            if asked.start.kind == "start":
                first = earliest
            start = max(min(first, latest), earliest)
            end = None if asked.end is None else resolve(asked.end, store, topic, number)
            found.append(Span(topic, number, start, end, first))
            is_beyond = is_beyond and first > latest
    if found and is_beyond:
        wanted = f"nothing is at offset {found[0].first} yet"
        goes_on = "" if asked.end is not None else "; waiting for it"
        sys.stderr.write(f"lamina: {wanted}: {found[0].topic} ends before{goes_on}\n")
    return found


def _first_told(store: StoreApi, topic: str, partition: int) -> int:
    """Returns where reading begins: with what is lost, if nothing is left before it."""
    from lamina.log.gap_walk import first_not_removed

    earliest = store.earliest_offset(topic, partition)
    return first_not_removed(store.gaps(topic, partition), earliest) if earliest else 0


def reads(store: StoreApi, wanted: list[Span], count: int | None) -> Iterator[Read]:
    """Yields batches: each range to its end; ranges without one in turn, for ever."""
    number = 0
    while wanted and (count is None or number < count):
        is_last_round = all(span.end is not None for span in wanted)
        wait_ms = 0 if is_last_round else max(1, _FOLLOW_MS // len(wanted))
        for span in list(wanted):
            limit = _BATCH_RECORDS if count is None else min(_BATCH_RECORDS, count - number)
            if span.end is not None:
                limit = min(limit, span.end - span.start)
            batch = _fetch(store, span, limit, wait_ms) if limit > 0 else None
            if batch is not None and batch.num_rows:
                yield Read(span.topic, span.partition, batch, number)
                number += batch.num_rows
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
    step, reached = fetch_over(fetch, span.start)
    before, span.start = span.start, reached
    if isinstance(step, RecordsMissing):
        sys.stderr.write(f"lamina: {shown(str(step))}\n")
        return None
    if before >= span.first:
        return step
    import pyarrow.compute as pc

    return step.filter(pc.greater_equal(step.column("offset"), span.first))


def rows_of(batch: Any) -> Iterator[Row]:
    """Yields the records of a batch, each with a key and headers, even if they are empty."""
    from lamina.inspect.render import plain_rows

    empty: Row = {"key": None, "headers": None}
    return (empty | row for row in plain_rows(batch))


def rows(read: Read) -> Iterator[Row]:
    """Yields the records of a batch with where they are and how many came before them."""
    where: Row = {"topic": read.topic}
    if read.partition is not None:
        where["partition"] = read.partition
    for number, row in enumerate(rows_of(read.batch), start=read.number + 1):
        row.update(where, number=number)
        yield row


def json_lines(read: Read, *, with_values: bool = True) -> bytes:
    """Renders a batch as JSON lines, with the same fields in the same order in every line."""
    texts = _texts(read)
    texts["headers"] = map(_headers, _column(read, "headers"))
    names = [*_FIELDS, *(name for name in _OF_WAL if name in texts)]
    if not with_values:
        names.remove("value")
    line = "{" + ", ".join(f'"{name}": %s' for name in names) + "}\n"
    return _lines(line, [texts[name] for name in names])


def envelopes(read: Read) -> bytes:
    """Renders a batch as kcat's -J does: headers in one list, and none where there are none."""
    texts = _texts(read)
    texts["headers"] = map(_flat_headers, _column(read, "headers"))
    names = ("topic", "partition", "offset", "timestamp_ms", "headers", "key", "value")
    return _lines(_ENVELOPE, [texts[name] for name in names])


def _texts(read: Read) -> dict[str, Iterable[str]]:
    """Returns what all JSON shows of a batch: a text for each record, column by column."""
    found: dict[str, Iterable[str]] = {
        "topic": [quoted(read.topic)] * read.batch.num_rows,
        "partition": map(str, _partitions(read)),
        "offset": map(str, _column(read, "offset")),
        "timestamp_ms": map(str, read.batch.column("timestamp").cast("int64").to_pylist()),
    }
    shown_names = ("key", "value", *(name for name in _OF_WAL if name in read.batch.schema.names))
    return found | {name: map(json_text, _column(read, name)) for name in shown_names}


def _column(read: Read, name: str) -> list[Any]:
    """Returns a column of a batch; nothing for each record where the format has none."""
    if name not in read.batch.schema.names:
        return [None] * read.batch.num_rows
    found: list[Any] = read.batch.column(name).to_pylist()
    return found


def _lines(line: str, columns: list[Iterable[str]]) -> bytes:
    return "".join([line % cells for cells in zip(*columns, strict=True)]).encode()


def _partitions(read: Read) -> list[int]:
    if read.partition is None:
        found: list[int] = read.batch.column("partition").to_pylist()
        return found
    return [read.partition] * read.batch.num_rows


def json_text(value: bytes | None) -> str:
    """Renders bytes as JSON: text where they are UTF-8, else {"base64": …}."""
    if value is None:
        return "null"
    try:
        return quoted(value.decode())
    except UnicodeDecodeError:
        return f'{{"base64": "{base64.b64encode(value).decode()}"}}'


def _headers(headers: list[dict[str, Any]] | None) -> str:
    if headers is None:
        return "null"
    pairs = (f"[{quoted(each['key'])}, {json_text(each['value'])}]" for each in headers)
    return f"[{', '.join(pairs)}]"


def _flat_headers(headers: list[dict[str, Any]] | None) -> str:
    if not headers:
        return ""
    flat = (f"{quoted(each['key'])}, {json_text(each['value'])}" for each in headers)
    return f', "headers": [{", ".join(flat)}]'


def pretty(lines: bytes) -> bytes:
    """Spreads JSON lines over many, for eyes."""
    spread = (json.dumps(json.loads(line), indent=2) for line in lines.splitlines())
    return "".join(f"{each}\n" for each in spread).encode()
