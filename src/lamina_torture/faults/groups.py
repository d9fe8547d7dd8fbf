"""F2 and F4 for consumer groups: power is lost at every step of polls, acks and rotations."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from lamina.errors import LaminaError
from lamina.groups import journal
from lamina.groups.group import Group
from lamina_torture import losing
from lamina_torture.disk import Disk
from lamina_torture.promises import GROUP, NOW_MS
from lamina_torture.rows import Rounds, Trial, demand, row
from lamina_torture.scribe import Moment, open_store
from lamina_torture.simulated import SimulatedFiles

RECORDS = 40
LEASE_MS = 1000
TOPIC = "t"
GROUPS = ("groups",)


@dataclass(frozen=True)
class Answered:
    """What consumers were told: these are acked; these were delivered so often, at least."""

    acked: frozenset[int] = frozenset()
    asked: frozenset[int] = frozenset()
    """Acks on their way: they may be kept or not."""
    delivered: dict[int, int] = field(default_factory=dict)
    delivering: dict[int, int] = field(default_factory=dict)


@dataclass
class Consumer:
    """Polls and acks, and writes down before each step what it was answered."""

    files: SimulatedFiles = field(default_factory=SimulatedFiles)
    moments: list[tuple[Moment, Answered]] = field(default_factory=list)
    told: Answered = field(default_factory=Answered)
    now_ms: int = NOW_MS

    def watch(self) -> None:
        """Begins to write down."""
        self.files.before = self._note

    def _note(self, kind: str, path: str) -> None:
        moment = Moment(len(self.moments), kind, path, self.files.snapshot(), {})
        self.moments.append((moment, self.told))

    def ack(self, group: Group, offsets: list[int]) -> None:
        """Acks; until that has returned it may be kept or not."""
        asked = self.told.asked | set(offsets)
        self.told = replace(self.told, asked=asked)
        group.ack(offsets)
        self.told = replace(self.told, acked=self.told.acked | set(offsets))

    def poll(self, group: Group, count: int) -> list[int]:
        """Polls; until that has returned a delivery may be counted or not."""
        told = self.told
        more = {each: told.delivered.get(each, 0) + 1 for each in range(RECORDS)}
        self.told = replace(told, delivering=more)
        batch = group.poll(count, LEASE_MS)
        offsets: list[int] = batch.column("offset").to_pylist()
        epochs = batch.column("epoch").to_pylist()
        delivered = told.delivered | dict(zip(offsets, epochs, strict=True))
        self.told = replace(told, delivered=delivered, delivering=delivered)
        return offsets


def workload() -> Consumer:
    """Six polls with acks in any order, leases that end, and snapshots of the state in between."""
    consumer = Consumer()
    store = open_store(consumer.files, now_ms=lambda: consumer.now_ms)
    store.create_topic(TOPIC)
    store.append(TOPIC, [b"%d" % each for each in range(RECORDS)])
    consumer.watch()
    group = store.group(TOPIC, GROUP)
    with mock.patch.object(journal, "COMPACT_EVENTS", 9):
        for turn in range(6):
            offsets = consumer.poll(group, 5)
            consumer.ack(group, offsets[::2])
            if turn % 2:
                consumer.ack(group, offsets[1:2])
            consumer.now_ms += LEASE_MS if turn == 3 else 0
        store.close()
    consumer.files.before = None
    return consumer


@row("F4", "groups", formats=GROUPS, invariants="I6", rounds=Rounds(60, 800, 30_000))
def groups(trial: Trial) -> None:
    """Power is lost at each step of polls, acks and rotations; any subset of sectors is kept."""
    consumer = workload()
    for case, disk, told in _cases(trial, consumer):
        with trial.case(case, "disks") as wanted:
            if wanted:
                check(losing.made(disk, case.split(":")[1]), told)


def _cases(
    trial: Trial, consumer: Consumer
) -> Iterator[tuple[str, Disk[SimulatedFiles], Answered]]:
    if trial.only is not None:
        moment, told = consumer.moments[int(trial.only.split(":")[0])]
        yield trial.only, moment.disk, told
        return
    for number in range(trial.rounds):
        luck = trial.luck(number)
        moment, told = luck.choice(consumer.moments)
        way = luck.randrange(5)
        name = ("dropped", "kept", "killed", f"seed-{number}")[way] if way < 4 else ""
        names = [name] if name else list(losing.reordered(moment, luck, 1))
        yield f"{moment.step}:{luck.choice(names)}", moment.disk, told


def check(files: SimulatedFiles, told: Answered) -> None:
    """Acked stays acked, all others come again, once each, with their deliveries counted."""
    now_ms = NOW_MS + 100 * LEASE_MS
    store = open_store(files, now_ms=lambda: now_ms)
    if (TOPIC, GROUP) not in store.groups():
        demand(not told.acked, "I6", "the group is gone")
    group = store.group(TOPIC, GROUP)
    found: dict[int, int] = {}
    while (batch := group.poll(7)).num_rows:
        columns: list[list[Any]] = [batch.column(name).to_pylist() for name in ("offset", "epoch")]
        for offset, epoch in zip(*columns, strict=True):
            demand(offset not in found, "I6", f"{offset} is handed out twice at a time")
            found[offset] = epoch
    again = found.keys() & told.acked
    demand(not again, "I6", f"{sorted(again)[:5]} were acked and are delivered again")
    missing = set(range(RECORDS)) - found.keys() - told.acked - told.asked
    demand(not missing, "I6", f"{sorted(missing)[:5]} are neither acked nor delivered again")
    for offset, epoch in found.items():
        least = told.delivered.get(offset, 0) + 1
        most = max(told.delivering.get(offset, 0) + 1, least)
        demand(least <= epoch <= most, "I6", f"{offset}: delivery {epoch} is not {least}..{most}")
    group.ack(sorted(found))
    store.close()
    with open_store(files, now_ms=lambda: now_ms) as again_store:
        committed = again_store.group(TOPIC, GROUP).committed()
        demand(committed == RECORDS, "I6", f"all was acked, and the group is at {committed}")
        events = again_store.recovery_report.events
        demand(not events, "I7", f"the second opening still had to recover: {events}")


@row("F11", "groups", formats=GROUPS, invariants="I6 I12", rounds=Rounds(10, 150, 400))
def failing(trial: Trial) -> None:
    """Each write, sync, creation and rename of a group's journal fails once."""
    total = _calls()
    cases = [f"{kind}:{number}" for kind, count in total.items() for number in range(1, count + 1)]
    for case in trial.luck().sample(cases, min(len(cases), trial.rounds)):
        with trial.case(case, "calls") as wanted:
            if wanted:
                _fail(*case.split(":"))


