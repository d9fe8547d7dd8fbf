"""What the windows of a cluster's log say, as a standby reads them, one by one.

    boundary ─▶ full window ─▶ window ─▶ … ─▶ the last one there is
                    └ topics, schemas, ledgers: `History`    └ records: stretches

Rules.
1. The first window above the boundary is a full one, so nothing before it is needed.
2. Groups, offsets and producers are not kept: only the holder needs them.
3. When a topic is deleted, or created again, its stretches are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from lamina.errors import CorruptData
from lamina.formats.documents import ledger
from lamina.formats.documents.ledger import Ledger
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.tail_file import Kind, Section, Tail
from lamina.storage import paths
from lamina.store.window_history import History
from lamina.store.window_objects import HeldWindows, Stretch, stretches_of

Life: TypeAlias = tuple[str, int, int]
"""Which of the topics that had a name in turn: its name, its epoch, and its time of creation."""


def life_of(about: TopicFile) -> Life:
    """Returns which of the topics of its name this is."""
    return about.name, about.epoch, about.created_ms


@dataclass(slots=True)
class Following:
    """The log from its boundary on, as far as it has been read."""

    first_seq: int
    next_seq: int
    held: HeldWindows
    epoch: int = 0
    """The epoch of the last window."""
    history: History = field(default_factory=History)
    _stretches: dict[tuple[Life, int], tuple[Stretch, ...]] = field(default_factory=dict)
    _ledgers: dict[tuple[Life, int], Ledger] = field(default_factory=dict)

    def take(self, tail: Tail) -> None:
        """Adds the next window; raises CorruptData for a bad one, and then adds no record of it."""
        records = stretches_of(tail, self.held)
        copies = tuple(each for each in tail.sections if _is_kept(each))
        known = self.history.topics.keys() | {
            paths.archived_topic(each.name) for each in copies
        }  # a window describes a topic before it holds records of it
        for section, _ in records:
            if section.name not in known:
                raise CorruptData(
                    "a window holds records of a topic that no window describes",
                    path=paths.tail(tail.seq),
                    found=section.name,
                )
        self.history.apply(Tail(tail.seq, tail.epoch, copies))
        for section, span in records:
            key = life_of(self.history.topics[section.name].about), section.partition
            self._stretches[key] = (*self._stretches.get(key, ()), span)
        self._note_ledgers(copies)
        self._forget_the_dead()
        self.epoch, self.next_seq = tail.epoch, tail.seq + 1

    def _note_ledgers(self, copies: tuple[Section, ...]) -> None:
        for each in copies:
            parsed = paths.archived_ledger(each.name)
            topic = self.history.topics.get(parsed[0]) if parsed is not None else None
            if parsed is not None and topic is not None:
                self._ledgers[life_of(topic.about), parsed[1]] = ledger.decode(each.body)

    def _forget_the_dead(self) -> None:
        alive = {life_of(each.about) for each in self.history.alive()}
        for kept in (self._stretches, self._ledgers):
            for key in [each for each in kept if each[0] not in alive]:
                del kept[key]

    def topics(self) -> Mapping[str, TopicFile]:
        """Returns the topics that are there, by name."""
        return {each.about.name: each.about for each in self.history.alive()}

    def stretches(self, life: Life, partition: int) -> tuple[Stretch, ...]:
        """Returns what windows have of a partition, oldest first."""
        return self._stretches.get((life, partition), ())

    def ledger(self, life: Life, partition: int) -> Ledger:
        """Returns the last ledger of a partition that was shipped."""
        return self._ledgers.get((life, partition), Ledger())

    def behind(self, boundary: int) -> list[tuple[Life, int]]:
        """Returns the partitions that have stretches below a boundary."""
        return [key for key, found in self._stretches.items() if found[0].seq < boundary]

    def let_go(self, boundary: int) -> None:
        """Forgets the windows below a boundary: the archive has what is in them."""
        for key in self.behind(boundary):
            left = tuple(each for each in self._stretches[key] if each.seq >= boundary)
            self._stretches[key] = left
            if not left:
                del self._stretches[key]
        self.held.let_go(boundary)
        self.first_seq = boundary


def _is_kept(section: Section) -> bool:
    """Whether a section is a copy that readers need: a topic's file, its schemas, a ledger."""
    last = section.name.rpartition("/")[2]
    wanted = (paths.TOPIC_SETTINGS, paths.TOPIC_SCHEMAS, paths.LEDGER)
    return section.kind == Kind.COPY and last in wanted
