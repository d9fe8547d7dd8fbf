"""A WAL file may go when both snapshots that are kept begin behind it, and not before."""

from __future__ import annotations

import errno

import pytest

from lamina.api import RecoveryReport
from lamina.config import WalSettings
from lamina.log.data_directory import DataDirectory
from lamina.wal.ground import Ground
from lamina.wal.snapshots import Snapshots
from lamina_torture.simulated import SimulatedFiles


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles()


def opened(files: SimulatedFiles) -> Snapshots:
    ground = Ground.of(DataDirectory(files, "/d", lambda: 0), WalSettings(shards=1))
    files.make_directory(ground.meta)
    return Snapshots(ground)


def save(snapshots: Snapshots, begins_at: int) -> None:
    snapshots.save([], {}, 1, {0: begins_at})


def test_a_file_is_covered_that_lies_before_both(files: SimulatedFiles) -> None:
    snapshots = opened(files)
    save(snapshots, 3)
    assert not snapshots.covers(0, 1), "one is not enough"
    save(snapshots, 5)
    assert [snapshots.covers(0, index) for index in (2, 3, 4)] == [True, False, False]
    save(snapshots, 6)
    assert [snapshots.covers(0, index) for index in (4, 5)] == [True, False]
    again = opened(files)
    again.load(RecoveryReport())
    assert [again.covers(0, index) for index in (4, 5)] == [True, False]


def test_a_snapshot_that_could_not_be_written_covers_nothing(files: SimulatedFiles) -> None:
    snapshots = opened(files)
    save(snapshots, 3)
    files.fail("rename", error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        save(snapshots, 5)
    assert not snapshots.covers(0, 2)
