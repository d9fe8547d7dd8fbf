"""F4 for transactions: power is lost at every step of their life, and of what a restart does then.

A producer commits and aborts, in memory and spilled, with offsets and without, while its group
commits by itself, too. After every loss a transaction is there as a whole or not at all: all of one
that was answered as committed, nothing of one that was aborted or open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import pyarrow as pa

from lamina.api.memberships import Committed
from lamina.formats.kafka import batch as batches
from lamina.formats.kafka.batch import Batch
from lamina.store import transactions
from lamina.store.decided_files import DecidedFiles
from lamina.store.store import Store
from lamina.store.transaction_states import Claim, TransactionRefusal, TransactionRefused
from lamina_torture import losing
from lamina_torture.disk import Disk
from lamina_torture.hosting import first_offset
from lamina_torture.promises import GROUP
from lamina_torture.rows import Rounds, Trial, demand, row
from lamina_torture.scribe import Moment, open_store
from lamina_torture.simulated import SimulatedFiles

TOPIC = "t"
PARTITIONS = 2
NAME = "copier"
TIMEOUT_MS = 60_000
SPILL_BYTES = 300
AGAIN = 3
"""How many steps of a restart lose power once more, for each disk."""


@dataclass(frozen=True)
class Turn:
    """One transaction: how many records each partition gets, and how it ends."""

    number: int
    rows: tuple[int, int]
    has_offset: bool
    commits: bool

    def values(self, partition: int) -> list[str]:
        """Returns the values of a partition, which nobody else has."""
        return [f"{self.number}-{partition}-{row}" for row in range(self.rows[partition])]

    @property
    def offset(self) -> int:
        """Returns what the group commits with the transaction."""
        return 10 * self.number


TURNS = (
    Turn(1, (2, 3), has_offset=True, commits=True),
    Turn(2, (1, 1), has_offset=True, commits=False),
    Turn(3, (0, 0), has_offset=True, commits=True),
    Turn(4, (40, 7), has_offset=True, commits=True),
    Turn(5, (40, 0), has_offset=False, commits=False),
    Turn(6, (0, 2), has_offset=False, commits=True),
)
BUMPED_AFTER = 4
"""After this turn another instance takes over."""


@dataclass(frozen=True)
class Told:
    """What the producer and its group were answered, and what was asked and not answered yet."""

    claim: Claim | None = None
    is_changing: bool = False
    """Whether a new epoch, a beginning or an abort was asked for: it may be known or not."""
    committed: tuple[int, ...] = ()
    committing: int = 0
    open: int = 0
    """The transaction that has begun, as the producer was told."""
    offset: int = -1
    asked_offset: int | None = None


@dataclass
class Copier:
    """A producer with transactions, which writes down before each step what it was told."""

    format_name: str
    files: SimulatedFiles = field(default_factory=SimulatedFiles)
    moments: list[tuple[Moment, Told]] = field(default_factory=list)
    told: Told = field(default_factory=Told)
    sent: dict[int, int] = field(default_factory=dict)

    def watch(self) -> None:
        """Begins to write down."""
        self.files.before = self._note

    def _note(self, kind: str, path: str) -> None:
        moment = Moment(len(self.moments), kind, path, self.files.snapshot(), {})
        self.moments.append((moment, self.told))

    def tell(self, **changed: Any) -> None:
        """Writes down what is known from now on."""
        self.told = replace(self.told, **changed)

    def init(self, store: Store) -> None:
        """Begins as a new instance."""
        self.tell(is_changing=True)
        claim = store.transactions.init(NAME, TIMEOUT_MS)
        self.sent = dict.fromkeys(range(PARTITIONS), 0)
        self.tell(is_changing=False, claim=claim, open=0)

    def turn(self, store: Store, turn: Turn) -> None:
        """Runs one transaction to its end."""
        claim, own = self.told.claim, store.transactions
        assert claim is not None
        self.tell(is_changing=True)
        own.add_partitions(claim, [(TOPIC, number) for number in range(PARTITIONS)])
        self.tell(is_changing=False, open=turn.number)
        for partition in range(PARTITIONS):
            self.sent[partition] = stage(store, claim, partition, turn, self.sent[partition])
        if turn.has_offset:
            own.add_group(claim, GROUP)
            own.stage_offsets(claim, GROUP, [Committed(TOPIC, 0, turn.offset)])
        if not turn.commits:
            self.tell(is_changing=True)
            own.end(claim, commit=False)
            self.tell(is_changing=False, open=0)
            return
        self.tell(committing=turn.number)
        own.end(claim, commit=True)
        offset = turn.offset if turn.has_offset else self.told.offset
        done = (*self.told.committed, turn.number)
        self.tell(committing=0, open=0, committed=done, offset=offset)

    def commit_alone(self, store: Store, offset: int) -> None:
        """Commits an offset without a transaction: none may take it back."""
        self.tell(asked_offset=offset)
        store.coordinator.commit(GROUP, [Committed(TOPIC, 0, offset)])
        self.tell(asked_offset=None, offset=offset)


def stage(store: Store, claim: Claim, partition: int, turn: Turn, sequence: int) -> int:
    """Sends the values of a partition, some at a time; returns the next sequence."""
    values = turn.values(partition)
    for first in range(0, len(values), 5):
        part = values[first : first + 5]
        data, batch = made(part, sequence)
        store.transactions.stage(claim, (TOPIC, partition), batch, data)
        sequence += len(part)
    return sequence


def made(values: list[str], sequence: int) -> tuple[bytes, Batch]:
    """Returns a batch as a producer sends it, and as the door decodes it."""
    rows = len(values)
    columns = {
        "offset": pa.array(range(rows), pa.int64()),
        "timestamp": pa.array([1_700_000_000_000] * rows, pa.int64()),
        "key": pa.nulls(rows, pa.binary()),
        "value": pa.array([value.encode() for value in values], pa.binary()),
        "headers": pa.nulls(rows, batches.INPUT_SCHEMA.field("headers").type),
    }
    arrays = [
        columns[each.name].cast(each.type) if each.name == "timestamp" else columns[each.name]
        for each in batches.INPUT_SCHEMA
    ]
    records = pa.RecordBatch.from_arrays(arrays, schema=batches.INPUT_SCHEMA)
    data = bytes(batches.encode(records))
    found = batches.decode(data, 1 << 20)
    return data, found._replace(is_transactional=True, base_sequence=sequence)


class _InTurn(Executor):
    """Runs what it is given at once: the steps of a workload come in one order."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Runs it."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def opened(files: SimulatedFiles) -> Store:
    """Opens a store that stores one partition of a transaction after the other."""
    with mock.patch.object(transactions, "DecidedFiles", _sequential(DecidedFiles)):
        return open_store(files)


