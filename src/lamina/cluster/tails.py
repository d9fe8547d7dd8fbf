"""The windows of a cluster's log, one object each: committed, fenced, read and collected.

    … 41  42  43 │ 44 │        create an empty 44: any other broker that wants 44 is fenced
    └ boundary         └ next

Creating a window's object commits it. Its slot follows the last one, so of two writers one finds
the slot taken. Windows whose content is in the archive are collected: first the boundary moves,
then they are deleted.

Rules.
1. An object in a slot below the boundary means nothing. Therefore the boundary is read after
   windows are read and after a fence is created, never before: it may have moved in between.
2. A window whose outcome is unknown is settled before another one is begun: the same bytes go into
   the same slot until they are there, or another broker's are.
3. Only slots below a boundary that is known to be in place are deleted, and a fence never is. The
   slot after an epoch's last window holds the next epoch's fence for good, and a holder that wakes
   up late finds it there. So a window that could be created is committed: nothing has to be read
   afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from lamina.cluster.lease import Clock, Holding, Identity, Watch, take
from lamina.cluster.steps import Create, Delete, List, Read, Replace, Steps
from lamina.errors import Busy, CorruptData, Fenced, ObjectConflict, ObjectMissing
from lamina.formats import tail_file
from lamina.formats.documents import tail_boundary
from lamina.formats.documents.tail_boundary import TailBoundary
from lamina.formats.tail_file import Section, Tail
from lamina.storage import paths
from lamina.storage.objects import Stored


class Collected(Exception):
    """A wanted window is in the archive by now: read it there, then go on after it."""


@dataclass(slots=True)
class TailLog:
    """The end of the log in the hands of one epoch."""

    epoch: int
    next_seq: int
    first_seq: int = 0
    """The slot behind our fence: all windows from there on are ours."""
    _pending: list[bytes] = field(default_factory=list)
    """The window whose outcome is not known, if there is one."""

    def commit(self, sections: tuple[Section, ...]) -> Steps[int]:
        """Commits one window; returns its slot. Raises Fenced if the log is not ours any more.

        After ArchiveUnavailable the window may or may not be committed: `settle` finds out. Until
        then this raises Busy.
        """
        if self._pending:
            raise Busy("the outcome of the last window is not known yet")
        self._pending = [tail_file.encode(Tail(self.next_seq, self.epoch, sections))]
        yield from self.settle()
        return self.next_seq - 1

    def settle(self) -> Steps[None]:
        """Finishes the window whose outcome is not known, if there is one."""
        for data in self._pending[:]:
            seq = self.next_seq
            there = yield from _created(seq, data)
            if there != data:
                raise Fenced(f"slot {seq} of the cluster's log is another broker's")
            self.next_seq = seq + 1
            self._pending.clear()


def fence(epoch: int) -> Steps[TailLog]:
    """Takes the next slot with an empty window, so that no earlier epoch commits any more."""
    first = (yield from boundary_of())[0].first_seq
    there = [seq for seq in _seqs((yield List(paths.TAILS))) if seq >= first]
    seq = max([first, *(each + 1 for each in there)])
    while True:
        data = tail_file.encode(Tail(seq, epoch))
        found = yield from _created(seq, data)
        yield from _require_live(seq)
        if found == data:
            return TailLog(epoch, seq + 1, seq + 1)
        other = _decoded(seq, found)
        if other.epoch >= epoch:
            raise Fenced(f"the cluster's log is fenced by epoch {other.epoch}, ours is {epoch}")
        seq += 1


def _created(seq: int, data: bytes) -> Steps[bytes]:
    """Puts a window into a slot; returns what is there then, ours or not."""
    try:
        yield Create(paths.tail(seq), data)
    except ObjectConflict:
        pass
    else:
        return data
    try:
        stored: Stored = yield Read(paths.tail(seq))
    except ObjectMissing as error:
        raise Fenced(f"slot {seq} of the cluster's log was collected meanwhile") from error
    return bytes(stored.data)


def _require_live(seq: int) -> Steps[None]:
    boundary, _ = yield from boundary_of()
    if boundary.first_seq > seq:
        raise Fenced(
            f"slot {seq} of the cluster's log was used up before: its boundary is"
            f" {boundary.first_seq}, moved by epoch {boundary.epoch}"
        )


# ---------------------------------------------------------------------- reading


def windows(first: int, end: int, tend: Callable[[], Steps[None]]) -> Steps[list[Tail]]:
    """Reads the windows from a slot up to another; raises Collected if one is in the archive.

    `tend` runs before each of them: reading many takes long, and the lease has to be renewed.
    The boundary is read once, after all of them, so that a takeover takes half the time.
    """
    found: list[Tail] = []
    with contextlib.suppress(ObjectMissing):
        for seq in range(first, end):
            yield from tend()
            stored: Stored = yield Read(paths.tail(seq))
            found.append(_decoded(seq, stored.data))
    boundary, _ = yield from boundary_of()
    if boundary.first_seq > first:
        raise Collected(first)
    if len(found) < end - first:
        raise CorruptData(
            "a window of the cluster's log is missing",
            path=paths.tail(first + len(found)),
            expected="a tail",
        )
    return found


def live_windows() -> Steps[list[Tail]]:
    """Reads all windows that are there, without holding the cluster."""
    while True:
        first = (yield from boundary_of())[0].first_seq
        found: list[Tail] = []
        try:
            while (tail := (yield from window(first + len(found)))) is not None:
                found.append(tail)
        except Collected:  # meanwhile: what is in the archive now is read there
            continue
        return found


def window(seq: int) -> Steps[Tail | None]:
    """Reads one window; None if it is not there yet. Raises Collected below the boundary."""
    tail, _ = yield from window_and_boundary(seq)
    return tail


def window_and_boundary(seq: int) -> Steps[tuple[Tail | None, int]]:
    """Reads one window as `window` does; also returns the boundary, as it was after that."""
    try:
        stored: Stored | None = yield Read(paths.tail(seq))
    except ObjectMissing:
        stored = None
    boundary, _ = yield from boundary_of()
    if boundary.first_seq > seq:
        raise Collected(seq)
    return None if stored is None else _decoded(seq, stored.data), boundary.first_seq


def last_seq() -> Steps[int]:
    """Returns the highest slot that is taken, by a listing; -1 if none is."""
    return max(_seqs((yield List(paths.TAILS))), default=-1)


def _decoded(seq: int, data: bytes) -> Tail:
    try:
        tail = tail_file.decode(data)
        if tail.seq != seq:
            raise CorruptData("the tail is another slot's", expected=str(seq), found=str(tail.seq))
    except CorruptData as error:
        raise error.at_path(paths.tail(seq)) from error
    return tail


# ---------------------------------------------------------------------- taking over


@dataclass(slots=True)
class Takeover:
    """The result of a takeover: the lease, the end of the log, and its windows."""

    holding: Holding
    log: TailLog
    tails: tuple[Tail, ...]
    vain: int = 0
    """How many epochs just before were taken by the same process, which answered in none."""

    @property
    def last_epoch(self) -> int:
        """The last epoch in which anybody may have answered."""
        return self.holding.epoch - 1 - self.vain


def take_over(watch: Watch, me: Identity, clock: Clock) -> Steps[Takeover]:
    """Takes the lease, fences the log, and reads its windows; raises Fenced.

    The lease is renewed while windows are read: there may be many, and the network may be slow.
    """
    floor = 0 if watch.lease is not None else (yield from epochs_seen())
    holding = yield from take(watch, me, clock, floor)
    log = yield from fence(holding.epoch)
    while True:
        first = (yield from boundary_of())[0].first_seq
        try:
            found = yield from windows(first, log.next_seq, lambda: _renewed(holding, clock))
        except Collected:  # by the last holder, which is still at it
            continue
        return Takeover(holding, log, tuple(found))


def _renewed(holding: Holding, clock: Clock) -> Steps[None]:
    if clock() >= holding.renewal_due_ms():
        yield from holding.renew(clock)


def epochs_seen() -> Steps[int]:
    """Returns the highest epoch that left a trace in the log, in case the lease is lost."""
    boundary, _ = yield from boundary_of()
    highest = boundary.epoch
    for seq in _seqs((yield List(paths.TAILS))):
        if seq >= boundary.first_seq:
            try:
                tail = yield from window(seq)
            except Collected:
                return (yield from epochs_seen())
            highest = max(highest, tail.epoch if tail is not None else 0)
    return highest


# ---------------------------------------------------------------------- collecting


def boundary_of() -> Steps[tuple[TailBoundary, str | None]]:
    """Reads the boundary and its tag; (the first slot, None) where none was set."""
    try:
        stored: Stored = yield Read(paths.TAIL_BOUNDARY)
    except ObjectMissing:
        return TailBoundary(), None
    try:
        return tail_boundary.decode(stored.data), stored.etag
    except CorruptData as error:
        raise error.at_path(paths.TAIL_BOUNDARY) from error


def collect(first_seq: int, log: TailLog) -> Steps[None]:
    """Removes the windows below a slot. All they hold must be in the archive or in later ones."""
    while True:
        boundary, etag = yield from boundary_of()
        if boundary.first_seq >= first_seq:
            break
        wanted = TailBoundary(first_seq, max(log.epoch, boundary.epoch))
        try:
            yield Replace(paths.TAIL_BOUNDARY, tail_boundary.encode(wanted), etag)
        except ObjectConflict:
            continue
        break
    for seq in _seqs((yield List(paths.TAILS))):
        if seq < first_seq and (yield from _is_to_go(seq, log)):
            yield Delete(paths.tail(seq))


def _is_to_go(seq: int, log: TailLog) -> Steps[bool]:
    """Returns whether a slot may be deleted: it holds no fence. A damaged one might be a fence."""
    if seq >= log.first_seq:
        return True
    try:
        stored: Stored = yield Read(paths.tail(seq))
        return not _decoded(seq, stored.data).is_fence
    except (ObjectMissing, CorruptData):
        return False


def _seqs(keys: list[str]) -> list[int]:
    return sorted(seq for key in keys if (seq := paths.tail_seq(key)) is not None)
