"""Idempotent producers: a retried batch gets its first answer, a zombie is fenced.

Each producer numbers its records. The journal entry of a batch is durable before the batch's
records are written, so that whatever of the records survives a crash, the entry survives too;
entries whose records did not are dropped by recovery, before anything new gets their offsets.

Rules.
1. `judge` decides against what is recorded and what the same group has accepted so far.
2. The last `REMEMBERED` batches of a producer are kept; an older repeat is refused, not stored.
3. A producer is forgotten when it appended nothing for the expiration time, counted from the
   opening where it was idle before: by a clock that does not jump, so never too early.
4. A producer that stores transactions (`TRANSACTIONAL` in its id) is not forgotten for being idle:
   a transaction that was decided and cut off may be finished at any later time, and only what is
   recorded here tells how much of it is stored. Of those that are idle, the last
   `TRANSACTIONAL_MAX` are kept.
5. A producer of Kafka's protocol (`KAFKA` in its id) counts with 31 bits, from 0 in every epoch:
   the sequence after 2^31-1 is 0, and one below the expected one is a repeat, not a gap.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lamina.api import Ack, ProducerStamp, RecoveryReport
from lamina.errors import PASSING, DuplicateSequence, Fenced, OutOfSequence
from lamina.formats import producer_journal as journal
from lamina.formats.producer_journal import Entry
from lamina.log.directory import Place
from lamina.log.encoder import Stamped
from lamina.log.requests import Outcome
from lamina.storage import paths
from lamina.storage.files import File, prepare_space

REMEMBERED = 5
COMPACT_ENTRIES = 65_536
PREPARE_BYTES = 64 << 10
_NOWHERE = -1
TRANSACTIONAL = 1 << 62
"""The bit in the id of a producer that stores transactions; sessions never have it."""
KAFKA = 1 << 63
"""The bit in the id of a producer whose sequences are those of Kafka's protocol."""
KAFKA_SEQUENCES = 1 << 31
TRANSACTIONAL_MAX = 10_000
"""A client may choose any id: more idle ones than this expire as others do."""


@dataclass(slots=True)
class _Producer:
    epoch: int
    seen_s: float
    batches: deque[Entry] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


