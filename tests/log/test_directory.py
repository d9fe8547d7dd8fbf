"""A partition's surroundings: what is set aside is durable before it goes, and reasons are kept."""

from __future__ import annotations

import errno
import json
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lamina.api import Gap, RecoveryReport
from lamina.errors import (
    NewerFormat,
    RecordsMissing,
    StorageFull,
    Unavailable,
    refusal_of,
    typed_errors,
)
from lamina.formats.documents import ledger, strict_json
from lamina.formats.documents.ledger import Ledger
from lamina.formats.ranges import Ranges
from lamina.log.directory import Place
from lamina.log.settling import cut_behind
from lamina.log.sound_copies import Mended, Piece, archived, covered
from lamina_torture.simulated import SimulatedFiles
from tests.log.test_time_search import batch, offsets_of

DATA = "/srv/data"
DIRECTORY = f"{DATA}/topics/t/3"
QUARANTINE = f"{DATA}/quarantine/t/3"
KNOWN = Ledger((Gap(0, 5, "trim", 1), Gap(9, 12, "archived", 2)))


@pytest.fixture
def files() -> SimulatedFiles:
    found = SimulatedFiles()
    found.make_directory(f"{DIRECTORY}/segments")
    return found


@pytest.fixture
def place(files: SimulatedFiles) -> Place:
    return Place(files, DATA, "t", 3, lambda: 100)


def after_power_loss(place: Place) -> SimulatedFiles:
    """The disk when nothing was kept that was not synced."""
    assert isinstance(place.files, SimulatedFiles)
    return place.files.snapshot().crash("dropped")


def test_a_partition_knows_its_paths_and_clocks(files: SimulatedFiles, place: Place) -> None:
    assert (place.directory, place.segments) == (DIRECTORY, f"{DIRECTORY}/segments")
    assert (place.ledger_path, place.name) == (f"{DIRECTORY}/ledger.json", "t/3")
    assert (place.aging_ms(), place.steady()) == (100, 100)
    for steady, aging in ((90, 90), (110, 100)):
        jumping = Place(files, DATA, "t", 3, lambda: 100, lambda steady=steady: steady)
        assert (jumping.aging_ms(), jumping.steady()) == (aging, steady)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, StorageFull), (errno.EIO, Unavailable)]
)
def test_errors_of_the_system_become_ours(number: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="reading"), typed_errors("reading"):
        raise OSError(number, "refused")
    assert type(refusal_of(OSError(number, "refused"), "no room")) is kind


# -------------------------------------------------------------------- set aside


def test_bytes_are_kept_durably_and_once(files: SimulatedFiles, place: Place) -> None:
    path = f"{DIRECTORY}/segments/0.log"
    kept = place.set_aside(path, b"damaged", 17)
    assert kept == f"{QUARANTINE}/0.log.17.{zlib.crc32(b'damaged'):08x}"
    assert after_power_loss(place).read(kept) == b"damaged"
    writes = files.calls["write_at"]
    assert place.set_aside(path, b"damaged", 17) == kept
    assert files.calls["write_at"] == writes
    assert place.set_aside(path, b"other", 17) != kept != place.set_aside(path, b"damaged", 18)


def test_a_whole_file_is_moved_durably_and_over_nobody(files: SimulatedFiles, place: Place) -> None:
    path = f"{DIRECTORY}/segments/0.log"
    moved = []
    for data in (b"first", b"second", b"third"):
        files.replace(path, data)
        moved.append(place.move_aside(path))
        left = after_power_loss(place)
        assert left.read(moved[-1]) == data
        assert not left.exists(path)
    assert moved == [f"{QUARANTINE}/0.log", f"{QUARANTINE}/0.log.1", f"{QUARANTINE}/0.log.2"]


def test_what_lies_behind_a_sealed_segment_is_cut_once_and_kept_if_it_is_anything(
    files: SimulatedFiles, place: Place
) -> None:
    path = f"{DIRECTORY}/segments/0.log"
    report = RecoveryReport()
    files.replace(path, b"records" + bytes(50))
    cut_behind(place, path, 7, "", report)
    assert after_power_loss(place).read(path) == b"records"
    files.replace(path, b"recordsgarbage")
    cut_behind(place, path, 7, "it overlaps", report)
    cut_behind(place, path, 7, "again", report)
    assert after_power_loss(place).read(path) == b"records"
    first, second = report.events
    assert (first.why, first.kept_in, first.first_byte, first.end_byte) == (
        "prepared space: sealing it had not finished",
        None,
        7,
        57,
    )
    assert (second.why, second.first_byte, second.end_byte) == ("it overlaps", 7, 14)
    assert second.kept_in is not None
    assert after_power_loss(place).read(second.kept_in) == b"garbage"


