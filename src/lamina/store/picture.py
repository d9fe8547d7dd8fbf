"""A partition drawn from its indexes: its layers, the blocks of a layer, a record's own bytes.

    gone ── cold (archived, or moved) ── sealed ── active          oldest first, no overlap

Nothing here reads records to describe layers and blocks: they come from indexes and lists that are
in memory or, for an archived object, from its index, which is one range request.

Rules.
1. Layers cover the offsets from the first that ever was to the written end, in order.
2. Answers are bounded by the caller's limit: `blocks` joins neighbours to stay within it.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lamina.api import Block, Layer, RawRecord, State, Window
from lamina.errors import ArchiveUnavailable, OffsetOutOfRange
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.ledger import ARCHIVED
from lamina.formats.scan import Limit
from lamina.formats.strm.layout import ENVELOPED, Compression
from lamina.log import layers as pile
from lamina.log.interfaces import LogReader
from lamina.log.layers import Kind, ObjectSource
from lamina.log.segment import Bound, Segment

WAL_BLOCK_RECORDS = 256
"""Segments of wal topics index every record; so many of them are shown as one block."""
_Numbers: TypeAlias = NDArray[np.int64]
_STATES: dict[Kind, State] = {
    Kind.OBJECT: "cold",
    Kind.DIRECTORY: "cold",
    Kind.SEALED: "sealed",
    Kind.ACTIVE: "active",
    Kind.WAL: "active",
}


def layers_of(reader: LogReader) -> list[Layer]:
    """Returns the layers of a partition as they are drawn, oldest first; the gone ones first."""
    found: list[Layer] = []
    for layer in _shown(reader):
        before = (
            found[-1].newest_ms if found else None
        )  # for a tier that does not know the time of its first record
        found.append(_drawn(layer, before))
    gaps = [gap for gap in reader.ledger_of_gaps.missing() if gap.reason != ARCHIVED]
    first = found[0].base_offset if found else 0
    gone = [  # the last one may reach into a layer, which shows the rest of it
        Layer("gone", gap.first, min(gap.end, first), 0, None, None, "", 0, False, gap.reason)
        for gap in gaps
        if gap.first < first
    ]
    return gone + found


def _shown(reader: LogReader) -> list[pile.Layer]:
    """Returns the pile without what has expired of it and is still to be dropped."""
    earliest = reader.earliest_offset()
    *older, last = reader.layers()
    older = [each for each in older if each.kind is not Kind.OBJECT or each.next_offset > earliest]
    if last.kind is Kind.WAL:
        if older and last.next_offset <= max(last.base_offset, earliest):
            return older
        last = last._replace(base_offset=min(max(last.base_offset, earliest), last.next_offset))
    return [*older, last]


def _drawn(layer: pile.Layer, before_ms: int | None) -> Layer:
    """Returns a layer as it is drawn; `before_ms` is the newest time of the one below it."""
    source = layer.source
    compression = ""
    if isinstance(source, ObjectSource):
        compression = Compression(source.entry.flags & ~ENVELOPED).name.lower()
        blocks, oldest_ms = len(source.entry.marks), source.oldest_ms
    elif isinstance(source, Segment):
        blocks, oldest_ms = len(source.index.times()), source.oldest_ms
    else:
        records = layer.next_offset - layer.base_offset
        blocks, oldest_ms = -(-records // WAL_BLOCK_RECORDS), before_ms
    return Layer(
        _STATES[layer.kind],
        layer.base_offset,
        layer.next_offset,
        layer.size_bytes,
        oldest_ms,
        layer.newest_ms,
        compression,
        max(1, blocks),
        layer.archived,
        layer.where,
    )


def blocks_of(reader: LogReader, base_offset: int, window: Window) -> list[Block]:
    """Returns the blocks of the layer that begins at an offset, as far as a window shows them."""
    layer = next((each for each in _shown(reader) if each.base_offset == base_offset), None)
    if layer is None:
        raise OffsetOutOfRange(f"{reader.place.name}: no layer begins at {base_offset}")
    if isinstance(layer.source, ObjectSource):
        return _cold_blocks(reader, layer, layer.source.entry, window)
    if layer.kind is Kind.OBJECT:
        raise ArchiveUnavailable(f"{reader.place.name}: {base_offset} is in {layer.where}")
    if isinstance(layer.source, Segment):
        return _segment_blocks(layer, layer.source, window)
    return _even_blocks(layer, window)


def raw_record(reader: LogReader, offset: int) -> RawRecord | None:
    """Returns a durable record's bytes in its segment; None where it lies in no local segment."""
    if offset < reader.earliest_offset():
        return None
    for layer in reader.layers("durable"):
        segment = layer.source
        if layer.base_offset <= offset < layer.next_offset and isinstance(segment, Segment):
            bound = Bound(layer.next_offset, layer.size_bytes)
            position = segment.locate(offset, bound)
            found, _, buffer = segment.scan(position, offset, Limit(max_records=1), bound)
            view = memoryview(buffer).cast("B")
            return RawRecord(segment.path("log"), position, bytes(view[: found.end]))
    return None


# ---------------------------------------------------------------------- blocks


def _segment_blocks(layer: pile.Layer, segment: Segment, window: Window) -> list[Block]:
    entries, times = segment.index.offsets(), segment.index.times()
    count = min(len(entries), len(times))
    inside = entries["offset"][:count] < layer.next_offset
    starts = np.concatenate([[layer.base_offset], entries["offset"][:count][inside]])
    bytes_at = np.concatenate([[segment.codec.header_bytes], entries["position"][:count][inside]])
    starts, first = np.unique(starts, return_index=True)
    newest = np.maximum.accumulate(times["timestamp_ms"]) if count else np.empty(0, np.int64)
    at = np.searchsorted(times["offset"], np.append(starts[1:], layer.next_offset), side="left")
    known = [int(newest[row - 1]) if row > 0 else None for row in at.tolist()]
    end = (layer.next_offset, layer.size_bytes)
    return _joined(starts, bytes_at[first], known, end, window)


def _cold_blocks(
    reader: LogReader, layer: pile.Layer, entry: ArchivedObject, window: Window
) -> list[Block]:
    cold = reader.cold
    assert cold is not None, "a cold layer comes from an archive"
    table = cold.segment_of(entry, entry.base_offset)
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


def _even_blocks(layer: pile.Layer, window: Window) -> list[Block]:
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
