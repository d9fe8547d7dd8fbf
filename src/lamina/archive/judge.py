"""What an object is, as far as that can be known: sound, damaged, unreadable, or foreign.

A list that is made again must name every object that may hold the only copy of a record, also one
that is damaged: readers get what is left of it, and it is not mistaken for an orphan.

Rules.
1. A list's entry for an object is trusted more than the object's damaged bytes.
2. An object whose header and index agree is sound, as far as a list needs it; one with holes only
   if its checksum fits, for nothing else protects the offsets in its index.
3. Nothing here changes the archive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from lamina.archive.encode import check_belongs, entry_of, examine
from lamina.errors import CorruptData, NewerFormat, ObjectMissing
from lamina.formats.documents.archive_manifest import ArchivedObject, without_overlap
from lamina.formats.kernels.binary import as_bytes
from lamina.formats.strm import layout, salvage
from lamina.formats.strm import segment as strm_segment
from lamina.formats.strm.block import crc32_of
from lamina.storage import paths
from lamina.storage.objects import ObjectInfo, Objects


@dataclass(frozen=True, slots=True)
class Judged:
    """An object and what is wrong with it; without an `entry` its offsets are not known."""

    info: ObjectInfo
    base_offset: int
    entry: ArchivedObject | None = None
    problem: str = ""
    is_foreign: bool = False


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges the objects of one partition; `known` are entries of a sound list, by key."""

    objects: Objects
    topic: str
    partition: int
    known: Mapping[str, ArchivedObject] = dataclasses.field(default_factory=dict)

    def judge(self, info: ObjectInfo) -> Judged | None:
        """Judges an object; None if it is gone meanwhile, or its name is not a segment's."""
        key = paths.object_key(info.key)
        if key is None:
            return None
        known = self.known.get(info.key)
        try:
            if known is not None:
                return Judged(info, key.base_offset, known, self._problem(info, known))
            entry = self._from_headers(info)
            if entry.base_offset != key.base_offset:
                raise CorruptData("its name is not that of its first record")
            has_holes = entry.record_count != entry.next_offset - entry.base_offset
            if has_holes:
                examine(self._whole(info), self.topic, self.partition)
            return Judged(info, key.base_offset, self._numbered(entry, key))
        except ObjectMissing:
            return None
        except CorruptData as error:
            return self._damaged(info, key, error)

    def gone(self, there: Iterable[ObjectInfo]) -> list[Judged]:
        """Returns what a list names and the store has no more: lost, not removed."""
        keys = {info.key for info in there}
        return [
            Judged(ObjectInfo(key, entry.size_bytes, 0), entry.base_offset, entry, "it is gone")
            for key, entry in self.known.items()
            if key not in keys
        ]

    def require_whole(self, key: str, known: ArchivedObject) -> None:
        """Reads a listed object; raises CorruptData unless every byte is as it was listed."""
        try:
            data = bytes(self.objects.read(key).data)
            problem = "" if len(data) == known.size_bytes and _is_whole(data) else "it is damaged"
            if crc32_of(as_bytes(data[known.index_offset :])) != known.index_crc32:
                problem = problem or "it is another one than in the list"
        except ObjectMissing:
            problem = "it is gone"
        if problem:
            raise CorruptData(
                f"{problem}: the local copies of offsets {known.base_offset} to {known.next_offset}"
                " stay; put the object back",
                path=f"{self.objects.url}/{key}",
            )

    def _problem(self, info: ObjectInfo, known: ArchivedObject) -> str:
        if info.size_bytes != known.size_bytes:
            return f"it has {info.size_bytes} bytes of {known.size_bytes}"
        raw = self.objects.read_range(info.key, known.index_offset, known.size_bytes)
        return "" if crc32_of(as_bytes(raw)) == known.index_crc32 else "its index is damaged"

    def _from_headers(self, info: ObjectInfo) -> ArchivedObject:
        """Reads header, footer and index; raises CorruptData where they are not of one object."""
        size = info.size_bytes
        if size < layout.HEADER.size + layout.BLOCK_BYTES_MIN + layout.FOOTER.size:
            raise CorruptData("the object is cut off", found=f"{size} bytes")
        head = self.objects.read_range(info.key, 0, layout.HEADER.size)
        header = layout.decode_header(head)
        check_belongs(header, self.topic, self.partition)
        last = self.objects.read_range(info.key, size - layout.FOOTER.size, size)
        footer = layout.decode_footer(last, size)
        tail = self.objects.read_range(info.key, footer.index_offset, size)
        index = memoryview(tail)[: -layout.FOOTER.size]
        segment = layout.decode_index(index, header, footer)
        return entry_of(segment, crc32_of(as_bytes(tail)))

    def _damaged(self, info: ObjectInfo, key: paths.ObjectKey, why: CorruptData) -> Judged:
        """Finds out what is left of an object that its own parts contradict."""
        data = self._whole(info)
        if isinstance(why, NewerFormat) and strm_segment.is_newer(data):
            raise why.at_path(f"{self.objects.url}/{info.key}")
        right = salvage.mended(data)
        if right is not None:
            try:
                entry = examine(right, self.topic, self.partition)
            except CorruptData as error:
                return Judged(info, key.base_offset, None, str(error), is_foreign=True)
            if entry.base_offset == key.base_offset:
                problem = "" if right == data else "a bit outside of its blocks is flipped"
                return Judged(info, key.base_offset, self._numbered(entry, key), problem)
            return Judged(info, key.base_offset, None, str(why), is_foreign=True)
        return Judged(info, key.base_offset, self._from_header(data, key), why.problem)

    def _from_header(self, data: bytes, key: paths.ObjectKey) -> ArchivedObject | None:
        """Makes the entry of an object of which the header is sound and the end is not."""
        try:
            header = layout.decode_header(data)
            check_belongs(header, self.topic, self.partition)
        except CorruptData:
            return None
        if header.base_offset != key.base_offset:
            return None
        try:
            index_offset = layout.decode_footer(data[-layout.FOOTER.size :], len(data)).index_offset
            size = len(data)
        except CorruptData:
            index_offset, size = len(data), len(data) + 1  # where it ended is not known
        footer = layout.Footer(index_offset, size - index_offset - layout.FOOTER.size, 0)
        nothing = layout.Segment(header, footer, _NO_BLOCKS, _NO_BLOCKS)
        return self._numbered(entry_of(nothing, crc32_of(as_bytes(b""))), key)

    def _whole(self, info: ObjectInfo) -> bytes:
        return bytes(self.objects.read_range(info.key, 0, info.size_bytes))

    @staticmethod
    def _numbered(entry: ArchivedObject, key: paths.ObjectKey) -> ArchivedObject:
        return dataclasses.replace(entry, generation=key.generation, epoch=key.epoch)


