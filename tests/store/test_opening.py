"""What is true as soon as a store is open, before its first tick."""

from __future__ import annotations

from pathlib import Path

import pytest

import lamina
from lamina.formats.documents.position_file import Position, TopicPosition
from lamina.groups import positions
from lamina.storage.files import LocalFiles
from lamina.store.disk_reserve import RESERVE_BYTES
from tests.support.directories import (
    FORMATS,
    copied,
    files_of,
    flip,
    opened,
    read_only,
    report_of,
)

BOTH = pytest.mark.parametrize("format_name", FORMATS)
RECORDS = [b"record %d" % number for number in range(100)]


def killed(path: Path, format_name: str) -> Path:
    """What a process leaves that was killed after an acknowledged append."""
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        store.append("t", RECORDS)
        return copied(path)


@BOTH
def test_readers_beside_it_see_no_less_than_before(tmp_path: Path, format_name: str) -> None:
    left = killed(tmp_path / "data", format_name)
    with read_only(left) as before:
        assert before.latest_offset("t") == 100
    with opened(left), read_only(left) as beside:
        assert beside.latest_offset("t") == 100
        assert sum(batch.num_rows for batch in beside.scan("t", start=99)) == 1


def test_a_position_that_a_reader_left_is_known(tmp_path: Path) -> None:
    left = killed(tmp_path / "data", "keratin")
    position = Position("g", (TopicPosition("t", 1, {0: 80}),))
    positions.leave(LocalFiles(), str(left), position)
    with opened(left) as store:
        assert store.describe_group("t", "g").partitions[0].committed == 80
        store.reset_group("t", "g", to=10, execute=True)
    with opened(left) as store:
        store.maintain()
        assert store.describe_group("t", "g").partitions[0].committed == 10


def test_a_new_store_has_space_in_reserve(tmp_path: Path) -> None:
    with opened(tmp_path / "data"):
        assert (tmp_path / "data/meta/reserve").stat().st_size == RESERVE_BYTES
        assert (tmp_path / "data/meta/checkpoint.json").exists()


@BOTH
def test_what_was_set_aside_is_reported_at_once(tmp_path: Path, format_name: str) -> None:
    left = killed(tmp_path / "data", format_name)
    with opened(left):
        pass
    (log,) = files_of(left, "log")
    flip(log, log.stat().st_size // 2)
    store = opened(left)
    kept = [event["kept_in"] for event in report_of(left) if event["kept_in"]]
    store.close()
    assert kept
    assert all(Path(path).exists() for path in kept)


@pytest.mark.parametrize("format_name", ["keratin", "frame"])
def test_a_topic_of_which_nothing_is_left_is_told(tmp_path: Path, format_name: str) -> None:
    data = tmp_path / "data"
    with lamina.open(str(data)) as store:
        for name in ("kept", "gone", "deleted"):
            store.create_topic(name, format=format_name)
            store.append(name, [b"x"] * 7)
        store.delete_topic("deleted")
    (data / "topics" / "gone" / "topic.json").unlink()
    for log in (data / "topics" / "gone").rglob("*.log"):
        log.unlink()
    with lamina.open(str(data)) as store:
        (event,) = store.recovery_report.events
        assert (event.kind, event.path) == ("note", str(data / "topics" / "gone"))
        assert "'gone' with 7 records" in event.why
        assert store.topics() == ["kept"]
    with lamina.open(str(data)) as store:
        assert store.recovery_report.events == []
