"""A sealed segment made whole again: what is sound of it, and what the archive still has.

    set aside   every damaged spot, byte for byte
    stage       sound frames as they are, archived records encoded again, below `mending/`
    swap        into the place of the old segment, as an erasure does it (`rewrite.swap`)
    ledger      what was entered as lost and is there again is lost no more

Rules.
1. Only what neither the segment nor the archive has is entered as lost, and what was removed on
   purpose stays so.
2. A crash between any two steps leaves every record in a segment that is read; the next run finds
   what is left to do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lamina.api import Gap
from lamina.errors import CorruptData
from lamina.formats.documents.ledger import ARCHIVED, LOST
from lamina.formats.log_format import Codec
from lamina.formats.ranges import Ranges, Span
from lamina.inspect.findings import Finding, load_file
from lamina.inspect.segment_check import STEP
from lamina.log.batch_offsets import first_of
from lamina.log.cold import Cold
from lamina.log.partition import Partition
from lamina.log.sealed_segment import SealedSegment
from lamina.log.sound_copies import Mended, Piece, archived, covered
from lamina.records import INPUT_SCHEMAS
from lamina.storage.files import LocalFiles
from lamina.store import rewrite
from lamina.store.rewrite import LOGS, Run, Staged


def mend(partition: Partition, base_offset: int, directory: str) -> Mended:
    """Makes a sealed segment whole, as far as that can be done. For the leader.

    Stages below a directory that is never read.
    """
    segment = next(each for each in partition.layout.sealed if each.base_offset == base_offset)
    pieces, created_ms = _sound(partition, segment)
    # What the ledger has as removed stays away; what it has as lost may be found again.
    removed = partition.ledger.ranges_but(ARCHIVED, LOST)
    wanted = Ranges.between(base_offset, segment.next_offset).minus(removed).minus(covered(pieces))
    restored = [
        piece
        for span in wanted.pairs()
        for piece in _encoded(partition.codec, partition.cold, span)
    ]
    pieces = sorted([*pieces, *restored], key=lambda piece: piece.first)
    lost = wanted.minus(covered(restored)).pairs()
    now_ms = partition.place.now_ms()
    gaps = [Gap(first, end, LOST, now_ms, segment.path("log")) for first, end in lost]
    staged = Staged(directory, _written(partition.codec, pieces, created_ms, directory), ())
    rewrite.swap(partition, base_offset, staged, gaps)
    back = covered(restored).pairs()
    partition.found_again(back)
    return Mended(back, lost)


def _sound(partition: Partition, segment: SealedSegment) -> tuple[list[Piece], int]:
    """Returns the sound frames of a segment, and when it was made; sets damaged spots aside."""
    codec, path = partition.codec, segment.path("log")
    data = memoryview(load_file(path)).cast("B")
    pieces = []
    for step in LOGS[codec.name].walk(path, data, STEP):
        if isinstance(step, Finding):
            end = step.resumes_at if step.resumes_at is not None else data.nbytes
            if step.position < end:
                partition.place.set_aside(path, bytes(data[step.position : end]), step.position)
            continue
        first = codec.offset_at(data, int(step.positions[0]))
        count = min(len(step), segment.next_offset - first)
        if first >= segment.base_offset and count > 0:
            end = step.end if count == len(step) else int(step.positions[count])
            start = int(step.positions[0])
            pieces.append(Piece(first, data[start:end], step.positions[:count] - start))
    try:
        head = data[: codec.header_bytes]
        return pieces, codec.check_log_header(head, segment.base_offset) or 0
    except CorruptData:
        return pieces, 0


def _encoded(codec: Codec, cold: Cold | None, span: Span) -> Iterator[Piece]:
    names = INPUT_SCHEMAS[codec.name].names
    for batch in archived(cold, span):
        data, positions = codec.encode(batch.select(names), first_of(batch))
        yield Piece(first_of(batch), memoryview(data.tobytes()), positions.astype(np.int64))


def _written(codec: Codec, pieces: list[Piece], created_ms: int, directory: str) -> tuple[Run, ...]:
    """Writes neighbours as one segment each, with indexes, durably."""
    found: list[Run] = []
    files = LocalFiles()
    start = 0
    for at in range(1, len(pieces) + 1):
        if at == len(pieces) or pieces[at].first != pieces[at - 1].end:
            some = pieces[start:at]
            sizes = np.cumsum([0, *(piece.data.nbytes for piece in some)])
            positions = np.concatenate(
                [piece.positions + size for piece, size in zip(some, sizes.tolist(), strict=False)]
            )
            body = b"".join(piece.data for piece in some)
            where = files, directory
            found.append(
                rewrite.write_run(codec, where, (some[0].first, created_ms), body, positions)
            )
            start = at
    return tuple(found)
