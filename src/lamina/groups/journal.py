"""A group's state of one partition on disk: `<topic-partition>_<group>.snap` and `.delta`.

Together they are the truth about the group. Every change is an event at the end of the delta; when
the delta has grown, it is rotated:

    sync the delta ─▶ replace the snapshot ─▶ replace the delta (acks ahead, then the frontier)

A crash between the two replacements leaves an old delta beside a newer snapshot, and replaying it
ends in the same state (rule 2 of `state.py`). The new delta repeats the frontier as its last event,
so that losing the snapshot costs leases and epochs, but no ack.

Rules.
1. Reading never changes a file; `Journal.open` sets damage aside, then rewrites both files.
2. A damaged spot costs the events whose bytes are damaged. Sound ones behind it are applied: at
   worst a record waits for a deadline or comes once more, it is never lost.
3. A sound event of an unknown kind is a newer format: refused, never cut.
4. A reset is a new delta, put in place by one rename: a reset, and the bump behind it. The
   snapshot is lowered first, so that it holds nothing that the reset has taken back, even if the
   delta is lost. A reset at the end of a delta, without its bump, was torn, and is left out.
5. A delta of two resets and nothing else means that its group is deleted, in all partitions. That
   of the first partition is replaced by it before any file is removed, and is removed last: a
   deletion that a crash cut short is finished by the next open.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from lamina.api import RecoveryReport
from lamina.errors import NO_SPACE, PASSING, CorruptData, NewerFormat, refusal_of
from lamina.formats.keratin import delta, snapshot
from lamina.formats.keratin.delta import Event, Events
from lamina.formats.scan import WHOLE, Damage, Run, Stop, runs
from lamina.groups.state import State, events_of, joined
from lamina.log.directory import Place
from lamina.storage import paths
from lamina.storage.files import File, lasting, prepare_space, replace_file, settle_names
from lamina.storage.kept_file import KeptFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

COMPACT_BYTES = 4 << 20
COMPACT_EVENTS = 50_000
PREPARE_BYTES = 512 << 10
PREPARE_BELOW_BYTES = 64 << 10
"""Larger appends gain nothing from prepared space, and would write everything twice."""
REPEATED_AT_ONCE = 1 << 16


@functools.cache
def _deleted() -> bytes:
    """Two resets and nothing else: live traffic always has a bump behind a reset."""
    return delta.encode([int(Event.RESET)] * 2).tobytes()


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a file; `data` are the bytes to set aside, from `position` on."""

    kind: str
    path: str
    why: str
    data: bytes = b""
    position: int = 0


@dataclass(slots=True)
class Found:
    """What the files of a group hold. `end` is where the delta's sound events end."""

    state: State
    events: int = 0
    end: int = 0
    problems: list[Problem] = field(default_factory=list)


class Opened(NamedTuple):
    """A journal, the state it holds, and whether that had been ahead of the log."""

    journal: Journal
    state: State
    was_ahead: bool


Complete: TypeAlias = Callable[[State], State]
"""Adds what is known elsewhere to the state that the files of a group still hold."""


@dataclass(frozen=True, slots=True)
class Names:
    """Where a group's files for one partition are."""

    place: Place
    group: str

    def path(self, suffix: str) -> str:
        """Returns the path of one of the two files."""
        name = paths.GroupFile(self.place.topic, self.place.partition, self.group, suffix).name
        return paths.join(self.folder, name)

    @property
    def folder(self) -> str:
        """The directory of all groups."""
        return paths.join(self.place.data, paths.GROUPS)

    def remove(self) -> None:
        """Removes both files for good, the delta last: it may mark the group as deleted."""
        for suffix in ("snap", "delta"):
            if self.place.files.exists(self.path(suffix)):
                self.place.files.remove(self.path(suffix))
                # Before the delta goes: a snapshot that came back alone would be a group again.
                settle_names(self.place.files, self.folder)

    def mark_deleted(self) -> None:
        """Marks the whole group as deleted in the delta, durably."""
        data = delta.encode_header(self.place.now_ms()) + _deleted()
        self.place.files.replace(self.path("delta"), data)

    @property
    def has_files(self) -> bool:
        """Whether at least one of the two files is there."""
        return any(self.place.files.exists(self.path(suffix)) for suffix in ("snap", "delta"))

    @property
    def is_deleted(self) -> bool:
        """Returns whether the delta marks the group as deleted."""
        path = self.path("delta")
        try:
            file = self.place.files.open_read_only(path)
        except FileNotFoundError:
            return False
        try:
            length = delta.FILE_HEADER_BYTES + len(_deleted())
            data = file.read_at(0, length + 1)
        finally:
            file.close()
        return len(data) == length and bytes(data).endswith(_deleted())


# ---------------------------------------------------------------------- reading


