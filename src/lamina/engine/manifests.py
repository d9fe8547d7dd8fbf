"""Derived: rebuilt from the segments. The manifest of a keratin partition (`manifest.bin`).

It is written only after an fsync, on open, roll and close, so that its `next_offset` is a durable
watermark: if the records say less, durable data was lost. It is replaced, never deleted first.
"""

from __future__ import annotations

import os

from lamina.config import TopicSettings
from lamina.engine.codec import Codec
from lamina.engine.layout import Layout
from lamina.engine.place import Place
from lamina.engine.report import RecoveryReport
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.keratin import manifest
from lamina.formats.keratin.manifest import Manifest, SealedSegment
from lamina.storage.paths import MANIFEST

OPEN_SEGMENTS_MAX = 64


def read_watermark(place: Place, report: RecoveryReport) -> int:
    """Returns the offset up to which the manifest knows data to be durable; 0 without one."""
    path = os.path.join(place.directory, MANIFEST)
    if not place.files.exists(path):
        return 0
    try:
        return manifest.decode(place.files.read(path)).next_offset
    except NewerFormat as error:
        raise error.at_path(path) from error
    except CorruptData as error:
        report.add("rebuilt", path, f"the manifest is damaged: {error.problem}")
        return 0


def save(place: Place, codec: Codec, layout: Layout, settings: TopicSettings) -> None:
    """Replaces the manifest by what the layout says now."""
    sealed = tuple(
        SealedSegment(
            segment.base_offset,
            segment.next_offset - 1,
            segment.size_bytes,
            _index_bytes(place, segment.path("idx")),
        )
        for segment in layout.sealed
    )
    written = Manifest(
        created_ms=place.now_ms(),
        segment_bytes_max=settings.segment_bytes,
        index_stride_bytes=codec.stride.bytes,
        open_segments_max=OPEN_SEGMENTS_MAX,
        active_base_offset=layout.active.base_offset,
        next_offset=layout.active.durable.next_offset,
        segments=sealed,
    )
    place.files.replace(os.path.join(place.directory, MANIFEST), manifest.encode(written))


def _index_bytes(place: Place, path: str) -> int:
    """The size of an index file; 0 for one that is not there and will be rebuilt."""
    try:
        return place.files.size(path)
    except OSError:
        return 0
