"""An archived object's index: by one range where it is sound, made again where it is not.

Rules.
1. The list's sealed entry for an object is trusted more than the object itself.
2. Bytes that do not fit are fetched again before they are called damaged: a transfer may have
   failed. Only then one flipped bit is turned back, or the whole object is read and its blocks are
   walked.
3. Another object under the name is never read as this one.
"""

from __future__ import annotations

import logging

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.kernels.binary import as_bytes
from lamina.formats.kernels.fnv import fnv1a_64
from lamina.formats.strm import layout, salvage
from lamina.formats.strm.block import crc32_of
from lamina.storage.objects import Ranges

FETCH_TRIES = 3
_log = logging.getLogger(__name__)


def header_of(entry: ArchivedObject, topic: str, partition: int) -> layout.Header:
    """Returns the header that a listed object has, but for when it was made."""
    flags = entry.flags
    coding = layout.Coding(
        layout.Compression(flags & ~layout.ENVELOPED), bool(flags & layout.ENVELOPED)
    )
    return layout.Header(
        coding=coding,
        topic_hash=fnv1a_64(topic.encode()),
        partition=partition,
        base_offset=entry.base_offset,
        max_offset=entry.max_offset,
        record_count=entry.record_count,
        created_at_ms=0,
        min_timestamp_ms=entry.min_timestamp_ms,
        max_timestamp_ms=entry.max_timestamp_ms,
    )


def read_index(
    objects: Ranges, key: str, entry: ArchivedObject, header: layout.Header
) -> layout.Segment:
    """Returns the index of a listed object, made again where that is damaged.

    Raises CorruptData if nothing of the object can be read, ObjectMissing if it is gone.
    """
    for _ in range(FETCH_TRIES):
        try:
            raw = bytes(objects.read_range(key, entry.index_offset, entry.size_bytes))
            return _decoded(raw, entry, header)
        except NewerFormat:
            raise
        except CorruptData as error:
            problem = error
    segment = _salvaged(objects, key, entry, header)
    _log.warning("%s/%s: %s; its index was made again", objects.url, key, problem.problem)
    return segment


def _decoded(raw: bytes, entry: ArchivedObject, header: layout.Header) -> layout.Segment:
    """Reads index and footer of an object, and checks them against the list."""
    if crc32_of(as_bytes(raw)) != entry.index_crc32:
        raise CorruptData("the object's index is not the one in the list")
    footer = layout.decode_footer(raw[-layout.FOOTER.size :], entry.size_bytes)
    return layout.decode_index(raw[: -layout.FOOTER.size], header, footer)


def _salvaged(
    objects: Ranges, key: str, entry: ArchivedObject, header: layout.Header
) -> layout.Segment:
    size = objects.size(key)
    raw = b""
    if size == entry.size_bytes:
        raw = bytes(objects.read_range(key, entry.index_offset, size))
        right = salvage.corrected(raw, entry.index_crc32)
        if right is not None:
            try:
                return _decoded(right, entry, header)
            except CorruptData:
                pass  # more than one bit, and their checksum looks like that of one
    data = memoryview(bytes(objects.read_range(key, 0, size))) if size else memoryview(b"")
    if not salvage.is_of(data, header):
        raise CorruptData(
            "another object lies under this name",
            expected=f"[{entry.base_offset}, {entry.next_offset})",
            found=f"{size} bytes",
        )
    return salvage.table(data[: entry.index_offset], header, entry.index_offset, raw)
