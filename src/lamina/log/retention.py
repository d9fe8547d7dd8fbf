"""Which layers may go, and why each one stays or goes. Pure: a plan, never a deletion.

The rules are the same for segmented and for wal topics; only the latter can set a cap of records
and to discard new records instead of old ones.

Rules.
1. Only sealed layers go, only whole ones, only from the front: what remains is one unbroken run.
   A cap keeps at least what it names: a layer goes by it only if what follows still reaches the
   cap, so one that straddles it stays.
2. A layer that a group is waited for stays until the group has acked all of it, or until its
   newest record is older than `retention.wait.ms`: one that stands still does not fill the disk.
3. Cold and local layers are one pile: until the archive has answered what it holds of the front,
   nothing goes.
4. A layer is as old as its newest record, by the record's own time. A time in the future makes a
   layer young, never old: a clock that jumps ahead cannot make retention delete early.
5. What becomes of a verdict is decided by its reason, never by its sentence, which is for people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from lamina.api import Decision
from lamina.config import NO_LIMIT, TopicSettings
from lamina.log.layers import Layer

WITHIN_LIMITS = "it is within the limits"


class Reason(Enum):
    """Why a layer goes, and after the first three, why it stays."""

    AGE = "age"
    BYTE_CAP = "byte cap"
    RECORD_CAP = "record cap"
    ACTIVE = "active"
    AWAITED = "awaited"
    """A group has not acked all of it."""
    BEHIND = "behind"
    """An older layer stays."""
    STRADDLES = "straddles"
    """It reaches over a cap."""
    WITHIN = "within"
    NO_LIMITS = "no limits"
    DISCARDS_NEW = "discards new"
    ARCHIVE_SILENT = "archive silent"


GOING = frozenset({Reason.AGE, Reason.BYTE_CAP, Reason.RECORD_CAP})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is decided about a layer, the reason, and a sentence for people."""

    layer: Layer
    reason: Reason
    why: str

    @property
    def goes(self) -> bool:
        """Whether it goes."""
        return self.reason in GOING

    def described(self) -> Decision:
        """Returns it as the public API describes it."""
        return Decision(self.layer.described(), self.goes, self.why)


def waited_for(settings: TopicSettings, progress: Mapping[str, int]) -> dict[str, int]:
    """Returns what each group that is waited for has acked; one not yet there has acked nothing."""
    names = [name for name in settings.retention_wait_groups.split(",") if name]
    return {name: progress.get(name, 0) for name in names}


def explain(
    layers: Sequence[Layer],
    settings: TopicSettings,
    now_ms: int,
    waits: Mapping[str, int] | None = None,
) -> list[Verdict]:
    """Decides for each layer, oldest first; `waits` has the offset that each group has acked to."""
    verdicts = _by_age_and_bytes(layers, settings, now_ms, waits or {})
    if settings.discard == "new":
        return [_kept_by_discard(each) for each in verdicts]
    if settings.retention_records == NO_LIMIT:
        return verdicts
    held = {
        layer.base_offset
        for layer in layers
        if who_needs_it(layer, settings, now_ms, waits or {}) is not None
    }
    return _by_records(verdicts, settings.retention_records, held)


def wait_for_archive(layers: Sequence[Layer]) -> list[Verdict]:
    """Decides that all stay: older ones are archived, and the archive has not answered yet."""
    why = "older records are in the archive, which has not answered yet"
    return [Verdict(layer, Reason.ARCHIVE_SILENT, why) for layer in layers]


