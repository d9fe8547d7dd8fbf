"""Derived files are caches: deleted, emptied, cut or changed, the answers stay the same.

The one thing that cannot be told from damage is a version: a file that says it is newer is refused,
and never touched; without the file the answers are the same again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import NewerFormat
from lamina.formats.log_format import CODECS, FrameCodec, KeratinCodec
from lamina.formats.sparse_choice import Stride
from lamina.store.store import Store
from tests.support.contract import plain
from tests.support.directories import (
    FORMATS,
    START_MS,
    copied,
    opened,
    read_only,
    rows,
    segments,
    time_suffix,
    timed,
)

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
TIMES = [5, 1, 9, 3, 9, 2, 14, 11, 12, 30, 18, 20, 4, 29, 31, 27]
"""Times that go back and forth: a running maximum that is not the record's own time."""
LOOKED_UP = (-1, 5, 6, 9, 10, 14, 15, 30, 31, 32)
"""Around each step of that maximum."""


@dataclass(frozen=True)
class Answers:
    """Everything that a small directory can be asked."""

    records: list[dict[str, Any]]
    from_each: list[dict[str, Any]]
    earliest: int
    latest: int
    by_time: list[int | None]


def answers(store: Any) -> Answers:
    first, end = store.earliest_offset("t"), store.latest_offset("t")
    return Answers(
        rows(store),
        [plain(store.fetch("t", 0, at, max_records=1))[0] for at in range(first, end)],
        first,
        end,
        [store.offset_for_time("t", 0, START_MS + ahead) for ahead in LOOKED_UP],
    )


@pytest.fixture
def memory() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="lamina-derived-", dir=MEMORY))
    yield root
    shutil.rmtree(root)


