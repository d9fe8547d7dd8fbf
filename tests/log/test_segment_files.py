"""Formats as the engine sees them, how far a file's records reach, and which files count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.keratin import log as keratin_log
from lamina.formats.log_format import CODECS, Codec
from lamina.formats.scan import Limit
from lamina.log.quick_check import holds
from lamina.log.segment_files import Arranger, Extent, measure, position_of
from lamina.log.segment_index import SegmentIndex
from lamina.records import prepare
from lamina.storage.files import LocalFiles
from tests.formats.test_keratin_golden import crc, joined, record

BOTH = pytest.mark.parametrize("name", CODECS)
BASE = 40


def log_of(codec: Codec, count: int, base: int = BASE, first: int | None = None) -> bytes:
    """A segment's log with so many records of different sizes."""
    start = base if first is None else first
    values = [b"value %d" % each * (each % 5 + 1) for each in range(count)]
    batch = prepare(values, codec.name, now_ms=7)
    return codec.log_header(base, 1) + codec.encode(batch, start)[0].tobytes()


def positions_of(codec: Codec, log: bytes, base: int = BASE) -> list[int]:
    found = codec.scan(log, codec.header_bytes, expected_offset=base, limit=Limit())
    return [*found.positions.tolist(), found.end]


def spoilt(log: bytes, *positions: int) -> bytes:
    damaged = bytearray(log)
    for position in positions:
        damaged[position] ^= 0x55
    return bytes(damaged)


# -------------------------------------------------------------------- how files begin


@BOTH
def test_every_beginning_of_a_record_begins_one(name: str) -> None:
    codec = CODECS[name]
    log = log_of(codec, 2)
    start = codec.header_bytes
    for end in range(start, len(log)):
        assert codec.begins_record(log[:end], start, BASE)
        assert codec.begins_log(log[:end], BASE)
    assert not codec.begins_record(log, start, BASE + 1)
    assert not codec.begins_record(log, start + 1, BASE)
    for wrong in (start, start + 3):
        assert not codec.begins_record(spoilt(log, wrong), start, BASE)
    for wrong in (0, 3):
        assert not codec.begins_log(spoilt(log, wrong), BASE)


def test_a_frame_log_begins_with_its_own_first_record_and_a_keratin_log_with_its_header() -> None:
    frame, keratin = CODECS["frame"], CODECS["keratin"]
    assert not frame.begins_log(log_of(frame, 1), BASE + 1)
    assert not keratin.begins_log(log_of(keratin, 1), BASE + 1)
    damaged = spoilt(log_of(keratin, 1), keratin_log.FILE_HEADER.at("base_offset") + 7)
    assert keratin.begins_log(damaged, BASE)  # its records decide
    for codec in (frame, keratin):
        log, at = log_of(codec, 1), codec.header_bytes
        flags = {"frame": 6, "keratin": 4}[codec.name]
        assert codec.begins_record(spoilt(log, at + flags), at, BASE) == (codec is keratin)


@BOTH
def test_a_log_says_when_it_was_made_and_whose_it_is(name: str) -> None:
    codec = CODECS[name]
    head = codec.log_header(BASE, 123)
    assert len(head) == codec.header_bytes
    assert codec.check_log_header(head, BASE) == (123 if name == "keratin" else None)
    if name == "keratin":
        with pytest.raises(CorruptData, match="does not belong to this file") as caught:
            codec.check_log_header(head, BASE + 1)
        assert (caught.value.expected, caught.value.found) == ("41", "40")


@BOTH
def test_indexes_are_read_up_to_a_whole_entry_and_only_for_their_segment(name: str) -> None:
    codec = CODECS[name]
    index = SegmentIndex(codec, BASE)
    step = codec.stride.bytes
    index.extend(np.array([0, step, 2 * step]), np.array([7, 9, 8]), base_offset=BASE, origin=50)
    raw = [
        head + body
        for head, body in zip(codec.index_headers(BASE, 5), index.all_bytes(), strict=True)
    ]
    assert all(len(each) == codec.index_header_bytes + 3 * 16 for each in raw)
    for more in (b"", b"\1", bytes(15)):
        if name == "keratin" and more:
            continue
        offsets, times = codec.decode_indexes(raw[0] + more, raw[1] + more, BASE)
        assert offsets["offset"].tolist() == times["offset"].tolist() == [40, 41, 42]
        assert offsets["position"].tolist() == [50, step + 50, 2 * step + 50]
        assert times["timestamp_ms"].tolist() == [7, 9, 9]
    assert codec.decode_entry(raw[0][-16:], BASE) == (42, 2 * step + 50)
    assert codec.created_by_index(raw[0]) == (5 if name == "keratin" else None)
    if name == "keratin":
        with pytest.raises(CorruptData, match="does not belong to this segment") as caught:
            codec.decode_indexes(*raw, BASE + 1)
        assert (caught.value.expected, caught.value.found) == ("41", "40")


