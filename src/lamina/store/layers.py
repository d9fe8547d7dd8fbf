"""A partition drawn from its indexes: its layers, the blocks of a layer, a record's own bytes.

    gone ── cold (archived, or moved) ── sealed ── active          oldest first, no overlap

Nothing here reads records to tell of layers and blocks: what is told comes from indexes and lists
that are in memory or, for an archived object, from its index by one range.

Rules.
1. Layers cover the offsets from the first that ever was to the written end, in order.
2. What is told is bounded by what the caller asks for: `blocks` joins neighbours to stay within it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lamina.api import Block, Layer, RawRecord, State, Window
from lamina.errors import InvalidRequest, OffsetOutOfRange
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.ledger import ARCHIVED
from lamina.formats.scan import Limit
from lamina.formats.strm.layout import ENVELOPED, Compression
from lamina.log.interfaces import LogReader
from lamina.log.partition_reader import PartitionReader
from lamina.log.segment import Bound, Segment
from lamina.storage.paths import ObjectKey

if TYPE_CHECKING:  # not every store has a write-ahead log or an archive
    from lamina.wal.reader import TopicReader

WAL_BLOCK_RECORDS = 256
"""Segments of wal topics index every record; so many of them are shown as one block."""
_Numbers: TypeAlias = NDArray[np.int64]
_Reader: TypeAlias = "PartitionReader | TopicReader"


def layers_of(reader: LogReader) -> list[Layer]:
    """Returns the layers of a partition, oldest first."""
    if isinstance(reader, PartitionReader):
        found = _segmented(reader)
    elif (topic := _as_topic(reader)) is not None:
        found = _write_ahead(topic)
    else:
        raise InvalidRequest(f"{reader.place.name} has no layers to show")
    gaps = [gap for gap in reader.ledger_of_gaps.missing() if gap.reason != ARCHIVED]
    gone = [
        Layer("gone", gap.first, gap.end, 0, None, None, "", 0, False, gap.reason) for gap in gaps
    ]
    first = found[0].base_offset if found else 0
    return [each for each in gone if each.next_offset <= first] + found


def blocks_of(reader: LogReader, base_offset: int, window: Window) -> list[Block]:
    """Returns the blocks of the layer that begins at an offset, as far as a window shows them."""
    layer = next((each for each in layers_of(reader) if each.base_offset == base_offset), None)
    if layer is None or layer.state == "gone":
        raise OffsetOutOfRange(f"{reader.place.name}: no layer begins at {base_offset}")
    known = reader if isinstance(reader, PartitionReader) else _as_topic(reader)
    if known is not None and layer.compression:
        return _cold_blocks(known, layer, window)
    if isinstance(reader, PartitionReader):
        return _segment_blocks(reader, layer, window)
    return _even_blocks(layer, window)


def raw_record(reader: LogReader, offset: int) -> RawRecord | None:
    """Returns a durable record's bytes in its segment; None where it lies in no local segment."""
    if not isinstance(reader, PartitionReader):
        return None
    holder = reader.layout.segment_for(offset, "durable")
    if holder is None or offset < holder[0].base_offset:
        return None
    segment, bound = holder
    position = segment.locate(offset, bound)
    found, _, buffer = segment.scan(position, offset, Limit(max_records=1), bound)
    view = memoryview(buffer).cast("B")
    return RawRecord(segment.path("log"), position, bytes(view[: found.end]))


# ---------------------------------------------------------------------- segmented partitions


def _segmented(reader: PartitionReader) -> list[Layer]:
    layout = reader.layout
    found = _archived(reader, reader.earliest_offset(), layout.earliest_offset)
    for segment in layout.sealed:
        layer = _segment_layer(segment, segment.end, "sealed")
        found.append(replace(layer, archived=segment.next_offset <= _archived_end(reader)))
    active = layout.active
    found.append(_segment_layer(active.segment, active.written, "active"))
    return found


# ---------------------------------------------------------------------- the archive


def _archived(reader: _Reader, earliest: int, local: int) -> list[Layer]:
    """Returns the objects that hold what no local layer does and nobody has removed."""
    entries = reader.cold.entries if reader.cold is not None else ()
    return [
        replace(_object_layer(reader, entry), next_offset=min(entry.next_offset, local))
        for entry in entries
        if earliest < entry.next_offset and entry.base_offset < local
    ]


def _archived_end(reader: _Reader) -> int:
    entries = reader.cold.entries if reader.cold is not None else ()
    return entries[-1].next_offset if entries else 0


def _object_layer(reader: _Reader, entry: ArchivedObject) -> Layer:
    codec = Compression(entry.flags & ~ENVELOPED).name.lower()
    place = reader.place
    return Layer(
        "cold",
        entry.base_offset,
        entry.next_offset,
        entry.size_bytes,
        entry.min_timestamp_ms,
        entry.max_timestamp_ms,
        codec,
        max(1, len(entry.marks)),
        True,
        ObjectKey(place.topic, place.partition, entry.base_offset, entry.generation).name,
    )


def _segment_layer(segment: Segment, bound: Bound, state: State) -> Layer:
    index = segment.index
    times = index.times()
    return Layer(
        state,
        segment.base_offset,
        bound.next_offset,
        bound.position,
        int(times["timestamp_ms"][0]) if len(times) else None,
        index.newest_timestamp_ms,
        "",
        max(1, len(times)),
        False,
        segment.path("log"),
    )


