"""What wal topics need between requests: sealing, eviction, moves to the cold directory.

Rule: what fails for one topic is logged and tried again; the other topics are still looked after.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from lamina.errors import LaminaError
from lamina.wal import relocation, segments
from lamina.wal.ground import Ground
from lamina.wal.segments import Segment
from lamina.wal.topic import TopicLayout
from lamina.wal.wal_partition import WalPartition

_log = logging.getLogger(__name__)


def look_after(ground: Ground, topics: Iterable[WalPartition]) -> bool:
    """Does what is due for each topic; returns whether anything changed that a snapshot keeps."""
    changed = False
    for topic in topics:
        if topic.writer.failure is not None or topic.gone is not None:
            continue
        try:
            changed |= _look_after(ground, topic)
        except (OSError, LaminaError) as error:
            _log.warning("%s: %s", topic.place.name, error)
    return changed


def _look_after(ground: Ground, topic: WalPartition) -> bool:
    changed = False
    if topic.is_old(ground.settings.segment_age_ms):
        topic.exclusively(topic.seal)
    if topic.has_expired():
        topic.exclusively(topic.apply_retention)
        changed = True
    elif topic.earliest_offset() > topic.earliest:
        changed = topic.exclusively(topic.drop_expired)
    if topic.has_idle_producers():
        topic.exclusively(topic.forget_idle_producers)
    for segment in relocation.due(ground, topic):
        _relocate(ground, topic, segment)
    return changed


def _relocate(ground: Ground, topic: WalPartition, segment: Segment) -> None:
    moved = relocation.copy(ground, segment)
    found = topic.layout.segments

    def flip() -> None:
        flipped = tuple(moved if each is segment else each for each in found)
        topic.layout = TopicLayout(flipped, topic.layout.runs)

    topic.exclusively(flip)
    segments.remove(ground.files, segment)
