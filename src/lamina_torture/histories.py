"""Histories of a log, judged by the rules of Jepsen's workload for Kafka.

Clients write down what they asked for and what they were told, with the time before and after. The
rules need no model of the server and no order between clients but time:

    never sent         a value was read that nobody sent
    aborted read       a value was read whose append was answered "not stored"
    inconsistent       one offset of a partition had two values
    duplicate          one value has two offsets, though it was sent once
    lost write         an acknowledged value, or one that was read, is not there in the end
    nonmonotonic send  one client's later append got an earlier offset; a batch is not contiguous,
                       or (of one that is told no offsets) its values are not in their order
    nonmonotonic poll  one client's poll went back behind what it had read
    skipped            one client's poll went past a value without reading it
    end moved back     the end was told smaller than it was known to be before that was asked

Rule: an append without an answer may have been stored or not; nothing else is excused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["send", "poll", "end"]
Outcome: TypeAlias = Literal["ok", "fail", "info"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a client. Of an append `found` are the offsets of its values, if it has any.

    One that succeeded and was told no offsets, as Spark's sink is, is looked for in the end.
    """

    kind: Kind
    client: str
    partition: int
    began_ns: int
    ended_ns: int
    outcome: Outcome
    values: tuple[str, ...] = ()
    found: tuple[tuple[int, str], ...] = ()
    """What was read or stored where: offsets and values."""
    start: int = 0
    """Where a poll began to read."""
    end: int = 0
    """The end that was told."""

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Operation:
        """Makes an operation of JSON."""
        plain = dict(plain)
        plain["values"] = tuple(plain.get("values", ()))
        plain["found"] = tuple((offset, value) for offset, value in plain.get("found", ()))
        return Operation(**plain)


class Anomaly(NamedTuple):
    """A rule that does not hold, and what shows it."""

    rule: str
    what: str


@dataclass(slots=True)
class _Partition:
    """What is known of a partition from all clients together."""

    sent: dict[str, Outcome] = field(default_factory=dict)
    at: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    places: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    read: set[str] = field(default_factory=set)


def _once(value: str) -> bool:
    del value
    return False


def judge(
    history: Iterable[Operation],
    final: dict[int, dict[int, str]],
    may_repeat: Callable[[str], bool] = _once,
) -> list[Anomaly]:
    """Returns every anomaly of a history, given all records as they are read in the end.

    Values that `may_repeat` were perhaps sent twice: by a library that asks again by itself and
    whose producer is not idempotent.
    """
    operations = sorted(history, key=lambda each: each.began_ns)
    found: list[Anomaly] = []
    for number in sorted({each.partition for each in operations} | final.keys()):
        here = [each for each in operations if each.partition == number]
        last = final.get(number, {})
        known = _known(here, last)
        rules = (
            *(_unsent(known), _inconsistent(known, may_repeat)),
            *(_lost(here, last), _ends(here, last)),
        )
        found += [
            Anomaly(rule, f"partition {number}: {what}") for each in rules for rule, what in each
        ]
        for client in sorted({each.client for each in here}):
            own = [each for each in here if each.client == client]
            both = (_sends(own), _unplaced_sends(own, last), _polls(own, known))
            found += [Anomaly(rule, f"{client}: {what}") for each in both for rule, what in each]
    return found


_Found: TypeAlias = Iterator[tuple[str, str]]


def _known(operations: list[Operation], final: dict[int, str]) -> _Partition:
    known = _Partition()
    for each in operations:
        if each.kind == "send":
            known.sent |= dict.fromkeys(each.values, each.outcome)
        for offset, value in each.found:
            known.at[offset].add(value)
            known.places[value].add(offset)
        if each.kind == "poll":
            known.read |= {value for _, value in each.found}
    for offset, value in final.items():
        known.at[offset].add(value)
        known.places[value].add(offset)
        known.read.add(value)
    return known