def read(names: Names) -> Found:
    """Reads a group's state without changing anything; raises NewerFormat."""
    found = _read_snapshot(names)
    path = names.path("delta")
    if not names.place.files.exists(path):
        found.problems.append(Problem("rebuilt", path, "the delta is missing"))
        return found
    data = names.place.files.read(path)
    try:
        delta.decode_header(data)
    except NewerFormat as error:
        raise error.at_path(path) from error
    except CorruptData as error:
        why = f"the delta's header is damaged: {error.problem}"
        head = data[: delta.FILE_HEADER_BYTES]
        before = len(found.problems)
        found.problems.append(Problem("quarantined", path, why, head))
        _replay(found, path, data)
        if not found.events:  # it is no delta, or nothing is left of it: it is kept in one piece
            found.problems[before:] = [Problem("quarantined", path, why, data)]
        return found
    _replay(found, path, data)
    return found


def _read_snapshot(names: Names) -> Found:
    path = names.path("snap")
    if not names.place.files.exists(path):
        why = "the snapshot is missing: leases and delivery counts from before it are lost"
        return Found(State(), problems=[Problem("rebuilt", path, why)])
    data = names.place.files.read(path)
    try:
        return Found(_state_of(snapshot.decode(data), names))
    except NewerFormat as error:
        raise error.at_path(path) from error
    except CorruptData as error:
        why = f"the snapshot is damaged: {error.problem}; records may come again"
        return Found(State(), problems=[Problem("quarantined", path, why, data)])


def _state_of(found: snapshot.Snapshot, names: Names) -> State:
    place = names.place
    hashes = (
        snapshot.hash_topic_partition(place.topic, place.partition),
        snapshot.hash_group(names.group),
    )
    if (found.tp_hash, found.group_hash) != hashes:
        raise CorruptData("it belongs to another group or partition", position=24)
    marks = events_of(
        Event.MARK_INFLIGHT, found.offsets, found.deadlines_ms, np.maximum(found.epochs, 1)
    )
    return State(acked_until=found.acked_until).apply(marks)


def _replay(found: Found, path: str, data: bytes) -> None:
    """Applies every sound event of a delta and notes what lies between them."""
    found.end = min(delta.FILE_HEADER_BYTES, len(data))
    for step in runs(delta.EventLog(data), found.end, limit=WHOLE):
        if isinstance(step, Run):
            piece = step.found
            events = _without_torn_reset(delta.decode(data, piece))
            found.state = found.state.apply(events)
            found.events += len(events.types)
            if len(events.types) < len(piece):
                at = piece.end - delta.OVERHEAD_BYTES
                torn = data[at : piece.end]
                found.problems.append(Problem("cut", path, "a reset was not finished", torn, at))
            found.end = piece.end
            continue
        if step.is_blank:
            return
        _refuse_newer(path, data, step)
        kind = "cut" if step.following is None else "quarantined"
        why = f"bytes that are no events ({step.stop.name})"
        spot = data[step.position : step.end]
        found.problems.append(Problem(kind, path, why, spot, step.position))


def _without_torn_reset(events: Events) -> Events:
    torn = len(events.types) > 0 and events.types[-1] == Event.RESET
    return Events(*(column[:-1] for column in events)) if torn else events


def _refuse_newer(path: str, data: bytes, spot: Damage) -> None:
    """Refuses an event that is sound but unknown; one with a bad checksum is damage."""
    if spot.stop is not Stop.BAD_VERSION:
        return
    fields = delta.HEADER.unpack(data, spot.position)
    raise NewerFormat(
        "an event of an unknown kind",
        path=path,
        position=spot.position,
        expected="version 1, types 1 to 5",
        found=f"version {fields['version']}, type {fields['event_type']}",
    )


# ---------------------------------------------------------------------- writing


