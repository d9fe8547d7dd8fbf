"""What control frames and snapshots record about each topic: one table for both sources.

Every change can be applied again, and in any order, without harm: ids are never used twice, floors
only rise, and a Delete names the sequences that it can cover. So replay needs no order across
shards and may begin anywhere before the snapshot's own place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from lamina.formats import ranges
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.ranges import Ranges
from lamina.formats.wal import control, snapshot
from lamina.formats.wal.routing import Match, RoutedMark, Router, router_of

_HIGHEST = "highest_sequence"
TAG_DELETES = (control.DeleteTag, control.DeleteTagPrefix)


@dataclass(slots=True)
class TopicMetadata:
    """One topic id. `searches` are deletes by tag whose records must still be looked for."""

    name: str = ""
    epoch: int = 0
    config: str = "{}"
    evict_floor: int = 1
    earliest: int = 1
    deleted: Ranges = ranges.EMPTY
    searches: list[control.DeleteTag | control.DeleteTagPrefix] = field(default_factory=list)
    highest: int = 0


@dataclass(slots=True)
class Metadata:
    """All topics, and the ids that must not come back."""

    topics: dict[int, TopicMetadata] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)
    next_topic_id: int = 1
    routers: dict[str, Router] = field(default_factory=dict)
    router_revision: int = 0
    """The greatest revision of a router's change."""
    _covered_revision: int = 0
    """Up to which revision the snapshot has taken changes in."""

    def load(self, taken: snapshot.Snapshot) -> None:
        """Starts from a snapshot."""
        self.next_topic_id = max(1, taken.next_topic_id)
        self.dead = {topic.topic_id: topic.epoch for topic in taken.deleted_topics}
        for topic in taken.topics:
            self.topics[topic.topic_id] = TopicMetadata(
                topic.name,
                topic.epoch,
                topic.config,
                max(1, topic.evict_floor),
                max(1, topic.earliest_sequence, topic.delete_below),
                Ranges.of(topic.deleted),
                highest=_highest_in(topic.config),
            )
        for router in map(router_of, taken.routers):
            self._route(router)
        self._covered_revision = self.router_revision

    def apply(self, topic_id: int, body: control.Control) -> None:
        """Applies one control frame."""
        match body:
            case control.TopicDelete(epoch):
                self.note_id(topic_id)
                self.dead[topic_id] = max(epoch, self.dead.get(topic_id, 0))
                return
            case control.CheckpointMark(marks):
                for mark in marks:
                    known = self.topics.setdefault(mark.topic_id, TopicMetadata())
                    known.highest = max(known.highest, mark.highest_sequence)
                    known.evict_floor = max(known.evict_floor, mark.evict_floor)
                    known.earliest = max(known.earliest, mark.earliest_sequence)
                return
            case Router():
                if body.revision > self._covered_revision:
                    self._route(body)
                return
            case RoutedMark():
                return
        topic = self.topics.setdefault(topic_id, TopicMetadata())
        match body:
            case control.TopicCreate(name, epoch, config):
                self.note_id(topic_id)
                topic.name, topic.epoch, topic.config = name, epoch, config
            case control.DeleteBefore(upper, before):
                topic.earliest = max(topic.earliest, min(upper, before))
            case control.DeleteTag() | control.DeleteTagPrefix():
                topic.searches.append(body)
            case control.DeleteSequences(_, sequences):
                deleted = Ranges.of((each, each + 1) for each in sequences)
                topic.deleted = topic.deleted.union(deleted)
            case control.EvictWatermark(floor, earliest):
                topic.evict_floor = max(topic.evict_floor, floor)
                topic.earliest = max(topic.earliest, earliest)

    def _route(self, router: Router) -> None:
        self.router_revision = max(self.router_revision, router.revision)
        known = self.routers.get(router.name)
        if known is None or known.revision < router.revision:
            self.routers[router.name] = router

    def live_routers(self) -> dict[str, Router]:
        """Returns the rules that were not deleted, whatever became of their topics."""
        return {
            name: router for name, router in self.routers.items() if router.match is not Match.GONE
        }

    def note_id(self, topic_id: int) -> None:
        """Makes sure that an id is never assigned again."""
        self.next_topic_id = max(self.next_topic_id, topic_id + 1)

    def lost_topics(self, known: set[str]) -> list[TopicFile]:
        """Returns topics whose `topic.json` is gone, as the control frames describe them."""
        parts: dict[tuple[str, int], dict[int, tuple[int, dict[str, Any]]]] = {}
        for topic_id, topic in self.topics.items():
            if topic_id in self.dead or not topic.name:
                continue
            name, _, number = topic.name.rpartition("/")
            config = json.loads(topic.config)
            parts.setdefault((name, topic.epoch), {})[int(number)] = (topic_id, config)
        found = []
        for (name, epoch), numbers in parts.items():
            # A crash while partitions were added leaves two counts: the one that is there, counts.
            counts = {config.get("partitions", len(numbers)) for _, config in numbers.values()}
            there = [count for count in counts if set(range(count)) <= set(numbers)]
            if name in known or not there:
                continue
            count = max(there)
            config = numbers[0][1]
            ids = [numbers[number][0] for number in range(count)]
            found.append(
                TopicFile(
                    name,
                    "wal",
                    count,
                    epoch,
                    config.get("created_ms", 0),
                    settings=config.get("settings", {}),
                    topic_ids=ids,
                )
            )
        return found


def config_of(about: TopicFile, highest: int | None = None) -> str:
    """Returns what a TopicCreate frame records of a topic besides its name and epoch.

    A snapshot also keeps the last CheckpointMark, which is removed with its WAL file: `highest` is
    the highest sequence that segments hold durably.
    """
    told = {
        "partitions": about.partitions,
        "created_ms": about.created_ms,
        "settings": about.settings,
    }
    return json.dumps(told if highest is None else {**told, _HIGHEST: highest})


def _highest_in(config: str) -> int:
    """Returns the highest sequence in a snapshot; 0 if it has none."""
    try:
        told = json.loads(config)
    except ValueError:
        return 0
    highest = told.get(_HIGHEST) if isinstance(told, dict) else None
    return highest if isinstance(highest, int) else 0
