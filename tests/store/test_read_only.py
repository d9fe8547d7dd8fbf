"""Reading a directory that one does not own: beside a live writer, and with none."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.errors import Closed, InvalidRequest, Locked, RecordsMissing
from tests.support.directories import (
    FORMATS,
    START_MS,
    copied,
    files_of,
    opened,
    read_only,
    rows,
    timed,
    tree,
    values,
)

BOTH = pytest.mark.parametrize("format_name", FORMATS)


@BOTH
def test_records_are_seen_once_they_are_checkpointed(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / "data"
    with opened(path) as store, read_only(path) as beside:
        store.create_topic("t", format=format_name)
        assert beside.topics() == ["t"]
        assert values(beside) == []
        store.append("t", [b"a"])
        assert values(beside) == [], "durable, but not published yet"
        store.maintain()
        assert values(beside) == [b"a"]
        store.append("t", [b"b"], acks=1)
        assert beside.latest_offset("t", isolation="written") == 1
        store.flush()
        assert values(beside) == [b"a", b"b"]


@BOTH
def test_rolls_and_trims_are_followed(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / "data"
    with opened(path) as store, read_only(path) as beside:
        store.create_topic("t", format=format_name)
        for round_number in range(5):
            store.append("t", timed([START_MS + round_number] * 2))
            store.roll("t")
            store.maintain()
            assert rows(beside) == rows(store)
            assert beside.offset_for_time("t", 0, START_MS + round_number) == 2 * round_number
        store.trim("t", 0, 6)
        assert beside.earliest_offset("t") == 6
        with pytest.raises(RecordsMissing) as missing:
            beside.fetch("t", 0, 3)
        assert (missing.value.end, missing.value.reason) == (6, "trim")
        assert beside.describe_topic("t").partitions[0].earliest_offset == 6


@BOTH
def test_without_a_writer_all_sound_records_are_seen(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / "data"
    store = opened(path)
    store.create_topic("t", format=format_name)
    store.append("t", [b"a", b"b"])
    store.append("t", [b"c"], acks=1)
    killed = copied(path)
    store.close()
    for each in (path, killed):
        before = tree(each)
        with read_only(each) as alone:
            assert values(alone) == [b"a", b"b", b"c"]
        assert tree(each) == before, "nothing is changed"


@BOTH
def test_looking_changes_nothing_whatever_is_wrong(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"a", b"b"])
        store.roll("t")
        store.append("t", [b"c"])
    for log in files_of(path, "log"):
        log.write_bytes(log.read_bytes() + b"torn")
    for index in files_of(path, "idx"):
        index.unlink()
    (path / "topics/t/topic.json").unlink()
    before = tree(path)
    with read_only(path) as alone:
        assert values(alone) == [b"a", b"b", b"c"]
        assert alone.describe_topic("t").format == format_name
    assert tree(path) == before


def test_every_change_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t")
    with read_only(tmp_path / "data") as alone:
        for call in (
            lambda: alone.append("t", [b"a"]),
            lambda: alone.create_topic("u"),
            lambda: alone.alter_topic("t", {}),
            lambda: alone.delete_topic("t"),
            lambda: alone.trim("t", 0, 1),
            lambda: alone.apply_retention("t"),
            lambda: alone.roll("t"),
            alone.flush,
        ):
            with pytest.raises(InvalidRequest, match="read-only"):
                call()
    with pytest.raises(Closed):
        alone.topics()


def test_what_is_no_data_directory_is_not_made_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="not a data directory"):
        lamina.open(str(tmp_path / "nothing"), read_only=True)
    assert list(tmp_path.iterdir()) == []


@BOTH
def test_a_reader_beside_a_writer_that_trims_never_fails(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / "data"
    failures: list[BaseException] = []
    done = threading.Event()
    with opened(path) as store, read_only(path) as beside:
        store.create_topic("t", format=format_name, config={"segment.bytes": 1024})

        def read() -> None:
            try:
                while not done.is_set():
                    for row in rows(beside):
                        assert row["value"] == b"%06d" % row["offset"]
            except BaseException as error:
                failures.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        for step in range(60):
            first = step * 20
            store.append("t", [b"%06d" % (first + number) for number in range(20)])
            store.maintain()
            store.trim("t", 0, first - 20)
        done.set()
        reader.join(60)
    assert not failures, failures[0]


HOLDER = """
import sys, os, lamina
store = lamina.open(sys.argv[1])
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_a_second_writer_is_refused_and_told_who_holds_the_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "data")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None
            pid = holder.stdout.readline().strip()
            assert int(pid) == holder.pid
            with pytest.raises(Locked, match=f"pid {pid}"):
                opened(tmp_path / "data")
            with read_only(tmp_path / "data") as beside:
                assert beside.topics() == []
        finally:
            holder.kill()
    opened(tmp_path / "data").close()


def test_a_second_writer_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "data"), pytest.raises(Locked, match="pid"):
        opened(tmp_path / "data")
    opened(tmp_path / "data").close()


@BOTH
def test_a_second_look_walks_only_what_is_new(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / "data"
    with opened(path) as store, read_only(path) as beside:
        store.create_topic("t", format=format_name)
        store.append("t", [b"x" * 1000] * 3000)
        store.maintain()
        assert beside.latest_offset("t") == 3000
        before = beside._lookup.partition("t", 0).layout.active.written
        files = beside._boot.files
        reads: list[int] = []
        opened_file = files.open_read_only

        class Watched:
            def __init__(self, file: Any) -> None:
                self._file = file

            def read_at(self, position: int, length: int) -> bytes:
                reads.append(position)
                return self._file.read_at(position, length)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._file, name)

        files.open_read_only = lambda name: Watched(opened_file(name))
        store.append("t", [b"new"])
        store.maintain()
        assert beside.latest_offset("t") == 3001
        assert [position for position in reads if position > 0] == [before.position]
        assert rows(beside) == rows(store)