class Journal:
    """The two files of a group for one partition, open for writing. For the writer's leader."""

    def __init__(self, names: Names, file: File | None, *, end: int, events: int) -> None:
        self._names = names
        self._file = KeptFile(names.place.files, names.path("delta"), file)
        self._end = self._prepared = end
        self._since_bytes = self._since_events = 0
        self._base_events = events
        self._base_bytes = end
        self.rotations = 0

    @classmethod
    def create(cls, names: Names, state: State) -> Journal:
        """Makes the files of a new group: it is there for good when this returns."""
        names.place.files.make_directory(names.folder)
        journal = cls(names, None, end=0, events=0)
        journal._rewrite(state)
        return journal

    @classmethod
    def open(
        cls, names: Names, report: RecoveryReport, log_end_offset: int, complete: Complete
    ) -> Opened:
        """Recovers a group: reads it, sets damage aside, and never lets it be ahead of the log.

        Where something of it is lost, `complete` adds what is known from elsewhere.
        """
        found = read(names)
        place = names.place
        is_there = names.has_files
        for problem in found.problems if is_there else ():
            kept = None
            if problem.data:
                kept = place.set_aside(problem.path, problem.data, problem.position)
            start = problem.position
            where = (start, start + len(problem.data)) if problem.data else None
            report.add(problem.kind, problem.path, problem.why, byte_range=where, kept_in=kept)  # type: ignore[arg-type]
        state = found.state
        if found.problems:
            state = complete(state)
        was_ahead = state.is_beyond(log_end_offset)
        if was_ahead:
            why = (
                f"group {names.group!r} was ahead of {place.name}, which ends at"
                f" {log_end_offset}: it had acked up to {state.acked_until}"
            )
            report.add("clamped", names.path("snap"), why)
            state = state.clamped(log_end_offset)
        if found.problems or state is not found.state:
            return Opened(cls.create(names, state), state, was_ahead)
        place.files.sync_directory(names.folder)
        file = place.files.open(names.path("delta"))
        file.sync()  # a killed process may have left events that are not durable
        journal = cls(names, file, end=found.end, events=0)
        journal._since_events = found.events
        journal._since_bytes = found.end
        return Opened(journal, state, was_ahead)

    def append(self, events: Events) -> None:
        """Writes events behind the others; without space none of them, raising StorageFull."""
        data = delta.encode_events(events)
        try:
            self._prepare(len(data))
            self._file.write_at(self._end, data.data)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            if error.errno in NO_SPACE:  # a part of it may be there; without a descriptor none is
                self._file.truncate(self._end)
                self._file.sync()  # half an event must not end up before the next whole one
                self._prepared = self._end
            raise refusal_of(
                error,
                f"group {self._names.group!r} of {self._names.place.name}: no space left on the"
                " device; its state is unchanged",
            ) from error
        self._end += len(data)
        self._prepared = max(self._prepared, self._end)
        self._since_events += len(events.types)
        self._since_bytes += len(data)

    def _prepare(self, length: int) -> None:
        """Writes zeros ahead: an fsync that need not change the file's size costs half."""
        if self._end + length > self._prepared and length < PREPARE_BELOW_BYTES:
            end = self._end + length + PREPARE_BYTES
            self._prepared = prepare_space(self._file, self._end, end)

    def sync(self) -> None:
        """Makes all events durable."""
        self._file.sync()

    @property
    def is_due(self) -> bool:
        """Whether the delta has grown enough to be rotated: as much again as it began with."""
        return self._since_bytes >= max(COMPACT_BYTES, self._base_bytes) or (
            self._since_events >= max(COMPACT_EVENTS, self._base_events)
        )

    def rotate(self, state: State) -> None:
        """Starts a new delta behind a snapshot of the state; on a full disk, some other time."""
        self._file.sync()  # if the new snapshot is lost, the old pair still holds everything
        try:
            self._rewrite(state)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            self._since_bytes = self._since_events = 0

    def reset(self, state: State, offset: int) -> State:
        """Forgets everything and goes on at an offset; returns the state after it.

        Fails without space, or before the delta is replaced, without having changed anything: the
        old delta holds all that the lowered snapshot does not.
        """
        # Durable before the snapshot is lowered: then the delta alone has the acks above it.
        self._file.sync()
        lowered = replace(state, acked_until=min(state.acked_until, offset))
        self._replace_snapshot(lowered)
        where = joined([events_of(Event.RESET), events_of(Event.BUMP_ACKED_UNTIL, offset)])
        self._replace_delta([delta.encode_events(where).data], events=len(where.types))
        return State(acked_until=offset)

    def _rewrite(self, state: State) -> None:
        """Replaces the snapshot, then the delta."""
        self._replace_snapshot(state)
        self._replace_delta(_repeated(state), events=state.acked_ahead + 1)
        self.rotations += 1

    def _replace_snapshot(self, state: State) -> None:
        names = self._names
        made = _snapshot_of(names, state, names.place.now_ms())
        names.place.files.replace(names.path("snap"), snapshot.encode(made))

    def _replace_delta(self, pieces: Iterable[Buffer], *, events: int) -> None:
        names, files = self._names, self._names.place.files
        header = delta.encode_header(names.place.now_ms())
        replace_file(files, names.path("delta"), header, more=pieces)
        self._file.reopen()  # events written to the old one would never be found
        with lasting():
            size = files.size(names.path("delta"))
        self._end = self._prepared = self._base_bytes = size
        self._base_events = events
        self._since_bytes = self._since_events = 0

    def close(self) -> None:
        """Cuts the prepared space and makes everything durable; once, however often called."""
        if self._file.is_closed:
            return
        if self._prepared > self._end:
            self._file.truncate(self._end)
        self._file.sync()
        self._file.close()

    def abandon(self) -> None:
        """Lets the files go as they are."""
        self._file.close()


def _repeated(state: State) -> Iterator[Buffer]:
    """Encodes what a new delta begins with: acks ahead, in pieces of bounded size, the frontier."""
    for offsets in state.ahead_in_pieces(REPEATED_AT_ONCE):
        yield delta.encode(int(Event.ACK), offsets).data
    yield delta.encode(int(Event.BUMP_ACKED_UNTIL), state.acked_until).data


def _snapshot_of(names: Names, state: State, now_ms: int) -> snapshot.Snapshot:
    place = names.place
    return snapshot.Snapshot(
        now_ms,
        snapshot.hash_topic_partition(place.topic, place.partition),
        snapshot.hash_group(names.group),
        state.acked_until,
        state.offsets,
        state.deadlines_ms,
        state.epochs,
    )
