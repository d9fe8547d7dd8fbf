"""F23: readers in the middle of everything that removes and moves records; by a seeded schedule.

The schedule is deterministic: one thread works, and before each of its steps that change the disk
the seed decides which readers make a move. A reader that needs a lock which the worker holds makes
its move when it gets it; the worker does not wait for that.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lamina.api import StoreApi
from lamina.errors import LaminaError, RecordsMissing
from lamina.store.read_only import ReadOnlyStore
from lamina_torture.promises import fields_of, read
from lamina_torture.rows import Rounds, Trial, demand, row
from lamina_torture.scribe import DATA, Scribe, wal_settings
from lamina_torture.workloads import MORE, TOPIC, random_workload, unsynced

MOVE_S = 0.05
"""How long the worker waits for a move; one that waits for a lock is waited for at the end."""
OPERATIONS = 10
BATCH_RECORDS = 2


@dataclass
class Reader:
    """Reads a topic batch by batch; every record it gets must be right, and none may be skipped."""

    scribe: Scribe
    store: StoreApi
    at: int | None = None
    batches: Iterator[Any] | None = None
    problems: list[BaseException] = field(default_factory=list)
    read_records: int = 0
    moves: int = 0

    def move(self) -> None:
        """Reads one more batch, or begins again after the last."""
        try:
            self._move()
        except BaseException as error:
            self.problems.append(error)

    def _move(self) -> None:
        self.moves += 1
        try:
            if self.batches is None:
                self.at = self.store.earliest_offset(TOPIC)
                batches = self.store.scan(TOPIC, start=self.at, max_records=BATCH_RECORDS)
                self.batches = iter(batches)
            batch = next(self.batches, None)
        except RecordsMissing as missing:
            self._go_on(missing)
            return
        except LaminaError:
            self.batches = None  # a typed error: the topic went, or its files are moving
            return
        if batch is None:
            self.batches = None
            return
        lives = self.scribe.promise.get(TOPIC, (None,))
        life = lives[-1] if len(lives) == 1 else None
        for offset, value in zip(
            batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
        ):
            demand(self.at is None or offset >= self.at, "I3", f"{offset} after {self.at}")
            self.at = offset + 1
            self.read_records += 1
            if life is not None and value.startswith(f"{TOPIC} {life.epoch} ".encode()):
                wanted = life.values[offset - life.first]
                demand(value == wanted, "I2", f"{offset} is read with wrong bytes")

    def _go_on(self, missing: RecordsMissing) -> None:
        """What is missing must have a reason that is not damage."""
        allowed = {"trim", "retention", "deleted", "truncated", "archived"}
        if self.store is not self.scribe.store and self.scribe.deleted[TOPIC]:
            allowed.add("lost")  # from outside, the files of two topics of one name look alike
        demand(missing.reason in allowed, "I8", f"{missing.first}: {missing.reason}")
        self.batches = None


@row("F23", "readers", invariants="I2 I3 I8", rounds=Rounds(6, 100, 10_000))
def readers(trial: Trial) -> None:
    """Readers inside and outside the process move between any two steps of a random life."""
    for number in range(trial.rounds):
        with trial.case(number, "schedules") as wanted:
            if wanted:
                moves, count = _race(trial.format, trial.luck(number))
                trial.counts["moves"] += moves
                trial.counts["records"] += count


def _race(format_name: str, luck: random.Random) -> tuple[int, int]:
    scribe = Scribe(format_name, watching=False)
    store = scribe.open()
    scribe.create(TOPIC, **unsynced(format_name))
    scribe.append(TOPIC, [40] * 6)
    outside = ReadOnlyStore(DATA, files=scribe.files, wal=wal_settings(2))
    chosen = [Reader(scribe, store), Reader(scribe, store), Reader(scribe, outside)]
    waiting: list[threading.Thread] = []
    busy = threading.local()

    def before(kind: str, path: str) -> None:
        scribe.look()
        if getattr(busy, "reads", False) or luck.random() < 0.6:
            return
        reader = luck.choice(chosen)
        if any(thread.name == str(id(reader)) and thread.is_alive() for thread in waiting):
            return

        def move() -> None:
            busy.reads = True
            reader.move()

        thread = threading.Thread(target=move, name=str(id(reader)), daemon=True)
        thread.start()
        thread.join(MOVE_S)
        if thread.is_alive():
            waiting.append(thread)

    scribe.files.before = before
    names = [name for name in random_workload(luck, OPERATIONS).split("+") if name in ALIVE]
    for name in names:
        MORE[name](scribe)
    scribe.files.before = None
    for thread in waiting:
        thread.join(30)
        demand(not thread.is_alive(), "I12", "a reader hangs")
    _check(scribe, chosen)
    store.close()
    return sum(each.moves for each in chosen), sum(each.read_records for each in chosen)


ALIVE = ("append", "write", "roll", "trim", "delete", "checkpoint", "snapshot", "commit")
"""The operations that leave the store open: readers hold on to it."""


def _check(scribe: Scribe, chosen: list[Reader]) -> None:
    for reader in chosen:
        for problem in reader.problems:
            raise problem
    life = scribe.life(TOPIC)
    found = read(scribe.opened, TOPIC)
    for offset, fields in found.items():
        wanted = fields_of(life.format, offset, life.values[offset - life.first])
        demand(fields == wanted, "I2", f"{offset} is read with wrong bytes")
    there = {at for at in range(life.gone, life.durable) if at not in life.deleted}
    lost = there - found.keys()
    demand(not lost, "I1", f"{sorted(lost)[:5]} were acknowledged and are lost")