def _segment_blocks(reader: PartitionReader, layer: Layer, window: Window) -> list[Block]:
    holder = reader.layout.segment_for(layer.base_offset, "written")
    if holder is None:
        return []
    segment, bound = holder
    entries, times = segment.index.offsets(), segment.index.times()
    count = min(len(entries), len(times))
    inside = entries["offset"][:count] < bound.next_offset
    starts = np.concatenate([[layer.base_offset], entries["offset"][:count][inside]])
    bytes_at = np.concatenate([[segment.codec.header_bytes], entries["position"][:count][inside]])
    starts, first = np.unique(starts, return_index=True)
    newest = np.maximum.accumulate(times["timestamp_ms"]) if count else np.empty(0, np.int64)
    at = np.searchsorted(times["offset"], np.append(starts[1:], bound.next_offset), side="left")
    known = [int(newest[row - 1]) if row > 0 else None for row in at.tolist()]
    end = (bound.next_offset, bound.position)
    return _joined(starts, bytes_at[first], known, end, window)


def _cold_blocks(reader: _Reader, layer: Layer, window: Window) -> list[Block]:
    from lamina.archive.object_reader import ColdLog

    assert isinstance(reader.cold, ColdLog), "a cold layer comes from an archive"
    entry = reader.cold.entry_for(layer.base_offset)
    if entry is None:
        raise OffsetOutOfRange(f"{reader.place.name}: {layer.base_offset} is not archived any more")
    table = reader.cold.segment_of(entry, entry.base_offset)
    marks = dict(entry.marks)
    newest: list[int | None] = [marks.get(number) for number in range(len(table))]
    end = (layer.next_offset, table.block_range(len(table) - 1)[1])
    below = table.offsets < layer.next_offset
    kept = [each for each, keep in zip(newest, below.tolist(), strict=True) if keep]
    return _joined(table.offsets[below], table.positions[below], kept, end, window)


def _joined(
    starts: _Numbers,
    positions: _Numbers,
    newest: list[int | None],
    end: tuple[int, int],
    window: Window,
) -> list[Block]:
    """Makes blocks of index entries; joins as many neighbours as keeps them within the limit."""
    ends = np.append(starts[1:], end[0])
    last_bytes = np.append(positions[1:], end[1])
    shown = np.flatnonzero((ends > window.first) & (starts < window.end))
    starts, ends, positions = starts[shown], ends[shown], positions[shown]
    last_bytes, newest = last_bytes[shown], [newest[row] for row in shown.tolist()]
    step = max(1, -(-len(starts) // window.limit))
    found = []
    for row in range(0, len(starts), step):
        last = min(row + step, len(starts)) - 1
        known = [each for each in newest[row : last + 1] if each is not None]
        found.append(
            Block(
                int(starts[row]),
                int(ends[last]),
                int(positions[row]),
                int(last_bytes[last] - positions[row]),
                max(known, default=None),
                last - row + 1,
            )
        )
    return [block for block in found if block.next_offset > block.base_offset]


# ---------------------------------------------------------------------- wal topics


def _as_topic(reader: LogReader) -> TopicReader | None:
    from lamina.wal.reader import TopicReader

    return reader if isinstance(reader, TopicReader) else None


def _write_ahead(reader: TopicReader) -> list[Layer]:
    found = _archived(reader, reader.earliest_offset(), reader.local_start)
    archived_end = _archived_end(reader)
    inside = os.path.join(reader.place.data, "")
    oldest: int | None = None
    for segment in reader.layers.segments:
        moved = not segment.directory.startswith(inside)
        state: State = "cold" if moved else "sealed" if segment.sealed else "active"
        found.append(
            Layer(
                state,
                segment.first_sequence,
                segment.end_sequence,
                segment.data_bytes,
                oldest,
                segment.newest_ms,
                "",
                max(1, -(-segment.entry_count // WAL_BLOCK_RECORDS)),
                segment.end_sequence <= archived_end,
                segment.path("data"),
            )
        )
        oldest = segment.newest_ms
    first, end = max(reader.absorbed_end, reader.earliest_offset()), reader.written_end
    if end > first or not found:
        count = max(1, -(-(end - first) // WAL_BLOCK_RECORDS))
        name = "the write-ahead log"
        found.append(
            Layer("active", first, end, reader.wal_bytes, oldest, None, "", count, False, name)
        )
    return found


def _even_blocks(layer: Layer, window: Window) -> list[Block]:
    """Cuts a layer of a wal topic into blocks of equally many records."""
    records = layer.next_offset - layer.base_offset
    if records <= 0:
        return []
    first, stop = max(layer.base_offset, window.first), min(layer.next_offset, window.end)
    joined = max(1, -(-(stop - first) // (WAL_BLOCK_RECORDS * window.limit)))
    step = WAL_BLOCK_RECORDS * joined
    first -= (first - layer.base_offset) % WAL_BLOCK_RECORDS
    found = []
    for base in range(first, stop, step):
        end = min(base + step, layer.next_offset)
        position = layer.size_bytes * (base - layer.base_offset) // records
        after = layer.size_bytes * (end - layer.base_offset) // records
        found.append(Block(base, end, position, after - position, None, joined))
    return found
