"""Committed offsets of classic groups: kept in memory, journaled before any answer.

All groups share one journal (`groups/offsets.log`), so that the commits of a thousand consumers
that arrive together are one write and one fsync: the thread that holds the file writes for all that
wait.

Rules.
1. An offset counts, and is answered, when its entry is durable: `commit` returns after the fsync.
2. An offset belongs to one life of its topic: what was committed to a topic that was deleted since
   does not apply to the next one of its name. Any offset is accepted, also one that moves back.
3. A failed write or fsync stops the journal until the store is opened again. A full disk refuses
   the commit and nothing else; the bytes that were written of it are cut off.
4. What was damaged is set aside and reported when the store is opened; the journal is then written
   again from what is sound. It is also written again when it has doubled.
5. Where transactional producers stand is in the same journal, so that the offsets of a transaction
   and the note that it is done are one write. Where damage lies before a sound entry nothing of it
   is believed: an epoch that was given away must not be given away again.
6. The archive has copies (`offset_copies`): they fill in what is damaged or lost. So that a lost
   journal is noticed, a store with archived topics has one as soon as it has asked for copies.
7. So many groups commit to a partition as its topic's `max.groups` says: a client can name any
   number of them, and each stays for a week.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from lamina.api import RecoveryReport
from lamina.api.memberships import Committed
from lamina.errors import (
    PASSING,
    CorruptData,
    InvalidRequest,
    LaminaError,
    NewerFormat,
    Poisoned,
    refusal_of,
)
from lamina.formats import committed_offsets as journal
from lamina.formats.committed_offsets import Entry, Kind
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.ranges import Ranges
from lamina.groups.offset_copies import OffsetCopies, all_copied
from lamina.log.data_directory import DataDirectory
from lamina.log.requests import Gate
from lamina.storage import paths

COMPACT_BYTES = 1 << 20
METADATA_BYTES_MAX = 4096
NAMED_MAX = 10
GROUPS_MAX = 10_000
NO_TOPICS: Mapping[str, TopicFile] = MappingProxyType({})


@dataclass(slots=True)
class Queued:
    """Entries that wait to be written, and how that ended."""

    entries: Sequence[Entry]
    data: bytes
    is_done: bool = False
    error: LaminaError | None = None


@dataclass(slots=True)
class _Groups:
    """What is durable: for each group its last entry of each topic and partition."""

    by_name: dict[str, dict[tuple[str, int], Entry]] = field(default_factory=dict)
    by_place: dict[tuple[str, int], dict[str, Entry]] = field(default_factory=dict)
    """The same by topic and partition, as the archive's copies have it."""
    producers: dict[str, Entry] = field(default_factory=dict)
    """The last entry of each transactional id."""

    def apply(self, entry: Entry) -> None:
        if entry.kind is Kind.PRODUCER:
            self.producers[entry.group] = entry
            return
        if entry.kind is Kind.FORGET_PRODUCER:
            self.producers.pop(entry.group, None)
            return
        name, place = entry.group, (entry.topic, entry.partition)
        if entry.kind is Kind.COMMIT:
            self.by_name.setdefault(name, {})[place] = entry
            self.by_place.setdefault(place, {})[name] = entry
            return
        known = self.by_name.get(name, {})
        gone = [place] if entry.kind is Kind.FORGET_PARTITION else list(known)
        for each in gone:
            known.pop(each, None)
            self.by_place.get(each, {}).pop(name, None)
        if not known:
            self.by_name.pop(name, None)

    def add(self, copied: Entry, forgotten: Collection[tuple[str, str, int]]) -> bool:
        """Adds an entry of a copy, unless a sound entry contradicts it; returns whether it did."""
        place = copied.topic, copied.partition
        own = self.by_name.get(copied.group, {}).get(place)
        if own is not None and (own.topic_epoch, own.time_ms) >= (
            *(copied.topic_epoch, copied.time_ms),
        ):
            return False
        if own is None and {(copied.group, "", 0), (copied.group, *place)} & set(forgotten):
            return False
        self.apply(copied)
        return True