# -------------------------------------------------------------------- the ledger


def test_a_ledger_is_read_as_it_was_written(place: Place) -> None:
    report = RecoveryReport()
    assert place.read_ledger(report) == place.peek_ledger() == Ledger()
    place.write_ledger(KNOWN)
    assert place.read_ledger(report) == place.peek_ledger() == KNOWN
    assert report.events == []
    lost = after_power_loss(place)
    assert Place(lost, DATA, "t", 3, lambda: 1).peek_ledger() == KNOWN


def test_gaps_are_entered_durably(place: Place) -> None:
    known = place.enter_gap(KNOWN, Gap(5, 6, "lost", 3))
    assert known.at(5) == Gap(5, 6, "lost", 3)
    assert place.peek_ledger() == known
    known = place.enter_gap(known, Gap(0, 9, "archived", 4))
    assert [(gap.first, gap.end, gap.reason) for gap in known.gaps] == [
        (0, 5, "trim"),
        (5, 6, "lost"),
        (6, 12, "archived"),
    ], "where nothing else is known"
    known = place.enter_gaps(known, [Gap(20, 21, "lost", 5), Gap(25, 27, "lost", 5)])
    assert place.peek_ledger() == known
    assert len(known.gaps) == 5


def test_one_flipped_bit_of_a_ledger_costs_nothing(files: SimulatedFiles, place: Place) -> None:
    raw = bytearray(ledger.encode(KNOWN))
    raw[30] ^= 4
    files.replace(place.ledger_path, bytes(raw))
    assert place.peek_ledger() == KNOWN
    assert files.read(place.ledger_path) == bytes(raw), "looking changes nothing"
    report = RecoveryReport()
    assert place.read_ledger(report) == KNOWN
    assert files.read(place.ledger_path) == ledger.encode(KNOWN)
    (event,) = report.events
    assert (event.kind, event.path) == ("rebuilt", place.ledger_path)
    assert event.kept_in is not None
    assert files.read(event.kept_in) == bytes(raw)


class Spares:
    """An archive's copies."""

    def __init__(self, found: Ledger | None = None, spans: Any = None) -> None:
        self.found = found
        self.has = spans
        self.asked = 0

    def ledger(self) -> Ledger | None:
        return self.found

    def spans(self) -> Any:
        self.asked += 1
        return self.has


def test_a_damaged_ledger_is_taken_from_a_copy_or_begins_again(files: SimulatedFiles) -> None:
    for copies, found, kind in ((Spares(KNOWN), KNOWN, "rebuilt"), (None, Ledger(), "quarantined")):
        place = Place(files, DATA, "t", 3, lambda: 100, copies=copies)  # type: ignore[arg-type]
        files.replace(place.ledger_path, b"garbage")
        assert place.peek_ledger() == found
        report = RecoveryReport()
        assert place.read_ledger(report) == found
        assert [event.kind for event in report.events] == [kind]
        assert (files.read(place.ledger_path) == b"garbage") == (copies is None)


def test_a_newer_ledger_is_refused_by_its_path(files: SimulatedFiles, place: Place) -> None:
    fields: dict[str, Any] = {"version": 2, "gaps": []}
    raw = json.dumps(fields | {strict_json.SEAL: strict_json.seal(fields)}).encode()
    files.replace(place.ledger_path, raw)
    with pytest.raises(NewerFormat) as caught:
        place.read_ledger(RecoveryReport())
    assert caught.value.path == place.ledger_path
    assert place.peek_ledger() == Ledger()


def losses(place: Place, first: int, end: int, reason: str = "lost") -> list[tuple[int, int, str]]:
    found = place.losses(KNOWN, Gap(first, end, reason, 7, "why"))
    assert all((gap.at_ms, gap.detail) == (7, "why") or gap.reason != reason for gap in found)
    return [(gap.first, gap.end, gap.reason) for gap in found]


