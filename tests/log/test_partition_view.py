"""What a reader without a lock says of a directory that is not whole: all that recovery would."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import NewerFormat, RecordsMissing
from lamina.formats.log_format import CODECS
from tests.formats.test_keratin_golden import crc
from tests.support.directories import FORMATS, files_of, opened, read_only, segments

BOTH = pytest.mark.parametrize("format_name", FORMATS)


def made(path: Path, format_name: str) -> Path:
    """A closed store with twelve records in three segments."""
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        for number in range(12):
            if number in (4, 8):
                store.roll("t")
            store.append("t", [b"record %d" % number], partition=0)
    return path


def told(store: Any) -> tuple[list[tuple[int, int, str]], list[int], int]:
    """The gaps that the store names, the offsets that it serves, and its end."""
    served, at = [], 0
    reasons: set[str] = set()
    while True:
        try:
            for batch in store.scan("t", 0, at):
                served += batch.column("offset").to_pylist()
            break
        except RecordsMissing as missing:
            reasons.add(missing.reason)
            at = missing.end
    assert reasons <= {"lost"}
    gaps = [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")]
    return gaps, served, store.latest_offset("t")


@BOTH
@pytest.mark.parametrize(
    ("lost", "gaps"),
    [
        ((0,), [(0, 4)]),
        ((1,), [(4, 8)]),
        ((2,), [(8, 12)]),
        ((0, 2), [(0, 4), (8, 12)]),
        ((0, 1, 2), [(0, 12)]),
    ],
)
@pytest.mark.parametrize("how", ["gone", "foreign"])
def test_a_segment_that_is_gone_is_told_as_recovery_tells_it(
    tmp_path: Path, format_name: str, lost: tuple[int, ...], gaps: list[tuple[int, int]], how: str
) -> None:
    path = made(tmp_path / "data", format_name)
    logs = files_of(path, "log")
    for row in lost:
        if how == "gone":
            logs[row].unlink()
        else:
            logs[row].write_bytes(b"Dear reader, this is no log.\n" * 40)
    with read_only(path) as reader:
        seen = told(reader)
    missing = {offset for first, end in gaps for offset in range(first, end)}
    assert seen == (
        [(first, end, "lost") for first, end in gaps],
        [offset for offset in range(12) if offset not in missing],
        12,
    )
    with opened(path) as store:
        assert told(store) == seen, "recovery says the same"


@BOTH
@pytest.mark.parametrize("kept", [0, 1, 60])
def test_a_log_that_ends_before_what_was_durable_is_told(
    tmp_path: Path, format_name: str, kept: int
) -> None:
    path = made(tmp_path / "data", format_name)
    last = files_of(path, "log")[-1]
    last.write_bytes(last.read_bytes()[: len(last.read_bytes()) - 1 if kept == 60 else kept])
    with read_only(path) as reader:
        gaps, served, end = told(reader)
        assert end == 12
        assert gaps == [(served[-1] + 1, 12, "lost")]
        assert served == list(range(served[-1] + 1))


@BOTH
def test_beside_a_live_writer_a_reader_names_nothing_itself(
    tmp_path: Path, format_name: str
) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        for number in range(8):
            if number == 4:
                store.roll("t")
            store.append("t", [b"record %d" % number], partition=0)
        store.maintain()
        next(iter(segments(path).glob("*.log"))).unlink()
        with read_only(path) as reader:
            assert reader.gaps("t") == ()
            assert reader.latest_offset("t") == 8


@BOTH
def test_a_topic_without_a_record_misses_none(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        store.create_topic("t", format=format_name)
    with read_only(path) as reader:
        assert told(reader) == ([], [], 0)


@pytest.mark.parametrize(
    ("which", "live"), [(0, False), (1, False), (2, False), (0, True), (1, True)]
)
def test_a_segment_of_a_newer_format_is_refused_beside_a_writer_and_without(
    tmp_path: Path, which: int, live: bool
) -> None:
    path = made(tmp_path / "data", "keratin")
    with opened(path) if live else contextlib.nullcontext():
        log = files_of(path, "log")[which]
        raw, length = log.read_bytes(), CODECS["keratin"].header_bytes
        head = raw[:8] + b"\0\2" + raw[10 : length - 4]
        log.write_bytes(head + crc(head) + raw[length:])
        with read_only(path) as store, pytest.raises(NewerFormat) as refused:
            told(store)
        assert refused.value.path == str(log)
