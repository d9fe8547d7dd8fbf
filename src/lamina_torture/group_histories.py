"""Histories of consumer groups, judged by what Kafka's classic groups promise.

Members write down what they read. A tap on the wire writes down what was committed, what was told
to be committed, and which partitions each member was assigned.

    lost commit     an offset was told as committed that a later commit had surely replaced, or
                    none was told after one was acknowledged
    foreign commit  an offset was told as committed that nobody had committed
    unread          a group has committed past a record that none of its members read
    assigned twice  two members of one generation had the same partition

Rules.
1. A commit without an answer may have been stored or not, until its broker ended; nothing else is
   excused.
2. Commits may go back: a client that sends one again may send it late. What counts is which of
   two commits was answered before the other was asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lamina_torture.histories import Anomaly, Outcome

NOTHING = -1
"""What is told of a partition for which a group has committed nothing."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of one partition, or (`is_told`) what was said to be committed."""

    group: str
    partition: int
    offset: int
    began_ns: int
    ended_ns: int
    outcome: Outcome = "ok"
    is_told: bool = False


class Share(NamedTuple):
    """What one member was assigned in one generation of its group, by one life of the broker."""

    life: int
    group: str
    generation: int
    member: str
    partitions: tuple[int, ...]


class Read(NamedTuple):
    """A record that a member of a group has read."""

    group: str
    partition: int
    offset: int


def judge_groups(
    commits: Iterable[Commit],
    shares: Iterable[Share],
    reads: Iterable[Read],
    final: dict[int, dict[int, str]],
) -> list[Anomaly]:
    """Returns every anomaly of groups, given all records as they are read in the end.

    What a group has committed in the end is a told commit like others.
    """
    by_place: dict[tuple[str, int], list[Commit]] = defaultdict(list)
    for each in commits:
        by_place[each.group, each.partition].append(each)
    read = set(reads)
    found = list(_assigned_twice(shares))
    for (group, partition), here in sorted(by_place.items()):
        where = f"{group}, partition {partition}"
        found += [Anomaly(rule, f"{where}: {what}") for rule, what in _commits(here)]
        last = max((each.offset for each in here if each.is_told), default=NOTHING)
        unread = [
            offset
            for offset in sorted(final.get(partition, {}))
            if offset < last and Read(group, partition, offset) not in read
        ]
        if unread:
            what = f"{where}: nobody read {unread[:3]}, and {last} is committed"
            found.append(Anomaly("unread", what))
    return found


def _commits(here: list[Commit]) -> Iterator[tuple[str, str]]:
    written = [each for each in here if not each.is_told and each.outcome != "fail"]
    stored = [each for each in written if each.outcome == "ok"]
    for told in (each for each in here if each.is_told):
        before = [each for each in stored if each.ended_ns < told.began_ns]
        latest_begin = max((each.began_ns for each in before), default=-1)
        if told.offset == NOTHING:
            if before:
                yield "lost commit", f"nothing was told, {before[-1].offset} was acknowledged"
            continue
        same = [
            each for each in written if each.offset == told.offset and each.began_ns < told.ended_ns
        ]
        if not same:
            yield "foreign commit", f"{told.offset} was told, and nobody had committed it"
        elif all(each.ended_ns < latest_begin for each in same):
            later = max(before, key=lambda each: each.began_ns)
            yield "lost commit", f"{told.offset} was told, {later.offset} was acknowledged later"


def _assigned_twice(shares: Iterable[Share]) -> Iterator[Anomaly]:
    holders: dict[tuple[int, str, int, int], set[str]] = defaultdict(set)
    for each in shares:
        for partition in each.partitions:
            holders[each.life, each.group, each.generation, partition].add(each.member)
    for (_, group, generation, partition), members in sorted(holders.items()):
        if len(members) > 1:
            what = f"{group}, generation {generation}: {sorted(members)} have {partition}"
            yield Anomaly("assigned twice", what)
