"""A damaged segment of a log is made whole from the archive; what nobody has is lost."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from lamina.log.partition import Partition
from lamina.log.sound_copies import Mended
from lamina.store.mend import mend
from lamina.store.store import Store
from tests.support.directories import FORMATS, files_of, flip, opened, positions, rows

BOTH = pytest.mark.parametrize("format_name", FORMATS)
ARCHIVED = {"remote.storage.enable": True, "archive.delay.ms": 0}


def made(path: Path, format_name: str, **config: object) -> Store:
    """A store with eight records in one sealed segment, archived where that is asked for."""
    store = opened(path / "data", archive=str(path / "archive"))
    store.create_topic("t", format=format_name, config=config)
    store.append("t", [b"value %d" % number for number in range(8)])
    store.roll("t")
    if config:
        store.archive()
    return store


def mended(store: Store, path: Path) -> Mended:
    partition = store._lookup.partition("t", 0)
    assert isinstance(partition, Partition)
    return partition.exclusively(partial(mend, partition, 0, str(path / "staged")))


def damage(store: Store, path: Path, *numbers: int) -> tuple[Path, bytes]:
    """Flips a bit in some records of the sealed log; returns it with the bytes that it had."""
    partition = store._lookup.partition("t", 0)
    assert isinstance(partition, Partition)
    (log,) = files_of(path / "data", "log")[:1]
    whole, edges = log.read_bytes(), positions(log, partition.codec)
    for number in numbers:
        flip(log, edges[number + 1] - 3)
    return log, whole


@BOTH
@pytest.mark.parametrize("numbers", [(0,), (3, 4), (2, 5, 7)])
def test_what_the_archive_has_comes_back_with_the_bytes_that_it_had(
    tmp_path: Path, format_name: str, numbers: tuple[int, ...]
) -> None:
    with made(tmp_path, format_name, **ARCHIVED) as store:
        log, whole = damage(store, tmp_path, *numbers)
        found = mended(store, tmp_path)
        assert [n for first, end in found.restored for n in range(first, end)] == [*numbers]
        assert found.lost == ()
        assert log.read_bytes() == whole
        assert [row["value"] for row in rows(store)] == [b"value %d" % n for n in range(8)]


@BOTH
def test_what_nobody_has_is_lost_and_the_rest_are_segments(
    tmp_path: Path, format_name: str
) -> None:
    with made(tmp_path, format_name) as store:
        damage(store, tmp_path, 2, 5)
        assert mended(store, tmp_path) == Mended((), ((2, 3), (5, 6)))
        assert [row["offset"] for row in rows(store)] == [0, 1, 3, 4, 6, 7]
        gaps = [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")]
        assert gaps == [(2, 3, "lost"), (5, 6, "lost")]


def test_of_a_damaged_header_nobody_knows_when_the_segment_was_made(tmp_path: Path) -> None:
    with made(tmp_path, "keratin") as store:
        (log,) = files_of(tmp_path / "data", "log")[:1]
        flip(log, 20)
        partition = store._lookup.partition("t", 0)
        assert isinstance(partition, Partition)
        assert mended(store, tmp_path) == Mended((), ())
        head = log.read_bytes()[: partition.codec.header_bytes]
        assert partition.codec.check_log_header(head, 0) == 0
