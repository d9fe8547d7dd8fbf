"""The two primitives of a log under the names that its document gives them.

    append_batch(...) -> (base_offset, count)
    scan_from(topic, partition, from_offset, max_bytes | max_msgs) -> a stream of batches

Thin: both are `append` and `scan`. A scan's limits here bound the whole stream, not each batch.
A store has both, and so has a partition, without the topic and the number: `ScansFrom` is what
every partition that is read adds, `appending.AppendsBatch` what every one that is written adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from lamina.arguments import whole
from lamina.errors import InvalidRequest
from lamina.formats.scan import Limit

if TYPE_CHECKING:
    from lamina.log.interfaces import LogReader

BATCH_BYTES = 1 << 20


class _Scan(Protocol):
    def __call__(self, max_records: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
        """Begins a scan whose batches have these limits."""


class ScansFrom:
    """A partition that is read, by the name that the log's document gives it."""

    __slots__ = ()

    def scan_from(
        self: LogReader,
        from_offset: int,
        *,
        max_bytes: int | None = None,
        max_msgs: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Streams durable records from an offset, `max_msgs` or about `max_bytes` in all.

        See `scan`, which raises RecordsMissing at a gap and OffsetOutOfRange beyond the end.
        """
        first = whole("from_offset", from_offset)

        def scan(max_records: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
            return self.scan(first, Limit(max_records=max_records, max_bytes=max_bytes))

        return bounded(scan, max_bytes, max_msgs)


def bounded(scan: _Scan, max_bytes: int | None, max_msgs: int | None) -> Iterator[pa.RecordBatch]:
    """Streams batches until so many records, or about so many bytes, were handed out.

    At least one record comes, if there is one, however small `max_bytes` is.
    """
    for name, given in (("max_bytes", max_bytes), ("max_msgs", max_msgs)):
        if given is not None and whole(name, given) < 1:
            raise InvalidRequest(f"{name} must be 1 or more, not {given}")
    records = 1 << 20 if max_msgs is None else min(max_msgs, 1 << 20)
    size = BATCH_BYTES if max_bytes is None else min(max_bytes, BATCH_BYTES)
    return _counted(scan(records, size), max_bytes, max_msgs)


def _counted(
    batches: Iterator[pa.RecordBatch], max_bytes: int | None, max_msgs: int | None
) -> Iterator[pa.RecordBatch]:
    sent_bytes = sent = 0
    for batch in batches:
        left = batch.num_rows if max_msgs is None else min(batch.num_rows, max_msgs - sent)
        part = batch.slice(0, left)
        yield part
        sent += part.num_rows
        sent_bytes += part.nbytes
        is_full = max_bytes is not None and sent_bytes >= max_bytes
        if is_full or (max_msgs is not None and sent >= max_msgs):
            return
