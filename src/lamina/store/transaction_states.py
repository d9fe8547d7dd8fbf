"""Where a transactional producer stands, and what it may do next: a state and its transitions.

    (init) ─▶ IDLE ─ add ─▶ ONGOING ─ end: commit ─▶ DECIDED ─ stored ─▶ COMMITTED ─ add ─▶ …
                               ├───── end: abort ──▶ ABORTED ─ add ─▶ …
                               └─ timeout, restart ▶ DROPPED ─ end: abort ─▶ ABORTED

Pure: no file, no clock, no lock. `transactions.Transactions` drives it.

Rules.
1. Every request names the producer's id and epoch: another epoch is a zombie's, and is fenced.
2. The end of a transaction may be asked for again, and gets the same answer. The other end of it
   gets INVALID_TXN_STATE.
3. What was dropped cannot go on: it would be committed without its first records. Its producer has
   to abort, or to come again with the next epoch.
4. Sequences are the producer's, of 31 bits, and count what it has sent in this epoch, aborted or
   not. The last batches are remembered: a repeat is answered and not kept again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TypeAlias

from lamina.errors import DuplicateSequence, InvalidRequest, OutOfSequence
from lamina.formats.committed_offsets import Entry, Kind, Standing
from lamina.log.producers import KAFKA_SEQUENCES, REMEMBERED

EPOCH_MAX = (1 << 15) - 2
"""The last epoch of an id: behind it comes another id, as in Kafka."""

NAME_BYTES_MAX = 1024
Place: TypeAlias = tuple[str, int]


class TransactionRefusal(IntEnum):
    """Why a transactional producer is refused; the numbers are those of Kafka's protocol."""

    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    RECORD_LIST_TOO_LARGE = 18
    INVALID_REQUEST = 42
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    PRODUCER_FENCED = 90


class TransactionRefused(InvalidRequest):
    """A transactional producer must not do what it asks for; `refusal` says why."""

    def __init__(self, refusal: TransactionRefusal, problem: str) -> None:
        super().__init__(problem)
        self.refusal = refusal


