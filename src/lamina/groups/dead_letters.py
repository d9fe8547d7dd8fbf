"""Dead letters: records that a group cannot process go to `<topic>.dlq`, with the reason.

The topic is made when it is first needed, of format `keratin`, with the partitions of its source.
A dead letter keeps timestamp, key, value and headers, and gets more headers behind its own:

| header               | value                                                            |
|----------------------|------------------------------------------------------------------|
| lamina.dlq.reason    | why: the consumer's words, or "delivered 5 times, not acked"     |
| lamina.dlq.group     | the group that gave up                                           |
| lamina.dlq.life      | which of its lives: another one after each reset, empty if none  |
| lamina.dlq.topic, .partition, .offset | where the record came from, numbers as text     |
| lamina.dlq.epoch     | how often it was delivered                                       |
| lamina.dlq.tag, .node | of records of a wal topic; null where a record has none         |

Fall-back: a dead-letter topic that was created with a format without headers gets a JSON document
as the value: the headers above by their short names, and `key` and `value` in base64.

Rule: a dead letter is durable before the source is acked. A crash in between leaves it in both
places, so it is delivered at least once; topic, partition, offset and group identify a repeat. So a
group whose own files are lost counts as done what it has buried in this life (`buried`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from lamina.errors import InvalidRequest
from lamina.groups.state import Numbers
from lamina.records import HEADER, HEADERS, KEPT_COLUMNS, Records

SUFFIX = ".dlq"
PREFIX = "lamina.dlq."
NUMBER_DIGITS = 19


class Sender(NamedTuple):
    """The source of dead letters: a group, in one partition, in one of its lives."""

    topic: str
    partition: int
    group: str
    life: str


class Host(Protocol):
    """What dead letters need from a store."""

    def topics(self) -> list[str]:
        """Returns the names of all topics."""

    def format_of(self, topic: str) -> tuple[str, int]:
        """Returns a topic's format and how many partitions it has."""

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        format: str = "keratin",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Creates a topic."""

    def append(self, topic: str, records: Records | bytes, *, partition: int | None = None) -> Any:
        """Appends records and waits until they are durable."""


def send(host: Host, sender: Sender, batch: pa.RecordBatch, epochs: Numbers, reason: str) -> None:
    """Appends records of a partition to its dead-letter topic, durably."""
    target = sender.topic + SUFFIX
    if target not in host.topics():
        _, partitions = host.format_of(sender.topic)
        try:
            host.create_topic(target, partitions=partitions)
        except InvalidRequest:
            if target not in host.topics():  # else another consumer was faster
                raise
    format_name, partitions = host.format_of(target)
    facts = {"reason": reason, **{name: str(value) for name, value in sender._asdict().items()}}
    kept = KEPT_COLUMNS[format_name]
    made = (
        _with_headers(batch, epochs, facts)
        if "headers" in kept
        else _documents(batch, epochs, facts, has_key="key" in kept)
    )
    host.append(target, made, partition=sender.partition % partitions)


def bury(host: Host, place: tuple[str, int], batch: pa.RecordBatch, reasons: Sequence[str]) -> None:
    """Appends records of a topic's partition that their schema does not fit, each with a reason."""
    for reason in dict.fromkeys(reasons):
        rows = [row for row, told in enumerate(reasons) if told == reason]
        sender, epochs = Sender(*place, "", ""), np.zeros(len(rows), dtype=np.int64)
        send(host, sender, batch.take(pa.array(rows)), epochs, reason)


def buried(batch: pa.RecordBatch, sender: Sender) -> Numbers:
    """Returns the offsets of a sender's records among dead letters, in no order."""
    if "headers" not in batch.schema.names:
        return np.array(_told_in(batch.column("value"), sender), dtype=np.int64)
    import pyarrow.compute as pc  # a tenth of a second, that few starts need

    headers = batch.column("headers")
    flat = headers.flatten()
    keys, texts = flat.field("key"), flat.field("value").cast(pa.binary())
    lengths = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    parents = np.repeat(np.arange(batch.num_rows), lengths)

    def last(name: str) -> pa.Array:
        """The last header of a name, of each record: a letter buried twice has two."""
        rows = np.flatnonzero(pc.equal(keys, PREFIX + name).to_numpy(zero_copy_only=False))
        found = np.full(batch.num_rows, -1, dtype=np.int64)
        found[parents[rows]] = rows
        return texts.take(pa.array(found, mask=found < 0))

    is_theirs = np.ones(batch.num_rows, dtype=np.bool_)
    for name, value in sender._asdict().items():
        same = pc.equal(last(name), pa.scalar(str(value).encode(), pa.binary()))
        is_theirs &= pc.fill_null(same, False).to_numpy(zero_copy_only=False)
    numbers = [
        int(text) for text in last("offset").filter(is_theirs).to_pylist() if _is_number(text)
    ]
    return np.array(numbers, dtype=np.int64)


