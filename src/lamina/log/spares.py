"""Copies of a topic's small files elsewhere, for when the local ones are damaged or gone.

The archive keeps `topic.json`, `schemas.json` and `ledger.json` of every archived topic, and the
state of its groups; its list names the records that it holds. A topic without an archive has no
copies, and one whose archive cannot be reached has none now: opening goes on without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lamina.api import Gap
from lamina.formats.documents.group_copy import GroupCopy
from lamina.formats.documents.ledger import ARCHIVED, LOST, Ledger
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.documents.topic_schemas import TopicSchemas
from lamina.formats.ranges import Ranges, Span


class SpareGroup(NamedTuple):
    """The copy of a group's state, or why it is of no use; neither where there is none."""

    copy: GroupCopy | None = None
    problem: str = ""


class SpareOffsets(NamedTuple):
    """The copy of committed offsets, or why it cannot be read; neither where there is none."""

    data: bytes | None = None
    problem: str = ""


class SpareSchemas(NamedTuple):
    """The copy of a topic's schemas, or why it is of no use; neither where there is none."""

    document: TopicSchemas | None = None
    problem: str = ""


class Spares(Protocol):
    """Where copies are asked for."""

    def topic(self, name: str) -> TopicFile | None:
        """Returns the copy of a topic's file, if there is a sound one."""

    def schemas(self, topic: str) -> SpareSchemas:
        """Returns the copy of a topic's schemas."""

    def ledger(self, topic: str, partition: int) -> Ledger | None:
        """Returns the copy of a partition's ledger, if there is a sound one."""

    def spans(self, about: TopicFile, partition: int) -> list[Span] | None:
        """Returns which offsets of a partition are archived, in order; None without an answer."""

    def group(self, topic: str, partition: int, group: str) -> SpareGroup:
        """Returns the copy of a group's state in a partition."""

    def groups(self, topic: str, partition: int) -> list[str] | None:
        """Lists the groups of a partition that have a copy; None if that cannot be known now."""

    def offsets(self, topic: str, partition: int) -> SpareOffsets | None:
        """Returns the copy of what is committed in a partition; None if there is no archive."""


class NoSpares:
    """No copies, or none that can be reached."""

    def topic(self, name: str) -> TopicFile | None:
        """Returns None."""
        return None

    def schemas(self, topic: str) -> SpareSchemas:
        """Returns none."""
        return SpareSchemas()

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

    def offsets(self, topic: str, partition: int) -> SpareOffsets | None:
        """Returns None."""
        return None


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
        """Returns which offsets are archived, in order; None without an answer."""
        return self.spares.spans(self.about, self.partition)


def losses(gap: Gap, spans: list[Span] | None) -> list[Gap]:
    """Returns what to enter of a range that is lost here: archived is what the archive has.

    `spans` is what it has, None if it has not answered: until it has, nothing counts as lost.
    """
    whole = Ranges.between(gap.first, gap.end)
    there = whole if spans is None else whole.common(Ranges.of(spans))
    parts = [Gap(*span, ARCHIVED, gap.at_ms) for span in there.pairs()]
    parts += [Gap(*span, LOST, gap.at_ms, gap.detail) for span in whole.minus(there).pairs()]
    return sorted(parts, key=lambda each: each.first)