# -------------------------------------------------------------------- how far records reach


def extent(codec: Codec, log: bytes, following: int | None = None, **more: Any) -> Extent:
    return measure(codec, log, BASE, following, "/a.log", **more)


@BOTH
def test_a_sound_log_reaches_to_its_last_record(name: str) -> None:
    codec = CODECS[name]
    assert extent(codec, log_of(codec, 5)) == Extent(BASE, BASE + 5)
    tail = log_of(codec, 5) + bytes(500)
    assert extent(codec, tail) == Extent(BASE, BASE + 5), "with prepared space behind it"


@BOTH
@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_a_log_of_nothing_is_blank(name: str, size: int) -> None:
    codec = CODECS[name]
    for raw in (codec.log_header(BASE, 1), bytes(codec.header_bytes)):
        found = extent(codec, raw + bytes(size))
        assert found == Extent(BASE, BASE, has_records=False, is_blank=True)
        assert not found.is_foreign


@BOTH
@pytest.mark.parametrize("raw", [b"something else", b"x" * 5000, b"\0" * 80 + b"x" * 100])
def test_a_file_without_a_record_is_foreign(name: str, raw: bytes) -> None:
    found = extent(CODECS[name], raw)
    assert (found.has_records, found.is_blank, found.is_foreign) == (False, False, True)


@BOTH
@pytest.mark.parametrize("bad", range(6))
def test_records_behind_damage_count(name: str, bad: int) -> None:
    codec = CODECS[name]
    log = log_of(codec, 6)
    positions = positions_of(codec, log)
    damaged = spoilt(log, positions[bad] + 40)
    assert extent(codec, damaged).next_offset == (BASE + 6 if bad < 5 else BASE + 5)
    assert extent(codec, damaged, following=BASE + 6).next_offset == (
        BASE + 6 if bad < 5 else BASE + 5
    )


@BOTH
def test_behind_damage_records_of_the_next_segment_do_not_count(name: str) -> None:
    codec = CODECS[name]
    log = log_of(codec, 6)
    damaged = spoilt(log, positions_of(codec, log)[2] + 40)
    assert extent(codec, damaged, following=BASE + 4).next_offset == BASE + 6
    assert extent(codec, damaged, following=BASE + 3).next_offset == BASE + 2
    foreign = log_of(codec, 3)[:-5] + log_of(codec, 3, first=BASE + 100)[codec.header_bytes :]
    assert extent(codec, foreign, following=BASE + 50).next_offset == BASE + 2
    assert extent(codec, foreign).next_offset == BASE + 103


@BOTH
def test_damaged_headers_leave_it_to_the_records(name: str) -> None:
    codec = CODECS[name]
    log = spoilt(log_of(codec, 4), *([5] if name == "keratin" else []))
    assert extent(codec, log) == Extent(BASE, BASE + 4)
    assert extent(codec, log_of(codec, 4)[: codec.header_bytes + 10]).next_offset == BASE


@BOTH
def test_a_walk_begins_with_a_record_that_is_known(name: str) -> None:
    codec = CODECS[name]
    log = log_of(codec, 6)
    positions = positions_of(codec, log)
    damaged = spoilt(log, *(each + 40 for each in positions[:5]))
    assert extent(codec, damaged, start=(positions[5], BASE + 5)).next_offset == BASE + 6