class Producers:
    """What is known of the producers of one partition."""

    def __init__(self, place: Place, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = paths.join(place.directory, paths.PRODUCERS)
        self._place = place
        self._known: dict[int, _Producer] = {}
        self._before: dict[int, _Producer | None] = {}
        self._file: File | None = None
        self._is_lost = False
        self._is_named = False
        self._grows_from = _NOWHERE
        self.used = False
        self._position = 0
        self._kept = 0
        self._prepared = 0
        self._compact_beyond = COMPACT_ENTRIES * journal.ENTRY.size
        self._clock = clock
        self._all_seen_since_s = clock()

    def unfinished(self, log_end_offset: int) -> int | None:
        """Returns where a batch begins of which only some first records are in the log, if one is.

        It was not answered, so it will be repeated: what is there of it must go before.
        """
        return min(
            (
                entry.base_offset
                for entry in self.entries()
                if entry.base_offset < log_end_offset < entry.base_offset + entry.count
            ),
            default=None,
        )

    def recover(self, log_end_offset: int, report: RecoveryReport | None = None) -> None:
        """Reads the journal, drops entries whose records are not there, and rewrites it."""
        entries = self.entries()
        stored = [each for each in entries if each.base_offset + each.count <= log_end_offset]
        self.restore(stored, report)

    @property
    def has_journal(self) -> bool:
        """Whether a producer has ever appended."""
        return self._place.files.exists(self._path)

    def entries(self) -> list[Entry]:
        """Reads all sound entries of the journal."""
        if not self.has_journal:
            return []
        return journal.decode(self._place.files.read(self._path))

    def restore(self, entries: Sequence[Entry], report: RecoveryReport | None = None) -> None:
        """Remembers those entries of the journal whose records are stored, and rewrites it.

        It is rewritten in any case: a killed process may have left entries that are not durable.
        """
        if not self.has_journal:
            return
        self._set_aside(report)
        for entry in entries:
            self._remember(entry)
        self.compact()

    def _set_aside(self, report: RecoveryReport | None) -> None:
        """Keeps a copy of a journal that holds more than entries and one that was cut off.

        Rewriting leaves out what is no entry: a damaged one, or another file's bytes.
        """
        data = self._place.files.read(self._path)
        unsound = [position for position, entry in journal.walk(data) if entry is None]
        last = max((position for position, _ in journal.walk(data)), default=0)
        if not unsound or unsound == [last]:
            return
        kept = self._place.set_aside(self._path, data, unsound[0])
        if report is not None:
            why = (
                f"{len(unsound)} entries are damaged: a retry of their batches may be stored twice"
            )
            report.add("quarantined", self._path, why, kept_in=kept)

    def position(self, producer_id: int) -> tuple[int, int] | None:
        """Returns a producer's epoch and the sequence it must go on with; None if not known."""
        known = self._known.get(producer_id)
        if known is None:
            return None
        return known.epoch, _following(known.batches[-1])

    def highest_of_kafka(self) -> int:
        """Returns the highest remembered id of Kafka's producers, without its marks; or -1."""
        found = [each & ~(KAFKA | TRANSACTIONAL) for each in list(self._known) if each & KAFKA]
        return max(found, default=-1)

    @property
    def is_known(self) -> bool:
        """Whether any producer is remembered."""
        return bool(self._known)

    def batches_from(self, offset: int) -> list[Entry]:
        """Returns the remembered batches that end above an offset. For the leader."""
        found = [
            entry
            for known in self._known.values()
            for entry in known.batches
            if entry.base_offset + entry.count > offset
        ]
        return sorted(found, key=lambda entry: entry.base_offset)

    def judge(self, stamp: ProducerStamp, count: int) -> Outcome | None:
        """Returns the answer to a repeat or a zombie, None for what is new."""
        known = self._known.get(stamp.producer_id)
        if known is None:
            return None
        if stamp.epoch > known.epoch:
            return _refuse_beginning(stamp)
        if stamp.epoch < known.epoch:
            return Fenced(f"producer {stamp.producer_id} has a newer epoch {known.epoch}")
        for entry in known.batches:
            if (entry.sequence, entry.count) == (stamp.sequence, count):
                return Ack(entry.base_offset, entry.count, "written")
        expected = _following(known.batches[-1])
        if stamp.sequence != expected:
            kind = DuplicateSequence if _is_behind(stamp, expected) else OutOfSequence
            return kind(
                f"producer {stamp.producer_id} must go on with sequence {expected},"
                f" not {stamp.sequence}"
            )
        return None

    def note(self, stamped: Stamped) -> None:
        """Remembers a batch of the group at hand, so that the group's next one can follow it."""
        producer_id = stamped.stamp.producer_id
        if producer_id not in self._before:
            known = self._known.get(producer_id)
            self._before[producer_id] = (
                None
                if known is None
                else _Producer(known.epoch, known.seen_s, known.batches.copy())
            )
        self._remember(_entry(stamped))

    def record(self, stamps: list[Stamped]) -> None:
        """Makes the entries of a group durable, before its records are written."""
        if not stamps:
            return
        data = journal.encode([_entry(stamped) for stamped in stamps])
        file = self._opened()
        self._grows_from = self._position
        self._prepare(file, len(data))
        # Durable before the records: a record without its entry could be stored twice.
        try:
            file.write_at(self._position, data)
            file.sync()
        except OSError as error:
            self._is_lost = error.errno not in PASSING
            raise
        self._position += len(data)

    def _opened(self) -> File:
        """Opens the journal if it is not; the first use makes it, with a name that is durable."""
        self.used = True
        file, files = self._file, self._place.files
        if file is not None:
            return file
        if self._is_named:
            file = files.open(self._path)
        else:
            files.make_directory(self._place.directory)
            is_left = self.has_journal  # by a try that could not make its name durable
            file = files.open(self._path) if is_left else files.create(self._path)
            files.sync_directory(self._place.directory)
            self._is_named = True
        self._file = file
        files.kept.enter(self)
        return file

    def let_go(self) -> bool:
        """Drops the file: everything in it is synced, or the call that writes it holds it."""
        self._file = None
        return True

    def _prepare(self, file: File, length: int) -> None:
        """Writes zeros ahead: the fsync of an entry then need not change the file's size."""
        if self._position + length > self._prepared:
            end = self._position + length + PREPARE_BYTES
            self._prepared = prepare_space(file, self._position, end)

    def keep(self) -> None:
        """Settles a group whose records are written."""
        self._before.clear()
        self._kept = self._position
        if self._position > self._compact_beyond:
            self._try_compact()

    def take_back(self) -> None:
        """Forgets a group whose records were not kept, in memory and in the journal.

        The entries are cut off: there may be no space to rewrite the journal.
        """
        for producer_id, before in self._before.items():
            if before is None:
                del self._known[producer_id]
            else:
                self._known[producer_id] = before
        self._before.clear()
        if self._is_lost:  # a file whose sync has failed is not synced again: recovery reads it
            return
        if self._grows_from == self._kept:  # otherwise not even a descriptor is needed
            file = self._opened()
            file.truncate(self._kept)
            file.sync()  # or after a crash a repeat would get an answer for records that are gone
            self._grows_from = _NOWHERE
        self._position = self._prepared = self._kept

    def compact(self) -> None:
        """Replaces the journal by one with only what is remembered."""
        entries = [entry for known in self._known.values() for entry in known.batches]
        entries.sort(key=lambda entry: entry.base_offset)
        data = journal.encode(entries)
        self._place.files.replace(self._path, data)
        self._file, self._is_named = None, True  # what was open is the file that was replaced
        self._position = self._kept = self._prepared = len(data)
        self._grows_from = _NOWHERE
        self._compact_beyond = max(COMPACT_ENTRIES * journal.ENTRY.size, 2 * len(data))

    def has_idle(self, idle_ms: int) -> bool:
        """Returns whether a producer may have been idle so long, mostly without checking each."""
        return bool(self._known) and self._clock() - self._all_seen_since_s > idle_ms / 1000

    def forget_idle(self, idle_ms: int) -> int:
        """Forgets producers that appended nothing for so long; returns how many."""
        limit_s = self._clock() - idle_ms / 1000
        idle = [number for number, known in self._known.items() if known.seen_s < limit_s]
        kept = [number for number in idle if number & TRANSACTIONAL]
        kept.sort(key=lambda number: self._known[number].seen_s)
        idle = [each for each in idle if not each & TRANSACTIONAL] + kept[:-TRANSACTIONAL_MAX]
        for number in idle:
            del self._known[number]
        still = set(kept[-TRANSACTIONAL_MAX:])
        seen = (known.seen_s for number, known in self._known.items() if number not in still)
        self._all_seen_since_s = min(seen, default=self._clock())
        if idle:
            self._try_compact()
        return len(idle)

    def _try_compact(self) -> None:
        """Compacts; on a full disk, or without a descriptor, the journal goes on as it is."""
        try:
            self.compact()
        except OSError as error:  # any other may have come when it was replaced already
            if error.errno not in PASSING:
                raise

    def close(self) -> None:
        """Lets the journal go: its entries are durable."""
        self._file = None

    def _remember(self, entry: Entry) -> None:
        known = self._known.get(entry.producer_id)
        if known is None or entry.epoch > known.epoch:
            if not self._known:
                self._all_seen_since_s = self._clock()
            known = self._known[entry.producer_id] = _Producer(entry.epoch, 0.0)
        known.seen_s = self._clock()
        known.batches.append(entry)


def _following(entry: Entry) -> int:
    """Returns the sequence of the record behind a batch."""
    following = entry.sequence + entry.count
    return following % KAFKA_SEQUENCES if entry.producer_id & KAFKA else following


def _is_behind(stamp: ProducerStamp, expected: int) -> bool:
    """Distinguishes a gap from a repeat too old to remember; if counts wrap, by the nearer one."""
    if stamp.producer_id & KAFKA:
        return (expected - stamp.sequence) % KAFKA_SEQUENCES < KAFKA_SEQUENCES // 2
    return stamp.sequence < expected


def _refuse_beginning(stamp: ProducerStamp) -> OutOfSequence | None:
    """Kafka's producers count from 0 in every epoch; what begins elsewhere has lost a batch."""
    if stamp.producer_id & KAFKA and stamp.sequence:
        return OutOfSequence(
            f"producer {stamp.producer_id} must begin epoch {stamp.epoch} with sequence 0,"
            f" not {stamp.sequence}"
        )
    return None


def _entry(stamped: Stamped) -> Entry:
    stamp = stamped.stamp
    return Entry(stamp.producer_id, stamp.sequence, stamped.base_offset, stamped.count, stamp.epoch)