def _sequential(kind: Any) -> Callable[..., Any]:
    return lambda boot, appends, _: kind(boot, appends, _InTurn())


def workload(format_name: str) -> Copier:
    """All turns, with commits of the group in between, and another instance."""
    copier = Copier(format_name)
    store = opened(copier.files)
    store.create_topic(TOPIC, partitions=PARTITIONS, format=format_name)
    copier.watch()
    with mock.patch.object(transactions, "MEMORY_BYTES_MAX", SPILL_BYTES):
        copier.init(store)
        for turn in TURNS:
            copier.turn(store, turn)
            copier.commit_alone(store, turn.offset + 5)
            if turn.number == BUMPED_AFTER:
                copier.init(store)
        store.close()
    copier.files.before = None
    return copier


@row("F4", "transactions", invariants="I1 I2 I3 I6 I7", rounds=Rounds(24, 400, 20_000))
def transactions_lost(trial: Trial) -> None:
    """Power is lost at each step of transactions, and of the restart after it: all or nothing."""
    copier = workload(trial.format)
    for case, disk, told in _cases(trial, copier):
        with trial.case(case, "disks") as wanted:
            if wanted:
                files = losing.made(disk, case.split(":")[1])
                for again in _restarts(files, trial.luck(case)):
                    trial.counts["restarts"] += 1
                    check(again, told, trial.format)
                check(files, told, trial.format)


def _cases(trial: Trial, copier: Copier) -> Iterator[tuple[str, Disk[SimulatedFiles], Told]]:
    if trial.only is not None:
        moment, told = copier.moments[int(trial.only.split(":")[0])]
        yield trial.only, moment.disk, told
        return
    for number in range(trial.rounds):
        luck = trial.luck(number)
        moment, told = luck.choice(copier.moments)
        way = luck.randrange(5)
        name = ("dropped", "kept", "killed", f"seed-{number}")[way] if way < 4 else ""
        names = [name] if name else list(losing.reordered(moment, luck, 1))
        yield f"{moment.step}:{luck.choice(names)}", moment.disk, told


def _restarts(files: SimulatedFiles, luck: Any) -> Iterator[SimulatedFiles]:
    """Yields disks of which power was lost again while the store was opened."""
    disks: list[Disk[SimulatedFiles]] = []
    copy = files.snapshot().restart()
    copy.before = lambda _, __: disks.append(copy.snapshot())
    opened(copy).close()
    copy.before = None
    for disk in luck.sample(disks, min(AGAIN, len(disks))):
        yield disk.crash(luck.choice(("dropped", "kept", luck.randrange(1 << 20))))


# ---------------------------------------------------------------- the verdict


def check(files: SimulatedFiles, told: Told, format_name: str) -> None:
    """Holds a disk against what was told, and uses it: by the old producer, and by the next."""
    with opened(files) as store:
        there = _whole_turns(store, format_name)
        missing = set(told.committed) - there
        demand(not missing, "I1", f"transactions {sorted(missing)} were committed and are gone")
        more = there - set(told.committed) - {told.committing}
        demand(not more, "I2", f"transactions {sorted(more)} were not committed and are there")
        _check_offset(store, told, there)
        if told.claim is not None and not told.is_changing:
            _check_old(store, told, told.claim, there)
        _go_on(store, told, there, format_name)
    with opened(files) as store:
        events = store.recovery_report.events
        demand(not events, "I7", f"the second opening still had to recover: {events}")


