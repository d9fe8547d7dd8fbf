"""Retention sees cold and local segments as one pile, and waits while it cannot see all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lamina.errors import ArchiveUnavailable
from lamina.store.store import Store
from tests.archive.rig import NEVER, SETTINGS, TOPIC, values

FORMATS = ["keratin", "frame", "wal"]


def _made(folder: Path, format: str) -> None:
    """Six segments of ten records; the first three are in the archive alone."""
    settings = SETTINGS | {"local.retention.bytes": -1, "segment.bytes": 1 << 20}
    with Store(str(folder / "data"), archive=str(folder / "archive"), tick_ms=NEVER) as store:
        store.create_topic(TOPIC, format=format, config=settings)
        for number in range(6):
            store.append(TOPIC, values(10 * number, 10))
            store.roll(TOPIC)
            if number == 2:
                store.append(TOPIC, values(0, 1))  # wal topics keep their last segment
                store.roll(TOPIC)
                store.alter_topic(TOPIC, {"local.retention.bytes": 0})
                store.archive()
                store.alter_topic(TOPIC, {"local.retention.bytes": -1})
        store.archive()


def _reopened(folder: Path, **more: Any) -> Store:
    return Store(str(folder / "data"), tick_ms=NEVER, **more)


@pytest.mark.parametrize("format", FORMATS)
def test_the_oldest_go_first_right_after_opening(tmp_path: Path, format: str) -> None:
    _made(tmp_path, format)
    with _reopened(tmp_path) as store:
        whole = store.explain_retention(TOPIC)
        starts = [each.segment.base_offset for each in whole]
        assert starts == sorted(starts)
        assert any(each.segment.cold for each in whole)
        total = sum(each.segment.size_bytes for each in whole)
        first = whole[0].segment
        store.alter_topic(TOPIC, {"retention.bytes": total - first.size_bytes})
        store.apply_retention(TOPIC)
        assert store.earliest_offset(TOPIC) == first.next_offset
        gone = [gap for gap in store.gaps(TOPIC) if gap.reason == "retention"]
        assert [gap.end for gap in gone] == [first.next_offset]
        store.append(TOPIC, values(0, 1))  # nothing was poisoned


@pytest.mark.parametrize("format", FORMATS)
def test_retention_waits_while_the_archive_is_away(tmp_path: Path, format: str) -> None:
    _made(tmp_path, format)
    (tmp_path / "archive").rename(tmp_path / "away")
    with _reopened(tmp_path) as store:
        store.alter_topic(TOPIC, {"retention.bytes": 1})
        store.maintain()
        assert store.apply_retention(TOPIC) == 0
        assert {each.goes for each in store.explain_retention(TOPIC)} == {False}
        assert "has not answered" in store.explain_retention(TOPIC)[0].why
        assert not [gap for gap in store.gaps(TOPIC) if gap.reason == "retention"]
        assert store.failures() == {}
        (tmp_path / "away").rename(tmp_path / "archive")
        assert store.apply_retention(TOPIC) > 0
        assert store.earliest_offset(TOPIC) > 40
        assert store.failures() == {}


@pytest.mark.parametrize("format", ["keratin", "frame"])
def test_a_trim_is_refused_while_the_archive_is_away_and_removes_all_then(
    tmp_path: Path, format: str
) -> None:
    _made(tmp_path, format)
    (tmp_path / "archive").rename(tmp_path / "away")
    with _reopened(tmp_path) as store:
        with pytest.raises(ArchiveUnavailable, match="nothing was removed"):
            store.trim(TOPIC, 0, 45)
        (tmp_path / "away").rename(tmp_path / "archive")
        assert store.trim(TOPIC, 0, 45) == 41
        assert store.failures() == {}


@pytest.mark.parametrize("format", ["keratin", "frame"])
def test_records_that_an_object_shares_with_the_log_go_before_the_log(
    tmp_path: Path, format: str
) -> None:
    """An object that was joined may reach into what is still on the local disk."""
    settings = SETTINGS | {"archive.object.bytes": 1 << 20, "segment.bytes": 1 << 20}
    settings["local.retention.bytes"] = -1
    data, archive = str(tmp_path / "data"), str(tmp_path / "archive")
    with Store(data, archive=archive, tick_ms=NEVER) as store:
        store.create_topic(TOPIC, format=format, config=settings)
        for number in range(4):
            store.append(TOPIC, values(10 * number, 10))
            store.roll(TOPIC)
        store.archive()  # one object of four segments
        sizes = [each.size_bytes for each in store.segments(TOPIC)]
        store.alter_topic(TOPIC, {"local.retention.bytes": sum(sizes) - sizes[0]})
        store.archive()
        before = store.segments(TOPIC)
        assert [(each.base_offset, each.next_offset, each.cold) for each in before][:2] == [
            (0, 10, True),
            (10, 20, False),
        ]
        total = sum(each.size_bytes for each in before)
        store.alter_topic(TOPIC, {"retention.bytes": total - before[0].size_bytes})
        store.apply_retention(TOPIC)
        assert store.earliest_offset(TOPIC) == before[0].next_offset
        assert store.failures() == {}
