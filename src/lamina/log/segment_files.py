"""Which of the files in a partition's directory are its segments, and which offsets each serves.

A partition's own segments never overlap: each begins where the one before it ends. Files that were
copied, restored or put there by hand may. And a file may carry a segment's name without being one.

Rules.
1. Each offset is served once. Of two segments that hold the same offsets, the one serves them that
   the manifest or the checkpoint knows; else the one that ends where a further one begins, as its
   own do; else the one that reaches further, so that the end does not move back; else the earlier.
2. The loser is set aside: whole if it holds nothing else, otherwise from the shared offsets on.
3. A file that holds bytes, but no sound record, is no segment and is set aside whole. A last one
   that is empty, or begins as a segment does, may be one whose creation was torn.

Recovery carries that out; a reader goes by the same answer without touching a file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.log_format import Codec
from lamina.formats.offset_log import OffsetLog
from lamina.formats.scan import Run, Stop, is_prepared_space, runs
from lamina.log.segment import newer_record

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the sound records of a segment reach, from its first offset on.

    `has_records` is False if it holds none; `is_blank` is set if nothing was ever written.
    """

    base_offset: int
    next_offset: int
    has_records: bool = True
    is_blank: bool = False

    @property
    def is_foreign(self) -> bool:
        """Whether the file holds something, and no record."""
        return not self.has_records and not self.is_blank


@dataclass(frozen=True, slots=True)
class Arranger:
    """Settles which segments count.

    `measure` returns the extent of one, from where the next one begins and where the ones before it
    end. `drop` and `cut` carry out what is decided: a whole segment goes, or all of it from an
    offset on, in favour of another one, whose first offset is passed; None for none.
    """

    vouched: Collection[int]
    measure: Callable[[int, int | None, int], Extent]
    drop: Callable[[int, int | None], None]
    cut: Callable[[int, int], None]

    def arrange(self, bases: Sequence[int]) -> list[int]:
        """Returns the first offsets of the segments that count, ascending."""
        kept: list[Extent] = []
        for row, base in enumerate(bases):
            following = bases[row + 1] if row + 1 < len(bases) else None
            extent = self.measure(base, following, kept[-1].next_offset if kept else 0)
            if extent.is_foreign:
                self.drop(base, None)
                continue
            before = kept[-1] if kept else None
            if before is None or before.next_offset <= base:
                kept.append(extent)
            elif self._strength(extent, bases) > self._strength(before, bases):
                self.cut(before.base_offset, base)
                kept[-1] = replace(before, next_offset=base)
                kept.append(extent)
            else:
                self.drop(base, before.base_offset)
        return [extent.base_offset for extent in kept]

    def _strength(self, extent: Extent, bases: Sequence[int]) -> tuple[bool, bool, int]:
        reach = extent.next_offset
        return extent.base_offset in self.vouched, reach in bases, reach


def measure(
    codec: Codec,
    buffer: Buffer,
    base_offset: int,
    following: int | None,
    path: str,
    *,
    start: tuple[int, int] | None = None,
) -> Extent:
    """Walks a whole segment. Behind damage, records from the next segment's first on do not count.

    `start` is the (position, offset) of a record that is known to be sound, to begin with it.

    Raises NewerFormat for a header or a record of a newer version that is sound.
    """
    try:
        codec.check_log_header(buffer, base_offset)
    except NewerFormat as error:
        raise error.at_path(path) from error
    except CorruptData:
        pass  # its records decide, if it has any
    size = memoryview(buffer).nbytes
    position, offset, has_records = min(codec.header_bytes, size), base_offset, False
    if start is not None:
        position, offset = start
    head = memoryview(buffer)[: codec.header_bytes]
    begins = is_prepared_space(head, 0) or codec.begins_log(head, base_offset)
    is_blank = begins and is_prepared_space(buffer, position)
    for step in runs(OffsetLog(codec.log, buffer), position, offset, end_number=following):
        if isinstance(step, Run):
            offset, has_records = step.end, True
        elif step.stop is Stop.BAD_VERSION:
            raise newer_record(path, step.position)
        elif step.following is not None:
            offset = step.following
    return Extent(base_offset, offset, has_records, is_blank)


def position_of(codec: Codec, buffer: Buffer, base_offset: int, wanted: int) -> int:
    """Returns the byte where the first record not below an offset starts; the size without one."""
    size = memoryview(buffer).nbytes
    start = min(codec.header_bytes, size)
    position, offset = start, base_offset
    for step in runs(OffsetLog(codec.log, buffer), start, base_offset):
        if offset >= wanted:
            break
        if isinstance(step, Run):
            row = wanted - step.first
            position = int(step.found.positions[row]) if wanted < step.end else step.found.end
            offset = step.end
        elif step.following is None:
            return size
        else:
            position, offset = step.end, step.following
    return position
