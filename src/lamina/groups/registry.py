"""All groups of a store: found at open, made, listed, reset, deleted.

Rules.
1. Every group is recovered when the store is opened, before anything is appended: only then can a
   state that is ahead of its log be distinguished from one that is not.
2. A group's state belongs to a topic's life: it goes with the topic, and before a new one of the
   same name is there.
3. A reset is planned first, and carried out only when the caller says so.
4. A deletion is decided by one durable mark; what a crash left of it is removed at the next open.
5. A group begins another life when it is made, reset, or cut back to its log: whatever is kept of
   it elsewhere counts only within its life (`rebuilding`). The list of groups names it first.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import TypeAlias

from lamina.api import LEASE_MS_MAX, GroupInfo, Move, RecoveryReport, Start
from lamina.config import TopicSettings, WriterSettings
from lamina.errors import Closed, InvalidRequest, UnknownGroup, typed_errors
from lamina.formats.documents.group_roster import Listed
from lamina.formats.documents.topic_file import TopicFile
from lamina.groups import positions
from lamina.groups.copying import Copies
from lamina.groups.dead_letters import Host
from lamina.groups.journal import Journal, Names, read
from lamina.groups.lag import lag_of
from lamina.groups.lending import LendingGroup
from lamina.groups.rebuilding import Evidence, Readers
from lamina.groups.reset_targets import ResetTo
from lamina.groups.roster import Roster, listed_groups
from lamina.groups.shared_partition import GroupPartition
from lamina.groups.state import State
from lamina.log.data_directory import DataDirectory
from lamina.log.interfaces import LogReader
from lamina.log.requests import Gate
from lamina.storage import paths

_Key: TypeAlias = tuple[str, str]


def names_on_disk(boot: DataDirectory) -> list[Names]:
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
    """Removes a group's files; the first partition's, which mark it as deleted, come last."""
    for names in sorted(parts, key=lambda each: each.place.partition, reverse=True):
        names.remove()


def peek(
    boot: DataDirectory, topics: Mapping[str, TopicFile], topic: str | None
) -> list[tuple[str, str]]:
    """Lists the groups (topic, name) that have files, changing nothing."""
    report = RecoveryReport()
    found = names_on_disk(boot)
    gone = {_key_of(names) for names in found if names.is_deleted}
    known = listed_groups(boot, topics, report)
    there = {_key_of(names) for names in found}
    there |= Evidence(boot, topics, _no_reader, known).groups(report)
    there -= gone
    for left in positions.pending(boot):
        for about in topics.values():
            if positions.part_of(left, about) is not None:
                there.add((about.name, left.group))
    return sorted(key for key in there if key[0] in topics and topic in (None, key[0]))


def _no_reader(topic: str, partition: int) -> LogReader:
    raise UnknownGroup(f"no group of {topic}/{partition} is looked at")


def peek_group(
    boot: DataDirectory,
    topics: Mapping[str, TopicFile],
    about: TopicFile,
    name: str,
    readers: Readers,
) -> GroupInfo:
    """Describes a group from its files, changing nothing: as opening would find it."""
    report = RecoveryReport()
    there = {
        names.place.partition: names
        for names in names_on_disk(boot)
        if (names.place.topic, names.group) == (about.name, name)
    }
    left = positions.left_in(boot, about, name)
    evidence = Evidence(boot, topics, readers, listed_groups(boot, topics, report))
    is_known = bool(there or left) or (about.name, name) in evidence.groups(report)
    if not is_known or any(names.is_deleted for names in there.values()):
        raise _unknown(about.name, name)
    lags = []
    for number in range(about.partitions):
        names = Names(boot.place(about.name, number), name)
        found = read(names)
        state = evidence.complete(names, found.state, report) if found.problems else found.state
        state = positions.advanced(state, left, number)
        reader = readers(about.name, number)
        lags.append(lag_of(reader, state.clamped(reader.end_offset("durable")), boot.now_ms()))
    return GroupInfo(about.name, name, tuple(lags))


class Groups:
    """The groups of a store that writes."""

    def __init__(
        self,
        boot: DataDirectory,
        host: Host,
        readers: Readers,
        writer: tuple[WriterSettings, Executor, Gate],
        now_ms: Callable[[], int],
    ) -> None:
        self._boot = boot
        self._host = host
        self._readers = readers
        self._writer = writer
        self._now_ms = now_ms
        self._changing = threading.RLock()
        self._groups: dict[_Key, list[GroupPartition]] = {}
        self._epochs: dict[str, int] = {}
        self._roster = Roster(boot)
        self._known_listed: set[_Key] = set()
        self._copies = Copies(boot.now_ms)
        self._is_complete = True
        self._left: dict[_Key, Sequence[Names]] = {}

    def failures(self) -> dict[str, str]:
        """Returns which partitions of groups are poisoned, and why."""
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
        self._epochs = {name: about.epoch for name, about in topics.items()}
        known = listed_groups(self._boot, topics, report)
        evidence = Evidence(self._boot, topics, self._readers, known)
        for names in self._without_deleted(names_on_disk(self._boot), report):
            place = names.place
            about = topics.get(place.topic)
            if about is None:
                if self._boot.has_deleted(place.topic):
                    names.remove()
                    report.add("deletion finished", names.path("snap"), "its topic was deleted")
                continue
            if place.partition < about.partitions:
                opened = self._open(names, evidence, report)
                partial.setdefault((place.topic, names.group), {})[place.partition] = opened
        for key in sorted({*partial, *evidence.groups(report)}):
            about, found = topics[key[0]], partial.get(key, {})
            for number in range(about.partitions):
                if number in found:
                    continue
                if known.is_sound and key not in known.groups:  # a crash while it was made
                    found[number] = self._create(key, number, "earliest")
                else:
                    names = Names(self._boot.place(key[0], number), key[1])
                    found[number] = self._open(names, evidence, report)
            self._groups[key] = [found[number] for number in range(about.partitions)]
        self._settle(evidence)

    def _settle(self, evidence: Evidence) -> None:
        """Adds lives that have just begun to the list, before anything is appended."""
        self._is_complete = evidence.is_complete
        pairs = [
            (evidence.life(*key, each.partition), each.life)
            for key, found in self._groups.items()
            for each in found
        ]
        if any(before not in (None, now) for before, now in pairs):
            self._roster.correct(self._listed())
        elif evidence.is_discovered or any(before != now for before, now in pairs):
            with contextlib.suppress(OSError):  # on a full disk, some other time
                self._roster.write(self._listed())

    def _listed(self, *, without: _Key | None = None) -> list[Listed]:
        """Returns what the list of groups should hold now."""
        return [
            Listed(
                *(topic, self._epochs[topic], name),
                [each.durable.acked_until for each in found],
                [each.life or "" for each in found],
            )
            for (topic, name), found in list(self._groups.items())
            if (topic, name) != without and topic in self._epochs
        ]

    def _without_deleted(self, every: list[Names], report: RecoveryReport) -> list[Names]:
        """Finishes deletions that were cut short; returns the files of the other groups."""
        gone = {_key_of(names) for names in every if names.is_deleted}
        for key in sorted(gone):
            parts = [names for names in every if _key_of(names) == key]
            _remove_group(parts)
            report.add("deletion finished", parts[0].path("delta"), "its group was deleted")
        return [names for names in every if _key_of(names) not in gone]

    def _open(self, names: Names, evidence: Evidence, report: RecoveryReport) -> GroupPartition:
        """Recovers a group's share in a partition; lost files are made again."""
        place = names.place
        reader = self._readers(place.topic, place.partition)
        end = reader.end_offset("durable")
        opened = Journal.open(
            names, report, end, lambda kept: evidence.complete(names, kept, report)
        )
        state = opened.state.with_deadlines_until(self._now_ms() + LEASE_MS_MAX)
        life = evidence.life(place.topic, names.group, place.partition)
        made = self._started(reader, opened.journal, state, names.group)
        made.life = _new_life() if opened.was_ahead or life is None else life
        return made

    def _create(self, key: _Key, partition: int, start: Start) -> GroupPartition:
        return self._begun(key, self._readers(key[0], partition), start)

    def _begun(self, key: _Key, reader: LogReader, start: Start) -> GroupPartition:
        """Makes a group's place in a partition, durably."""
        (topic, name), partition = key, reader.place.partition
        first = reader.earliest_offset() if start == "earliest" else reader.end_offset("durable")
        state = State(acked_until=first)
        journal = Journal.create(Names(self._boot.place(topic, partition), name), state)
        made = self._started(reader, journal, state, name)
        made.life = _new_life()
        return made

    def _started(
        self, reader: LogReader, journal: Journal, state: State, name: str
    ) -> GroupPartition:
        return GroupPartition(
            reader, journal, state, group=name, now_ms=self._now_ms, writing=self._writer
        )

    # ------------------------------------------------------------------ using

    @typed_errors("making a group")
    def group(
        self, about: TopicFile, name: str, start: Start, *, is_bounded: bool = True
    ) -> LendingGroup:
        """Returns a group; one that is not there yet is made, durably, at `start`.

        Raises InvalidRequest where the topic has `max.groups` already, unless it is not bounded:
        a position that was published by a reader is a group's, however many there are.
        """
        if start not in ("earliest", "latest", "none"):
            raise InvalidRequest(f"start must be 'earliest' or 'latest' or 'none', not {start!r}")
        key = about.name, name
        with self._changing:
            if key not in self._groups:
                if start == "none":
                    raise _unknown(about.name, name)
                _, count = self._host.format_of(about.name)  # partitions may have been added
                for number in range(count):  # refused before anything is made
                    paths.GroupFile(about.name, number, name, "delta")
                if is_bounded:
                    self._refuse_many(about)
                self._remove_left(key)
                self._groups[key] = [self._create(key, number, start) for number in range(count)]
                self._epochs[about.name] = about.epoch
            partitions = self._groups[key]
        settings = TopicSettings.parse(about.settings)
        return LendingGroup(self._host, about.name, name, partitions, settings)

    @contextlib.contextmanager
    def growing(self, topic: str, added: Sequence[LogReader]) -> Iterator[None]:
        """Makes the places of all groups of a topic in partitions that come to exist within.

        They begin at the first record. No group is made or deleted meanwhile; if the partitions
        do not come to exist, the files that were made are unused, and are made again later.
        """
        with self._changing:
            made: list[tuple[list[GroupPartition], GroupPartition]] = []
            try:
                for key, found in self._groups.items():
                    for reader in added if key[0] == topic else ():
                        made.append((found, self._begun(key, reader, "earliest")))
                yield
            except BaseException:
                for _, each in made:
                    each.end(Closed(f"{each.reader.place.name} was never made"))
                raise
            for found, each in made:
                found.append(each)  # in place: consumers of the group poll it from now on
            if made:
                self._save_roster()

    def _refuse_many(self, about: TopicFile) -> None:
        """Every group has files and a journal in memory: a client cannot make any number."""
        limit = TopicSettings.parse(about.settings).groups_max
        if sum(topic == about.name for topic, _ in self._groups) >= limit:
            raise InvalidRequest(
                f"topic {about.name!r} has {limit} groups, as many as its max.groups; delete one,"
                " or raise max.groups"
            )

    def take_over(self, topics: Mapping[str, TopicFile]) -> None:
        """Commits what readers without a store have left."""
        positions.take_over(self._boot, topics, self._commit_left)

    def _commit_left(self, about: TopicFile, name: str, partition: int, offset: int) -> None:
        group = self.group(about, name, "earliest", is_bounded=False)
        end = self._readers(about.name, partition).end_offset("durable")
        group.commit(min(offset, end), partition)

    def names(self, topic: str | None) -> list[tuple[str, str]]:
        """Lists the groups, as (topic, name), sorted."""
        with self._changing:
            return sorted(key for key in self._groups if topic in (None, key[0]))

    def knows(self, name: str) -> bool:
        """Whether any topic has a group of a name; never waits."""
        return any(name == group for _, group in list(self._groups))

    def describe(self, topic: str, name: str) -> GroupInfo:
        """Describes a group."""
        lags = tuple(each.lag() for each in self._known(topic, name))
        return GroupInfo(topic, name, lags)

    def progress(self, topic: str, partition: int) -> dict[str, int]:
        """Returns what each group of a partition has acked durably: everything below an offset."""
        with self._changing:
            found = [(key[1], each) for key, each in self._groups.items() if key[0] == topic]
        return {
            name: each[partition].durable.acked_until
            for name, each in found
            if partition < len(each)  # one that is being added: nothing has been read of it yet
        }

    def _known(self, topic: str, name: str) -> list[GroupPartition]:
        with self._changing:
            if (topic, name) not in self._groups:
                raise _unknown(topic, name)
            return self._groups[topic, name]

    def plan_reset(
        self, topic: str, name: str, target: ResetTo, partitions: Sequence[int] | None
    ) -> list[Move]:
        """Returns how a reset would move a group; moves nothing."""
        known = self._known(topic, name)
        numbers = range(len(known)) if partitions is None else partitions
        moves = []
        for number in numbers:
            if not 0 <= number < len(known):
                raise InvalidRequest(f"topic {topic!r} has no partition {number}")
            each = known[number]
            before = each.durable.acked_until
            moves.append(Move(number, before, target(each.reader, before)))
        return moves

    @typed_errors("resetting a group")
    def move(self, topic: str, name: str, moves: Sequence[Move]) -> None:
        """Carries a reset out: the list names the next life of each partition before it begins.

        Where it stops half-way, for want of space, it can be called again with the same moves.
        """
        key, known = (topic, name), self._known(topic, name)
        with self._changing:
            ended = {move.partition: known[move.partition].life for move in moves}
            listed = {(each.topic, each.group): each for each in self._listed()}
            for move in moves:
                known[move.partition].life = None  # no copy is made of a state between two lives
                listed[key].lives[move.partition] = _new_life()
                listed[key].acked_until[move.partition] = min(move.before, move.after)
            try:
                self._roster.write(listed.values())
            except OSError:
                for number, life in ended.items():
                    known[number].life = life
                raise
            try:
                for move in moves:
                    known[move.partition].reset(move.after)
            finally:
                for move in moves:
                    known[move.partition].life = listed[key].lives[move.partition]
            self._save_roster()

    # ------------------------------------------------------------------ removing and closing

    @typed_errors("deleting a group")
    def delete(self, topic: str, name: str) -> None:
        """Deletes a group for good; its users get Closed. One that cannot be deleted lives on."""
        with self._changing:
            known = self._known(topic, name)
            parts = [Names(self._boot.place(topic, each.partition), name) for each in known]
            self._known_listed = set()  # whatever fails now, the next flush lists it again
            self._roster.correct(self._listed(without=(topic, name)))
            gone = Closed(f"group {name!r} of {topic!r} was deleted")
            known[0].end(gone, parts[0].mark_deleted)
            for each in known[1:]:
                each.end(gone)
            del self._groups[topic, name]
            self._remove_files((topic, name), parts)

    def _remove_files(self, key: _Key, parts: Sequence[Names]) -> None:
        """Removes the files of a deleted group; what is left goes before one of its name is made.

        Or when the store is opened again: the mark is the last to go.
        """
        self._left[key] = parts
        with contextlib.suppress(OSError):
            self._remove_left(key)

    def _remove_left(self, key: _Key) -> None:
        if key in self._left:
            _remove_group(self._left[key])
            del self._left[key]

    def close_topic(self, topic: str) -> None:
        """Ends the groups of a topic that is deleted; their files have no owner any more."""
        with self._changing:
            for key in [key for key in self._groups if key[0] == topic]:
                for each in self._groups.pop(key):
                    each.end(Closed(f"topic {topic!r} was deleted"))

    @typed_errors("removing the groups of a deleted topic")
    def forget_topic(self, topic: str) -> None:
        """Removes the files of a deleted topic: the next one of its name starts from nothing."""
        for names in names_on_disk(self._boot):
            if names.place.topic == topic:
                names.remove()

    def copies(
        self, about: TopicFile, partition: int, archived_end: int, copies: Copies | None = None
    ) -> dict[str, bytes]:
        """Returns the copy of each group's state in a partition, for the archive."""
        with self._changing:
            if set(self._groups) != self._known_listed:
                self._save_roster()
            listed = {
                name: found
                for (topic, name), found in self._groups.items()
                if topic == about.name and (topic, name) in self._roster.keys
            }
        return (copies or self._copies).of(about, partition, archived_end, listed)

    def is_gone(self, topic: str, group: str) -> bool:
        """Returns whether it is known that there is no such group, so that its copies may go."""
        with self._changing:
            return self._is_complete and (topic, group) not in self._groups

    def flush(self) -> None:
        """Makes durable what was only written."""
        with self._changing:
            every = [each for found in self._groups.values() for each in found]
            known = {(topic, name) for topic, name in self._groups}
        for each in every:
            each.flush()
        if known != self._known_listed:
            self._save_roster()

    def _save_roster(self) -> None:
        with self._changing:
            self._known_listed = set(self._groups)
            self._roster.save(self._listed())

    @typed_errors("closing groups")
    def close(self) -> None:
        """Closes every group; the store does it before its partitions."""
        with self._changing:
            for found in self._groups.values():
                for each in found:
                    each.close(Closed("the store is closed"))
            self._save_roster()

    def release_files(self) -> None:
        """Lets the files of every group go as they are, poisoned or not."""
        for found in self._groups.values():
            for each in found:
                each.journal.abandon()


def _new_life() -> str:
    return uuid.uuid4().hex


def _unknown(topic: str, name: str) -> UnknownGroup:
    return UnknownGroup(f"topic {topic!r} has no group {name!r}")
