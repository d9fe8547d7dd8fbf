"""Eviction: which of a topic's oldest segments caps and age let go, and the age boundary.

Pure but for reading: it says how far the floor rises; the partition writes that down and removes.

Rules.
1. Files go whole, sealed, from the front; the last segment stays, it knows where the topic ends.
2. The age boundary is found by binary search over `.idx` times, which are running maxima: nothing
   is taken for older than it is. The boundary's own frame is read before it is believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.config import NO_LIMIT
from lamina.engine import retention
from lamina.engine.wal import segments
from lamina.engine.wal.reading import TopicReader
from lamina.engine.wal.segments import Segment
from lamina.formats.wal import index
from lamina.formats.wal.control import EvictReason
from lamina.formats.wal.layout import SEGMENT_FRAME


@dataclass(frozen=True, slots=True)
class Eviction:
    """Everything below `floor` goes, for a reason."""

    floor: int
    reason: EvictReason


def explain(topic: TopicReader, now_ms: int) -> list[retention.Decision]:
    """Says for each segment, oldest first, whether it goes and why."""
    facts = topic.facts()
    decisions = retention.explain(facts, topic.settings, now_ms)
    cap = topic.settings.retention_records
    if topic.settings.discard == "new":
        return [_kept_by_discard(each, topic, now_ms) for each in decisions]
    if cap == NO_LIMIT:
        return decisions
    return _by_records(decisions, cap)


def _kept_by_discard(
    decision: retention.Decision, topic: TopicReader, now_ms: int
) -> retention.Decision:
    newest, limit = decision.segment.newest_timestamp_ms, topic.settings.retention_ms
    aged = newest is not None and limit != NO_LIMIT and now_ms - newest > limit
    if decision.goes and not aged:
        return retention.Decision(decision.segment, False, "the topic discards new records")
    return decision


def _by_records(decisions: Sequence[retention.Decision], cap: int) -> list[retention.Decision]:
    records = sum(each.segment.next_offset - each.segment.base_offset for each in decisions)
    decided = []
    front = True
    for each in decisions:
        excess = records - cap
        goes = front and (each.goes or (each.segment.sealed and excess > 0))
        why = each.why
        if goes and not each.goes:
            why = f"the partition is {excess} records over retention.records"
        if goes:
            records -= each.segment.next_offset - each.segment.base_offset
        front = goes
        decided.append(retention.Decision(each.segment, goes, why))
    return decided


def due(topic: TopicReader, now_ms: int) -> Eviction | None:
    """Returns how far the floor rises now, if it does."""
    settings = topic.settings
    limits = (settings.retention_ms, settings.retention_bytes, settings.retention_records)
    if not topic.layers.segments or all(limit == NO_LIMIT for limit in limits):
        return None
    floor, reason = topic.earliest, EvictReason.BYTE_CAP
    for decision in explain(topic, now_ms):
        if not decision.goes:
            break
        floor = max(floor, decision.segment.next_offset)
        reason = EvictReason.AGE if "old" in decision.why.split() else reason
        if "retention.records" in decision.why:
            reason = EvictReason.RECORD_CAP
    if settings.retention_ms != NO_LIMIT:
        boundary = _age_boundary(topic, floor, now_ms - settings.retention_ms)
        if boundary > floor:
            floor, reason = boundary, EvictReason.AGE
    return Eviction(floor, reason) if floor > topic.earliest else None


def _age_boundary(topic: TopicReader, floor: int, cutoff_ms: int) -> int:
    """Finds the first record that is not too old in the sealed segment that holds the floor."""
    for segment in topic.layers.segments:
        if not segment.sealed or not segment.first_sequence <= floor < segment.end_sequence:
            continue
        entries = segments.load_entries(topic.sources.files, segment)
        if entries is None:
            return floor
        count = index.expired(entries, cutoff_ms)
        if count == 0:
            return floor
        if _own_time(topic, segment, entries, count - 1) >= cutoff_ms:
            return floor  # the index is wrong; a reader will find out and rebuild it
        return max(floor, segment.first_sequence + count)
    return floor


def _own_time(topic: TopicReader, segment: Segment, entries: index.Entries, row: int) -> int:
    file = topic.sources.files.open_read_only(segment.path("data"))
    try:
        frame = file.read_at(int(entries["position"][row]), SEGMENT_FRAME.size)
    finally:
        file.close()
    fields = SEGMENT_FRAME.unpack(frame)
    if entries["length"][row] and int(fields["sequence"]) != segment.first_sequence + row:
        return 1 << 62
    return int(fields["timestamp_ms"])
