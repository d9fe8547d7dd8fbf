"""Which segments may go, and why each one stays or goes. Pure: a plan, never a deletion.

Rules.
1. Only sealed segments go, only whole ones, only from the front: what remains is one unbroken run.
   A cap keeps at least what it names: a segment goes by it only if what follows still reaches the
   cap, so one that straddles it stays.
2. A segment that a group is waited for stays until the group has acked all of it, or until its
   newest record is older than `retention.wait.ms`: one that stands still does not fill the disk.
3. Cold and local segments are one pile: while the archive has not said what it holds of the front,
   nothing goes.
4. A segment is as old as its newest record, by the record's own time. A time in the future makes a
   segment young, never old: a clock that jumps ahead cannot make retention delete early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.api import Decision, SegmentFacts
from lamina.config import NO_LIMIT, TopicSettings

WITHIN_LIMITS = "it is within the limits"


def waited_for(settings: TopicSettings, progress: Mapping[str, int]) -> dict[str, int]:
    """Returns what each group that is waited for has acked; one not yet there has acked nothing."""
    names = [name for name in settings.retention_wait_groups.split(",") if name]
    return {name: progress.get(name, 0) for name in names}


def explain(
    segments: Sequence[SegmentFacts],
    settings: TopicSettings,
    now_ms: int,
    waits: Mapping[str, int] | None = None,
) -> list[Decision]:
    """Decides for each segment, oldest first; `waits` says what groups have acked up to."""
    decisions: list[Decision] = []
    excess_bytes = sum(segment.size_bytes for segment in segments) - settings.retention_bytes
    may_go = True
    for segment in segments:
        why_goes = _why_it_goes(segment, settings, now_ms, excess_bytes)
        held_for = who_needs_it(segment, settings, now_ms, waits or {})
        may_go = may_go and segment.sealed and why_goes is not None and held_for is None
        if may_go and why_goes is not None:
            decisions.append(Decision(segment, True, why_goes))
            excess_bytes -= segment.size_bytes
        else:
            why = _why_it_stays(segment, settings, why_goes, held_for)
            if why == WITHIN_LIMITS and settings.retention_bytes != NO_LIMIT and excess_bytes > 0:
                why = "without it less than retention.bytes would be left"
            decisions.append(Decision(segment, False, why))
    return decisions


def wait_for_archive(segments: Sequence[SegmentFacts]) -> list[Decision]:
    """Decides that all stay: older ones are archived, and the archive has not answered yet."""
    why = "older records are in the archive, which has not answered yet"
    return [Decision(segment, False, why) for segment in segments]


def _why_it_goes(
    segment: SegmentFacts, settings: TopicSettings, now_ms: int, excess_bytes: int
) -> str | None:
    newest = segment.newest_timestamp_ms
    if settings.retention_ms != NO_LIMIT and newest is not None:
        age_ms = now_ms - newest
        if age_ms > settings.retention_ms:
            return (
                f"its newest record is {age_ms} ms old, over retention.ms {settings.retention_ms}"
            )
    if settings.retention_bytes != NO_LIMIT and is_beyond_cap(segment.size_bytes, excess_bytes):
        return f"the partition is {excess_bytes} bytes over retention.bytes"
    return None


def is_beyond_cap(held: int, excess: int) -> bool:
    """Tells whether the oldest segment lies wholly beyond a cap that a partition is over."""
    return 0 < excess >= held


def who_needs_it(
    segment: SegmentFacts, settings: TopicSettings, now_ms: int, waits: Mapping[str, int]
) -> str | None:
    """The first group that has not acked all of a segment and may still be waited for."""
    newest = segment.newest_timestamp_ms
    is_bounded = settings.retention_wait_ms != NO_LIMIT and newest is not None
    if is_bounded and newest is not None and now_ms - newest > settings.retention_wait_ms:
        return None
    return next((name for name, until in waits.items() if until < segment.next_offset), None)


def _why_it_stays(
    segment: SegmentFacts, settings: TopicSettings, why_goes: str | None, held_for: str | None
) -> str:
    if not segment.sealed:
        return "it is the active segment"
    if why_goes is not None and held_for is not None:
        return f"it waits for group {held_for}, though {why_goes}"
    if why_goes is not None:
        return f"an older segment stays, though {why_goes}"
    if settings.retention_ms == NO_LIMIT and settings.retention_bytes == NO_LIMIT:
        return "no retention is set"
    return WITHIN_LIMITS
