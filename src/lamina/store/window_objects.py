"""Sections of windows, read like archived objects: their bodies have the same format.

    tail/<seq>.tail │ … │ body of a section │ …        `Shipped`: an entry, as a list has them
                        └ held here, or read by its range

Rules.
1. The bodies held in memory are bounded: the oldest are dropped first, and read from their window
   again when needed.
2. An entry may be cut at the front, if the archive already has those records. Its bytes are still
   those of the whole section.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lamina.archive.encode import check_belongs, entry_of
from lamina.archive.object_reader import ColdLog
from lamina.errors import CorruptData
from lamina.formats import tail_file
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.kernels.binary import as_bytes
from lamina.formats.strm import layout
from lamina.formats.strm import segment as strm_segment
from lamina.formats.strm.block import crc32_of
from lamina.formats.tail_file import Kind, Section, Tail
from lamina.storage import paths

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from lamina.storage.objects import Ranges

HELD_BYTES = 64 << 20
"""How many bytes of windows are held."""


@dataclass(frozen=True, slots=True)
class Shipped(ArchivedObject):
    """A section with records: `where` names its bytes, the other fields its span before any cut."""

    where: str = ""
    whole_base: int = 0
    whole_count: int = 0

    @property
    def is_dense(self) -> bool:
        """Whether the whole section holds a record for every offset of its span."""
        return self.whole_count == self.next_offset - self.whole_base

    @property
    def whole(self) -> Shipped:
        """The entry before it was cut."""
        return replace(self, base_offset=self.whole_base, record_count=self.whole_count)

    def cut(self, first: int) -> Shipped:
        """Returns the part from an offset on, which is below its end."""
        if first <= self.base_offset:
            return self
        count = min(self.record_count, self.next_offset - first)
        return replace(self, base_offset=first, record_count=count)


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a window holds of a partition: a span of offsets, and the records that exist in it."""

    seq: int
    first_offset: int
    next_offset: int
    records: Shipped | None


def stretches_of(tail: Tail, held: HeldWindows) -> list[tuple[Section, Stretch]]:
    """Returns the records of a window, and holds their bytes; raises CorruptData."""
    found = []
    for section, position in zip(tail.sections, tail_file.positions(tail), strict=True):
        if section.kind == Kind.RECORDS:
            shipped = _shipped(tail.seq, section, position) if section.body else None
            if shipped is not None:
                held.hold(shipped.where, section.body)
            found.append(
                (section, Stretch(tail.seq, section.first_offset, section.next_offset, shipped))
            )
    return found


def _shipped(seq: int, section: Section, position: int) -> Shipped:
    """Makes the entry of a section from its own header, index and footer."""
    try:
        segment = strm_segment.open_segment(section.body)
        check_belongs(segment.header, section.name, section.partition)
        index = memoryview(section.body)[segment.footer.index_offset :]
        entry = entry_of(segment, crc32_of(as_bytes(index)))
        if entry.base_offset < section.first_offset or entry.next_offset > section.next_offset:
            raise CorruptData(
                "a section's records are not those that it names",
                expected=f"[{section.first_offset}, {section.next_offset})",
                found=f"[{entry.base_offset}, {entry.next_offset})",
            )
    except CorruptData as error:
        raise error.at_path(paths.tail(seq)) from error
    return Shipped(
        base_offset=entry.base_offset,
        max_offset=entry.max_offset,
        record_count=entry.record_count,
        min_timestamp_ms=entry.min_timestamp_ms,
        max_timestamp_ms=entry.max_timestamp_ms,
        size_bytes=entry.size_bytes,
        flags=entry.flags,
        index_offset=entry.index_offset,
        index_crc32=entry.index_crc32,
        where=f"{paths.tail(seq)}#{position}+{entry.size_bytes}",
        whole_base=entry.base_offset,
        whole_count=entry.record_count,
    )


class HeldWindows:
    """An object store in which sections of windows are objects, too; the newest are in memory."""

    def __init__(self, objects: Ranges, room_bytes: int = HELD_BYTES) -> None:
        self.url = objects.url
        self.size_bytes = 0
        self._objects = objects
        self._room_bytes = room_bytes
        self._bodies: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def hold(self, where: str, body: bytes) -> None:
        """Holds a body, and drops the oldest ones if there is no more room."""
        with self._lock:
            if where in self._bodies:
                return
            self._bodies[where] = body
            self.size_bytes += len(body)
            while self.size_bytes > self._room_bytes:
                self.size_bytes -= len(self._bodies.pop(next(iter(self._bodies))))

    def let_go(self, below_seq: int) -> None:
        """Drops the bodies of windows below a slot."""
        with self._lock:
            end = paths.tail(below_seq)  # slots are written with all digits: as text they sort
            for where in [each for each in self._bodies if each < end]:
                self.size_bytes -= len(self._bodies.pop(where))

    def read_range(self, key: str, start: int, end: int) -> Buffer:
        """Reads a range of an object, or of a section; see `Objects`."""
        window, _, place = key.partition("#")
        if not place:
            return self._objects.read_range(key, start, end)
        body = self._bodies.get(key)
        if body is not None:
            return memoryview(body)[start:end]
        origin = int(place.partition("+")[0])
        return self._objects.read_range(window, origin + start, origin + end)

    def size(self, key: str) -> int:
        """Returns the size of an object, or of a section."""
        _, _, place = key.partition("#")
        return int(place.partition("+")[2]) if place else self._objects.size(key)


class ReplicaCold(ColdLog):
    """The objects and sections of one partition, as its readers see them."""

    __slots__ = ()

    def _key(self, entry: ArchivedObject) -> str:
        return entry.where if isinstance(entry, Shipped) else super()._key(entry)

    def segment_of(self, entry: ArchivedObject, offset: int) -> layout.Segment:
        """Returns the index of an object, or of a whole section."""
        return super().segment_of(entry.whole if isinstance(entry, Shipped) else entry, offset)
