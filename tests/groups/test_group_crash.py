"""Power is lost at every step of a group's life: acked stays acked, unacked comes again.

The workload is that of the fault matrix (`lamina_torture.faults.groups`): before each step that
changes the disk it is written down what was answered, and each moment becomes a disk, on which the
store is opened, held against what was answered, and used to the end.
"""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import pytest

from lamina.config import WriterSettings
from lamina.errors import NewerFormat, Poisoned, StorageFull
from lamina.formats.keratin import delta
from lamina.formats.keratin.delta import Event
from lamina.groups import journal
from lamina.groups.journal import Names, read
from lamina.groups.state import State
from lamina.store.store import Store
from lamina_torture.faults.groups import check, workload
from lamina_torture.simulated import SimulatedFiles

DATA = "/srv/data"
NOW_MS = 1_700_000_000_000
QUIET = WriterSettings(flush_ms=1 << 31)
RECORDS = 40
LEASE_MS = 1000
CHOICES: tuple[Any, ...] = ("dropped", "kept", 1, 2, "killed")
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


def test_power_loss_at_every_step() -> None:
    """Every step, each lost in another way; `F4/groups` of the matrix draws from all ways."""
    consumer = workload()
    renames = [moment.path for moment, _ in consumer.moments if moment.kind == "rename"]
    for suffix in (".snap", ".delta"):
        rotations = [path for path in renames if path.endswith(suffix)]
        assert len(rotations) > 2, "the workload rotates"
    for step, (moment, told) in enumerate(consumer.moments):
        choice = CHOICES[step % len(CHOICES)]
        disk = moment.disk
        try:
            check(disk.restart() if choice == "killed" else disk.crash(choice), told)
        except BaseException as error:
            error.add_note(f"step {step}: {moment.kind} {moment.path}, choice {choice}")
            raise


def names(files: SimulatedFiles) -> Names:
    from lamina.log.directory import Place

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
    from lamina.formats.kernels.crc import crc32c_of

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


@pytest.mark.parametrize("kind", ["sync_directory", "open"])
@pytest.mark.parametrize("call", [1, 2])
def test_no_ack_goes_into_a_delta_that_was_replaced(
    monkeypatch: pytest.MonkeyPatch, kind: str, call: int
) -> None:
    """Without a descriptor for the new delta, or its directory, nothing is acked into the old."""
    monkeypatch.setattr(journal, "COMPACT_EVENTS", 3)
    files = SimulatedFiles()
    store = filled(files)
    group = store.group("t", "g")
    group.ack([1, 3, 5])
    files.fail(kind, at=call, error=errno.EMFILE)
    acked = {1, 3, 5}
    for offset in range(7, 30, 2):
        try:
            group.ack(offset)
        except (Poisoned, StorageFull):
            break
        acked.add(offset)
        again = open_store(files.snapshot().crash("dropped"))
        assert acked <= set(again._groups._known("t", "g")[0].durable.ahead().tolist())
        again.close()
    store.close()