def _by_age_and_bytes(
    layers: Sequence[Layer], settings: TopicSettings, now_ms: int, waits: Mapping[str, int]
) -> list[Verdict]:
    verdicts: list[Verdict] = []
    excess_bytes = sum(layer.size_bytes for layer in layers) - settings.retention_bytes
    may_go = True
    for layer in layers:
        goes = _why_it_goes(layer, settings, now_ms, excess_bytes)
        held_for = who_needs_it(layer, settings, now_ms, waits)
        may_go = may_go and layer.is_sealed and goes is not None and held_for is None
        if may_go and goes is not None:
            verdicts.append(Verdict(layer, *goes))
            excess_bytes -= layer.size_bytes
            continue
        stays = _why_it_stays(layer, settings, goes[1] if goes else None, held_for)
        has_excess = settings.retention_bytes != NO_LIMIT and excess_bytes > 0
        if stays[0] is Reason.WITHIN and has_excess:
            stays = Reason.STRADDLES, "without it less than retention.bytes would be left"
        verdicts.append(Verdict(layer, *stays))
    return verdicts


def _why_it_goes(
    layer: Layer, settings: TopicSettings, now_ms: int, excess_bytes: int
) -> tuple[Reason, str] | None:
    newest = layer.newest_ms
    if settings.retention_ms != NO_LIMIT and newest is not None:
        age_ms = now_ms - newest
        if age_ms > settings.retention_ms:
            limit = f"over retention.ms {settings.retention_ms}"
            return Reason.AGE, f"its newest record is {age_ms} ms old, {limit}"
    if settings.retention_bytes != NO_LIMIT and is_beyond_cap(layer.size_bytes, excess_bytes):
        return Reason.BYTE_CAP, f"the partition is {excess_bytes} bytes over retention.bytes"
    return None


def is_beyond_cap(held: int, excess: int) -> bool:
    """Returns whether the oldest layer lies wholly beyond a cap that a partition is over."""
    return 0 < excess >= held


def who_needs_it(
    layer: Layer, settings: TopicSettings, now_ms: int, waits: Mapping[str, int]
) -> str | None:
    """The first group that has not acked all of a layer and may still be waited for."""
    if not waits:
        return None
    newest = layer.newest_ms
    is_bounded = settings.retention_wait_ms != NO_LIMIT and newest is not None
    if is_bounded and newest is not None and now_ms - newest > settings.retention_wait_ms:
        return None
    return next((name for name, until in waits.items() if until < layer.next_offset), None)


def _why_it_stays(
    layer: Layer, settings: TopicSettings, why_goes: str | None, held_for: str | None
) -> tuple[Reason, str]:
    if not layer.is_sealed:
        return Reason.ACTIVE, "it is the active segment"
    if why_goes is not None and held_for is not None:
        return Reason.AWAITED, f"it waits for group {held_for}, though {why_goes}"
    if why_goes is not None:
        return Reason.BEHIND, f"an older segment stays, though {why_goes}"
    if settings.retention_ms == NO_LIMIT and settings.retention_bytes == NO_LIMIT:
        return Reason.NO_LIMITS, "no retention is set"
    return Reason.WITHIN, WITHIN_LIMITS


def _kept_by_discard(verdict: Verdict) -> Verdict:
    """Keeps what would go by a cap: a topic that refuses new records keeps the old ones."""
    if verdict.reason is Reason.BYTE_CAP:
        return Verdict(verdict.layer, Reason.DISCARDS_NEW, "the topic discards new records")
    return verdict


def _by_records(verdicts: Sequence[Verdict], cap: int, held: set[int]) -> list[Verdict]:
    """Lets more go where a partition holds more records than its cap."""
    records = sum(each.layer.records for each in verdicts)
    decided = []
    front = True
    for each in verdicts:
        excess = records - cap
        may_go = each.layer.is_sealed and each.layer.base_offset not in held
        beyond = is_beyond_cap(each.layer.records, excess)
        verdict = each
        if front and may_go and beyond and not each.goes:
            why = f"the partition is over retention.records by {excess}"
            verdict = Verdict(each.layer, Reason.RECORD_CAP, why)
        elif front and may_go and excess > 0 and not each.goes:
            why = "without it less than retention.records would be left"
            verdict = Verdict(each.layer, Reason.STRADDLES, why)
        elif not front and each.goes:
            verdict = Verdict(each.layer, Reason.BEHIND, each.why)
        if verdict.goes:
            records -= each.layer.records
        front = verdict.goes
        decided.append(verdict)
    return decided
