"""Eviction: how far the floor of a wal topic rises by what retention lets go, and by age.

Only reads: it computes how far the floor rises; the partition records that and removes files.

Rules.
1. Only whole sealed files go, from the front; the last segment stays: it marks the topic's end.
2. The floor rises to the first record that is not too old (`expiry`), which is durable before a
   file goes. A floor that no file lies below is only kept in memory, until the next snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lamina.config import NO_LIMIT
from lamina.formats.wal.control import EvictReason
from lamina.log import retention
from lamina.log.retention import Reason, Verdict
from lamina.wal import archived
from lamina.wal.reader import TopicReader

_EVICTED_BY = {Reason.AGE: EvictReason.AGE, Reason.RECORD_CAP: EvictReason.RECORD_CAP}
"""What goes by several rules is recorded with the last of these; by its bytes if by none."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """Everything below `floor` goes, for a reason."""

    floor: int
    reason: EvictReason


def verdicts(topic: TopicReader, now_ms: int, waits: Mapping[str, int]) -> list[Verdict]:
    """Decides for each layer, oldest first, whether it goes and why; `waits` as in retention."""
    if archived.is_hidden(topic):
        return retention.wait_for_archive(topic.layers())
    return retention.explain(topic.layers(), topic.settings, now_ms, waits)


def due(topic: TopicReader, now_ms: int, waits: Mapping[str, int]) -> Eviction | None:
    """Returns how far the floor rises with the files that may go now; None while all stay."""
    settings = topic.settings
    limits = (settings.retention_ms, settings.retention_bytes, settings.retention_records)
    if not topic.layout.segments or all(limit == NO_LIMIT for limit in limits):
        return None
    floor, reason = topic.earliest, EvictReason.BYTE_CAP
    for verdict in verdicts(topic, now_ms, waits):
        if not verdict.goes:
            break
        floor = max(floor, verdict.layer.next_offset)
        reason = _EVICTED_BY.get(verdict.reason, reason)
    expired = topic.live_from(floor)
    if expired > floor:
        floor, reason = expired, EvictReason.AGE
    if floor == topic.earliest and not has_files_below(topic, floor):
        return None
    return Eviction(floor, reason)


def has_files_below(topic: TopicReader, floor: int) -> bool:
    """Returns whether a segment that may be removed lies wholly below a sequence."""
    return any(each.sealed and each.end_sequence <= floor for each in topic.layout.segments[:-1])
