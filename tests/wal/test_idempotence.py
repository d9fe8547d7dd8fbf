"""Idempotent producers of wal topics: once, whatever is repeated, whoever died in between."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from lamina.api import Ack, ProducerStamp
from lamina.config import WalSettings, WriterSettings
from lamina.errors import Fenced, OutOfSequence, Poisoned, StorageFull
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from lamina_torture.disk import Choice, Disk
from lamina_torture.simulated import SimulatedFiles
from tests.wal.stores import SMALL, contents, crash, fill, opened, values

QUIET = WriterSettings(flush_ms=1 << 31)
ONE = WalSettings(shards=1, segment_events=4)
BATCHES = 4


def stamp(sequence: int, epoch: int = 0, producer_id: int = 7) -> ProducerStamp:
    return ProducerStamp(producer_id, epoch, sequence)


def put(
    store: Store, records: list[bytes], by: ProducerStamp, topic: str = "t", acks: object = "all"
) -> Ack:
    return store.append(topic, records, partition=0, producer=by, acks=acks).parts[0]


def made(path: Path, wal: WalSettings = SMALL) -> Store:
    store = opened(path, wal)
    store.create_topic("t", format="wal")
    return store


def test_a_repeat_gets_the_first_answer_and_is_not_stored(tmp_path: Path) -> None:
    with made(tmp_path) as store:
        first = put(store, [b"a", b"b"], stamp(0))
        store.append("t", [b"other"])
        second = put(store, [b"c"], stamp(2))
        assert put(store, [b"a", b"b"], stamp(0)) == first
        assert put(store, [b"c"], stamp(2)) == second
        assert values(store) == {1: b"a", 2: b"b", 3: b"other", 4: b"c"}
        assert store.producer_position("t", 0, 7) == (0, 3)
        assert store.producer_position("t", 0, 8) is None


@pytest.mark.parametrize("ending", ["closed", "killed", "checkpointed and killed"])
def test_a_repeat_gets_the_first_answer_also_after_the_end(tmp_path: Path, ending: str) -> None:
    store = made(tmp_path)
    first = put(store, [b"a", b"b"], stamp(0))
    if ending == "closed":
        store.close()
    else:
        for _ in range(3 if "checkpointed" in ending else 0):  # the WAL holds none of it any more
            store.append("t", [b" " * 2000])
            store.maintain()
        crash(store)
    with opened(tmp_path) as store:
        end = store.latest_offset("t")
        assert put(store, [b"a", b"b"], stamp(0)) == first
        assert put(store, [b"c"], stamp(2)).base_offset == end
        with pytest.raises(OutOfSequence):
            put(store, [b"x"], stamp(9))
        assert list(values(store).values()).count(b"a") == 1


def test_an_older_epoch_is_fenced_and_a_repeat_is_as_durable_as_it_says(tmp_path: Path) -> None:
    with made(tmp_path) as store:
        assert put(store, [b"a"], stamp(0), acks=1).durability == "fsynced"
        store.alter_topic("t", {"durability": "disk"})
        assert put(store, [b"b"], stamp(1), acks=1).durability == "written"
        assert put(store, [b"b"], stamp(1), acks=1).durability == "written"
        assert store.latest_offset("t") == 2
        assert put(store, [b"b"], stamp(1)).durability == "fsynced"
        assert store.latest_offset("t") == 3
        put(store, [b"c"], stamp(0, epoch=1))
        with pytest.raises(Fenced):
            put(store, [b"d"], stamp(2))


def test_what_was_trimmed_before_it_was_copied_is_not_stored_again(tmp_path: Path) -> None:
    store = made(tmp_path)
    first = put(store, [b"a", b"b"], stamp(0))
    store.delete("t", before=3)
    store.create_topic("u", format="wal")
    for _ in range(3):  # the WAL holds none of it any more
        store.append("u", [b" " * 5000])
        store.maintain()
    assert not (tmp_path / "wal" / "wal-1.log").exists()
    crash(store)
    with opened(tmp_path) as store:
        assert put(store, [b"a", b"b"], stamp(0)) == first
        assert values(store) == {}


def test_a_new_topic_of_the_name_knows_no_producers(tmp_path: Path) -> None:
    store = made(tmp_path)
    put(store, [b"a"], stamp(0))
    store.delete_topic("t")
    store.create_topic("t", format="wal")
    assert store.producer_position("t", 0, 7) is None
    assert put(store, [b"new"], stamp(5)).base_offset == 1
    crash(store)
    with opened(tmp_path) as store:
        assert put(store, [b"new"], stamp(5)).base_offset == 1
        assert values(store) == {1: b"new"}


@pytest.mark.parametrize("failing", ["producers.log", "wal-1.log"])
def test_an_append_refused_by_a_full_disk_can_be_repeated(failing: str) -> None:
    files = SimulatedFiles()
    store = Store("/d", files=files, wal=ONE, writer=QUIET, tick_ms=1 << 30)
    store.create_topic("t", format="wal")
    put(store, [b"a"], stamp(0))

    def full(kind: str, path: str) -> None:
        if kind == "write_at" and path.endswith(failing):
            raise OSError(errno.ENOSPC, "no space left on device", path)

    files.before = full
    with pytest.raises(StorageFull):
        put(store, [b"b" * 70_000], stamp(1))
    files.before = None
    after = files.snapshot()
    for again in (None, after.crash("dropped"), after.crash("kept")):
        if again is not None:
            store = Store("/d", files=again, wal=ONE, writer=QUIET, tick_ms=1 << 30)
        assert store.producer_position("t", 0, 7) == (0, 1)
        ack = put(store, [b"c"], stamp(1))
        assert put(store, [b"c"], stamp(1)) == ack
        assert values(store) == {1: b"a", 2: b"c"}
        crash(store)


# ---------------------------------------------------------------- power loss


def batch(number: int) -> list[bytes]:
    return [b"batch %d, %d: " % (number, row) + b"." * 440 for row in range(3)]


def moments() -> list[tuple[Disk, int, bool]]:
    """The disk before each step of some appends, and how many had been answered by then.

    The last one tells the moments at which an append is written, and not synced yet.
    """
    files = SimulatedFiles()
    store = on_disk(files)
    for name in ("t", "u"):
        store.create_topic(name, format="wal")
    found: list[tuple[Disk, int, bool]] = []
    answered = 0

    def note(kind: str, path: str) -> None:
        is_written = kind == "sync" and path.endswith("wal-1.log")
        found.append((files.snapshot(), answered, is_written))

    files.before = note
    for number in range(BATCHES):
        put(store, batch(number), stamp(3 * number))
        answered = number + 1
        store.append("u", [b"between"])
        if number == 1:
            store.maintain()
    files.before = None
    crash(store)
    return found


def on_disk(files: SimulatedFiles) -> Store:
    return Store("/d", files=files, wal=ONE, writer=QUIET, tick_ms=1 << 30)


def seen_by_readers(files: SimulatedFiles) -> set[bytes]:
    with ReadOnlyStore("/d", files=files, wal=ONE) as store:
        return set(contents(store)[0].values()) if "t" in store.topics() else set()


def stores_once(files: SimulatedFiles, answered: int) -> bool:
    """Repeats what was not answered, and the last that was; tells whether one had been cut."""
    seen = seen_by_readers(files)
    wanted = [value for number in range(BATCHES) for value in batch(number)]
    with on_disk(files) as store:
        events = store.recovery_report.events
        found, gaps = contents(store)
        assert seen == set(found.values()), "served to readers, and gone"
        assert {gap.reason for gap in gaps} <= {"truncated"}
        for number in range(max(0, answered - 1), BATCHES):
            put(store, batch(number), stamp(3 * number))
        assert list(contents(store)[0].values()) == wanted
        store.maintain()
    with on_disk(files) as store:
        assert list(contents(store)[0].values()) == wanted, "after a second opening"
        assert put(store, batch(BATCHES - 1), stamp(9)).count == 3
        assert len(contents(store)[0]) == 3 * BATCHES
    return any("had not finished" in event.why for event in events)


def test_power_loss_in_the_middle_of_a_batch_stores_it_once() -> None:
    written = [(disk, answered) for disk, answered, is_written in moments() if is_written]
    assert len(written) > BATCHES
    seeds = range(6, 12)  # the ones before lose all of it, or nothing
    cut = [stores_once(disk.crash(seed), answered) for disk, answered in written for seed in seeds]
    assert cut.count(True) > 3


def test_a_crash_before_any_step_stores_every_batch_once() -> None:
    steps = moments()
    assert len(steps) > 40
    for step, (disk, answered, _) in enumerate(steps[::3]):
        choices: tuple[Choice, ...] = ("dropped", "kept", step)
        stores_once(disk.crash(choices[step % 3]), answered)
        stores_once(disk.restart(), answered)


def test_damage_below_a_barrier_costs_the_record_and_not_the_batch(tmp_path: Path) -> None:
    store = made(tmp_path)
    first = put(store, batch(0), stamp(0))
    fill(store, 4, 6)
    crash(store)
    path = tmp_path / "wal" / "wal-1.log"
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"batch 0, 1")] ^= 1
    path.write_bytes(raw)
    with opened(tmp_path) as store:
        found, gaps = contents(store)
        assert sorted(found) == [1, 3, 4, 5]
        assert [(gap.first, gap.end, gap.reason) for gap in gaps] == [(2, 3, "lost")]
        assert put(store, batch(0), stamp(0)) == first
        assert put(store, [b"next"], stamp(3)).base_offset == 6


def test_a_journal_whose_sync_failed_is_not_synced_again() -> None:
    files = SimulatedFiles()
    store = Store("/srv/data", files=files, tick_ms=1 << 31)
    store.create_topic("w", format="wal")
    store.create_topic("v", format="wal")
    store.append("w", [b"a"], producer=ProducerStamp(7, 0, 0))
    before = len(files.history)
    files.fail("sync")
    with pytest.raises(Poisoned):
        store.append("w", [b"b"], producer=ProducerStamp(7, 0, 1))
    syncs = [
        step.path
        for step in files.history[before:]
        if step.kind == "sync" and step.path.endswith("producers.log")
    ]
    assert len(syncs) == 1
    assert store.append("v", [b"x"], producer=ProducerStamp(7, 0, 0)).base_offset == 1
    store.close()
    with Store("/srv/data", files=files, tick_ms=1 << 31) as again:
        assert again.append("w", [b"b"], producer=ProducerStamp(7, 0, 1)).base_offset == 2
