"""Eviction: which of a topic's oldest segments caps and age let go, and the age boundary.

Pure but for reading: it says how far the floor rises; the partition writes that down and removes.

Rules.
1. Files go whole, sealed, from the front; the last segment stays, it knows where the topic ends.
2. The floor rises to the first record that is not too old (`expiry`), which is durable before a
   file goes. A floor that no file lies below is only kept in memory, until the next snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lamina.api import Decision
from lamina.config import NO_LIMIT
from lamina.formats.wal.control import EvictReason
from lamina.log import retention
from lamina.wal import archived
from lamina.wal.reader import TopicReader


@dataclass(frozen=True, slots=True)
class Eviction:
    """Everything below `floor` goes, for a reason."""

    floor: int
    reason: EvictReason


def explain(topic: TopicReader, now_ms: int, waits: Mapping[str, int]) -> list[Decision]:
    """Says for each segment, oldest first, whether it goes and why; `waits` as in retention."""
    facts = topic.facts()
    if archived.is_hidden(topic):
        return retention.wait_for_archive(facts)
    decisions = retention.explain(facts, topic.settings, now_ms, waits)
    cap = topic.settings.retention_records
    if topic.settings.discard == "new":
        return [_kept_by_discard(each, topic, now_ms) for each in decisions]
    if cap == NO_LIMIT:
        return decisions
    held = {
        fact.base_offset
        for fact in facts
        if retention.who_needs_it(fact, topic.settings, now_ms, waits) is not None
    }
    return _by_records(decisions, cap, held)


def _kept_by_discard(decision: Decision, topic: TopicReader, now_ms: int) -> Decision:
    newest, limit = decision.segment.newest_timestamp_ms, topic.settings.retention_ms
    aged = newest is not None and limit != NO_LIMIT and now_ms - newest > limit
    if decision.goes and not aged:
        return Decision(decision.segment, False, "the topic discards new records")
    return decision


def _by_records(decisions: Sequence[Decision], cap: int, held: set[int]) -> list[Decision]:
    records = sum(each.segment.records for each in decisions)
    decided = []
    front = True
    for each in decisions:
        excess = records - cap
        may_go = each.segment.sealed and each.segment.base_offset not in held
        beyond = retention.is_beyond_cap(each.segment.records, excess)
        goes = front and (each.goes or (may_go and beyond))
        why = each.why
        if goes and not each.goes:
            why = f"the partition is {excess} records over retention.records"
        elif front and may_go and excess > 0 and not goes:
            why = "without it less than retention.records would be left"
        if goes:
            records -= each.segment.records
        front = goes
        decided.append(Decision(each.segment, goes, why))
    return decided


def due(topic: TopicReader, now_ms: int, waits: Mapping[str, int]) -> Eviction | None:
    """Returns how far the floor rises with the files that may go now; None while all stay."""
    settings = topic.settings
    limits = (settings.retention_ms, settings.retention_bytes, settings.retention_records)
    if not topic.layers.segments or all(limit == NO_LIMIT for limit in limits):
        return None
    floor, reason = topic.earliest, EvictReason.BYTE_CAP
    for decision in explain(topic, now_ms, waits):
        if not decision.goes:
            break
        floor = max(floor, decision.segment.next_offset)
        reason = EvictReason.AGE if "old" in decision.why.split() else reason
        if "retention.records" in decision.why:
            reason = EvictReason.RECORD_CAP
    expired = topic.live_from(floor)
    if expired > floor:
        floor, reason = expired, EvictReason.AGE
    if floor == topic.earliest and not has_files_below(topic, floor):
        return None
    return Eviction(floor, reason)


def has_files_below(topic: TopicReader, floor: int) -> bool:
    """Tells whether a segment that may be removed lies wholly below a sequence."""
    return any(each.sealed and each.end_sequence <= floor for each in topic.layers.segments[:-1])