class CommittedOffsets:
    """The offsets that consumers of a store have committed."""

    def __init__(
        self,
        boot: DataDirectory,
        epoch_of: Callable[[str], int | None],
        groups_max_of: Callable[[str], int] = lambda _: GROUPS_MAX,
    ) -> None:
        self.boot = boot
        self._groups_max_of = groups_max_of
        self._path = boot.path(paths.COMMITTED_OFFSETS)
        self._epoch_of = epoch_of
        self._groups = _Groups()
        self._queue: list[Queued] = []
        self._queueing = threading.Lock()
        self._writing = threading.Lock()
        self._end = 0
        self._compact_beyond = COMPACT_BYTES
        self._failure: Poisoned | None = None
        self._copies = OffsetCopies()
        self._is_complete = True
        self.gate: Gate = None
        """Whether an answer may go out."""

    @property
    def failure(self) -> Poisoned | None:
        """Why nothing can be committed any more, if that is so."""
        return self._failure

    # ------------------------------------------------------------------ opening

    def recover(self, report: RecoveryReport, topics: Mapping[str, TopicFile] = NO_TOPICS) -> None:
        """Reads the journal; sets damage aside, and makes durable what a kill may have left.

        What is damaged or lost is asked for in the archive of the topics.
        """
        if not self.boot.files.exists(self._path):
            if self._complete(topics, report):
                self._begin_if_possible()
            return
        data = self.boot.files.read(self._path)
        damaged = self._damage_of_header(data)
        forgotten: set[tuple[str, str, int]] = set()
        try:
            for piece in journal.walk(data):
                if piece.entry is not None:
                    self._groups.apply(piece.entry)
                    self._end = piece.end
                    if piece.entry.kind in (Kind.FORGET_PARTITION, Kind.FORGET_GROUP):
                        forgotten.add(piece.entry[1:4])
                else:
                    damaged.append((piece.position, piece.end))
        except NewerFormat as error:
            raise error.at_path(self._path) from error
        if damaged:
            # Somebody else's file is kept in one piece; of an empty one only the loss is reported.
            for where in Ranges.of(damaged).pairs() or damaged:
                self._set_aside(data, where, report)
            if any(data[end:].strip(b"\0") for _, end in damaged):
                self._groups.producers.clear()  # rule 5
            self._complete(topics, report, forgotten)
            self._write_again()
            return
        with contextlib.closing(self.boot.files.open(self._path)) as file:
            file.sync()  # what a killed process had written is served from now on
        self.boot.files.sync_directory(paths.parent(self._path))  # it may have been made just now

    def _complete(
        self,
        topics: Mapping[str, TopicFile],
        report: RecoveryReport,
        forgotten: Collection[tuple[str, str, int]] = (),
    ) -> bool:
        """Adds what the archive's copies know; returns whether all of them have answered."""
        added: set[str] = set()
        found, problems = list(all_copied(self.boot, topics.values())), set()
        for each in found:
            problems |= {each.problem} - {""}
            for entry in each.entries:
                if self._groups.add(entry, forgotten):
                    added.add(entry.group)
        self._is_complete = all(each.is_known for each in found)
        if added:
            why = (
                f"{_named(added)} from the archive's copies, as far as records were archived then:"
                " what was committed since is read again"
            )
            report.add("rebuilt", self._path, why)
        for problem in sorted(problems):
            why = f"{problem}: consumers may begin again, or go on from older offsets"
            report.add("note", self._path, why)
        return bool(found) and self._is_complete

    def peek(self, topics: Mapping[str, TopicFile] = NO_TOPICS) -> CommittedOffsets:
        """Reads the journal as it is now and changes nothing; for stores that cannot write."""
        if not self.boot.files.exists(self._path):
            self._complete(topics, RecoveryReport())
        else:
            try:
                for piece in journal.walk(self.boot.files.read(self._path)):
                    if piece.entry is not None:
                        self._groups.apply(piece.entry)
            except NewerFormat as error:
                raise error.at_path(self._path) from error
        return self

    def _damage_of_header(self, data: bytes) -> list[tuple[int, int]]:
        self._end = journal.FILE_HEADER_BYTES
        try:
            journal.decode_header(data)
        except NewerFormat as error:
            raise error.at_path(self._path) from error
        except CorruptData:
            return [(0, min(journal.FILE_HEADER_BYTES, len(data)))]
        return []

    def _set_aside(self, data: bytes, where: tuple[int, int], report: RecoveryReport) -> None:
        """Keeps bytes that are no entries; at the end of the file they are a commit cut short."""
        first, end = where
        is_tail = not data[end:].strip(b"\0")
        kept = self.boot.place("", 0).set_aside(self._path, data[first:end], first)
        report.add(
            "cut" if is_tail else "quarantined",
            self._path,
            "bytes that are no entries: a consumer may go on from an older committed offset",
            byte_range=where,
            kept_in=kept,
        )

    # ------------------------------------------------------------------ committing

    def commit(self, group: str, offsets: Iterable[Committed]) -> None:
        """Commits offsets; they are durable when this returns."""
        self.settle(self.enqueue(group, offsets))

    def enqueue(self, group: str, offsets: Iterable[Committed]) -> Queued:
        """Queues a commit behind those before it; `settle` has it written."""
        return self._enqueue(self.entries_of(group, offsets))

    def entries_of(self, group: str, offsets: Iterable[Committed]) -> list[Entry]:
        """Returns offsets as the journal has them: of the present life of their topics."""
        offsets = tuple(offsets)
        for each in offsets:
            self._refuse_many(group, each)
        now_ms = self.boot.steady()  # offsets expire by it: a clock that jumps must not matter
        return [
            Entry(
                Kind.COMMIT,
                group,
                each.topic,
                each.partition,
                self._epoch_of(each.topic) or 0,
                each.offset,
                each.leader_epoch,
                each.metadata,
                now_ms,
            )
            for each in offsets
        ]

    def _refuse_many(self, group: str, offset: Committed) -> None:
        known = self._groups.by_place.get((offset.topic, offset.partition), {})
        limit = self._groups_max_of(offset.topic)
        if group in known or len(known) < limit:
            return
        if sum(self._is_current(each) for each in list(known.values())) >= limit:
            raise InvalidRequest(
                f"{limit} groups have committed offsets of {offset.topic}-{offset.partition}, as"
                " many as the topic's max.groups; delete one, or raise max.groups"
            )

    def renew(self, groups: Iterable[str]) -> None:
        """Writes down that groups are in use now, by their newest entries: offsets stay."""
        with self._writing:
            with self._queueing:
                taken, self._queue = self._queue, []
            self._write(taken)  # what is renewed is what they say
            now_ms = self.boot.steady()
            known = (self._groups.by_name.get(name, {}).values() for name in groups)
            newest = [max(each, key=lambda entry: entry.time_ms) for each in known if each]
            entries = [entry._replace(time_ms=now_ms) for entry in newest]
            own = Queued(entries, journal.encode(entries))
            self._write([own])
        if own.error is not None:
            raise own.error

    def forget(self, group: str, places: Iterable[tuple[str, int]]) -> None:
        """Forgets what a group has committed of some partitions."""
        self.settle(self.enqueue_forget(group, places))

    def enqueue_forget(self, group: str, places: Iterable[tuple[str, int]]) -> Queued:
        """Queues that a group's offsets of some partitions are forgotten."""
        known = self._groups.by_name.get(group, {})
        entries = [
            Entry(Kind.FORGET_PARTITION, group, *place) for place in places if place in known
        ]
        return self._enqueue(entries)

    def delete(self, group: str) -> None:
        """Forgets everything that a group has committed."""
        self.settle(self.enqueue_delete(group))

    def enqueue_delete(self, group: str) -> Queued:
        """Queues that everything is forgotten that a group has committed."""
        is_known = group in self._groups.by_name
        return self._enqueue([Entry(Kind.FORGET_GROUP, group)] if is_known else [])

    def write(self, entries: Sequence[Entry]) -> None:
        """Writes entries of any kind in one piece; they are durable when this returns."""
        self.settle(self._enqueue(entries))

    def _enqueue(self, entries: Sequence[Entry]) -> Queued:
        own = Queued(entries, journal.encode(entries))
        with self._queueing:
            self._queue.append(own)
        return own

    def settle(self, own: Queued) -> None:
        """Returns when what was queued is durable; raises why it is not."""
        with self._writing:
            if not own.is_done:
                with self._queueing:
                    taken, self._queue = self._queue, []
                self._write(taken)
        if own.error is not None:
            raise own.error

    def _write(self, taken: Sequence[Queued]) -> None:
        """Writes for all waiting commits; each gets an answer, whatever happens."""
        error: LaminaError | None = self._failure
        try:
            if error is None:
                self._write_entries(taken)
        except OSError as failed:
            error = self._failed(failed)
        except LaminaError as refused:
            error = refused
        except BaseException:
            error = self._failure = Poisoned(f"{self._path}: a commit was cut off; open it again")
            raise
        finally:
            for each in taken:
                each.is_done, each.error = True, error or (self.gate() if self.gate else None)

    def _write_entries(self, taken: Sequence[Queued]) -> None:
        data = b"".join(each.data for each in taken)
        if not data:
            return
        if not self._end:
            self._begin()
        with contextlib.closing(self.boot.files.open(self._path)) as file:
            try:
                file.write_at(self._end, data)
                file.sync()  # a commit that was answered survives a power cut
            except OSError as error:
                if error.errno in PASSING:
                    file.truncate(self._end)
                    file.sync()  # half a commit must not stand before the next whole one
                raise
        self._end += len(data)
        for each in taken:
            for entry in each.entries:
                self._groups.apply(entry)
        if self._end > self._compact_beyond:
            try:
                self._write_again()
            except OSError as error:
                if error.errno not in PASSING:  # it was replaced, so where it ends is not known
                    self._failed(error)

    def _begin(self) -> None:
        """Makes the journal; with what copies have given, where a full disk kept that from it."""
        self.boot.files.make_directory(self.boot.path(paths.GROUPS))
        self._write_again()

    def _begin_if_possible(self) -> None:
        try:
            self._begin()
        except OSError as error:
            if error.errno not in PASSING:  # on a full disk, with the next commit
                raise

    def _failed(self, error: OSError) -> LaminaError:
        problem = f"{self._path}: committing offsets failed ({error})"
        if error.errno in PASSING:
            return refusal_of(error, f"{problem}; nothing was committed")
        self._failure = Poisoned(f"{problem}; open the store again")
        return self._failure

    def _write_again(self) -> None:
        """Replaces the journal by one that holds what counts, and nothing of lives that ended."""
        entries = [
            entry
            for places in self._groups.by_name.values()
            for entry in places.values()
            if self._is_current(entry)
        ]
        entries += self._groups.producers.values()
        data = journal.encode_header(self.boot.now_ms()) + journal.encode(entries)
        self.boot.files.replace(self._path, data)
        self._end = len(data)
        self._compact_beyond = max(COMPACT_BYTES, 2 * len(data))

    # ------------------------------------------------------------------ asking

    def copy(self, about: TopicFile, partition: int, archived_end: int) -> bytes | None:
        """Returns the archive's copy of a partition's offsets: empty for none.

        None where it is not known what was committed: then the copy that is there is the best.
        """
        if self._failure is not None or not self._is_complete:
            return None
        entries = dict(self._groups.by_place.get((about.name, partition), {}))
        return self._copies.of(about, partition, archived_end, entries)

    def _is_current(self, entry: Entry) -> bool:
        return self._epoch_of(entry.topic) == entry.topic_epoch

    def groups(self) -> list[str]:
        """Lists the groups that have committed something that still counts."""
        return sorted(name for name in list(self._groups.by_name) if self.of(name))

    def of(self, group: str) -> Mapping[tuple[str, int], Committed]:
        """Returns what a group has committed, by topic and partition."""
        found = dict(self._groups.by_name.get(group, {}))
        return {
            place: Committed(*place, entry.offset, entry.leader_epoch, entry.metadata)
            for place, entry in sorted(found.items())
            if self._is_current(entry)
        }

    def producers(self) -> Mapping[str, Entry]:
        """Returns the last entry of each transactional id."""
        return dict(self._groups.producers)

    def newest_ms(self, group: str) -> int:
        """Returns when a group committed last; 0 for one that never did."""
        found = dict(self._groups.by_name.get(group, {}))
        return max((entry.time_ms for entry in found.values()), default=0)


def _named(groups: Collection[str]) -> str:
    """Names groups for a report; of very many only the first."""
    names = ", ".join(repr(name) for name in sorted(groups)[:NAMED_MAX])
    more = f" and {len(groups) - NAMED_MAX} more" if len(groups) > NAMED_MAX else ""
    return f"the offsets of {names}{more} are taken"