class State(Enum):
    """Where the transactions of a producer stand."""

    IDLE = "idle"
    ONGOING = "ongoing"
    DECIDED = "decided"
    COMMITTED = "committed"
    ABORTED = "aborted"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Claim:
    """Who a transactional producer says that it is."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(slots=True)
class Counts:
    """How many transactions there are, and what they hold."""

    ids: int
    open: int
    decided: int
    staged_bytes: int


class Sequences:
    """What a producer has sent of each partition, in one epoch.

    After a restart nothing is known, and each partition begins with whatever comes first.
    """

    def __init__(self, *, from_zero: bool) -> None:
        self._from_zero = from_zero
        self._seen: dict[Place, deque[tuple[int, int]]] = {}

    def is_new(self, place: Place, base: int, count: int) -> bool:
        """Whether a batch goes on where the last one ended; False for a repeat of one.

        Raises OutOfSequence, or DuplicateSequence for a repeat that is too old to remember.
        """
        seen = self._seen.get(place)
        if seen is None:
            if self._from_zero and base:
                raise OutOfSequence(f"an epoch begins with sequence 0, not {base}")
            return True
        if (base, count) in seen:
            return False
        last, length = seen[-1]
        expected = (last + length) % KAFKA_SEQUENCES
        if base != expected:
            behind = (expected - base) % KAFKA_SEQUENCES < KAFKA_SEQUENCES // 2
            kind = DuplicateSequence if behind else OutOfSequence
            raise kind(f"{place[0]}-{place[1]} must go on with sequence {expected}, not {base}")
        return True

    def note(self, place: Place, base: int, count: int) -> None:
        """Remembers a batch that was kept."""
        self._seen.setdefault(place, deque(maxlen=REMEMBERED)).append((base, count))


@dataclass(slots=True)
class Standings:
    """One transactional id: its producer, its epoch, and the state of its transactions."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: State = State.IDLE
    number: int = 0
    """Of the last transaction that has begun."""
    used_ms: int = 0
    before: tuple[int, int] | None = None
    """The id and epoch that the last bump came from: a caller that asks again has had no answer."""
    sequences: Sequences = field(default_factory=lambda: Sequences(from_zero=True))

    def require(self, claim: Claim) -> None:
        """Refuses everybody but the present producer."""
        if claim.producer_id != self.producer_id:
            raise TransactionRefused(
                TransactionRefusal.INVALID_PRODUCER_ID_MAPPING,
                f"transactional id {self.transactional_id!r} is not of producer"
                f" {claim.producer_id}",
            )
        if claim.epoch != self.epoch:
            raise TransactionRefused(
                TransactionRefusal.PRODUCER_FENCED,
                f"producer {self.producer_id} has epoch {self.epoch}, not {claim.epoch}:"
                " a newer one has its transactional id",
            )

    def must_begin(self) -> bool:
        """Whether adding to a transaction begins one; refused where that would tear another."""
        if self.state is State.ONGOING:
            return False
        if self.state is State.DECIDED:
            raise TransactionRefused(
                TransactionRefusal.CONCURRENT_TRANSACTIONS,
                f"the last transaction of {self.transactional_id!r} is being stored",
            )
        if self.state is State.DROPPED:
            raise self.out_of_state("go on with a transaction that was dropped: abort it")
        return True

    def require_ongoing(self) -> None:
        """Refuses what belongs to an open transaction where there is none."""
        if self.state is not State.ONGOING:
            raise self.out_of_state("add to a transaction that is not open")

    def ends_by(self, *, commit: bool) -> bool:
        """Whether an end has anything to do; False where it was done, or nothing was begun."""
        if self.state is State.ONGOING or (commit and self.state is State.DECIDED):
            return True
        if commit and self.state is not State.COMMITTED:
            raise self.out_of_state("commit what is not there")
        if not commit and self.state in (State.COMMITTED, State.DECIDED):
            raise self.out_of_state("abort what was committed")
        return not commit and self.state is State.DROPPED

    def has_done(self, number: int) -> bool:
        """Whether a decided transaction is stored, as far as a restart can tell by what is written.

        The next one begins, and the next epoch, when the one before is done.
        """
        return self.number > number or (self.number == number and self.state is not State.DROPPED)

    def out_of_state(self, what: str) -> TransactionRefused:
        """Makes the error for a request that does not fit the state."""
        return TransactionRefused(
            TransactionRefusal.INVALID_TXN_STATE,
            f"transactional id {self.transactional_id!r} ({self.state.value}) cannot {what}",
        )

    def is_repeat_of_bump(self, claimed: tuple[int, int]) -> bool:
        """Whether a producer asks again for the epoch that it has been given, unheard."""
        return claimed[0] >= 0 and claimed == self.before and self.state is State.IDLE

    def require_claim(self, claimed: tuple[int, int]) -> None:
        """Refuses a producer that goes on from an epoch which is not the present one."""
        if claimed[0] >= 0:
            self.require(Claim(self.transactional_id, *claimed))

    def bumped(self, new_id: int | None, timeout_ms: int) -> Standings:
        """Returns the same with the next epoch, or with a new id where epochs are used up."""
        is_used_up = new_id is not None
        return Standings(
            self.transactional_id,
            self.producer_id if new_id is None else new_id,
            0 if is_used_up else self.epoch + 1,
            timeout_ms,
            number=self.number,
            before=(self.producer_id, self.epoch),
        )

    # ------------------------------------------------------------------ on disk

    def entry(self, standing: Standing, now_ms: int) -> Entry:
        """Returns what the journal is to say."""
        return Entry(
            Kind.PRODUCER,
            self.transactional_id,
            partition=standing,
            topic_epoch=self.timeout_ms,
            offset=self.producer_id,
            leader_epoch=self.epoch,
            metadata=str(self.number),
            time_ms=now_ms,
        )


_STATES = {
    Standing.NONE: State.IDLE,
    Standing.ONGOING: State.DROPPED,
    Standing.COMMITTED: State.COMMITTED,
    Standing.ABORTED: State.ABORTED,
}
"""What a restart makes of what was written: of an open transaction nothing is left."""


def is_name(name: str) -> bool:
    """Whether a text can be a transactional id."""
    try:
        return 0 < len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


def of_entry(entry: Entry) -> Standings:
    """Returns where an id stands after a restart."""
    return Standings(
        entry.group,
        entry.offset,
        entry.leader_epoch,
        entry.topic_epoch,
        _STATES[Standing(entry.partition)],
        int(entry.metadata) if _is_number(entry.metadata) else 0,
        entry.time_ms,
        sequences=Sequences(from_zero=False),
    )


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= len(str(1 << 63))


def offsets_by_group(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Sorts offsets of a transaction by their groups."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.group, []).append(entry)
    return found
