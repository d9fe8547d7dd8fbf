"""What is known of a group when something of its own files is lost.

| from                 | what it holds                                                          |
|----------------------|------------------------------------------------------------------------|
| the file that is left | the snapshot, or the delta: see `journal`                             |
| the list of groups   | below which offset all was acked when it was written                   |
| the archive's copy   | acks, acks ahead, leases and delivery counts of one moment             |
| dead letters         | records that the group gave up: they are done                          |
| readers' positions   | taken over when the store is open, as always: see `published`          |

All of it is put together: what any of them calls acked is acked. That is only true within one life
of the group, which the list of groups names and a reset ends; what is of another life does not
count.

Rules.
1. Nothing counts as acked that may have been taken back: a doubtful source is trusted less, and
   records are delivered again.
2. Without a sound list no life is known. Then the archive's copy is believed only for a partition
   of which no file is left, and only as far as its records were archived at that time.
3. A store opens without its archive. What the copy would have added comes again, and is reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from lamina.api import RecoveryReport
from lamina.config import TopicSettings
from lamina.errors import RecordsMissing, Unavailable
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.keratin.delta import Event
from lamina.formats.scan import Limit
from lamina.groups import dead_letters
from lamina.groups.copying import is_of, state_of
from lamina.groups.dead_letters import SUFFIX, Sender
from lamina.groups.journal import Names
from lamina.groups.roster import Known
from lamina.groups.state import Numbers, State, events_of
from lamina.log.data_directory import DataDirectory
from lamina.log.gap_walk import scan_over
from lamina.log.interfaces import LogReader
from lamina.storage import paths

Readers: TypeAlias = Callable[[str, int], LogReader]
_Key: TypeAlias = tuple[str, str]
BATCH = Limit(max_records=1 << 16, max_bytes=4 << 20)


class Copied(NamedTuple):
    """What the archive's copy holds: a state and where it is from, or why there is none."""

    state: State | None = None
    source: str = ""
    problem: str = ""


