"""The ledger of a partition (`ledger.json`): why each missing range of offsets is missing.

Truth: nothing else remembers reasons. If it is lost, ranges that are missing on disk are entered
again with the reason "lost". What is there is served, with one exception that the ledger alone
makes: below the end of the last `trim` nothing is served, although the segment in which that end
lies is still on disk (`floor`). So that this is not forgotten with the file, the checkpoint keeps
the floor, too.

    {"version": 1, "gaps": [{"first": 0, "end": 4096, "reason": "retention", "at_ms": …,
                             "detail": "…"}, …], "crc32": "…"}

`first` is the first missing offset, `end` one past the last. Gaps are sorted and do not overlap;
neighbours with the same reason are joined, so the ledger stays small however long the log lives.

| reason    | what happened                                                                  |
|-----------|--------------------------------------------------------------------------------|
| retention | removed by age or size                                                         |
| trim      | removed because somebody asked; always from the front, to any offset           |
| deleted   | removed record by record (erasure, deletes by tag)                             |
| compacted | a later record of the same key is kept                                         |
| truncated | a torn tail that had been given offsets but was never durable                  |
| archived  | not here; in the object store, or not known to be in it until it answers       |
| lost      | durable once, now damaged or gone: the only reason that is a failure           |
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from lamina.api import Gap
from lamina.errors import UNREADABLE, CorruptData
from lamina.formats.documents import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from lamina.formats.ranges import Ranges, Span

VERSION = 1
ARCHIVED = "archived"
LOST = "lost"
TRIM: Final = "trim"
DELETED = "deleted"
SKIPPED = frozenset({DELETED, "compacted"})
"""The reasons for single records, which may be many: readers skip them silently."""
REMOVED = SKIPPED | {"retention", TRIM}
"""The reasons that are a decision: what was removed so is not served from any copy."""


_FILE = {"version": int, "gaps": list}
_GAP = {"first": int, "end": int, "reason": str, "at_ms": int, "detail": str}


@dataclass(frozen=True, slots=True)
class Ledger:
    """All gaps of a partition, sorted, without overlap."""

    gaps: tuple[Gap, ...] = ()
    floor: int = field(init=False, compare=False, repr=False)
    """Below it everything was removed on request, also what a segment on disk still holds."""

    def __post_init__(self) -> None:
        if any(before.end > after.first for before, after in pairwise(self.gaps)):
            raise ValueError("gaps must be sorted and must not overlap")
        floor = next((gap.end for gap in reversed(self.gaps) if gap.reason == TRIM), 0)
        object.__setattr__(self, "floor", floor)

    def with_gap(self, new: Gap) -> Ledger:
        """Returns the ledger with one more gap, which wins over older ones that it overlaps."""
        return self.with_gaps((new,))

    def with_gaps(self, new: Sequence[Gap]) -> Ledger:
        """Returns the ledger with more gaps: ascending, apart, and winning over older ones."""
        if not new:
            return self
        firsts = [gap.first for gap in new]
        kept: list[Gap] = []
        for old in self.gaps:
            start = max(0, bisect_right(firsts, old.first) - 1)
            winning = new[start : bisect_left(firsts, old.end)]
            if not winning:
                kept.append(old)
                continue
            parts = _outside(old.first, old.end, winning)
            kept += [replace(old, first=first, end=end) for first, end in parts]
        joined: list[Gap] = []
        for gap in sorted([*kept, *new], key=lambda gap: gap.first):
            last = joined[-1] if joined else None
            if last and last.end == gap.first and last.reason == gap.reason:
                latest = max(last, gap, key=lambda each: each.at_ms)
                joined[-1] = Gap(last.first, gap.end, gap.reason, latest.at_ms, latest.detail)
            else:
                joined.append(gap)
        return Ledger(tuple(joined))

    def with_archived(self, first: int, end: int, at_ms: int) -> Ledger:
        """Returns the ledger with a range as archived where nothing else is known of it."""
        parts = self.unexplained(first, end)
        return self.with_gaps([Gap(start, stop, ARCHIVED, at_ms) for start, stop in parts])

    def unexplained(self, first: int, end: int) -> list[Span]:
        """Returns the parts of a range that are in no gap."""
        return _outside(first, end, self.between(first, end))

    def found_again(self, spans: Sequence[tuple[int, int]]) -> Ledger:
        """Returns the ledger without what it calls lost or archived of ranges that are here."""
        kept = [gap for gap in self.gaps if gap.reason not in (LOST, ARCHIVED)]
        here = [Gap(first, end, LOST, 0) for first, end in spans]
        away = [
            replace(gap, first=first, end=end)
            for gap in self.gaps
            if gap.reason in (LOST, ARCHIVED)
            for first, end in _outside(gap.first, gap.end, here)
        ]
        return Ledger(tuple(sorted([*kept, *away], key=lambda gap: gap.first)))

    def turned(self, old: str, new: Sequence[Gap]) -> Ledger:
        """Returns the ledger with more gaps, ascending and apart, only where it has an old reason.

        What was entered for another reason meanwhile keeps it.
        """
        parts = [
            replace(each, first=max(gap.first, each.first), end=min(gap.end, each.end))
            for each in new
            for gap in self.between(each.first, each.end)
            if gap.reason == old
        ]
        return self.with_gaps(parts)

    def lost(self) -> tuple[Gap, ...]:
        """Returns the ranges that are lost for good."""
        return tuple(gap for gap in self.gaps if gap.reason == LOST)

    def missing(self) -> tuple[Gap, ...]:
        """Returns the gaps that cannot be read: all but what is archived."""
        return tuple(gap for gap in self.gaps if gap.reason != ARCHIVED)

    def archived(self) -> tuple[Gap, ...]:
        """Returns the ranges that only the archive holds."""
        return tuple(gap for gap in self.gaps if gap.reason == ARCHIVED)

    def ranges(self, *reasons: str) -> Ranges:
        """Returns the set of offsets that are missing for one of some reasons."""
        return _ranges(gap for gap in self.gaps if gap.reason in reasons)

    def ranges_but(self, *reasons: str) -> Ranges:
        """Returns the set of offsets that are missing for any other reason than some."""
        return _ranges(gap for gap in self.gaps if gap.reason not in reasons)

    def at(self, offset: int) -> Gap | None:
        """Returns the gap that an offset lies in."""
        row = bisect_right(self.gaps, offset, key=lambda gap: gap.first) - 1
        return self.gaps[row] if row >= 0 and offset < self.gaps[row].end else None

    def has_removed(self, first: int, end: int) -> bool:
        """Returns whether every offset of a range was removed on purpose."""
        removed = [gap for gap in self.between(first, end) if gap.reason in REMOVED]
        return not _outside(first, end, removed)

    def serves_nothing_below(self, offset: int) -> bool:
        """Returns whether everything below an offset was removed on purpose."""
        return offset <= self.floor or self.has_removed(0, offset)

    def between(self, first: int, end: int) -> tuple[Gap, ...]:
        """Returns the gaps that have an offset in a range."""
        if first >= end:
            return ()
        start = bisect_right(self.gaps, first, key=lambda gap: gap.end)
        return self.gaps[start : bisect_left(self.gaps, end, key=lambda gap: gap.first)]


def _outside(first: int, end: int, gaps: Iterable[Gap]) -> list[Span]:
    """Returns the parts of a range that lie in none of some gaps."""
    from lamina.formats.ranges import Ranges  # numpy: looking into a ledger needs none

    return list(Ranges.between(first, end).minus(_ranges(gaps)).pairs())


def _ranges(gaps: Iterable[Gap]) -> Ranges:
    from lamina.formats.ranges import Ranges  # numpy: looking into a ledger needs none

    return Ranges.of((gap.first, gap.end) for gap in gaps)


def deleted_gaps(deleted: Ranges) -> list[Gap]:
    """Returns records that were deleted singly as gaps of a ledger."""
    return [Gap(first, end, DELETED, 0) for first, end in deleted.pairs()]


def encode(ledger: Ledger) -> bytes:
    """Encodes a ledger; equal ledgers give equal bytes. What may be read again is not entered."""
    if any(gap.reason == UNREADABLE for gap in ledger.gaps):
        raise ValueError("records that were not delivered just now are not missing for good")
    gaps = [asdict(gap) for gap in ledger.gaps]
    seal = strict_json.seal({"version": VERSION, "gaps": gaps})
    lines = ",\n".join(json.dumps(gap) for gap in gaps)
    return (
        f'{{"version": {VERSION}, "gaps": [\n{lines}\n], "{strict_json.SEAL}": "{seal}"}}\n'
    ).encode()


def decode(buffer: Buffer) -> Ledger:
    """Decodes a ledger; raises CorruptData or NewerFormat for what is not exactly one."""
    document = strict_json.parse(buffer)
    document = strict_json.check_sealed(document, VERSION)
    strict_json.check_fields(document, "the ledger", _FILE)
    try:
        gaps = []
        for number, value in enumerate(document["gaps"]):
            fields = strict_json.as_object(value, f"gap {number}")
            strict_json.check_fields(fields, f"gap {number}", _GAP)
            gaps.append(Gap(**fields))
            if gaps[-1].reason == UNREADABLE:
                raise ValueError(f"gap {number}: {UNREADABLE} is not a lasting reason")
        return Ledger(tuple(gaps))
    except ValueError as error:
        raise CorruptData(f"the ledger contradicts itself: {error}") from error
