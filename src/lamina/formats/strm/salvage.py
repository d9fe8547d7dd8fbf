"""What can still be read of a damaged STRM object: its table of blocks, rebuilt.

A block is under its own checksum. Header, index and footer are under the file's alone, and under
that of the list (`index_crc32`). So one flipped bit there can be found and turned back: no other
single bit has the same checksum. Where more is damaged, or the object is cut off, its blocks are
walked from the start, and their offsets follow from the object's entry in the list.

Rules.
1. No record is ever given an offset that is not certain. In an object without holes every block
   begins where the one before ends; in one with holes that is certain only if the blocks, put end
   to end, reach exactly the last offset. A block whose offset is not certain counts as damaged.
2. What lies between sound blocks is one run that reads as damaged: readers get what is before it,
   then the gap, then what is behind it.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.scan import Budget, Limit, Run, Scan, Stop, runs
from lamina.formats.strm import block, layout
from lamina.formats.strm import segment as strm_segment
from lamina.formats.strm.layout import BLOCK, FOOTER, HEADER, INDEX, INDEX_ENTRY, Footer, Header

_POLYNOMIAL = 0xEDB88320
CORRECTED_BYTES_MAX = 1 << 20
"""The most bytes that are searched for a flipped bit; the index of 65,000 blocks."""
_IDENTITY = tuple(name for name in HEADER.fields if name != "created_at_ms")


def corrected(data: bytes, expected_crc32: int) -> bytes | None:
    """Returns the bytes with the one bit turned back that makes the checksum fit, if one does."""
    if len(data) > CORRECTED_BYTES_MAX:
        return None
    return _turned_back(data, zlib.crc32(data) ^ expected_crc32, (0, len(data)), 0)


def _turned_back(
    data: bytes, difference: int, window: tuple[int, int], bytes_after: int
) -> bytes | None:
    """Finds the bit of a window whose flip explains a difference of checksums.

    A flip changes the checksum by a value that depends only on how many bits follow it.
    `bytes_after` follow the data under the same checksum.
    """
    start, end = window
    register = _after_zeros(1, len(data) - end + bytes_after)
    for distance in range(8 * (end - start)):
        register = (register >> 1) ^ (_POLYNOMIAL if register & 1 else 0)
        if register == difference:
            mended = bytearray(data)
            mended[end - 1 - distance // 8] ^= 1 << (7 - distance % 8)
            return bytes(mended)
    return None


def _after_zeros(register: int, count: int) -> int:
    """Advances a checksum's register over zero bytes, in steps of powers of two."""
    rows = [_one_bit(1 << bit) for bit in range(32)]
    for _ in range(3):
        rows = [_times(rows, row) for row in rows]
    while count:
        if count & 1:
            register = _times(rows, register)
        rows = [_times(rows, row) for row in rows]
        count >>= 1
    return register


def _one_bit(register: int) -> int:
    return (register >> 1) ^ (_POLYNOMIAL if register & 1 else 0)


def _times(rows: list[int], register: int) -> int:
    found, bit = 0, 0
    while register:
        if register & 1:
            found ^= rows[bit]
        register >>= 1
        bit += 1
    return found


# ---------------------------------------------------------------------- whole objects


def mended(data: bytes) -> bytes | None:
    """Returns a whole object with what is wrong outside of its blocks put right; None if it cannot.

    What is returned has passed `verify`.
    """
    for candidate in _footers(data):
        found = zlib.crc32(candidate[: -layout.UNCOVERED_BYTES])
        footer = layout.decode_footer(candidate[-FOOTER.size :], len(candidate))
        if found == footer.file_crc:
            return _if_sound(candidate)
        covered = candidate[: -layout.UNCOVERED_BYTES]
        difference = found ^ footer.file_crc
        for window in ((0, HEADER.size), (footer.index_offset, len(covered))):
            if window[1] - window[0] > CORRECTED_BYTES_MAX:
                continue
            right = _turned_back(covered, difference, window, 0)
            if right is not None:
                return _if_sound(right + candidate[-layout.UNCOVERED_BYTES :])
        right = _if_sound(_with_checksum(candidate, found))
        if right is not None:  # only the checksum itself was wrong
            return right
    return None