class Evidence:
    """All that a directory, and its archive, know of groups apart from their own files."""

    def __init__(
        self, boot: DataDirectory, topics: Mapping[str, TopicFile], readers: Readers, known: Known
    ) -> None:
        self._boot = boot
        self._topics = topics
        self._readers = readers
        self._known = known
        self.is_complete = known.is_sound
        """Whether every group that exists is known; False if the archive could not be asked."""
        self.is_discovered = False
        """Whether the groups are known from the archive, in place of the list."""

    def groups(self, report: RecoveryReport) -> set[_Key]:
        """Returns the groups that are known: those of the list, or else those with copies."""
        found = set(self._known.groups)
        if self._known.is_sound:
            return found
        archived = [each for each in self._topics.values() if _is_archived(each)]
        self.is_complete = True
        for about in archived:
            copied = self._copied_groups(about)
            if copied is None:
                self.is_complete = False
                why = (
                    "the list of groups is missing, and the archive cannot be read now: a group of"
                    f" {about.name!r} whose own files are lost as well is not known"
                )
                report.add("note", self._boot.path(paths.ROSTER), why)
            found |= {(about.name, name) for name in copied or ()}
        self.is_discovered = bool(archived) and self.is_complete
        return found

    def _copied_groups(self, about: TopicFile) -> set[str] | None:
        """The groups of a topic that have a usable copy; None if the archive does not answer."""
        names: set[str] = set()
        for number in range(about.partitions):
            copied = self._boot.spares.groups(about.name, number)
            if copied is None:
                return None
            for name in copied:
                spare = self._boot.spares.group(about.name, number, name)
                if spare.copy is not None and is_of(spare.copy, about, number, name):
                    names.add(name)
        return names

    def life(self, topic: str, group: str, partition: int) -> str | None:
        """Returns the life of a group in a partition, as the list names it."""
        listed = self._known.groups.get((topic, group))
        return listed.life(partition) if listed is not None else None

    def complete(self, names: Names, kept: State, report: RecoveryReport) -> State:
        """Adds to what the files of a group still hold, and reports what was found where.

        The state may be ahead of the log: whoever cuts it back begins another life of the group.
        """
        about, number = self._topics[names.place.topic], names.place.partition
        reader = self._readers(about.name, number)
        end = reader.end_offset("durable")
        sources, state = [], kept
        listed = self._known.groups.get((about.name, names.group))
        if listed is not None:
            state = State(acked_until=listed.at(number)).united(state)
            sources.append(f"the list of groups (acked below {listed.at(number)})")
        copied = self._copied(about, names)
        if copied.state is not None:
            state = state.united(copied.state)
            sources.append(copied.source)
        letters = self._buried(names, state.acked_until, end)
        if len(letters):
            state = state.apply(events_of(Event.ACK, letters))
            sources.append(f"{len(letters)} dead letters")
        has_files = names.has_files
        if not has_files:
            state = not_below(state, about, reader.earliest_offset() if not sources else 0)
        if not (has_files and state.equals(kept)):
            why = _explained(names.group, state, sources, copied.problem, is_lost=not has_files)
            report.add("rebuilt", names.path("snap"), why)
        return state

    def _copied(self, about: TopicFile, names: Names) -> Copied:
        """Returns what the archive's copy holds, as far as it can be trusted."""
        number, group = names.place.partition, names.group
        if not _is_archived(about):
            return Copied()
        spare = self._boot.spares.group(about.name, number, group)
        if spare.copy is None or not is_of(spare.copy, about, number, group):
            return Copied(problem=spare.problem)
        copy, life = spare.copy, self.life(about.name, group, number)
        source = f"the archive's copy of {_moment(copy.saved_ms)}"
        if life is not None and copy.owner.life == life:
            return Copied(state_of(copy), source)
        if not self._known.is_sound and not names.has_files:
            source += f" (as far as it was archived then, to {copy.archived_until})"
            return Copied(state_of(copy).clamped(copy.archived_until), source)
        return Copied(problem=f"{source} is not of this life of the group")

    def _buried(self, names: Names, first: int, end: int) -> Numbers:
        """The offsets that the group gave up in this life, sorted; of those that are to come."""
        topic, number = names.place.topic, names.place.partition
        life, letters = self.life(topic, names.group, number), self._topics.get(topic + SUFFIX)
        if not life or letters is None:
            return np.empty(0, dtype=np.int64)
        reader = self._readers(letters.name, number % letters.partitions)
        sender = Sender(topic, number, names.group, life)
        found = [dead_letters.buried(batch, sender) for batch in _readable(reader)]
        offsets = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *found]))
        return offsets[(offsets >= first) & (offsets < end)]


def _is_archived(about: TopicFile) -> bool:
    return TopicSettings.parse(about.settings).is_archived


def _readable(reader: LogReader) -> Iterator[pa.RecordBatch]:
    """Yields every record that can be read just now, over all that is missing."""
    start, end = reader.earliest_offset(), reader.end_offset("durable")
    with contextlib.suppress(Unavailable):  # archived: what is out of reach is no evidence
        for step in scan_over(lambda at: reader.scan(at, BATCH, end=end), start, end):
            if not isinstance(step, RecordsMissing):
                yield step


def not_below(state: State, about: TopicFile, first: int) -> State:
    """Moves a state to a first offset; sequences of a wal topic begin with 1 in any case."""
    first = max(first, 1 if about.format == "wal" else 0)
    return state.apply(events_of(Event.BUMP_ACKED_UNTIL, first))


def _moment(ms: int) -> str:
    """Renders a time; one that no clock shows as its number."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def _explained(group: str, state: State, sources: list[str], problem: str, *, is_lost: bool) -> str:
    """Describes where a group goes on, and where that is known from."""
    begun = f"both files of group {group!r} are lost; it" if is_lost else f"group {group!r}"
    known = f"from {', '.join(sources)}" if sources else "the earliest: nothing else is known of it"
    missed = f" ({problem})" if problem else ""
    return (
        f"{begun} goes on at {state.acked_until}, {known}{missed}: what it acked since comes again"
    )