KINDS = ("write_at", "sync", "create", "rename", "sync_directory", "open")


def _calls() -> dict[str, int]:
    files = SimulatedFiles()
    _use(files)
    before = _filled()
    return {kind: files.calls[kind] - before.calls[kind] for kind in KINDS}


def _filled() -> SimulatedFiles:
    files = SimulatedFiles()
    with open_store(files) as store:
        store.create_topic(TOPIC)
        store.append(TOPIC, [b"%d" % each for each in range(RECORDS)])
    return files


def _use(files: SimulatedFiles, fault: tuple[str, int] | None = None) -> Answered:
    """Acks until an error, and once more; returns what was answered."""
    with open_store(files) as store:
        store.create_topic(TOPIC)
        store.append(TOPIC, [b"%d" % each for each in range(RECORDS)])
    if fault is not None:
        files.fail(fault[0], at=fault[1], after="dropped")
    acked: set[int] = set()
    asked: set[int] = set()
    with mock.patch.object(journal, "COMPACT_EVENTS", 5):
        try:
            store = open_store(files)
        except LaminaError:
            store = open_store(files)
        for offset in range(0, RECORDS, 4):
            asked.add(offset)
            try:
                store.group(TOPIC, GROUP).ack(offset)
                acked.add(offset)
            except LaminaError:
                continue
        with contextlib.suppress(LaminaError):
            store.close()
    return Answered(frozenset(acked), frozenset(asked))


def _fail(kind: str, number: str) -> None:
    files = SimulatedFiles()
    told = _use(files, (kind, int(number)))
    files.faults.clear()
    disk = files.snapshot()
    told = replace(told, delivering=dict.fromkeys(range(RECORDS), 1))
    for again in (disk.crash("dropped"), disk.crash(zlib.crc32(kind.encode())), disk.restart()):
        check(again, told)
