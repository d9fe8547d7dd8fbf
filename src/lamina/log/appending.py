"""Turns what a user passes in into requests: checked, assigned to a partition, sized.

Plain values (`bytes` or a list of them) take the short way: they stay Python bytes until the writer
joins them with those of other producers. Everything else becomes the format's exact Arrow batch
here, in the producer's own thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lamina import records as record_columns
from lamina.api import (
    OF_TOPIC,
    UNTIL_ARCHIVED,
    Ack,
    Appended,
    ProducerStamp,
    acks_level,
)
from lamina.arguments import seconds
from lamina.config import TopicSettings
from lamina.errors import InvalidRequest, UnsupportedField
from lamina.log.requests import Request
from lamina.records import Decoded, Records

if TYPE_CHECKING:
    from lamina.log.interfaces import LogWriter

_EMPTY = "there are no records to append"
_KINDS = (Iterable, pa.RecordBatch, pa.Table, Decoded)


def make_request(
    records: Records | Decoded | bytes,
    format_name: str,
    settings: TopicSettings,
    *,
    acks: int,
    now_ms: int,
    stamp: ProducerStamp | None = None,
) -> Request:
    """Makes the request for one partition; raises InvalidRequest for what cannot be stored."""
    values = _plain_values(records)
    if values is not None:
        if not values:
            raise InvalidRequest(_EMPTY)
        if settings.needs_keys:
            _refuse_keyless(0, settings)
        size_bytes = sum(map(len, values))
        if size_bytes > settings.max_message_bytes:
            _refuse_large(max(map(len, values)), settings)
        return Request(values, size_bytes=size_bytes, acks=acks, stamp=stamp)
    if not isinstance(records, _KINDS):
        record_columns.refuse_kind(records)
    batch = record_columns.prepare(records, format_name, now_ms=now_ms)
    if not batch.num_rows:
        raise InvalidRequest(_EMPTY)
    if settings.needs_keys and batch.column("key").null_count:
        _refuse_keyless(batch.column("key").is_null().index(pa.scalar(True)).as_py(), settings)
    size_bytes = batch.get_total_buffer_size()  # of a slice too large; exact, it would cost more
    if size_bytes > settings.max_message_bytes:
        size_bytes = batch.nbytes
        _refuse_large(_largest(batch), settings)
    return Request(batch, size_bytes=size_bytes, acks=acks, stamp=stamp)


class AppendsBatch:
    """Adds `append_batch`, the name that the log's document has for appending."""

    __slots__ = ()

    def append_batch(
        self: LogWriter,
        records: Records | bytes,
        *,
        acks: object = OF_TOPIC,
        timeout_s: float | None = None,
    ) -> tuple[int, int]:
        """Appends records; returns the offset of the first one and how many were appended.

        See the store's `append`, which also knows the archive: `acks` here are 0, 1 or "all". With
        0 the call does not wait, and the offset is -1.
        """
        if acks == UNTIL_ARCHIVED and type(acks) is str:
            raise InvalidRequest(
                "acks=archived is for the append of a store, which knows the archive"
            )
        timeout_s = None if timeout_s is None else seconds("timeout_s", timeout_s)
        request = make_request(
            records,
            self.format_name,
            self.settings,
            acks=self.level(acks_level(acks)),
            now_ms=self.place.now_ms(),
        )
        self.admit(request)
        ack = self.writer.append(request, timeout_s)
        return -1 if ack is None else ack.base_offset, request.count


def _plain_values(records: object) -> list[bytes] | None:
    if type(records) is bytes:
        return [records]
    if type(records) is list and all(type(value) is bytes for value in records):
        return records.copy()  # the caller may go on using its own
    return None


def _largest(batch: pa.RecordBatch) -> int:
    """The bytes of the largest record: key, value and headers."""
    import pyarrow.compute as pc  # a tenth of a second, that few starts need

    total = np.zeros(batch.num_rows, dtype=np.int64)
    for name in ("key", "value", "tag", "node"):
        if batch.schema.get_field_index(name) < 0:
            continue
        lengths = pc.fill_null(pc.binary_length(batch.column(name)), 0)
        total += lengths.to_numpy(zero_copy_only=False)
    index = batch.schema.get_field_index("headers")
    if index >= 0 and batch.column(index).null_count < batch.num_rows:
        headers = batch.column(index)
        rows = pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)
        items = headers.flatten()
        for name in ("key", "value"):
            lengths = pc.fill_null(pc.binary_length(items.field(name)), 0)
            np.add.at(total, rows, lengths.to_numpy(zero_copy_only=False))
    return int(total.max(initial=0))


def _refuse_keyless(record: int, settings: TopicSettings) -> None:
    raise UnsupportedField(
        f"record {record} has no key, and cleanup.policy {settings.cleanup_policy} of the topic"
        " needs one"
    )


def _refuse_large(size_bytes: int, settings: TopicSettings) -> None:
    if size_bytes > settings.max_message_bytes:
        raise InvalidRequest(
            f"a record of {size_bytes} bytes is over max.message.bytes {settings.max_message_bytes}"
        )


def merged(answers: list[tuple[dict[int, Ack], int]]) -> Appended:
    """Merges the acks of several partitions into one."""
    parts = {number: ack for acks, _ in answers for number, ack in acks.items()}
    return Appended(parts, sum(count for _, count in answers))