def _is_number(text: bytes | None) -> bool:
    return text is not None and text.isdigit() and len(text) < NUMBER_DIGITS


def _told_in(values: pa.Array, sender: Sender) -> list[int]:
    """Reads the documents of the fall-back, one by one; what is none of ours is left out."""
    found = []
    wanted = {name: str(value) for name, value in sender._asdict().items()}
    for value in values.to_pylist():
        try:
            told = json.loads(value)
        except (TypeError, ValueError):
            continue
        is_ours = isinstance(told, dict) and all(told.get(name) == wanted[name] for name in wanted)
        if is_ours and _is_number(str(told.get("offset")).encode()):
            found.append(int(told["offset"]))
    return found


def _with_headers(batch: pa.RecordBatch, epochs: Numbers, facts: dict[str, str]) -> pa.RecordBatch:
    """The records with their headers and ours; nothing is made for each record in Python."""
    count = batch.num_rows
    names, columns = [], []
    for name, text in facts.items():
        names.append(name)
        columns.append(pa.repeat(pa.scalar(text.encode(), pa.binary()), count))
    numbers = {"offset": batch.column("offset"), "epoch": pa.array(epochs, pa.int64())}
    for name, column in numbers.items():
        names.append(name)
        columns.append(column.cast(pa.string()).cast(pa.binary()))
    for name in ("tag", "node"):
        if name in batch.schema.names:
            names.append(name)
            columns.append(batch.column(name))
    keys = pa.array([PREFIX + name for name in names], pa.string())
    ours = pa.StructArray.from_arrays(
        [
            keys.take(pa.array(np.repeat(np.arange(len(names)), count))),
            pa.concat_arrays(columns),
        ],
        fields=list(HEADER),
    )
    headers = _joined(_own_headers(batch), ours, len(names), count)
    kept = {name: batch.column(name) for name in ("timestamp", "key", "value")
            if name in batch.schema.names}  # fmt: skip
    return pa.RecordBatch.from_pydict({**kept, "headers": headers})


def _own_headers(batch: pa.RecordBatch) -> pa.ListArray | None:
    if "headers" not in batch.schema.names:
        return None
    headers = batch.column("headers")
    return None if headers.null_count == len(headers) else headers


def _joined(own: pa.ListArray | None, ours: pa.StructArray, each: int, count: int) -> pa.ListArray:
    """Puts our headers (all first ones, all second ones, …) behind each record's own."""
    import pyarrow.compute as pc  # a tenth of a second, that few starts need

    mine = np.arange(each)[None, :] * count + np.arange(count)[:, None]
    if own is None:
        lengths = np.zeros(count, dtype=np.int64)
        items, order = ours, mine.reshape(-1)
    else:
        lengths = pc.fill_null(pc.list_value_length(own), 0).to_numpy(zero_copy_only=False)
        items = pa.concat_arrays([own.flatten().cast(ours.type), ours])
        before = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        rows = np.repeat(np.arange(count), lengths)
        places = np.arange(total) - before[rows] + (before + np.arange(count) * each)[rows]
        order = np.empty(total + each * count, dtype=np.int64)
        order[places] = np.arange(total)
        ends = (before + lengths + np.arange(count) * each)[:, None] + np.arange(each)[None, :]
        order[ends.reshape(-1)] = total + mine.reshape(-1)
    offsets = np.concatenate(([0], np.cumsum(lengths + each))).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), items.take(pa.array(order)), type=HEADERS
    )


def _documents(
    batch: pa.RecordBatch, epochs: Numbers, facts: dict[str, str], *, has_key: bool
) -> list[Any]:
    """The fall-back, record by record: dead letters of such a topic are few and for people."""
    made: list[Any] = []
    for row, epoch in zip(batch.to_pylist(), epochs.tolist(), strict=True):
        texts = {
            name: base64.b64encode(row[name]).decode()
            for name in ("key", "value", "tag", "node")
            if row.get(name) is not None
        }
        numbers = {"offset": row["offset"], "epoch": epoch, "timestamp_ms": _ms(row["timestamp"])}
        value = json.dumps({**facts, **numbers, **texts}).encode()
        made.append((row.get("key"), value) if has_key else value)
    return made


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
