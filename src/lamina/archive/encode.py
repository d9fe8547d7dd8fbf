"""From sealed ranges of a log to one STRM object: pure steps, the same for a broker and for a job.

A source of sealed ranges is anything that yields a topic's records from an offset on as Arrow
batches; a segmented partition is one, and so is any other log. Columns that STRM has no field for
(headers, null values, tags, nodes) go into the record envelope, as soon as one record has them.

Rules.
1. Nothing here touches a file or an object store.
2. What is returned was decoded again and checked: it may become the only copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.errors import CorruptData
from lamina.formats.documents.archive_manifest import MARKS_MAX, ArchivedObject
from lamina.formats.kernels.binary import as_bytes
from lamina.formats.kernels.fnv import fnv1a_64
from lamina.formats.strm import layout
from lamina.formats.strm import segment as strm_segment
from lamina.formats.strm.block import crc32_of
from lamina.formats.strm.layout import Coding, Compression
from lamina.formats.strm.write import MapBlocks, Writer
from lamina.log.layers import Layer
from lamina.records import INPUT_SCHEMAS

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SCHEMA = INPUT_SCHEMAS["strm"]


class Source(Protocol):
    """A log whose sealed part is archived."""

    def sealed(self) -> list[Layer]:
        """Returns the sealed local layers, oldest first."""

    def records(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yields the records of some sealed offsets; what is missing there is left out."""

    def gone_from(self, offset: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns which offsets from one on have no record any more: starts and ends of ranges."""


@dataclass(frozen=True, slots=True)
class Naming:
    """What an object records about where it belongs."""

    topic: str
    partition: int
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class EncodedObject:
    """A whole object, its entry in the list, and the offset up to which it covers its source."""

    data: memoryview
    entry: ArchivedObject
    next_offset: int


def encode_object(
    records: Callable[[int], Iterator[pa.RecordBatch]],
    span: tuple[int, int],
    naming: Naming,
    compression: Compression,
    *,
    target_bytes: int,
    map_blocks: MapBlocks = map,
) -> EncodedObject | None:
    """Encodes the records of a span of offsets, up to about `target_bytes`; None if it has none.

    `records` is called with an offset and yields from there on. It is called again from the start
    when a record turns up that needs an envelope, which an object has for all records or for none.
    """
    start, end = span
    writer = Writer(Coding(compression), map_blocks)
    count, covered = 0, end
    again = False
    for batch in records(start):
        conformed = as_strm(batch)
        if needs_envelope(conformed) and not writer.coding.enveloped:
            again = count > 0
            writer = Writer(Coding(compression, enveloped=True), map_blocks)
            if again:
                break
        writer.add(conformed)
        count += conformed.num_rows
        if writer.size >= target_bytes:
            covered = min(end, _last_offset(conformed) + 1)
            break
    if again:
        count, covered = _fill(writer, records(start), end, target_bytes)
    if count == 0:
        return None
    data = writer.finish(
        topic=naming.topic, partition=naming.partition, created_at_ms=naming.created_at_ms
    )
    entry = examine(data, naming.topic, naming.partition)
    if entry.record_count != count or not start <= entry.base_offset <= entry.max_offset < covered:
        raise CorruptData(
            "an object is not what was put into it; nothing was uploaded",
            expected=f"{count} records of [{start}, {covered})",
            found=f"{entry.record_count} of [{entry.base_offset}, {entry.max_offset}]",
        )
    return EncodedObject(data, entry, covered)


def _fill(
    writer: Writer, batches: Iterator[pa.RecordBatch], end: int, target_bytes: int
) -> tuple[int, int]:
    """Adds batches until the target is reached: (records, the offset that is covered)."""
    count = 0
    for batch in batches:
        conformed = as_strm(batch)
        writer.add(conformed)
        count += conformed.num_rows
        if writer.size >= target_bytes:
            return count, min(end, _last_offset(conformed) + 1)
    return count, end


def as_strm(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch of any topic format with the columns of STRM."""
    names = batch.schema.names
    columns = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in _SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def needs_envelope(batch: pa.RecordBatch) -> bool:
    """Returns whether a record has what only an envelope keeps."""
    rows = batch.num_rows
    return bool(
        batch.column("value").null_count
        or any(batch.column(name).null_count < rows for name in ("headers", "tag", "node"))
    )


def examine(data: Buffer, topic: str, partition: int) -> ArchivedObject:
    """Checks every byte of a whole object and that it belongs here; returns its entry."""
    segment, newest = strm_segment.verify_blocks(data)
    check_belongs(segment.header, topic, partition)
    tail = memoryview(data)[segment.footer.index_offset :]
    return entry_of(segment, crc32_of(as_bytes(tail)), marks_of(newest))


def check_belongs(header: layout.Header, topic: str, partition: int) -> None:
    """Refuses an object of another topic or partition."""
    if header.topic_hash not in (0, fnv1a_64(topic.encode())) or header.partition != partition:
        raise CorruptData(
            "the object is of another topic or partition",
            position=layout.HEADER.at("topic_hash"),
            expected=f"{topic}/{partition}",
            found=f"{header.topic_hash:016x}/{header.partition}",
        )


def entry_of(
    segment: layout.Segment, index_crc32: int, marks: tuple[tuple[int, int], ...] = ()
) -> ArchivedObject:
    """Makes an object's list entry from its own header, index and footer."""
    header, footer = segment.header, segment.footer
    return ArchivedObject(
        base_offset=header.base_offset,
        max_offset=header.max_offset,
        record_count=header.record_count,
        min_timestamp_ms=header.min_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        size_bytes=footer.object_size,
        flags=header.coding.flags,
        index_offset=footer.index_offset,
        index_crc32=index_crc32,
        marks=marks,
    )


def marks_of(newest: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """Chooses evenly spread blocks and the largest timestamp up to the end of each."""
    running = np.maximum.accumulate(newest)
    step = max(1, -(-len(running) // MARKS_MAX))
    return tuple((block, int(running[block])) for block in range(0, len(running), step))


def _last_offset(batch: pa.RecordBatch) -> int:
    return int(batch.column("offset")[batch.num_rows - 1].as_py())