@pytest.fixture(autouse=True)
def dense_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small logs get several index entries: every third record, or every 100 bytes."""
    monkeypatch.setattr(FrameCodec, "stride", Stride(120, 3))
    monkeypatch.setattr(KeratinCodec, "stride", Stride(120))


def small_directory(root: Path, format_name: str) -> Path:
    """A sealed segment and an active one, cleanly closed."""
    path = root / "data"
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        for number, part in enumerate(chunks(TIMES, 8)):
            store.append("t", timed([START_MS + time for time in part], size=3 + number))
            if number < 1:
                store.roll("t")
    return path


def chunks(items: list[int], size: int) -> list[list[int]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def derived_files(path: Path, format_name: str) -> list[Path]:
    found = [
        *segments(path).glob("*.idx"),
        *segments(path).glob(f"*.{time_suffix(format_name)}"),
        path / "meta/checkpoint.json",
    ]
    if CODECS[format_name].has_manifest:
        found.append(segments(path).parent / "manifest.bin")
    return sorted(found)


def index_bytes(path: Path, format_name: str) -> dict[str, bytes]:
    suffixes = (".idx", f".{time_suffix(format_name)}")
    return {
        file.name: file.read_bytes()
        for file in sorted(segments(path).iterdir())
        if file.suffix in suffixes
    }


def test_there_are_enough_entries_to_get_wrong(memory: Path) -> None:
    for format_name in FORMATS:
        path = small_directory(memory / format_name, format_name)
        sizes = [len(data) for data in index_bytes(path, format_name).values()]
        assert len(sizes) == 4
        assert min(sizes) >= 3 * 16


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("accident", ["deleted", "emptied"])
def test_a_lost_file_is_made_again_byte_for_byte(
    memory: Path, format_name: str, accident: str
) -> None:
    path = small_directory(memory, format_name)
    with opened(path) as store:
        expected = answers(store)
    right = index_bytes(path, format_name)
    for file in derived_files(path, format_name):
        file.unlink() if accident == "deleted" else file.write_bytes(b"")
        with read_only(path) as beside:
            assert answers(beside) == expected, file.name
        with opened(path) as store:
            assert answers(store) == expected, file.name
        assert index_bytes(path, format_name) == right, file.name


@pytest.mark.parametrize("format_name", FORMATS)
def test_all_lost_at_once_are_made_again_byte_for_byte(memory: Path, format_name: str) -> None:
    path = small_directory(memory, format_name)
    with opened(path) as store:
        expected = answers(store)
    right = index_bytes(path, format_name)
    for file in derived_files(path, format_name):
        file.unlink()
    with opened(path) as store:
        assert answers(store) == expected
        assert store.recovery_report.of("rebuilt")
    assert index_bytes(path, format_name) == right
    with opened(path) as store:
        assert not store.recovery_report.events, "and they are right"


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_file_cut_at_each_length_gives_the_same_answers(memory: Path, format_name: str) -> None:
    path = small_directory(memory, format_name)
    with opened(path) as store:
        expected = answers(store)
    right = index_bytes(path, format_name)
    for file in derived_files(path, format_name):
        whole = file.read_bytes()
        for size in range(len(whole)):
            file.write_bytes(whole[:size])
            with opened(path) as store:
                assert answers(store) == expected, f"{file.name} cut to {size}"
            assert index_bytes(path, format_name) == right, f"{file.name} cut to {size}"


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("change", [0x01, 0xFF])
def test_each_byte_changed_gives_the_same_answers(
    memory: Path, format_name: str, change: int
) -> None:
    path = small_directory(memory, format_name)
    with opened(path) as store:
        expected = answers(store)
    refused = []
    for file in derived_files(path, format_name):
        whole = file.read_bytes()
        for position in range(len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= change
            file.write_bytes(damaged)
            try:
                store = opened(path)
            except NewerFormat:
                refused.append((file.name, position))
                assert file.read_bytes() == damaged, "refused, not touched"
            else:
                with store:
                    assert answers(store) == expected, f"{file.name} byte {position} ^ {change:#x}"
                    assert not store.gaps("t"), f"{file.name} byte {position} ^ {change:#x}"
            file.write_bytes(whole)
    allowed = {"checkpoint.json": range(12, 13), "manifest.bin": range(8, 16)}
    for name, position in refused:
        assert position in allowed[name], f"{name} byte {position} is refused as newer"


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_wrong_time_never_lets_retention_remove_what_is_young(
    memory: Path, format_name: str
) -> None:
    path = small_directory(memory, format_name)
    for file in segments(path).glob(f"*.{time_suffix(format_name)}"):
        whole = file.read_bytes()
        for position in range(len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 0x01
            file.write_bytes(damaged)
            with opened(path) as store:
                decisions = store.explain_retention("t")
                newest = [decision.segment.newest_timestamp_ms for decision in decisions]
                assert newest == [START_MS + 14, START_MS + 31]
            file.write_bytes(whole)


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_index_of_many_small_appends_is_that_of_a_rebuild(
    memory: Path, format_name: str
) -> None:
    path = memory / "data"
    with opened(path) as store:
        store.create_topic("t", format=format_name, config={"segment.bytes": 4096})
        for number in range(300):
            store.append("t", [bytes([number % 256]) * (number % 90)], acks=1)
    live = index_bytes(path, format_name)
    for name in live:
        (segments(path) / name).unlink()
    with opened(path) as store:
        assert isinstance(store, Store)
    assert index_bytes(path, format_name) == live


def tail_entries(path: Path, format_name: str) -> list[bytes]:
    """The bytes of the last segment's indexes."""
    suffixes = ("idx", time_suffix(format_name))
    return [sorted(segments(path).glob(f"*.{suffix}"))[-1].read_bytes() for suffix in suffixes]


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_tick_saves_the_entries_and_an_opening_leaves_them_until_there_are_more(
    memory: Path, format_name: str
) -> None:
    path = memory / "data"
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        store.append("t", timed([START_MS + ahead for ahead in TIMES]))
        store.maintain()
        saved = tail_entries(path, format_name)
        killed = copied(path)
    assert all(len(each) >= 4 * 16 for each in saved)
    with opened(killed) as store:
        assert tail_entries(killed, format_name) == saved
        store.append("t", timed([START_MS + ahead for ahead in TIMES]))
        store.maintain()
        more = tail_entries(killed, format_name)
    assert all(len(after) > len(before) for after, before in zip(more, saved, strict=True))
    with opened(path) as store:
        store.append("t", timed([START_MS + ahead for ahead in TIMES]))
        store.maintain()
        assert tail_entries(path, format_name) == more  # as if there had been no kill


@pytest.mark.parametrize("format_name", FORMATS)
def test_entries_of_records_that_were_lost_go_with_them(memory: Path, format_name: str) -> None:
    path = memory / "data"
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        store.append("t", timed([START_MS + ahead for ahead in TIMES[:4]]))
        few = copied(path)
        store.append("t", timed([START_MS + ahead for ahead in TIMES]))
        store.maintain()
        for suffix in ("idx", time_suffix(format_name)):
            name = sorted(segments(path).glob(f"*.{suffix}"))[-1].name
            shutil.copy(segments(path) / name, segments(few) / name)
    stale = tail_entries(few, format_name)
    with opened(few) as store:
        kept = tail_entries(few, format_name)
        assert all(len(now) < len(before) for now, before in zip(kept, stale, strict=True))
        other = [START_MS + 40 + ahead for ahead in TIMES]
        store.append("t", timed(other, size=7))
        store.maintain()
        found, offers = tail_entries(few, format_name), answers(store)
    (segments(few) / sorted(segments(few).glob("*.idx"))[-1].name).unlink()
    with opened(few) as store:
        store.maintain()
        assert tail_entries(few, format_name) == found
        assert answers(store) == offers
