"""The cheap check that every sealed segment gets when a store opens: only its end is read.

A manifest that knows the segment vouches for it by sizes; otherwise the last index entry and the
records behind it must end where the next segment begins. What passes neither is walked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lamina.errors import CorruptData
from lamina.formats.keratin import manifest
from lamina.formats.log_format import Codec
from lamina.formats.scan import Limit, Stop
from lamina.log.directory import Place
from lamina.log.sealed_segment import INDEX_ENTRY_BYTES, SealedSegment
from lamina.log.segment import Bound
from lamina.storage.files import Files

CHEAP_CHECK_BYTES = 4 << 20
"""How much of a sealed segment's end an open reads at most before it looks at all of it."""


@dataclass(frozen=True, slots=True)
class CheapCheck:
    """Takes sealed segments that are as they were left.

    `recorded` are those of a sound manifest, by their first offset. `explained_from` takes the
    first offset of the next segment and returns where the range before it begins that the ledger
    explains.
    """

    place: Place
    codec: Codec
    recorded: Mapping[int, manifest.SealedSegment]
    explained_from: Callable[[int], int]

    def take(self, base_offset: int, following: int) -> SealedSegment | None:
        """Returns a segment that is whole up to where the next one begins; None if in doubt."""
        segment = SealedSegment(
            self.codec,
            self.place.files,
            self.place.segments,
            base_offset=base_offset,
            end=Bound(following, 0),
        )
        if self._is_as_recorded(segment, following):
            return segment
        end = self._end_by_index(segment, following)
        if end is None:
            return None
        segment.end = end
        return segment

    def _is_as_recorded(self, segment: SealedSegment, following: int) -> bool:
        """Accepts a segment whose files are as long as in the manifest: it was durable by then.

        A manifest has a checksum and is written after everything that it names is synced. Bytes
        that went bad since are found when they are read, as everywhere else in a segment.
        """
        known = self.recorded.get(segment.base_offset)
        if known is None or known.next_offset != following:
            return False
        files, log = self.place.files, segment.path("log")
        stem = log.removesuffix("log")
        try:
            for suffix in ("idx", self.codec.time_suffix):
                if files.size(stem + suffix) != known.idx_bytes:
                    return False
            size, head = _beginning(files, log, self.codec.header_bytes)
            if size != known.log_bytes:
                return False
            self.codec.check_log_header(head, segment.base_offset)
        except (OSError, CorruptData):
            return False
        segment.end = Bound(following, known.log_bytes)
        segment.recorded = known
        return True

    def _end_by_index(self, segment: SealedSegment, following: int) -> Bound | None:
        """Looks only at the last index entry and the records behind it, whatever the size.

        None sends the segment to the full check: something is missing, damaged or merely odd.
        """
        files = self.place.files
        log, index, times = (
            segment.path(suffix) for suffix in ("log", "idx", self.codec.time_suffix)
        )
        try:
            index_bytes, size = files.size(index), files.size(log)
            if index_bytes != files.size(times) or index_bytes < INDEX_ENTRY_BYTES:
                return None
            raw = _read(files, index, index_bytes - INDEX_ENTRY_BYTES, INDEX_ENTRY_BYTES)
            offset, position = self.codec.decode_entry(raw, segment.base_offset)
            if not self.codec.header_bytes <= position < size <= position + CHEAP_CHECK_BYTES:
                return None
            head = _read(files, log, 0, self.codec.header_bytes)
            self.codec.check_log_header(head, segment.base_offset)
            buffer = _read(files, log, position, size - position)
        except (OSError, CorruptData):
            return None
        found = self.codec.scan(buffer, 0, expected_offset=offset, limit=Limit())
        end = offset + len(found)
        if found.stop is not Stop.END or not self.explained_from(following) <= end <= following:
            return None
        return Bound(following, size)


def holds(files: Files, path: str, wanted: bytes) -> bool:
    """Returns whether a file can be read and holds just these bytes."""
    try:
        return files.read(path) == wanted
    except OSError:
        return False


def _beginning(files: Files, path: str, length: int) -> tuple[int, bytes]:
    """Returns a file's size and its first bytes."""
    file = files.open_read_only(path)
    try:
        return file.size(), file.read_at(0, length)
    finally:
        file.close()


def _read(files: Files, path: str, position: int, length: int) -> bytes:
    file = files.open_read_only(path)
    try:
        return file.read_at(position, length)
    finally:
        file.close()
