"""Transactions of Kafka's producers: kept aside while they are open, appended once committed.

    init ─▶ add partitions and groups ─▶ stage records and offsets ─▶ end
                                                                      ├ abort: forgotten
                                                                      └ commit: one file, durable
                                                                        ─▶ each partition's records
                                                                        ─▶ offsets and "committed"
                                                                        ─▶ the file is removed

A log has no markers, and no reader filters: nothing of an open or aborted transaction enters one.

Rules.
1. The file's name decides (`staged_transaction`). What is decided is stored in the end, whatever
   fails on the way: by the next try of the producer, by `tend`, or at the next opening.
2. What is stored twice by that is stored once: partitions know how far a producer has come
   (`decided_appends`), and the offsets are one write with the note that the transaction is done.
3. An id, its epoch and the beginning of a transaction are durable before they are answered. So a
   restart knows whose open transaction it has dropped, and does not let it go on without what was
   sent before (`transaction_states`).
4. One lock per id; nobody waits for it for long. No lock of all ids is held while anything is
   written.
5. What producers can make is bounded: ids, open transactions, partitions, and the bytes in memory
   and on disk that open transactions hold.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lamina.api import RecoveryReport
from lamina.api.memberships import Committed
from lamina.errors import Busy, Closed, InvalidRequest, LaminaError, Poisoned
from lamina.formats import transaction_file as format_
from lamina.formats.committed_offsets import Entry as OffsetEntry
from lamina.formats.committed_offsets import Kind as OffsetKind
from lamina.formats.committed_offsets import Standing
from lamina.formats.committed_offsets import encode as encode_offsets
from lamina.formats.transaction_file import Entry, Kind
from lamina.groups.offset_journal import CommittedOffsets
from lamina.log.data_directory import DataDirectory
from lamina.log.producers import KAFKA_SEQUENCES
from lamina.store.decided_appends import DecidedAppends
from lamina.store.decided_files import NOTHING, DecidedFiles, Found
from lamina.store.staged_transaction import MEMORY_BYTES_MAX, StagedTransaction
from lamina.store.transaction_states import (
    EPOCH_MAX,
    Claim,
    Counts,
    Place,
    Standings,
    State,
    TransactionRefusal,
    TransactionRefused,
    is_name,
    of_entry,
    offsets_by_group,
)

if TYPE_CHECKING:
    from lamina.formats.kafka.batch import Batch

IDS_MAX = 10_000
OPEN_MAX = 1_000
PARTITIONS_MAX = 10_000
TIMEOUT_MS_MAX = 15 * 60 * 1000
EXPIRATION_MS = 7 * 24 * 3600 * 1000
"""How long an id is known that does nothing: as long as Kafka knows it."""
STAGED_BYTES_MAX = 1 << 30
TOTAL_MEMORY_BYTES_MAX = 64 << 20
NOTE_BYTES = 300
"""What a group or an offset counts beside its text."""
PATIENCE_S = 0.5
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Open:
    """What an open transaction has."""

    staged: StagedTransaction
    deadline_ms: int
    places: dict[Place, int | None] = field(default_factory=dict)
    """The partitions, and the sequence of the log that their next record gets, once known."""
    groups: set[str] = field(default_factory=set)
    offsets: dict[tuple[str, Place], OffsetEntry] = field(default_factory=dict)
    noted_bytes: int = 0
    """What groups and offsets count."""


class _Known:
    """A transactional id: where it stands, and its open transaction if it has one."""

    def __init__(self, standings: Standings) -> None:
        self.lock = threading.Lock()
        self.at = standings
        self.open: _Open | None = None
        self.found: Found | None = None
        """The file of a transaction that is decided and not stored yet, once it was read."""


class Transactions:
    """All transactional ids of a store."""

    def __init__(
        self,
        boot: DataDirectory,
        offsets: CommittedOffsets,
        appends: DecidedAppends,
        executor: Executor,
        new_producer_id: Callable[[], int],
    ) -> None:
        self._boot = boot
        self._offsets = offsets
        self._appends = appends
        self._new_producer_id = new_producer_id
        self._files = DecidedFiles(boot, appends, executor)
        self._ids: dict[str, _Known] = {}
        self._lock = threading.Lock()
        self._next_number = 1
        self._staged_bytes = self._memory_bytes = 0
        self._failure: Poisoned | None = None
        self._is_closed = False
        self.staged_bytes_max: Callable[[], int] = lambda: STAGED_BYTES_MAX
        """What open transactions may hold together, as it is now; a server sets it."""

    # ------------------------------------------------------------------ opening and closing

    def recover(self, report: RecoveryReport) -> None:
        """Drops what was open, and stores what was decided; what fails is tried again later."""
        self._ids.clear()
        for name, entry in self._offsets.producers().items():
            self._ids[name] = _Known(of_entry(entry))
        numbers = [known.at.number for known in self._ids.values()]
        for found in self._files.recover(report):
            numbers.append(found.number)
            known = self._ids.get(found.producer.name)
            if known is not None and known.at.has_done(found.number):
                self._files.remove(found)
            else:
                self._store_again(known, found, report)
        self._next_number = max(numbers, default=0) + 1

    def _store_again(self, known: _Known | None, found: Found, report: RecoveryReport) -> None:
        if known is None:  # the journal has lost the id: its records are stored all the same
            name, epoch = found.producer.name, found.producer.partition
            standings = Standings(name, found.producer.number, epoch, TIMEOUT_MS_MAX)
            known = _Known(standings)
            self._ids[name] = known
        known.at.state, known.at.number, known.found = State.DECIDED, found.number, found
        try:
            self._finish(known)
        except (LaminaError, OSError) as error:
            report.add("note", found.path, f"a committed transaction waits to be stored: {error}")
        else:
            report.add("rebuilt", found.path, "a committed transaction was stored to its end")

    def close(self) -> None:
        """Drops what is open; what is decided is stored at the next opening."""
        with self._lock:
            self._is_closed = True
            every = list(self._ids.values())
        for known in every:
            with known.lock:
                self._let_go(known)

    # ------------------------------------------------------------------ producers

    def init(self, name: str, timeout_ms: int, claimed: tuple[int, int] = (-1, -1)) -> Claim:
        """Gives a transactional id its producer, with an epoch that fences all before.

        An open transaction of the one before is dropped. `claimed` are the id and epoch that the
        producer goes on from; -1 for one that begins.
        """
        if not is_name(name):
            raise _refused(TransactionRefusal.INVALID_REQUEST, "that is not a transactional id")
        if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
            raise _refused(
                TransactionRefusal.INVALID_TRANSACTION_TIMEOUT,
                f"a transaction times out after 1 to {TIMEOUT_MS_MAX} ms, not {timeout_ms}",
            )
        with self._held(name, self._entered(name, timeout_ms)) as known:
            at = known.at
            if at.producer_id >= 0 and at.is_repeat_of_bump(claimed):
                return Claim(name, at.producer_id, at.epoch)
            if at.producer_id >= 0:
                at.require_claim(claimed)
            if at.state is State.DECIDED:
                self._finish_or_refuse(known, TransactionRefusal.CONCURRENT_TRANSACTIONS)
            is_new = at.producer_id < 0 or at.epoch >= EPOCH_MAX
            made = at.bumped(self._new_producer_id() if is_new else None, timeout_ms)
            self._write([], made, Standing.NONE)
            self._let_go(known)
            known.at = made
            return Claim(name, made.producer_id, made.epoch)

    def _entered(self, name: str, timeout_ms: int) -> _Known:
        """Returns an id, which is entered if it is new; nobody has a producer of it yet."""
        with self._lock:
            known = self._ids.get(name)
            if known is None:
                if len(self._ids) >= IDS_MAX:
                    raise InvalidRequest(f"there are {IDS_MAX} transactional ids already")
                known = _Known(Standings(name, -1, -1, timeout_ms, used_ms=self._boot.steady()))
                self._ids[name] = known
            return known

    # ------------------------------------------------------------------ adding

    def add_partitions(self, claim: Claim, places: Iterable[Place]) -> None:
        """Adds partitions to the transaction, which begins with the first."""
        with self._claimed(claim) as known:
            added = self._begun(known).places
            fresh = {place: None for place in places if place not in added}
            if len(added) + len(fresh) > PARTITIONS_MAX:
                raise InvalidRequest(f"a transaction has at most {PARTITIONS_MAX} partitions")
            added.update(fresh)

    def add_group(self, claim: Claim, group: str) -> None:
        """Adds a group whose offsets are committed with the transaction."""
        with self._claimed(claim) as known:
            opened = self._begun(known)
            if len(opened.groups) >= PARTITIONS_MAX:
                raise InvalidRequest(f"a transaction has at most {PARTITIONS_MAX} groups")
            self._note(opened, group)
            opened.groups.add(group)

    def stage(self, claim: Claim, place: Place, batch: Batch, data: bytes) -> None:
        """Keeps a batch until the end; `data` is the batch as it came.

        Raises what an append of it would: the topic that is not there, what it cannot keep.
        """
        epoch = self._appends.check(*place, batch.records)
        with self._claimed(claim) as known:
            known.at.require_ongoing()
            opened, count = self._opened(known), batch.records.num_rows
            if place not in opened.places:
                raise known.at.out_of_state(f"send to {place[0]}-{place[1]}, which was not added")
            if not known.at.sequences.is_new(place, batch.base_sequence, count):
                return
            following = opened.places[place]
            if following is None:
                target = self._appends.target(place[0], epoch, place[1])
                following = self._appends.position(target, known.at.producer_id) or 0
            entry = Entry(Kind.BATCH, place[0], epoch, place[1], following, data)
            self._keep(opened, format_.encode(entry))
            opened.places[place] = (following + count) % KAFKA_SEQUENCES
            known.at.sequences.note(place, batch.base_sequence, count)

    def stage_offsets(self, claim: Claim, group: str, offsets: Sequence[Committed]) -> None:
        """Keeps offsets of a group until the end."""
        with self._claimed(claim) as known:
            known.at.require_ongoing()
            opened = self._opened(known)
            if group not in opened.groups:
                raise known.at.out_of_state(f"commit offsets of group {group!r}: it was not added")
            if len(opened.offsets) + len(offsets) > PARTITIONS_MAX:
                raise InvalidRequest(f"a transaction has at most {PARTITIONS_MAX} offsets")
            self._note(opened, *(each.metadata for each in offsets))
            for each in self._offsets.entries_of(group, offsets):
                opened.offsets[group, (each.topic, each.partition)] = each

    def _begun(self, known: _Known) -> _Open:
        """Returns the open transaction; begins one, durably, where there is none."""
        at = known.at
        if not at.must_begin():
            return self._opened(known)
        with self._lock:
            if sum(each.open is not None for each in self._ids.values()) >= OPEN_MAX:
                problem = f"{OPEN_MAX} transactions are open already"
                raise _refused(TransactionRefusal.CONCURRENT_TRANSACTIONS, problem)
            number, self._next_number = self._next_number, self._next_number + 1
        before, at.number = at.number, number
        try:
            self._write([], at, Standing.ONGOING)
        except LaminaError:
            at.number = before
            raise
        producer = Entry(
            Kind.PRODUCER, at.transactional_id, partition=at.epoch, number=at.producer_id
        )
        staged = StagedTransaction(self._boot, number, producer)
        at.state = State.ONGOING
        known.open = _Open(staged, self._boot.steady() + at.timeout_ms)
        self._count(staged.size_bytes, staged.memory_bytes)
        return known.open

    def _opened(self, known: _Known) -> _Open:
        assert known.open is not None, "an ongoing transaction is open"
        return known.open

    def _keep(self, opened: _Open, data: bytes) -> None:
        """Keeps an entry within the bounds; spills what memory has no room for."""
        staged, limit = opened.staged, self.staged_bytes_max()
        if staged.size_bytes + len(data) > limit:
            raise _refused(
                TransactionRefusal.RECORD_LIST_TOO_LARGE,
                f"a transaction is larger than kafka.transaction.bytes {limit}",
            )
        if self._staged_bytes + len(data) > limit:
            raise Busy("open transactions hold as much as kafka.transaction.bytes allows")
        before = staged.size_bytes, staged.memory_bytes
        is_large = staged.memory_bytes + len(data) > MEMORY_BYTES_MAX
        try:
            spills = is_large or self._memory_bytes + len(data) > TOTAL_MEMORY_BYTES_MAX
            self._or_poison(lambda: staged.add(data, spills=spills))
        finally:
            self._count(staged.size_bytes - before[0], staged.memory_bytes - before[1])

    def _note(self, opened: _Open, *texts: str) -> None:
        """Counts what is kept beside records; raises Busy where there is no room for it."""
        size_bytes = sum(NOTE_BYTES + len(text.encode()) for text in texts)
        if self._staged_bytes + size_bytes > self.staged_bytes_max():
            raise Busy("open transactions hold as much as kafka.transaction.bytes allows")
        opened.noted_bytes += size_bytes
        self._count(size_bytes, 0)

    def _count(self, staged_bytes: int, memory_bytes: int) -> None:
        with self._lock:
            self._staged_bytes += staged_bytes
            self._memory_bytes += memory_bytes

    # ------------------------------------------------------------------ ending

    def end(self, claim: Claim, *, commit: bool) -> None:
        """Ends the transaction; when this returns, it is stored or forgotten as a whole."""
        with self._claimed(claim) as known:
            at = known.at
            if not at.ends_by(commit=commit):
                return
            if not commit:
                self._write([], at, Standing.ABORTED)
                self._let_go(known)
                at.state = State.ABORTED
                return
            if at.state is State.ONGOING:
                self._decide(known)
            self._finish_or_refuse(known, TransactionRefusal.COORDINATOR_LOAD_IN_PROGRESS)

    def _decide(self, known: _Known) -> None:
        """Writes the transaction's file: when this returns, it is committed."""
        opened = self._opened(known)
        # One time for all of them: the journal has it when they count.
        entries = [each._replace(time_ms=self._boot.steady()) for each in opened.offsets.values()]
        if opened.staged.is_empty and not entries:
            known.found = NOTHING
        else:
            last = [
                format_.encode(Entry(Kind.OFFSETS, group, body=encode_offsets(own)))
                for group, own in offsets_by_group(entries).items()
            ]
            self._or_poison(lambda: opened.staged.decide(last))
        known.at.state = State.DECIDED  # whatever fails from here on: deciding twice would spoil it

    def _or_poison(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Poisoned as error:
            self._failure = error
            raise

    def _finish_or_refuse(self, known: _Known, refusal: TransactionRefusal) -> None:
        try:
            self._finish(known)
        except (LaminaError, OSError) as error:
            name = known.at.transactional_id
            _log.warning("the committed transaction of %r waits to be stored: %s", name, error)
            raise _refused(refusal, f"the transaction is committed, and waits: {error}") from error

    def _finish(self, known: _Known) -> None:
        """Stores a decided transaction; may be called again until it returns."""
        at = known.at
        if known.found is None:  # decided a moment ago, or the file could not be read then
            known.found = self._files.look(self._opened(known).staged.path)
        found = known.found
        if found.path:
            self._files.store(found)
        self._write(found.offsets, at, Standing.COMMITTED)
        at.state, known.found = State.COMMITTED, None
        self._let_go(known)
        if found.path:
            self._files.remove(found)

    def _let_go(self, known: _Known) -> None:
        """Forgets what an open transaction holds."""
        if known.open is not None:
            staged, noted_bytes = known.open.staged, known.open.noted_bytes
            known.open = None
            self._count(-staged.size_bytes - noted_bytes, -staged.memory_bytes)
            staged.drop()

    def _write(self, offsets: Sequence[OffsetEntry], at: Standings, standing: Standing) -> None:
        """Has the journal say where an id stands, together with offsets, in one piece."""
        now_ms = self._boot.steady()
        self._offsets.write([*offsets, at.entry(standing, now_ms)])
        at.used_ms = now_ms

    # ------------------------------------------------------------------ by itself

    def tend(self, *, force: bool) -> None:
        """Drops transactions that time out, tries decided ones again, forgets idle ids."""
        del force
        now_ms = self._boot.steady()
        for name, known in list(self._ids.items()):
            if not known.lock.acquire(blocking=False):
                continue  # it is at work
            try:
                self._tend_one(name, known, now_ms)
            finally:
                known.lock.release()

    def _tend_one(self, name: str, known: _Known, now_ms: int) -> None:
        if known.open is not None and known.at.state is State.ONGOING:
            if known.open.deadline_ms <= now_ms:
                _log.warning("the transaction of %r is dropped: its time is over", name)
                self._let_go(known)
                known.at.state = State.DROPPED
        elif known.at.state is State.DECIDED:
            with contextlib.suppress(LaminaError, OSError):  # it was said when it failed first
                self._finish(known)
        elif known.at.used_ms < now_ms - EXPIRATION_MS:
            if known.at.producer_id >= 0:
                self._offsets.write([OffsetEntry(OffsetKind.FORGET_PRODUCER, name)])
            with self._lock:
                self._ids.pop(name, None)

    # ------------------------------------------------------------------ looking

    def pending(self, group: str) -> set[Place]:
        """Returns the partitions of which a group's offsets wait for the end of a transaction."""
        found: set[Place] = set()
        for known in list(self._ids.values()):
            opened = known.open
            if opened is not None:
                found |= {place for name, place in list(opened.offsets) if name == group}
            elif (decided := known.found) is not None:
                entries = [each for each in decided.offsets if each.group == group]
                found |= {(each.topic, each.partition) for each in entries}
        return found

    def counts(self, prefix: str = "") -> Counts:
        """Counts ids, transactions that are open or wait to be stored, and bytes."""
        every = [each for name, each in list(self._ids.items()) if name.startswith(prefix)]
        decided = sum(each.at.state is State.DECIDED for each in every)
        opened = sum(each.open is not None and each.at.state is not State.DECIDED for each in every)
        held = [each.open for each in every]
        staged = sum(each.staged.size_bytes for each in held if each is not None)
        return Counts(len(every), opened, decided, staged)

    def highest_producer_id(self) -> int:
        """Returns the highest producer's id of a transactional id; -1 for none."""
        return max((each.at.producer_id for each in list(self._ids.values())), default=-1)

    def failures(self) -> dict[str, str]:
        """Returns why nothing can be committed any more, if that is so."""
        return {} if self._failure is None else {"transactions": str(self._failure)}

    @contextlib.contextmanager
    def _claimed(self, claim: Claim) -> Iterator[_Known]:
        known = self._ids.get(claim.transactional_id)
        if known is None or known.at.producer_id < 0:
            raise _unknown(claim.transactional_id)
        with self._held(claim.transactional_id, known):
            known.at.require(claim)
            yield known

    @contextlib.contextmanager
    def _held(self, name: str, known: _Known) -> Iterator[_Known]:
        """Holds an id, whatever it does; who cannot have it in a moment comes again."""
        if self._failure is not None:
            raise Poisoned(str(self._failure))
        if not known.lock.acquire(timeout=PATIENCE_S):
            problem = f"transactional id {name!r} is at work"
            raise _refused(TransactionRefusal.CONCURRENT_TRANSACTIONS, problem)
        try:
            if self._is_closed:
                raise Closed("the store is closed")
            if self._ids.get(name) is not known:  # it has just expired
                raise _unknown(name)
            yield known
        finally:
            known.lock.release()


def _refused(refusal: TransactionRefusal, problem: str) -> TransactionRefused:
    return TransactionRefused(refusal, problem)


def _unknown(name: str) -> TransactionRefused:
    problem = f"transactional id {name!r} has no producer here"
    return TransactionRefused(TransactionRefusal.INVALID_PRODUCER_ID_MAPPING, problem)