def test_a_newer_header_or_record_is_refused() -> None:
    codec = CODECS["keratin"]
    head = codec.log_header(BASE, 1)
    newer = head[:8] + b"\0\2" + head[10:-4]
    with pytest.raises(NewerFormat) as caught:
        extent(codec, newer + crc(newer))
    assert caught.value.path == "/a.log"
    log = log_of(codec, 2)
    newer = log + joined(record(BASE + 2, 7, b"", b"value", version=2))
    with pytest.raises(NewerFormat) as caught:
        extent(codec, newer)
    assert (caught.value.path, caught.value.position) == ("/a.log", len(log))


@BOTH
def test_the_place_of_an_offset_is_found_over_damage(name: str) -> None:
    codec = CODECS[name]
    log = log_of(codec, 6)
    positions = positions_of(codec, log)
    for row in range(7):
        assert position_of(codec, log, BASE, BASE + row) == positions[row]
    damaged = spoilt(log, positions[2] + 40)
    assert position_of(codec, damaged, BASE, BASE + 2) == positions[2]
    assert position_of(codec, damaged, BASE, BASE + 3) == positions[3]
    assert position_of(codec, damaged, BASE, BASE + 5) == positions[5]
    assert position_of(codec, spoilt(log, positions[5] + 40), BASE, BASE + 9) == len(log)
    assert position_of(codec, log, BASE, BASE) == codec.header_bytes
    assert position_of(codec, b"", BASE, BASE + 1) == 0


# -------------------------------------------------------------------- which files count


def arranged(
    extents: dict[int, Extent], vouched: tuple[int, ...] = ()
) -> tuple[list[int], list[tuple[str, int, int | None]]]:
    done: list[tuple[str, int, int | None]] = []
    asked: list[tuple[int, int | None, int]] = []

    def measuring(base: int, following: int | None, before: int) -> Extent:
        asked.append((base, following, before))
        return extents[base]

    arranger = Arranger(
        vouched,
        measuring,
        lambda base, winner: done.append(("drop", base, winner)),
        lambda base, offset: done.append(("cut", base, offset)),
    )
    bases = sorted(extents)
    kept = arranger.arrange(bases)
    assert [base for base, _, _ in asked] == bases
    assert [after for _, after, _ in asked] == [*bases[1:], None][: len(bases)]
    return kept, done


def spans(*pairs: tuple[int, int]) -> dict[int, Extent]:
    return {first: Extent(first, end) for first, end in pairs}


def test_segments_that_follow_each_other_all_count() -> None:
    assert arranged(spans((0, 10), (10, 20), (25, 30))) == ([0, 10, 25], [])
    assert arranged({}) == ([], [])


def test_a_file_that_is_no_segment_is_dropped_for_nobody() -> None:
    extents = spans((0, 10), (10, 20)) | {5: Extent(5, 5, has_records=False)}
    assert arranged(extents) == ([0, 10], [("drop", 5, None)])
    blank = spans((0, 10)) | {10: Extent(10, 10, has_records=False, is_blank=True)}
    assert arranged(blank) == ([0, 10], [])


def test_of_two_that_overlap_the_one_that_is_vouched_for_wins() -> None:
    assert arranged(spans((0, 10), (5, 8)), vouched=(5,)) == ([0, 5], [("cut", 0, 5)])
    assert arranged(spans((0, 10), (5, 80)), vouched=(0,)) == ([0], [("drop", 5, 0)])


def test_else_the_one_that_ends_where_another_begins() -> None:
    extents = spans((0, 10), (5, 12), (12, 20))
    assert arranged(extents) == ([0, 5, 12], [("cut", 0, 5)])
    extents = spans((0, 10), (5, 12), (10, 20))
    assert arranged(extents) == ([0, 10], [("drop", 5, 0)])


def test_else_the_one_that_reaches_further_and_then_the_earlier() -> None:
    assert arranged(spans((0, 10), (5, 11))) == ([0, 5], [("cut", 0, 5)])
    assert arranged(spans((0, 10), (5, 10))) == ([0], [("drop", 5, 0)])


def test_a_segment_that_was_cut_ends_where_the_other_begins() -> None:
    extents = spans((0, 20), (5, 25), (6, 9))
    assert arranged(extents) == ([0, 5], [("cut", 0, 5), ("drop", 6, 5)])


def test_a_file_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    files, path = LocalFiles(), tmp_path / "file"
    assert holds(files, str(path), b"") is False
    path.write_bytes(b"just these")
    assert holds(files, str(path), b"just these") is True
    assert holds(files, str(path), b"just this") is False
