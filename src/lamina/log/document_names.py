"""The two primitives of a log under the names that its document uses for them.

    append_batch(...) -> (base_offset, count)
    scan_from(topic, partition, from_offset, max_bytes | max_msgs) -> a stream of batches

Both are thin wrappers of `append` and `scan`; the limits of `scan_from` bound the whole stream, not
each batch. A store has both, and so does a partition, without topic and partition number:
`ScansFrom` is mixed into every partition that can be read, `appending.AppendsBatch` into every one
that can be written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from lamina.api import BatchStream, bounded
from lamina.arguments import whole
from lamina.formats.scan import Limit
from lamina.records import OUTPUT_SCHEMAS

if TYPE_CHECKING:
    from lamina.log.interfaces import LogReader


class ScansFrom:
    """Adds `scan_from`, the name that the log's document has for reading."""

    __slots__ = ()

    def scan_from(
        self: LogReader,
        from_offset: int,
        *,
        max_bytes: int | None = None,
        max_msgs: int | None = None,
    ) -> BatchStream:
        """Streams durable records from an offset, `max_msgs` or about `max_bytes` in all.

        See `scan`, which raises RecordsMissing at a gap and OffsetOutOfRange beyond the end.
        """
        first = whole("from_offset", from_offset)

        def scan(max_records: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
            return self.scan(first, Limit(max_records=max_records, max_bytes=max_bytes))

        return bounded(scan, lambda: OUTPUT_SCHEMAS[self.format_name], max_bytes, max_msgs)
