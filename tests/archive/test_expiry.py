"""Records of wal topics that are archived expire to the record, whoever knows the list already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.config import WalSettings, WriterSettings
from lamina.errors import RecordsMissing
from lamina.store.store import Store
from tests.archive.rig import NEVER, NOW_MS, SETTINGS, TOPIC, values

TTL_MS = 1000
STEP_MS = 10
END = 31
WAL = WalSettings(shards=1, wal_bytes=1 << 12, segment_events=6)


def _opened(folder: Path, now_ms: int) -> Store:
    return Store(
        str(folder / "data"),
        now_ms=lambda: now_ms,
        writer=WriterSettings(flush_ms=NEVER),
        tick_ms=NEVER,
        archive=str(folder / "archive"),
        wal=WAL,
    )


def _made(folder: Path) -> None:
    """Objects of 1 to 18 and 19 to 30, of which 25 on are local, too; one is made every 10 ms."""
    settings = SETTINGS | {"segment.bytes": 1 << 20, "retention.ms": TTL_MS}
    with _opened(folder, NOW_MS) as store:
        store.create_topic(TOPIC, format="wal", config=settings)
        for number in range(1, END):
            made_ms = NOW_MS + STEP_MS * number
            store.append(TOPIC, [{"value": values(number, 1)[0], "timestamp": made_ms}])
            if number % 6 == 0:
                store.roll(TOPIC)
        store.maintain()
        store.archive()
        spans = [(each.base_offset, each.next_offset) for each in store.segments(TOPIC)]
        assert spans == [(1, 19), (19, 25), (25, END)]


def _later_ms(fresh: int) -> int:
    """When everything below an offset is too old, and it is not."""
    return NOW_MS + STEP_MS * fresh + TTL_MS


def _served(store: Any, start: int) -> tuple[list[int], list[tuple[int, int, str]]]:
    """Reads on over gaps: the offsets that are served, and the gaps that are told."""
    found: list[int] = []
    told = []
    while start < END:
        try:
            for batch in store.scan(TOPIC, 0, start):
                found += batch.column("offset").to_pylist()
            break
        except RecordsMissing as missing:
            told.append((missing.first, missing.end, missing.reason))
            start = missing.end
    return found, told


@pytest.mark.parametrize("fresh", [2, 6, 15, 18, 19, 20, 24, 25, 27, 30])
def test_archived_records_that_are_too_old_are_a_gap_before_and_after_the_list_is_known(
    tmp_path: Path, fresh: int
) -> None:
    _made(tmp_path)
    expected = list(range(fresh, END)), [(1, fresh, "retention")]
    with _opened(tmp_path, _later_ms(fresh)) as store:
        assert _served(store, 1) == expected  # the list is not known yet
        assert _served(store, 1) == expected
        assert [(gap.first, gap.end) for gap in store.gaps(TOPIC)] == [(1, fresh)]
        assert store.earliest_offset(TOPIC) == fresh
        store.maintain()
        assert _served(store, fresh)[0] == expected[0]


@pytest.mark.parametrize("start", [1, 10, 18])
def test_a_reader_that_begins_in_the_archived_part_is_given_none_of_them(
    tmp_path: Path, start: int
) -> None:
    _made(tmp_path)
    with _opened(tmp_path, _later_ms(21)) as store:
        assert _served(store, start) == (list(range(21, END)), [(start, 21, "retention")])


def test_a_scan_from_the_beginning_begins_at_what_is_left(tmp_path: Path) -> None:
    _made(tmp_path)
    with _opened(tmp_path, _later_ms(15)) as store:
        offsets = [each for batch in store.scan(TOPIC) for each in batch["offset"].to_pylist()]
        assert offsets == list(range(15, END))
    with _opened(tmp_path, _later_ms(15)) as store:
        assert store.earliest_offset(TOPIC) == 15


def test_what_can_be_known_without_the_archive_is_told_while_it_is_away(tmp_path: Path) -> None:
    _made(tmp_path)
    (tmp_path / "archive").rename(tmp_path / "away")
    with _opened(tmp_path, _later_ms(28)) as store:
        assert store.earliest_offset(TOPIC) == 1
        assert _served(store, 25) == ([28, 29, 30], [(25, 28, "retention")])


def test_a_group_is_given_nothing_archived_that_has_expired(tmp_path: Path) -> None:
    _made(tmp_path)
    with _opened(tmp_path, _later_ms(20)) as store:
        group = store.group(TOPIC, "g", start="earliest")
        assert group.poll(max_records=100)["offset"].to_pylist() == list(range(20, END))


def test_time_finds_what_is_left(tmp_path: Path) -> None:
    _made(tmp_path)
    with _opened(tmp_path, _later_ms(20)) as store:
        assert store.offset_for_time(TOPIC, 0, NOW_MS) == 20
        assert store.offset_for_time(TOPIC, 0, NOW_MS + 22 * STEP_MS) == 22


def test_an_archive_alone_gives_what_it_lists(tmp_path: Path) -> None:
    _made(tmp_path)
    with lamina.open(f"file://{tmp_path}/archive", read_only=True) as store:
        assert _served(store, 1) == (list(range(1, END)), [])


def test_a_store_that_only_reads_judges_them_too(tmp_path: Path) -> None:
    """By today's clock all of them are too old; what stays in sight is the topic's end."""
    _made(tmp_path)
    with lamina.open(str(tmp_path / "data"), read_only=True) as store:
        assert _served(store, 1) == ([], [(1, END, "retention")])
        assert store.earliest_offset(TOPIC) == END