_NO_BLOCKS = np.empty(0, dtype=np.int64)


def _is_whole(data: bytes) -> bool:
    """Returns whether the checksum at an object's end fits all that is before it."""
    if len(data) < layout.HEADER.size + layout.FOOTER.size:
        return False
    stored = layout.FOOTER.unpack(data[-layout.FOOTER.size :])["file_crc"]
    return crc32_of(as_bytes(data[: -layout.UNCOVERED_BYTES])) == int(stored)


def listing_of(judged: Iterable[Judged]) -> tuple[ArchivedObject, ...]:
    """Chooses what a list names: sound objects first, then damaged ones where no sound one is.

    Of an unreadable one only the name is known: it is taken to reach up to the next one.
    """
    found = [each for each in judged if not each.is_foreign]
    kept = list(without_overlap(each.entry for each in found if each.entry and not each.problem))
    for each in found:
        if each.entry is not None and each.problem and not _overlap(kept, each.entry):
            kept.append(each.entry)
    bases = {entry.base_offset for entry in kept} | {each.base_offset for each in found}
    for each in found:
        if each.entry is None:
            end = min([base for base in bases if base > each.base_offset], default=None)
            entry = _unreadable(each, each.base_offset + 1 if end is None else end)
            if not _overlap(kept, entry):
                kept.append(entry)
    return tuple(sorted(kept, key=lambda entry: entry.base_offset))


def _overlap(kept: list[ArchivedObject], new: ArchivedObject) -> bool:
    return any(
        each.base_offset < new.next_offset and new.base_offset < each.next_offset for each in kept
    )


def _unreadable(judged: Judged, end: int) -> ArchivedObject:
    key = paths.object_key(judged.info.key)
    size = judged.info.size_bytes
    return ArchivedObject(
        base_offset=judged.base_offset,
        max_offset=end - 1,
        record_count=end - judged.base_offset,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
        size_bytes=size + 2,
        flags=0,
        index_offset=size + 1,
        index_crc32=0,
        generation=key.generation if key is not None else 0,
        epoch=key.epoch if key is not None else 0,
    )
