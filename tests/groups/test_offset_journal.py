"""Committed offsets are durable when answered, and belong to one life of their topic."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest

from lamina.api import RecoveryReport
from lamina.api.memberships import Committed
from lamina.errors import NewerFormat, Poisoned, StorageFull
from lamina.formats import committed_offsets as journal
from lamina.groups import offset_journal
from lamina.groups.offset_journal import CommittedOffsets
from lamina.log.data_directory import DataDirectory
from lamina_torture.simulated import SimulatedFiles

DATA = "/srv/data"
PATH = f"{DATA}/groups/offsets.log"
NOW_MS = 1_700_000_000_000


class Rig:
    def __init__(self, files: SimulatedFiles | None = None) -> None:
        self.files = files or SimulatedFiles()
        self.files.make_directory(DATA)
        self.epochs: dict[str, int] = {"t": 1, "u": 7}
        self.report = RecoveryReport()
        self.offsets = self.opened()

    def opened(self) -> CommittedOffsets:
        boot = DataDirectory(self.files, DATA, lambda: NOW_MS)
        offsets = CommittedOffsets(boot, self.epochs.get)
        offsets.recover(self.report)
        return offsets


def numbers(offsets: CommittedOffsets, group: str = "g") -> dict[tuple[str, int], int]:
    return {place: each.offset for place, each in offsets.of(group).items()}


def test_nothing_is_there_before_the_first_commit() -> None:
    rig = Rig()
    assert (rig.offsets.groups(), rig.offsets.of("g")) == ([], {})
    assert not rig.files.exists(PATH)
    assert rig.report.events == []


def test_a_commit_comes_back_with_its_note_after_reopening() -> None:
    rig = Rig()
    rig.offsets.commit("g", [Committed("t", 0, 5, 3, "note"), Committed("u", 2, 9)])
    rig.offsets.commit("h", [Committed("t", 0, 1)])
    for offsets in (rig.offsets, rig.opened()):
        assert offsets.of("g") == {
            ("t", 0): Committed("t", 0, 5, 3, "note"),
            ("u", 2): Committed("u", 2, 9, -1, ""),
        }
        assert offsets.groups() == ["g", "h"]
        assert offsets.newest_ms("g") == NOW_MS


def test_the_last_commit_counts_also_one_that_moves_back() -> None:
    rig = Rig()
    for offset in (5, 9, 2):
        rig.offsets.commit("g", [Committed("t", 0, offset)])
    assert numbers(rig.opened()) == {("t", 0): 2}


def test_offsets_of_a_topic_that_was_deleted_do_not_count_for_the_next() -> None:
    rig = Rig()
    rig.offsets.commit("g", [Committed("t", 0, 5), Committed("u", 0, 6)])
    rig.epochs["t"] = 2
    assert numbers(rig.offsets) == numbers(rig.opened()) == {("u", 0): 6}
    rig.offsets.commit("g", [Committed("t", 0, 1)])
    assert numbers(rig.opened()) == {("t", 0): 1, ("u", 0): 6}
    del rig.epochs["t"], rig.epochs["u"]
    assert rig.opened().groups() == []


def test_what_is_forgotten_stays_forgotten() -> None:
    rig = Rig()
    rig.offsets.commit("g", [Committed("t", 0, 5), Committed("t", 1, 6)])
    rig.offsets.commit("h", [Committed("t", 0, 7)])
    rig.offsets.forget("g", [("t", 0), ("t", 9)])
    rig.offsets.delete("h")
    rig.offsets.delete("nobody")
    for offsets in (rig.offsets, rig.opened()):
        assert numbers(offsets) == {("t", 1): 6}
        assert offsets.groups() == ["g"]
    rig.offsets.forget("g", [("t", 1)])
    assert rig.opened().groups() == []


def test_the_journal_is_written_again_when_it_has_doubled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offset_journal, "COMPACT_BYTES", 1000)
    rig = Rig()
    rig.offsets._compact_beyond = 1000
    sizes = []
    for offset in range(100):
        rig.offsets.commit("g", [Committed("t", 0, offset)])
        sizes.append(rig.files.size(PATH))
    assert max(sizes) < 1100
    assert numbers(rig.opened()) == {("t", 0): 99}


def test_damage_costs_its_entry_and_is_set_aside_and_reported() -> None:
    rig = Rig()
    for partition in range(3):
        rig.offsets.commit("g", [Committed("t", partition, 10 + partition)])
    second = list(journal.walk(rig.files.read(PATH)))[1]
    with rig_file(rig) as file:
        file.write_at(second.position + 5, b"\xff")
    assert numbers(rig.opened()) == {("t", 0): 10, ("t", 2): 12}
    (event,) = rig.report.events
    assert (event.kind, event.first_byte, event.end_byte) == (
        *("quarantined", second.position, second.end),
    )
    assert len(rig.files.read(event.kept_in or "")) == second.end - second.position
    rig.report = RecoveryReport()
    assert numbers(rig.opened()) == {("t", 0): 10, ("t", 2): 12}
    assert rig.report.events == []


class rig_file:  # noqa: N801 - reads as what it is: the file of a rig
    def __init__(self, rig: Rig) -> None:
        self._file = rig.files.open(PATH)

    def __enter__(self) -> Any:
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.close()


def test_a_damaged_header_costs_nothing() -> None:
    rig = Rig()
    rig.offsets.commit("g", [Committed("t", 0, 5)])
    with rig_file(rig) as file:
        file.write_at(3, b"\xff")
    assert numbers(rig.opened()) == {("t", 0): 5}
    assert [each.kind for each in rig.report.events] == ["quarantined"]


@pytest.mark.parametrize("found", [b"Dear reader, no journal.\n" * 40, b"short", b""])
def test_a_file_that_is_no_journal_is_kept_in_one_piece(found: bytes) -> None:
    rig = Rig()
    rig.offsets.commit("g", [Committed("t", 0, 5)])
    rig.files.replace(PATH, found)
    assert numbers(rig.opened()) == {}
    (event,) = rig.report.events
    assert rig.files.read(event.kept_in or "") == found
    rig.report = RecoveryReport()
    rig.opened()
    assert rig.report.events == []


def test_a_newer_journal_is_refused_and_left_as_it_is() -> None:
    rig = Rig()
    entry = bytearray(journal.encode([journal.Entry(journal.Kind.COMMIT, "g", "t")]))
    entry[2:4] = b"\0\2"
    entry[-4:] = journal.crc32c_of(bytes(entry[2:-4])).to_bytes(4, "big")
    newer = journal.encode_header(NOW_MS) + bytes(entry)
    rig.files.make_directory(f"{DATA}/groups")
    rig.files.replace(PATH, newer)
    with pytest.raises(NewerFormat, match=r"offsets\.log"):
        rig.opened()
    assert rig.files.read(PATH) == newer


@pytest.mark.parametrize("written", [0.0, 0.5, 0.99])
def test_a_full_disk_refuses_the_commit_and_nothing_else(written: float) -> None:
    rig = Rig()
    rig.offsets.commit("g", [Committed("t", 0, 5)])
    rig.files.fail("write_at", error=errno.ENOSPC, written=written)
    with pytest.raises(StorageFull, match="nothing was committed"):
        rig.offsets.commit("g", [Committed("t", 0, 6)])
    assert numbers(rig.offsets) == numbers(rig.opened()) == {("t", 0): 5}
    assert rig.report.events == []
    rig.offsets.commit("g", [Committed("t", 0, 7)])
    assert numbers(rig.opened()) == {("t", 0): 7}


CHOICES: tuple[Any, ...] = ("dropped", "kept", 1, 2, "killed")


def test_power_loss_at_every_step_keeps_what_was_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offset_journal, "COMPACT_BYTES", 400)
    rig = Rig()
    rig.offsets._compact_beyond = 400
    moments: list[tuple[Any, int, int]] = []
    answered, asked = -1, -1

    def before(kind: str, path: str) -> None:
        moments.append((rig.files.snapshot(), answered, asked))

    rig.files.before = before
    for asked in range(12):
        rig.offsets.commit("g", [Committed("t", 0, asked), Committed("u", 1, asked)])
        answered = asked
    rig.files.before = None
    assert len(moments) > 40
    for step, (disk, least, most) in enumerate(moments):
        choice = CHOICES[step % len(CHOICES)]
        files = disk.restart() if choice == "killed" else disk.crash(choice)
        found = numbers(Rig(files).offsets)
        for place in (("t", 0), ("u", 1)):
            assert least <= found.get(place, -1) <= most, (step, choice, place)


def test_a_journal_of_a_process_that_was_killed_lasts_once_it_was_opened() -> None:
    """A killed process may leave a name that is not durable: what is answered next needs it."""
    rig = Rig()
    disks = []
    rig.files.before = lambda kind, path: disks.append(rig.files.snapshot())
    rig.offsets.commit("g", [Committed("t", 0, 1)])
    rig.files.before = None
    disks.append(rig.files.snapshot())
    for disk in disks:
        left = disk.restart()
        left.sync_directory(DATA)  # as every opening of a store does
        again = Rig(left)
        again.offsets.commit("g", [Committed("t", 0, 2)])
        lost = Rig(again.files.snapshot().crash("dropped"))
        assert numbers(lost.offsets) == {("t", 0): 2}
    assert len(disks) > 4


def test_commits_that_wait_together_share_one_write() -> None:
    rig = Rig()
    rig.offsets.commit("g", [Committed("t", 0, 0)])
    queued = [rig.offsets.enqueue(f"g{n}", [Committed("t", 0, n)]) for n in range(10)]
    syncs = rig.files.calls["sync"]
    for each in queued:
        rig.offsets.settle(each)
    assert rig.files.calls["sync"] == syncs + 1
    assert rig.opened().groups() == ["g", *(f"g{n}" for n in range(10))]


def test_many_threads_commit_at_once() -> None:
    rig = Rig()

    def consumer(number: int) -> None:
        for offset in range(20):
            rig.offsets.commit(f"g{number}", [Committed("t", number, offset)])

    threads = [threading.Thread(target=consumer, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = rig.opened()
    assert {n: numbers(again, f"g{n}") for n in range(8)} == {n: {("t", n): 19} for n in range(8)}


def test_a_failed_sync_stops_the_journal_until_it_is_opened_again() -> None:
    rig = Rig()
    rig.offsets.commit("g", [Committed("t", 0, 5)])

    rig.files.fail("sync")
    with pytest.raises(Poisoned, match="open the store again"):
        rig.offsets.commit("g", [Committed("t", 0, 6)])
    with pytest.raises(Poisoned):
        rig.offsets.commit("g", [Committed("t", 0, 7)])
    assert numbers(rig.offsets) == {("t", 0): 5}
    assert rig.offsets.failure is not None
    again = rig.opened()
    again.commit("g", [Committed("t", 0, 8)])
    assert numbers(rig.opened()) == {("t", 0): 8}


def test_the_time_of_a_commit_is_that_of_the_clock_that_does_not_jump() -> None:
    files = SimulatedFiles()
    files.make_directory(DATA)
    boot = DataDirectory(files, DATA, lambda: 10 * NOW_MS, lambda: NOW_MS)
    offsets = CommittedOffsets(boot, {"t": 1}.get)
    offsets.commit("g", [Committed("t", 0, 5)])
    assert offsets.newest_ms("g") == NOW_MS