def test_what_is_lost_is_what_nothing_explains_and_the_archive_has_not(
    files: SimulatedFiles, place: Place
) -> None:
    assert losses(place, 3, 11) == [(5, 9, "lost")]
    assert losses(place, 0, 5) == []
    spares = Spares(spans=[(6, 7)])
    archived_topic = Place(files, DATA, "t", 3, lambda: 1, copies=spares)  # type: ignore[arg-type]
    assert losses(archived_topic, 3, 11) == [(5, 6, "lost"), (6, 7, "archived"), (7, 9, "lost")]
    assert spares.asked == 1
    assert losses(archived_topic, 0, 5) == []
    assert losses(archived_topic, 5, 9, "trim") == [(5, 9, "trim")]
    assert spares.asked == 1, "only where something is in doubt"
    spares.has = None
    assert losses(archived_topic, 3, 11) == [(5, 9, "archived")], "nobody has said that it is lost"
    assert archived_topic.suspicions(KNOWN, Gap(5, 6, "lost", 7)) == [Gap(5, 6, "archived", 7)]


# -------------------------------------------------------------------- what takes its place


def piece(first: int, count: int) -> Piece:
    return Piece(first, memoryview(b""), np.zeros(count, dtype=np.int64))


def test_holes_are_what_no_piece_has() -> None:
    def holes(pieces: list[Piece], first: int, end: int) -> tuple[tuple[int, int], ...]:
        return Ranges.between(first, end).minus(covered(pieces)).pairs()

    pieces = [piece(3, 2), piece(5, 1), piece(9, 2)]
    assert holes(pieces, 0, 12) == ((0, 3), (6, 9), (11, 12))
    assert holes(pieces, 3, 11) == ((6, 9),)
    assert holes([], 2, 4) == ((2, 4),)
    assert holes([], 4, 4) == ()


def test_neighbours_are_one() -> None:
    assert covered([piece(3, 2), piece(5, 1), piece(9, 2)]).pairs() == ((3, 6), (9, 11))
    assert covered([piece(0, 2)]).pairs() == ((0, 2),)
    assert covered([]).pairs() == ()


@pytest.mark.parametrize(
    ("restored", "lost", "words"),
    [
        ((), (), "no record was lost"),
        (((1, 3), (5, 6)), (), "taken from the archive: 1 to 3, 5 to 6"),
        ((), ((7, 9),), "entered as lost: 7 to 9"),
        (((1, 3),), ((7, 9),), "taken from the archive: 1 to 3; entered as lost: 7 to 9"),
    ],
)
def test_a_mending_says_what_it_did(restored: Any, lost: Any, words: str) -> None:
    assert str(Mended(restored, lost)) == words


class ColdLog:
    """An archive of two objects; a record of the second cannot be read."""

    def __init__(self) -> None:
        self.is_loaded = False
        self.spans = [(0, 10), (20, 30)]

    def load(self) -> None:
        self.is_loaded = True

    def entry_for(self, offset: int) -> Any:
        assert self.is_loaded

        class Entry:
            def __init__(self, end: int) -> None:
                self.next_offset = end

        return next((Entry(end) for first, end in self.spans if first <= offset < end), None)

    def next_base(self, offset: int) -> int | None:
        return next((first for first, _ in self.spans if first > offset), None)

    def scan(self, first: int, end: int, limit: object) -> Iterator[pa.RecordBatch]:
        for offset in range(first, end):
            if offset == 25:
                raise RecordsMissing("damaged", first=25, end=26, reason="lost")
            if offset != 3:
                yield batch(offset)


def found_in(cold: Any, first: int, end: int) -> list[int]:
    return [offset for each in archived(cold, (first, end)) for offset in offsets_of(each)]


def test_the_archive_gives_what_it_has_of_a_range() -> None:
    assert found_in(None, 0, 9) == []
    assert found_in(ColdLog(), 5, 22) == [5, 6, 7, 8, 9, 20, 21]
    assert found_in(ColdLog(), 1, 5) == [1, 2, 4]
    assert found_in(ColdLog(), 23, 99) == [23, 24, 26, 27, 28, 29], "damage is stepped over"
    assert found_in(ColdLog(), 12, 18) == []
    assert found_in(ColdLog(), 30, 40) == []
