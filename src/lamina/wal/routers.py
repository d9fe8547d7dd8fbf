"""Routers: rules that copy records of a topic to others as they are appended.

A copy is one more record of the same group: encoded by the same kernel call, written by the same
write, durable by the same fsync. So partitions that a router connects share one shard, that of the
lowest id among them; where they were spread by their hashes, they are moved before the rule begins.

Rules.
1. A rule is a control frame first, durable, and only then in force. Where what it connects cannot
   be moved together, there is no rule: none is listed that copies nothing.
2. Copies are not routed again, so no ring of rules can loop. A record has at most one copy in a
   target, however many rules match.
3. If one target refuses its copy, nothing is appended, the source's record neither.
4. A rule ends with its source or its target; a new topic of the same name has another id.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from lamina.api import RouterInfo
from lamina.errors import LaminaError, UnknownRouter
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.wal.routing import Match, Router, encode_router
from lamina.formats.wal.sharding import shard_of
from lamina.log.router_rule import Rule, info_of
from lamina.wal.metadata import Metadata
from lamina.wal.routed import Route
from lamina.wal.shard_log import ShardLog
from lamina.wal.wal_partition import WalPartition

_COLUMNS = {Match.TAG: "tag", Match.TAG_PREFIX: "tag", Match.NODE: "node"}


class Partitions(NamedTuple):
    """What routers connect: the open partitions by id, what is known of them, the shards."""

    open: Mapping[int, WalPartition]
    abouts: Mapping[int, tuple[TopicFile, int]]
    logs: Sequence[ShardLog]


class Routers:
    """The rules of a store that is open for writing. Used with the lock of all but appends."""

    def __init__(self, partitions: Partitions, write: Callable[[Router], None]) -> None:
        self._partitions = partitions
        self._write = write
        self._rules: dict[str, Router] = {}
        self._revision = 0

    def load(self, metadata: Metadata) -> None:
        """Takes over the rules of the WAL and the snapshot, and puts them in force."""
        self._revision = metadata.router_revision
        self._rules = metadata.live_routers()
        self._rules = self._live()
        self._gather(self._rules)
        self.put_in_force()

    def listed(self) -> list[RouterInfo]:
        """Returns all rules, by name."""
        abouts = {key: about for key, (about, _) in self._partitions.abouts.items()}
        return described(self._live().values(), abouts)

    def encoded(self) -> tuple[bytes, ...]:
        """Returns what a snapshot keeps: the rules, and the greatest revision of all."""
        kept = list(self._live().values())
        if self._revision > max((rule.revision for rule in kept), default=0):
            kept.append(Router("-", self._revision, Match.GONE, 0, 0))
        return tuple(map(encode_router, kept))

    # ------------------------------------------------------------------ changes

    def put(self, name: str, topics: tuple[TopicFile, TopicFile], rule: Rule) -> None:
        """Begins or changes a rule; it is durable and in force when this returns.

        Raises what keeps a partition from being moved; then nothing has begun or changed.
        """
        source, target = topics
        match, pattern = rule
        ids = source.topic_ids[0], target.topic_ids[0]
        made = Router(name, self._revision + 1, match, *ids, pattern)
        self._require_sound(topics)
        try:
            self._gather(self._live() | {name: made})
        except BaseException:
            with contextlib.suppress(LaminaError):  # one that stays apart refuses its copies
                self._gather(self._live())
            raise
        self._write(made)
        self._revision = made.revision
        self._rules[name] = made
        self.put_in_force()

    def remove(self, name: str) -> None:
        """Ends a rule; what it has copied stays."""
        known = self.get(name)
        gone = Router(name, self._revision + 1, Match.GONE, known.source_id, known.target_id)
        self._write(gone)
        self._revision = gone.revision
        del self._rules[name]
        self.put_in_force()

    def get(self, name: str) -> Router:
        """Returns a rule by its name; raises UnknownRouter."""
        found = self._live().get(name)
        if found is None:
            raise UnknownRouter(f"there is no router {name!r}")
        return found

    def has(self, name: str) -> bool:
        """Returns whether there is a rule of that name."""
        return name in self._live()

    def _live(self) -> dict[str, Router]:
        """The rules whose topics both exist."""
        known = self._partitions.open
        return {
            name: rule
            for name, rule in sorted(self._rules.items())
            if rule.source_id in known and rule.target_id in known
        }

    def _require_sound(self, topics: Iterable[TopicFile]) -> None:
        for topic_id in (each for about in topics for each in about.topic_ids):
            failure = self._partitions.open[topic_id].writer.failure
            if failure is not None:
                raise failure

    # ------------------------------------------------------------------ in force

    def _gather(self, rules: Mapping[str, Router]) -> None:
        """Has everything that rules connect share a shard; what does already stays where it is."""
        edges = [each for rule in rules.values() for each in self._edges(rule)]
        homes = _homes([(source, target) for source, target, _ in edges])
        logs, known = self._partitions.logs, self._partitions.open
        for home in set(homes.values()):
            members = [known[each] for each in homes if homes[each] == home]
            if len({id(each.log) for each in members}) > 1:
                for each in members:
                    self._move(each, logs[shard_of(home, len(logs))])

    def reconnect(self) -> None:
        """Reaches what topics have grown by: rules connect all of their partitions."""
        with contextlib.suppress(LaminaError):  # one that stays apart refuses its copies
            self._gather(self._live())
        self.put_in_force()

    def put_in_force(self) -> None:
        """Sets every source's routes, without those whose source or target is gone by now."""
        self._rules = self._live()
        edges = [each for rule in self._rules.values() for each in self._edges(rule)]
        routes: dict[int, list[Route]] = {}
        for source, target, rule in edges:
            exact = rule.match is not Match.TAG_PREFIX
            taker = self._partitions.open[target]
            route = Route(rule.name, taker, _COLUMNS[rule.match], rule.pattern, exact)
            routes.setdefault(source, []).append(route)
        for topic_id, partition in self._partitions.open.items():
            wanted = tuple(routes.get(topic_id, ()))
            if partition.routes != wanted:
                partition.routes = wanted  # one assignment: a group has the old ones or the new

    def _edges(self, rule: Router) -> list[tuple[int, int, Router]]:
        """Which partition of the source copies to which one of the target."""
        source, _ = self._partitions.abouts[rule.source_id]
        target, _ = self._partitions.abouts[rule.target_id]
        ids = target.topic_ids
        return [
            (topic_id, ids[number % len(ids)], rule)
            for number, topic_id in enumerate(source.topic_ids)
        ]

    def _move(self, partition: WalPartition, log: ShardLog) -> None:
        """Moves the appends of a partition to another shard; what the old one holds is durable.

        Both leaders are kept out, so that no sequence is assigned twice.
        """
        old = partition.log
        if old is log:
            return

        def leave() -> None:
            old.sync()  # recovery reads shards in any order: the old one holds all before the move
            log.writer.exclusively(enter)

        def enter() -> None:
            partition.log = log

        old.writer.exclusively(leave)


def _homes(edges: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Returns for each connected id the lowest one that it is connected with, by any path."""
    homes: dict[int, int] = {}
    changed = True
    while changed:
        changed = False
        for one, other in edges:
            home = min(homes.get(one, one), homes.get(other, other))
            changed |= homes.get(one) != home or homes.get(other) != home
            homes[one] = homes[other] = home
    return homes


def described(rules: Iterable[Router], abouts: Mapping[int, TopicFile]) -> list[RouterInfo]:
    """Describes the rules whose topics exist, as users know them."""
    found = []
    for rule in sorted(rules, key=lambda each: each.name):
        source, target = abouts.get(rule.source_id), abouts.get(rule.target_id)
        if source is not None and target is not None and rule.match is not Match.GONE:
            found.append(info_of(rule.name, source.name, target.name, rule))
    return found
