"""What of a topic lies elsewhere: asked for when what is here is damaged, or gone.

The archive keeps `topic.json` and `ledger.json` of every archived topic, and the state of its
groups; its list names the records that it holds. A topic without an archive has no copies, and one
whose archive cannot be reached has none now: opening goes on without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lamina.api import Gap
from lamina.formats.documents.group_copy import GroupCopy
from lamina.formats.documents.ledger import ARCHIVED, LOST, Ledger, Span
from lamina.formats.documents.topic_file import TopicFile


class SpareGroup(NamedTuple):
    """The copy of a group's state, or why it is of no use; neither where there is none."""

    copy: GroupCopy | None = None
    problem: str = ""


class Spares(Protocol):
    """Where copies are asked for."""

    def topic(self, name: str) -> TopicFile | None:
        """Returns the copy of a topic's file, if there is a sound one."""

    def ledger(self, topic: str, partition: int) -> Ledger | None:
        """Returns the copy of a partition's ledger, if there is a sound one."""

    def spans(self, about: TopicFile, partition: int) -> list[Span] | None:
        """Returns which offsets of a partition are archived, in order; None if nobody answers."""

    def group(self, topic: str, partition: int, group: str) -> SpareGroup:
        """Returns the copy of a group's state in a partition."""

    def groups(self, topic: str, partition: int) -> list[str] | None:
        """Lists the groups of a partition that have a copy; None if that cannot be known now."""


class NoSpares:
    """No copies, or none that can be reached."""

    def topic(self, name: str) -> TopicFile | None:
        """Returns None."""
        return None

    def ledger(self, topic: str, partition: int) -> Ledger | None:
        """Returns None."""
        return None

    def spans(self, about: TopicFile, partition: int) -> list[Span] | None:
        """Returns None."""
        return None

    def group(self, topic: str, partition: int, group: str) -> SpareGroup:
        """Returns none."""
        return SpareGroup()

    def groups(self, topic: str, partition: int) -> list[str] | None:
        """Returns none."""
        return []


NO_SPARES = NoSpares()


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of one partition of an archived topic."""

    spares: Spares
    about: TopicFile
    partition: int

    def ledger(self) -> Ledger | None:
        """Returns the copy of the ledger, if there is a sound one."""
        return self.spares.ledger(self.about.name, self.partition)

    def spans(self) -> list[Span] | None:
        """Returns which offsets are archived, in order; None if nobody answers."""
        return self.spares.spans(self.about, self.partition)


def losses(gap: Gap, spans: list[Span] | None) -> list[Gap]:
    """Returns what to enter of a range that is lost here: archived is what the archive has.

    `spans` is what it has, None where it has not answered: nothing is lost before it has said so.
    """
    parts = [(gap.first, gap.end)] if spans is None else _inside(gap.first, gap.end, spans)
    there = Ledger(tuple(Gap(first, end, ARCHIVED, gap.at_ms) for first, end in parts))
    lost = there.unexplained(gap.first, gap.end)
    return sorted(
        [*there.gaps, *(Gap(first, end, LOST, gap.at_ms, gap.detail) for first, end in lost)],
        key=lambda each: each.first,
    )


def _inside(first: int, end: int, spans: list[Span]) -> list[Span]:
    clipped = ((max(first, start), min(end, stop)) for start, stop in spans)
    return [(start, stop) for start, stop in clipped if start < stop]
