"""Derived: rebuilt from the segments. The manifest of a keratin partition (`manifest.bin`).

It is written only after an fsync, on roll and close, so that its `next_offset` is a durable
watermark: if the records end below it, durable data was lost. It is replaced, never deleted first.
On open it is left alone as long as it lists the segments that exist: the checkpoint has the rest.
"""

from __future__ import annotations

from dataclasses import replace

from lamina.api import RecoveryReport
from lamina.config import TopicSettings
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.keratin import manifest
from lamina.formats.keratin.manifest import Manifest, SealedSegment
from lamina.formats.log_format import Codec
from lamina.log import sealed_segment
from lamina.log.directory import Place
from lamina.log.segment_pile import Layout
from lamina.storage import paths
from lamina.storage.bad_pages import is_unreadable
from lamina.storage.paths import MANIFEST

OPEN_FILES_TOLD_MAX = (1 << 16) - 1
"""The field has 16 bits."""


def read(place: Place, report: RecoveryReport) -> Manifest | None:
    """Reads the manifest; None without a sound one, which only makes recovery longer."""
    path = paths.join(place.directory, MANIFEST)
    if not place.files.exists(path):
        return None
    try:
        return manifest.decode(place.files.read(path))
    except NewerFormat as error:
        raise error.at_path(path) from error
    except CorruptData as error:
        report.add("rebuilt", path, f"the manifest is damaged: {error.problem}")
    except OSError as error:
        if not is_unreadable(error):
            raise
        report.add("rebuilt", path, f"the manifest cannot be read: {error.strerror}")
    return None


def save(place: Place, codec: Codec, layout: Layout, settings: TopicSettings) -> None:
    """Replaces the manifest with one that describes the layout as it is now."""
    kept = min(place.files.kept.limit, OPEN_FILES_TOLD_MAX)
    written = replace(_told(place.now_ms(), codec, layout, settings), open_segments_max=kept)
    place.files.replace(paths.join(place.directory, MANIFEST), manifest.encode(written))


def lists(known: Manifest | None, codec: Codec, layout: Layout, settings: TopicSettings) -> bool:
    """Returns whether a manifest lists a layout's segments; its watermark may be an older one.

    The number of files to keep open is that of the last writer: a difference in it alone is no
    reason to write.
    """
    if known is None:
        return False
    told = _told(known.created_ms, codec, layout, settings)
    return replace(known, next_offset=told.next_offset, open_segments_max=0) == told


def _told(created_ms: int, codec: Codec, layout: Layout, settings: TopicSettings) -> Manifest:
    return Manifest(
        created_ms=created_ms,
        segment_bytes_max=settings.segment_bytes,
        index_stride_bytes=codec.stride.bytes,
        open_segments_max=0,
        active_base_offset=layout.active.base_offset,
        next_offset=layout.active.durable.next_offset,
        segments=tuple(map(_recorded, layout.sealed)),
    )


def _recorded(segment: sealed_segment.SealedSegment) -> SealedSegment:
    """Returns a sealed segment's entry in a manifest; it never changes, so it is made once."""
    if segment.recorded is not None:
        return segment.recorded
    try:
        index_bytes = segment.files.size(segment.path("idx"))
    except OSError:  # it is not there, and will be rebuilt
        index_bytes = 0
    found = SealedSegment(
        segment.base_offset, segment.next_offset - 1, segment.size_bytes, index_bytes
    )
    if index_bytes:
        segment.recorded = found
    return found