def _unsent(known: _Partition) -> _Found:
    for value in sorted(known.read):
        outcome = known.sent.get(value)
        if outcome is None:
            yield "never sent", f"{value!r} was read"
        elif outcome == "fail":
            yield "aborted read", f"{value!r} was read, and answered as not stored"


def _inconsistent(known: _Partition, may_repeat: Callable[[str], bool]) -> _Found:
    for offset, values in sorted(known.at.items()):
        if len(values) > 1:
            yield "inconsistent", f"offset {offset} had {sorted(values)}"
    for value, offsets in sorted(known.places.items()):
        if len(offsets) > 1 and not may_repeat(value):
            yield "duplicate", f"{value!r} has the offsets {sorted(offsets)}"


def _lost(operations: list[Operation], final: dict[int, str]) -> _Found:
    there = set(final.values())
    for each in operations:
        if each.outcome != "ok":
            continue
        if each.kind == "send" and not each.found:
            for value in each.values:
                if value not in there:
                    yield "lost write", f"{value!r} was acknowledged and is not there"
        for offset, value in each.found:
            if value not in there:
                how = "acknowledged" if each.kind == "send" else "read"
                yield "lost write", f"{value!r} was {how} at {offset} and is not there"


def _ends(operations: list[Operation], final: dict[int, str]) -> _Found:
    """Compares each end with all that had been told before it was asked for."""
    last = Operation("end", "the end", 0, 1 << 63, 1 << 63, "ok", end=max(final, default=-1) + 1)
    told = sorted((each for each in operations if each.outcome == "ok"), key=lambda e: e.ended_ns)
    asked = sorted((each for each in told if each.kind == "end"), key=lambda e: e.began_ns)
    least, position = 0, 0
    for each in [*asked, last]:
        while position < len(told) and told[position].ended_ns < each.began_ns:
            before = told[position]
            highest = max((offset for offset, _ in before.found), default=-1) + 1
            least = max(least, before.end, highest)
            position += 1
        if each.end < least:
            yield "end moved back", f"{each.client} was told {each.end}, behind {least}"


def _sends(own: list[Operation]) -> _Found:
    highest = -1
    for each in own:
        if each.kind != "send" or each.outcome != "ok" or not each.found:
            continue
        offsets = [offset for offset, _ in each.found]
        if offsets != list(range(offsets[0], offsets[0] + len(each.values))):
            yield "nonmonotonic send", f"{list(each.values)} got the offsets {offsets}"
        if offsets[0] <= highest:
            yield "nonmonotonic send", f"offset {offsets[0]} came after {highest}"
        highest = max(highest, *offsets)


def _unplaced_sends(own: list[Operation], final: dict[int, str]) -> _Found:
    """Holds appends that were told no offsets to those at which they are found in the end."""
    place = {value: offset for offset, value in final.items()}
    placed = [
        (each, [place[value] for value in each.values if value in place])
        for each in own
        if each.kind == "send" and each.outcome == "ok" and not each.found
    ]
    for each, offsets in placed:
        if offsets != sorted(offsets):
            yield "nonmonotonic send", f"{list(each.values)} have the offsets {offsets}"
    highest, done = -1, 0
    by_end = sorted(placed, key=lambda pair: pair[0].ended_ns)
    for each, offsets in placed:
        while done < len(by_end) and by_end[done][0].ended_ns < each.began_ns:
            highest = max([highest, *by_end[done][1]])
            done += 1
        if offsets and min(offsets) <= highest:
            yield "nonmonotonic send", f"offset {min(offsets)} came after {highest}"


def _polls(own: list[Operation], known: _Partition) -> _Found:
    position = -1
    for each in own:
        if each.kind != "poll" or each.outcome != "ok":
            continue
        expected = max(each.start, 0)
        for offset, value in each.found:
            if offset < expected or offset <= position:
                yield "nonmonotonic poll", f"{value!r} at {offset} came after {expected - 1}"
            skipped = [at for at in range(expected, offset) if known.at.get(at)]
            if skipped:
                yield "skipped", f"offsets {skipped[:3]} between {expected} and {offset}"
            expected = offset + 1
            position = max(position, offset)
