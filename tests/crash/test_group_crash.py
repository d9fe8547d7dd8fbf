"""Power is lost at every step of a group's life: acked stays acked, unacked comes again.

A workload of polls, acks, releases, resets and rotations runs once on a simulated disk. Before
each step that changes the disk it is written down what was answered. Each moment becomes several
disks, on which the store is opened, held against what was answered, and used to the end.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from lamina.config import WriterSettings
from lamina.engine.groups import journal
from lamina.engine.groups.journal import Names, read
from lamina.engine.groups.state import State
from lamina.engine.store import Store
from lamina.errors import NewerFormat, Poisoned, StorageFull
from lamina.formats.keratin import delta
from lamina.formats.keratin.delta import Event
from lamina.torture.disk import Choice, Disk
from lamina.torture.simulated import SimulatedFiles

DATA = "/srv/data"
NOW_MS = 1_700_000_000_000
QUIET = WriterSettings(flush_ms=1 << 31)
RECORDS = 40
LEASE_MS = 1000
CHOICES: tuple[Choice, ...] = ("dropped", "kept", 1, 2)
SNAP, DELTA = (f"{DATA}/groups/t-0_g.{suffix}" for suffix in ("snap", "delta"))


class Clock:
    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def open_store(files: SimulatedFiles, clock: Clock | None = None) -> Store:
    clock = clock or Clock()
    return Store(DATA, files=files, now_ms=clock, writer=QUIET, tick_ms=1 << 31)


def filled(files: SimulatedFiles, clock: Clock | None = None) -> Store:
    store = open_store(files, clock)
    store.create_topic("t")
    store.append("t", [b"%d" % each for each in range(RECORDS)])
    return store


@dataclass
class Answered:
    """What consumers were told: these are acked; these were delivered so often, at least."""

    acked: frozenset[int] = frozenset()
    asked: frozenset[int] = frozenset()
    """Acks on their way: they may be kept or not."""
    delivered: dict[int, int] = field(default_factory=dict)
    asked_deliveries: dict[int, int] = field(default_factory=dict)


@dataclass
class Scribe:
    files: SimulatedFiles = field(default_factory=SimulatedFiles)
    moments: list[tuple[str, str, Disk, Answered]] = field(default_factory=list)
    told: Answered = field(default_factory=Answered)

    def watch(self) -> None:
        self.files.before = lambda kind, path: self.moments.append(
            (kind, path, self.files.snapshot(), self.told)
        )

    def ack(self, group: Any, offsets: list[int]) -> None:
        told = self.told
        self.told = Answered(
            told.acked, told.asked | set(offsets), told.delivered, told.asked_deliveries
        )
        group.ack(offsets)
        self.told = Answered(
            told.acked | set(offsets), self.told.asked, told.delivered, told.asked_deliveries
        )

    def poll(self, group: Any, count: int) -> list[int]:
        told = self.told
        more = {each: told.delivered.get(each, 0) + 1 for each in range(RECORDS)}
        self.told = Answered(told.acked, told.asked, told.delivered, more)
        batch = group.poll(count, LEASE_MS)
        offsets: list[int] = batch.column("offset").to_pylist()
        epochs = batch.column("epoch").to_pylist()
        delivered = told.delivered | dict(zip(offsets, epochs, strict=True))
        self.told = Answered(told.acked, told.asked, delivered, delivered)
        return offsets


def workload(scribe: Scribe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "COMPACT_EVENTS", 9)
    clock = Clock()
    store = filled(scribe.files, clock)
    scribe.watch()
    group = store.group("t", "g")
    for turn in range(6):
        offsets = scribe.poll(group, 5)
        scribe.ack(group, offsets[::2])
        if turn % 2:
            scribe.ack(group, offsets[1:2])
        clock.now_ms += LEASE_MS if turn == 3 else 0
    store.close()
    scribe.files.before = None


def check(files: SimulatedFiles, told: Answered) -> None:
    clock = Clock()
    clock.now_ms += 100 * LEASE_MS
    store = open_store(files, clock)
    if ("t", "g") not in store.groups():
        assert not told.acked
    group = store.group("t", "g")
    found: dict[int, int] = {}
    while (batch := group.poll(7)).num_rows:
        columns = (batch.column(name).to_pylist() for name in ("offset", "epoch"))
        for offset, epoch in zip(*columns, strict=True):
            assert offset not in found, "handed out twice at a time"
            found[offset] = epoch
    assert not found.keys() & told.acked, "acked, and delivered again"
    missing = set(range(RECORDS)) - found.keys() - told.acked
    assert missing <= told.asked, "neither acked nor delivered again"
    for offset, epoch in found.items():
        least = told.delivered.get(offset, 0) + 1
        most = told.asked_deliveries.get(offset, 0) + 1
        assert least <= epoch <= max(most, least), "a delivery was not counted, or one too many"
    group.ack(sorted(found))
    assert group.committed() == RECORDS
    store.close()
    again = open_store(files, clock)
    assert again.group("t", "g").committed() == RECORDS
    assert again.recovery_report.events == []
    again.close()


def test_power_loss_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    scribe = Scribe()
    workload(scribe, monkeypatch)
    renames = [path for kind, path, *_ in scribe.moments if kind == "rename"]
    assert renames.count(SNAP) > 2, "the workload rotates"
    assert renames.count(DELTA) > 2
    for step, (kind, path, disk, told) in enumerate(scribe.moments):
        for choice in CHOICES:
            try:
                check(disk.crash(choice), told)
            except BaseException as error:
                error.add_note(f"step {step}: {kind} {path}, choice {choice}")
                raise
        try:
            check(disk.restart(), told)
        except BaseException as error:
            error.add_note(f"step {step}: {kind} {path}, the process was killed")
            raise


def names(files: SimulatedFiles) -> Names:
    from lamina.engine.place import Place

    return Names(Place(files, DATA, "t", 0, lambda: NOW_MS), "g")


def used(files: SimulatedFiles) -> State:
    """A store whose group has acks, acks ahead and leases; returns the state, closed."""
    store = filled(files)
    group = store.group("t", "g")
    group.ack(group.poll(5))
    group.ack([9, 10, 12])
    group.poll(3, LEASE_MS)
    state = store._groups._known("t", "g")[0].durable
    store.close()
    return state


def test_an_old_delta_beside_a_newer_snapshot_gives_the_same_state() -> None:
    files = SimulatedFiles()
    state = used(files)
    old = files.read(DELTA)
    created = journal.Journal.create(names(files), state)
    created.close()
    new = files.read(DELTA)
    assert new != old
    files.replace(DELTA, old)
    assert read(names(files)).state.equals(state)
    files.replace(DELTA, new)
    assert read(names(files)).state.equals(state)


def test_a_rotated_delta_begins_with_an_ack_for_each_one_ahead() -> None:
    files = SimulatedFiles()
    state = used(files)
    journal.Journal.create(names(files), state).close()
    data = files.read(DELTA)
    events = delta.decode(data, delta.scan(data))
    assert events.types.tolist() == [Event.ACK] * 3 + [Event.BUMP_ACKED_UNTIL]
    assert events.offsets.tolist() == [9, 10, 12, 5]


def test_a_lost_snapshot_costs_no_ack() -> None:
    files = SimulatedFiles()
    state = used(files)
    files.remove(SNAP)
    store = open_store(files)
    (event,) = store.recovery_report.events
    assert (event.kind, event.path) == ("rebuilt", SNAP)
    found = store._groups._known("t", "g")[0].durable
    assert (found.acked_until, found.ahead().tolist()) == (5, [9, 10, 12])
    assert found.equals(state), "the delta was not rotated, so leases are in it, too"
    store.close()


@pytest.mark.parametrize("suffix", ["snap", "delta"])
def test_every_damaged_byte_is_reported_and_records_come_again(suffix: str) -> None:
    files = SimulatedFiles()
    used(files)
    path = SNAP if suffix == "snap" else DELTA
    sound = files.snapshot()
    for position in range(0, len(files.read(path)), 5):
        damaged = sound.restart()
        data = bytearray(damaged.read(path))
        data[position] ^= 0x5A
        damaged.replace(path, bytes(data))
        try:
            store = open_store(damaged)
        except NewerFormat:
            assert position in {*range(8, 10), *range(12, 16)}, "only a version or length is newer"
            continue
        except BaseException as error:
            error.add_note(f"byte {position}")
            raise
        report = store.recovery_report.events
        ignored = range(10, 12)
        if position not in ignored:
            assert {event.kind for event in report} & {"quarantined", "cut"}, position
            assert any(event.kept_in for event in report), position
        group = store.group("t", "g")
        assert group.committed() <= 5
        offsets = {*group.poll(RECORDS).column("offset").to_pylist()}
        assert offsets <= set(range(RECORDS))
        group.commit(RECORDS)
        store.close()
        again = open_store(damaged)
        assert again.recovery_report.events == []
        assert again.group("t", "g").committed() == RECORDS
        again.close()


def test_damage_in_the_middle_of_a_delta_costs_only_its_events() -> None:
    files = SimulatedFiles()
    store = filled(files)
    group = store.group("t", "g")
    for offset in (3, 5, 7, 9):
        group.ack(offset)
    store.close()
    data = bytearray(files.read(DELTA))
    events = delta.scan(bytes(data))
    data[int(events.positions[-3]) + 14] ^= 1
    files.replace(DELTA, bytes(data))
    store = open_store(files)
    assert store._groups._known("t", "g")[0].durable.ahead().tolist() == [3, 7, 9]
    assert [event.kind for event in store.recovery_report.events] == ["quarantined"]
    store.close()


def test_an_unknown_event_is_a_newer_format_and_nothing_is_changed() -> None:
    from lamina.formats.crc import crc32c_of

    files = SimulatedFiles()
    used(files)
    for version, kind in ((1, 6), (2, 1)):
        body = version.to_bytes(2, "big") + kind.to_bytes(2, "big") + bytes(2)
        body += (3).to_bytes(4, "big") + b"new"
        event = b"KE" + body + crc32c_of(body).to_bytes(4, "big")
        newer = files.snapshot().restart()
        newer.replace(DELTA, newer.read(DELTA).rstrip(b"\0") + event)
        before = {name: data for name, data in newer.contents().items() if "/groups/" in name}
        with pytest.raises(NewerFormat, match="unknown kind"):
            open_store(newer)
        after = {name: data for name, data in newer.contents().items() if "/groups/" in name}
        assert after == before


def test_a_state_ahead_of_its_log_is_clamped_and_reported() -> None:
    files = SimulatedFiles()
    store = filled(files)
    group = store.group("t", "g")
    group.ack(group.poll(5))
    store.close()
    ahead = State(acked_until=5).apply(
        delta.Events(*np.array([[2, 2, 1], [39, 60, 70], [0, 0, 9], [0, 0, 1]]))
    )
    journal.Journal.create(names(files), ahead).close()
    store = open_store(files)
    assert [event.kind for event in store.recovery_report.events] == ["clamped"]
    assert "ends at 40" in store.recovery_report.events[0].why
    store.append("t", [b"new"] * 50)
    offsets = store.group("t", "g").poll(100).column("offset").to_pylist()
    assert offsets == [*range(5, 39), *range(40, 90)]
    store.close()
    assert open_store(files).recovery_report.events == []


def test_a_torn_reset_is_left_out() -> None:
    files = SimulatedFiles()
    state = used(files)
    data = files.read(DELTA) + delta.encode(int(Event.RESET)).tobytes()
    files.replace(DELTA, data)
    store = open_store(files)
    assert store._groups._known("t", "g")[0].durable.equals(state)
    assert [event.kind for event in store.recovery_report.events] == ["cut"]
    store.close()


@pytest.mark.parametrize("kind", ["write_at", "sync"])
def test_a_failed_journal_poisons_the_group_until_it_is_opened_again(kind: str) -> None:
    files = SimulatedFiles()
    store = filled(files)
    group = store.group("t", "g")
    group.ack(0)
    files.fail(kind, after="dropped")
    with pytest.raises(Poisoned):
        group.ack(1)
    with pytest.raises(Poisoned):
        group.poll(1)
    assert group.committed() == 1
    store.append("t", [b"the log itself is not affected"])
    store.close()
    store = open_store(files)
    assert store.group("t", "g").committed() == 1
    assert store.group("t", "g").ack(1) == 1
    store.close()


def test_without_space_nothing_changes_and_it_works_again_later() -> None:
    files = SimulatedFiles()
    store = filled(files)
    group = store.group("t", "g")
    group.ack(0)
    part = store._groups._known("t", "g")[0]
    before = part.durable
    files.fail("write_at", error=errno.ENOSPC, written=0.5, forever=True)
    for call in (lambda: group.ack([1, 5]), lambda: group.poll(9)):
        with pytest.raises(StorageFull, match="state is unchanged"):
            call()
    assert part.durable is before
    files.faults.clear()
    assert group.ack([1, 5]) == 2
    assert group.poll(3).column("offset").to_pylist() == [2, 3, 4]
    store.close()
    store = open_store(files)
    assert store.recovery_report.events == []
    assert store.group("t", "g").committed() == 2
    store.close()


def test_a_rotation_without_space_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "COMPACT_EVENTS", 3)
    files = SimulatedFiles()
    store = filled(files)
    group = store.group("t", "g")
    group.ack([1, 3, 5])
    files.fail("create", error=errno.ENOSPC, forever=True)
    for offset in range(7, 30, 2):
        group.ack(offset)
    files.faults.clear()
    for offset in range(0, 30, 2):
        group.ack(offset)
    assert group.committed() == 30
    store.close()
    store = open_store(files)
    assert store.group("t", "g").committed() == 30
    store.close()
