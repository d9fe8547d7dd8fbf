"""A diff read: what a follower has not seen yet, from a number on, in one bounded answer.

Gaps do not end it, as they end a scan: they are named beside the records, and the read goes on.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lamina.api import Diff, Gap
from lamina.errors import InvalidRequest, RecordsMissing
from lamina.formats.scan import Limit
from lamina.log.batch_offsets import after
from lamina.log.gap_walk import scan_over
from lamina.log.interfaces import LogReader
from lamina.records import OUTPUT_SCHEMAS


def diff(reader: LogReader, start: int, limit: Limit, exclude_node: bytes | None) -> Diff:
    """Reads from an offset on, up to a number of records and about as many bytes."""
    schema = OUTPUT_SCHEMAS[reader.format_name]
    if exclude_node is not None and "node" not in schema.names:
        raise InvalidRequest(
            f"format {reader.format_name} keeps no node; a topic of format wal does"
        )
    end = reader.end_offset("durable")
    offset, records, size_bytes = start, limit.max_records, limit.max_bytes
    batches: list[pa.RecordBatch] = []
    gaps: list[Gap] = []

    def scan(at: int) -> Iterator[pa.RecordBatch]:  # each batch is limited by what is left then
        while at < end:
            found = next(iter(reader.scan(at, Limit(records, size_bytes), end=end)), None)
            if found is None:
                return
            yield found
            at = after(found)

    for step in scan_over(scan, start, end):
        if isinstance(step, RecordsMissing):
            gaps.append(Gap(step.first, step.end, step.reason, 0, step.problem))
            offset = step.end
            continue
        offset = after(step)
        records -= step.num_rows
        size_bytes -= step.nbytes
        batches.append(_without(step, exclude_node))
        if records <= 0 or size_bytes <= 0:
            break
    else:
        offset = max(offset, end)
    table = pa.Table.from_batches(batches, schema=schema).combine_chunks()
    merged = table.to_batches()
    result = merged[0] if merged else pa.RecordBatch.from_pylist([], schema=schema)
    return Diff(result, max(offset, start), offset >= end, tuple(gaps))


def _without(batch: pa.RecordBatch, node: bytes | None) -> pa.RecordBatch:
    if node is None:
        return batch
    import pyarrow.compute as pc  # a tenth of a second, that few starts need

    own = pc.fill_null(pc.equal(batch.column("node"), pa.scalar(node, pa.binary())), False)
    return batch.filter(pc.invert(own))