def _footers(data: bytes) -> Iterator[bytes]:
    """Yields an object with footers that fit its size: its own, or one with a field put right."""
    if len(data) < HEADER.size + layout.BLOCK_BYTES_MIN + FOOTER.size:
        return
    body, fields = data[: -FOOTER.size], FOOTER.unpack(data[-FOOTER.size :])
    at, size = fields["index_offset"], fields["index_size"]
    for index_offset in dict.fromkeys((at, len(body) - size)):
        if not 0 <= index_offset <= len(body):
            continue
        footer = Footer(index_offset, len(body) - index_offset, fields["file_crc"])
        candidate = body + layout.encode_footer(footer)
        try:
            layout.decode_footer(candidate[-FOOTER.size :], len(candidate))
        except CorruptData:
            continue
        yield candidate


def _with_checksum(data: bytes, file_crc: int) -> bytes:
    footer = layout.decode_footer(data[-FOOTER.size :], len(data))
    return data[: -FOOTER.size] + layout.encode_footer(replace(footer, file_crc=file_crc))


def is_sound(data: bytes) -> bool:
    """Returns whether a whole object is sound in itself, whatever it holds."""
    return _if_sound(data) is not None


def _if_sound(data: bytes) -> bytes | None:
    try:
        strm_segment.verify(data)
    except CorruptData:
        return None
    return data


def is_of(data: memoryview, expected: Header) -> bool:
    """Returns whether the bytes under an object's name are that object, damaged as they may be.

    An object that is sound in itself and differs from that is another one; so is one that differs
    in more than one field of its header. Raises NewerFormat for a sound one of a newer version.
    """
    if len(data) < HEADER.size:
        return True
    wanted = HEADER.unpack(layout.encode_header(expected))
    found = HEADER.unpack(data[: HEADER.size])
    unset = found["topic_hash"] == 0
    different = [
        name
        for name in _IDENTITY
        if found[name] != wanted[name] and not (unset and name == "topic_hash")
    ]
    if len(different) > 1:
        return False
    if not different:
        return True
    try:
        strm_segment.verify(data)
    except NewerFormat:
        raise
    except CorruptData:
        return True
    return False


# ---------------------------------------------------------------------- blocks


@dataclass(frozen=True, slots=True)
class _Found:
    """A sound block, or a run of bytes that holds none; `last` is relative to its base."""

    position: int
    end: int
    rows: int = 0
    last: int = 0
    is_sound: bool = False


def table(data: memoryview, header: Header, index_offset: int, raw_index: bytes) -> layout.Segment:
    """Makes the table of an object's blocks again, from as many of its bytes as there are.

    `header` and `index_offset` are from the object's entry in the list; of `raw_index`, its damaged
    index, only the positions are used, to find sound blocks behind damaged ones. Raises CorruptData
    if no block is sound.
    """
    found = list(_walk(data, header, index_offset, _positions(raw_index)))
    bases = _bases(found, header)
    rows: list[tuple[int, int]] = []
    unreadable: set[int] = set()
    offset, lost_at = header.base_offset, None
    for each, base in zip(found, bases, strict=True):
        if base is None:
            lost_at = each.position if lost_at is None else lost_at
            continue
        if lost_at is not None:
            if base <= offset:
                raise CorruptData("damaged bytes leave no room for a record", position=lost_at)
            unreadable.add(len(rows))
            rows.append((offset, lost_at))
            lost_at = None
        rows.append((base, each.position))
        offset = base + each.last + 1
    if not any(base is not None for base in bases):
        raise CorruptData("no block of the object is sound", position=HEADER.size)
    if offset <= header.max_offset:
        unreadable.add(len(rows))
        rows.append((offset, index_offset if lost_at is None else lost_at))
    elif lost_at is not None:  # behind the last record: what was the index
        index_offset = lost_at
    offsets, positions = np.array(rows, dtype=np.int64).T.copy()
    size = INDEX.size + INDEX_ENTRY.size * len(rows)
    footer = Footer(index_offset, size, 0)
    return layout.Segment(header, footer, offsets, positions, frozenset(unreadable))