def values_of(store: Store, format_name: str, partition: int) -> list[str]:
    """Reads the values of a partition."""
    start = first_offset(format_name)
    found = [each["value"].to_pylist() for each in store.scan(TOPIC, partition, start)]
    return [value.decode() for values in found for value in values]


def _whole_turns(store: Store, format_name: str) -> set[int]:
    """Returns which transactions are there; each as a whole, once, and in their order."""
    if TOPIC not in store.topics():
        return set()
    found = [values_of(store, format_name, partition) for partition in range(PARTITIONS)]
    numbers = {int(value.split("-")[0]) for values in found for value in values}
    for partition, values in enumerate(found):
        whole = [value for turn in TURNS if turn.number in numbers
                 for value in turn.values(partition)]  # fmt: skip
        demand(values == whole, "I3", f"partition {partition} has {values[:9]}, not {whole[:9]}")
    empty = {turn.number for turn in TURNS if turn.commits and not sum(turn.rows)}
    return numbers | {each for each in empty if each in _offsets_say(store)}


def _offsets_say(store: Store) -> set[int]:
    """Returns the transactions that have no records, and can only be told by their offset."""
    found = store.coordinator.offsets.of(GROUP).get((TOPIC, 0))
    return {turn.number for turn in TURNS if found is not None and found.offset >= turn.offset}


def _check_offset(store: Store, told: Told, there: set[int]) -> None:
    found = store.coordinator.offsets.of(GROUP).get((TOPIC, 0))
    offset = -1 if found is None else found.offset
    allowed = {told.offset} | ({told.asked_offset} - {None})
    turn = next((each for each in TURNS if each.number == told.committing), None)
    if turn is not None and turn.has_offset and turn.number in there:
        allowed = {turn.offset}
    demand(offset in allowed, "I6", f"the group is at {offset}, and not at one of {allowed}")


def _refusal(action: Callable[..., object], *given: Any, **named: Any) -> TransactionRefusal | None:
    try:
        action(*given, **named)
    except TransactionRefused as error:
        return error.refusal
    return None


def _check_old(store: Store, told: Told, claim: Claim, there: set[int]) -> None:
    """The producer that was there before asks how its transaction ended, and cannot tear it."""
    own, places = store.transactions, [(TOPIC, 0)]
    if told.open and told.open not in there:
        found = _refusal(own.add_partitions, claim, places)
        lost = found is TransactionRefusal.INVALID_TXN_STATE
        demand(lost, "I2", f"a transaction goes on without what it had: {found}")
        found = _refusal(own.end, claim, commit=True)
        demand(lost and found is not None, "I2", "a transaction that is lost was committed")
    elif told.committing or (told.committed and not told.open):
        last = told.committing or told.committed[-1]
        aborted = max(each.number for each in TURNS if each.number <= _reached(told)) > last
        if not aborted and last in there and not _bumped_since(told, last):
            found = _refusal(own.end, claim, commit=True)
            demand(found is None, "I1", f"a commit is not known any more: {found}")


def _reached(told: Told) -> int:
    """Returns the last transaction that may have ended, by the offset behind it."""
    last = max(told.offset, told.asked_offset or 0)
    return max(last // 10, *told.committed, told.committing, 1)


def _bumped_since(told: Told, last: int) -> bool:
    return last == BUMPED_AFTER and told.claim is not None and told.claim.epoch > 0


def _go_on(store: Store, told: Told, there: set[int], format_name: str) -> None:
    """A new instance has a higher epoch, and its transactions are stored."""
    if TOPIC not in store.topics():
        return
    claim = store.transactions.init(NAME, TIMEOUT_MS)
    if told.claim is not None and claim.producer_id == told.claim.producer_id:
        demand(claim.epoch > told.claim.epoch, "I3", f"epoch {claim.epoch} is given away again")
    if told.claim is not None:
        found = _refusal(store.transactions.end, told.claim, commit=True)
        demand(found is not None, "I2", "a producer that was fenced commits")
    turn = Turn(9, (1, 2), has_offset=False, commits=True)
    store.transactions.add_partitions(claim, [(TOPIC, number) for number in range(PARTITIONS)])
    for partition in range(PARTITIONS):
        stage(store, claim, partition, turn, 0)
    store.transactions.end(claim, commit=True)
    for partition in range(PARTITIONS):
        values = values_of(store, format_name, partition)
        count = sum(len(each.values(partition)) for each in TURNS if each.number in there)
        own = values[count:]
        demand(own == turn.values(partition), "I1", f"the next transaction is there as {own}")
    left = store.transactions.counts()
    demand((left.open, left.decided) == (0, 0), "I7", f"something is left: {left}")
