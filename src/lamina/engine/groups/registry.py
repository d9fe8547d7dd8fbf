"""All groups of a store: found at open, made, listed, reset, deleted.

Rules.
1. Every group is recovered when the store is opened, before anything is appended: only then can a
   state that is ahead of its log be told from one that is not.
2. A group's state belongs to a topic's life: it goes with the topic, and before a new one of the
   same name is there.
3. A reset is planned first, and carried out only when the caller says so.
4. A deletion is decided by one durable mark; what a crash left of it is removed at the next open.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Literal, TypeAlias

from lamina.config import TopicSettings, WriterSettings
from lamina.engine.boot import Boot
from lamina.engine.groups import published
from lamina.engine.groups.about import GroupInfo, Move
from lamina.engine.groups.deadletter import Host
from lamina.engine.groups.group import LEASE_MS_MAX, Group
from lamina.engine.groups.journal import Journal, Names, read
from lamina.engine.groups.partition import GroupPartition, lag_of
from lamina.engine.groups.state import State
from lamina.engine.log_reader import LogReader
from lamina.engine.place import typed_errors
from lamina.engine.report import RecoveryReport
from lamina.errors import Closed, InvalidRequest, UnknownGroup
from lamina.formats.topic import TopicFile
from lamina.storage import paths

Start: TypeAlias = Literal["earliest", "latest", "none"]
Readers: TypeAlias = Callable[[str, int], LogReader]
_Key: TypeAlias = tuple[str, str]


def names_on_disk(boot: Boot) -> list[Names]:
    """Returns every partition of every group that has a file, sorted."""
    found = set()
    for name in boot.files.list(boot.path(paths.GROUPS)):
        parsed = paths.group_file(name)
        if parsed is not None:
            found.add((parsed.topic, parsed.group, parsed.partition))
    return [Names(boot.place(topic, partition), group) for topic, group, partition in sorted(found)]


def _key_of(names: Names) -> _Key:
    return names.place.topic, names.group


def _remove_group(parts: Sequence[Names]) -> None:
    """Removes a group's files; the first partition's, which says that it is deleted, come last."""
    for names in sorted(parts, key=lambda each: each.place.partition, reverse=True):
        names.remove()


def peek(boot: Boot, topics: Mapping[str, TopicFile], topic: str | None) -> list[tuple[str, str]]:
    """Lists the groups (topic, name) that the files tell of, changing nothing."""
    found = names_on_disk(boot)
    gone = {_key_of(names) for names in found if names.is_deleted}
    there = {_key_of(names) for names in found} - gone
    for left in published.pending(boot):
        for about in topics.values():
            if published.part_of(left, about) is not None:
                there.add((about.name, left.group))
    return sorted(key for key in there if key[0] in topics and topic in (None, key[0]))


def peek_group(boot: Boot, about: TopicFile, name: str, readers: Readers) -> GroupInfo:
    """Describes a group from its files, changing nothing."""
    there = {
        names.place.partition: names
        for names in names_on_disk(boot)
        if (names.place.topic, names.group) == (about.name, name)
    }
    left = published.left_in(boot, about, name)
    if not (there or left) or any(names.is_deleted for names in there.values()):
        raise _unknown(about.name, name)
    lags = []
    for number in range(about.partitions):
        state = read(there[number]).state if number in there else State()
        state = published.advanced(state, left, number)
        reader = readers(about.name, number)
        lags.append(lag_of(reader, state.clamped(reader.end_offset("durable")), boot.now_ms()))
    return GroupInfo(about.name, name, tuple(lags))


class Groups:
    """The groups of a store that writes."""

    def __init__(
        self,
        boot: Boot,
        host: Host,
        readers: Readers,
        writer: tuple[WriterSettings, Executor],
        now_ms: Callable[[], int],
    ) -> None:
        self._boot = boot
        self._host = host
        self._readers = readers
        self._writer = writer
        self._now_ms = now_ms
        self._changing = threading.RLock()
        self._groups: dict[_Key, list[GroupPartition]] = {}

    def failures(self) -> dict[str, str]:
        """Says which partitions of groups are poisoned, and why."""
        return {
            f"group {name!r} of {each.reader.place.name}": str(each.writer.failure)
            for (_, name), partitions in list(self._groups.items())
            for each in partitions
            if each.is_poisoned
        }

    @typed_errors("recovering groups")
    def recover(self, topics: Mapping[str, TopicFile], report: RecoveryReport) -> None:
        """Opens every group there is; removes what deleted topics have left."""
        partial: dict[_Key, dict[int, GroupPartition]] = {}
        for names in self._without_deleted(names_on_disk(self._boot), report):
            place = names.place
            about = topics.get(place.topic)
            if about is None:
                if self._boot.catalog.is_deleted(place.topic):
                    names.remove()
                    report.add("deletion finished", names.path("snap"), "its topic was deleted")
                continue
            if place.partition < about.partitions:
                opened = self._open(names, report)
                partial.setdefault((place.topic, names.group), {})[place.partition] = opened
        for key, found in partial.items():
            about = topics[key[0]]
            for number in range(about.partitions):
                if number not in found:  # a crash while the group was made
                    found[number] = self._create(key, number, "earliest")
            self._groups[key] = [found[number] for number in range(about.partitions)]

    def _without_deleted(self, every: list[Names], report: RecoveryReport) -> list[Names]:
        """Finishes deletions that were cut short; returns the files of the other groups."""
        gone = {_key_of(names) for names in every if names.is_deleted}
        for key in sorted(gone):
            parts = [names for names in every if _key_of(names) == key]
            _remove_group(parts)
            report.add("deletion finished", parts[0].path("delta"), "its group was deleted")
        return [names for names in every if _key_of(names) not in gone]

    def _open(self, names: Names, report: RecoveryReport) -> GroupPartition:
        place = names.place
        reader = self._readers(place.topic, place.partition)
        journal, state = Journal.open(names, report, reader.end_offset("durable"))
        state = state.with_deadlines_until(self._now_ms() + LEASE_MS_MAX)
        return self._started(reader, journal, state, names.group)

    def _create(self, key: _Key, partition: int, start: Start) -> GroupPartition:
        topic, name = key
        reader = self._readers(topic, partition)
        first = reader.earliest_offset() if start == "earliest" else reader.end_offset("durable")
        state = State(acked_until=first)
        journal = Journal.create(Names(self._boot.place(topic, partition), name), state)
        return self._started(reader, journal, state, name)

    def _started(
        self, reader: LogReader, journal: Journal, state: State, name: str
    ) -> GroupPartition:
        made = GroupPartition(reader, journal, state, group=name, now_ms=self._now_ms)
        made.start(*self._writer)
        return made

    # ------------------------------------------------------------------ using

    @typed_errors("making a group")
    def group(self, about: TopicFile, name: str, start: Start) -> Group:
        """Returns a group; one that is not there yet is made, durably, at `start`."""
        if start not in ("earliest", "latest", "none"):
            raise InvalidRequest(f"start must be 'earliest' or 'latest' or 'none', not {start!r}")
        key = about.name, name
        with self._changing:
            if key not in self._groups:
                if start == "none":
                    raise _unknown(about.name, name)
                for number in range(about.partitions):  # refused before anything is made
                    paths.GroupFile(about.name, number, name, "delta")
                self._groups[key] = [
                    self._create(key, number, start) for number in range(about.partitions)
                ]
            partitions = self._groups[key]
        settings = TopicSettings.parse(about.settings)
        return Group(self._host, about.name, name, partitions, settings)

    def take_over(self, topics: Mapping[str, TopicFile]) -> None:
        """Commits what readers without a store have left."""
        published.take_over(self._boot, topics, self._commit_left)

    def _commit_left(self, about: TopicFile, name: str, partition: int, offset: int) -> None:
        group = self.group(about, name, "earliest")
        end = self._readers(about.name, partition).end_offset("durable")
        group.commit(min(offset, end), partition)

    def names(self, topic: str | None) -> list[tuple[str, str]]:
        """Lists the groups, as (topic, name), sorted."""
        with self._changing:
            return sorted(key for key in self._groups if topic in (None, key[0]))

    def describe(self, topic: str, name: str) -> GroupInfo:
        """Describes a group."""
        lags = tuple(each.lag() for each in self._known(topic, name))
        return GroupInfo(topic, name, lags)

    def progress(self, topic: str, partition: int) -> dict[str, int]:
        """Returns what each group of a partition has acked durably: everything below an offset."""
        with self._changing:
            found = [(key[1], each) for key, each in self._groups.items() if key[0] == topic]
        return {name: each[partition].durable.acked_until for name, each in found}

    def _known(self, topic: str, name: str) -> list[GroupPartition]:
        with self._changing:
            if (topic, name) not in self._groups:
                raise _unknown(topic, name)
            return self._groups[topic, name]

    def reset(
        self,
        topic: str,
        name: str,
        target: ResetTo,
        partitions: Sequence[int] | None,
        *,
        execute: bool,
    ) -> list[Move]:
        """Plans a reset, and carries it out if told to."""
        known = self._known(topic, name)
        numbers = range(len(known)) if partitions is None else partitions
        moves = []
        for number in numbers:
            if not 0 <= number < len(known):
                raise InvalidRequest(f"topic {topic!r} has no partition {number}")
            each = known[number]
            before = each.durable.acked_until
            moves.append(Move(number, before, target(each.reader, before)))
        if execute:
            for move in moves:
                known[move.partition].reset(move.after)
        return moves

    # ------------------------------------------------------------------ removing and closing

    @typed_errors("deleting a group")
    def delete(self, topic: str, name: str) -> None:
        """Deletes a group for good; those who use it get Closed."""
        with self._changing:
            known = self._known(topic, name)
            for each in known:
                each.close(Closed(f"group {name!r} of {topic!r} was deleted"))
            parts = [Names(self._boot.place(topic, each.partition), name) for each in known]
            parts[0].mark_deleted()
            _remove_group(parts)
            del self._groups[topic, name]

    def close_topic(self, topic: str) -> None:
        """Closes the groups of a topic that is being deleted."""
        with self._changing:
            for key in [key for key in self._groups if key[0] == topic]:
                for each in self._groups.pop(key):
                    each.close(Closed(f"topic {topic!r} was deleted"))

    @typed_errors("removing the groups of a deleted topic")
    def forget_topic(self, topic: str) -> None:
        """Removes the files of a topic that is no more: the next of its name starts anew."""
        for names in names_on_disk(self._boot):
            if names.place.topic == topic:
                names.remove()

    def flush(self) -> None:
        """Makes durable what was only written."""
        with self._changing:
            every = [each for found in self._groups.values() for each in found]
        for each in every:
            each.flush()

    @typed_errors("closing groups")
    def close(self) -> None:
        """Closes every group; the store does it before its partitions."""
        with self._changing:
            for found in self._groups.values():
                for each in found:
                    each.close(Closed("the store is closed"))


ResetTo: TypeAlias = Callable[[LogReader, int], int]
"""Where a reset leads to, given a partition and where the group is."""


def reset_target(to: int | str | None, timestamp_ms: int | None, shift: int | None) -> ResetTo:
    """Reads the arguments of a reset, exactly one of which is given."""
    if sum(each is not None for each in (to, timestamp_ms, shift)) != 1:
        raise InvalidRequest("a reset names one of: to, timestamp_ms, shift")
    if isinstance(to, str) and to not in ("earliest", "latest"):
        raise InvalidRequest(f"a reset goes to 'earliest', 'latest' or an offset, not {to!r}")

    def target(reader: LogReader, before: int) -> int:
        earliest, end = reader.earliest_offset(), reader.end_offset("durable")
        if to == "earliest":
            wanted = earliest
        elif to == "latest":
            wanted = end
        elif timestamp_ms is not None:
            found = reader.offset_for_time(timestamp_ms)
            wanted = end if found is None else found
        elif shift is not None:
            wanted = before + shift
        else:
            wanted = int(to) if to is not None else end
        return min(max(wanted, earliest), end)

    return target


def _unknown(topic: str, name: str) -> UnknownGroup:
    return UnknownGroup(f"topic {topic!r} has no group {name!r}")