def _positions(raw_index: bytes) -> list[int]:
    count = (len(raw_index) - INDEX.size - FOOTER.size) // INDEX_ENTRY.size
    if count <= 0:
        return []
    entries = np.frombuffer(raw_index, dtype=">i8", count=2 * count, offset=INDEX.size)
    return sorted(entries.reshape(-1, 2)[:, 1].tolist())


def _walk(data: memoryview, header: Header, end: int, hints: list[int]) -> Iterator[_Found]:
    blocks, position = _Blocks(data[:end], header, hints), HEADER.size
    for step in runs(blocks, position):
        if isinstance(step, Run):
            yield from map(blocks.sound.__getitem__, step.found.positions.tolist())
            position = step.found.end
            continue
        after = end if step.following is None else step.end
        claimed = blocks.claim(position)
        yield _Found(position, after, claimed[1] if claimed and claimed[0] == after else 0)
        position = after
    if position < end:  # the object is cut off where a block ends
        yield _Found(position, end)


class _Blocks:
    """The blocks of an object as `scan.runs` walks them: their offsets are not known yet."""

    def __init__(self, data: memoryview, header: Header, hints: list[int]) -> None:
        self.data = data
        self.sound: dict[int, _Found] = {}
        """Every sound block that was met, by its position."""
        self._coding = header.coding
        self._hints = hints

    def scan(self, start: int, number: int | None, limit: Limit) -> Scan:
        """Walks sound blocks."""
        positions, position = [], start
        while (found := self._block_at(position)) is not None:
            positions.append(position)
            position = found.end
        stop = Stop.END if position == len(self.data) else Stop.BAD_CHECKSUM
        return Scan(np.array(positions, dtype=np.int64), position, stop)

    def resync(self, damage: Scan, number: int | None, budget: Budget) -> int | None:
        """Finds the next block where the damaged one claims to end, or where the index has one."""
        claimed = self.claim(damage.end)
        if claimed is not None and claimed[0] == len(self.data):
            return None
        candidates = self._hints[bisect_right(self._hints, damage.end) :]
        for position in [claimed[0], *candidates] if claimed else candidates:
            if self._block_at(position) is not None:
                return position
        return None

    def number_at(self, position: int) -> int:
        """Returns 0."""
        return 0

    def claim(self, position: int) -> tuple[int, int] | None:
        """Returns where a block claims to end, and how many records it claims to have."""
        if position + BLOCK.size > len(self.data):
            return None
        fields = BLOCK.unpack(self.data[position : position + BLOCK.size])
        return position + BLOCK.size + fields["compressed_size"], fields["record_count"]

    def _block_at(self, position: int) -> _Found | None:
        if position not in self.sound:
            stop = claimed[0] if (claimed := self.claim(position)) else 0
            if not position < stop <= len(self.data):
                return None
            try:
                found = block.decode_block(
                    self.data[position:stop], 0, self._coding, position=position
                )
            except CorruptData:
                return None
            sizes = found.batch.num_rows, found.last_offset
            self.sound[position] = _Found(position, stop, *sizes, is_sound=True)
        return self.sound[position]


def _bases(found: list[_Found], header: Header) -> list[int | None]:
    """Returns the base offset of each sound block, None where it is not certain."""
    span = header.max_offset - header.base_offset + 1
    is_dense = header.record_count == span
    if is_dense:
        widths = [each.rows for each in found]
        is_certain = sum(widths) == span
    else:
        widths = [each.last + 1 for each in found]
        is_certain = sum(widths) == span and all(each.is_sound for each in found)
    forward, bases = header.base_offset, []
    for each, width in zip(found, widths, strict=True):
        bases.append(forward if each.is_sound else None)
        forward += width
    if is_certain:
        return bases
    bad = [row for row, each in enumerate(found) if not each.is_sound]
    kept: list[int | None] = [None] * len(found)
    kept[: _prefix(found, bad, is_dense)] = bases[: _prefix(found, bad, is_dense)]
    backward = header.max_offset + 1
    for row in range(len(found) - 1, max(bad, default=-1), -1):
        backward -= widths[row]
        if kept[row] is None:
            kept[row] = backward
        if not is_dense:
            break
    return kept


def _prefix(found: list[_Found], bad: list[int], is_dense: bool) -> int:
    """How many blocks from the start on have a certain offset."""
    sound = bad[0] if bad else len(found)
    return sound if is_dense else min(1, sound)
