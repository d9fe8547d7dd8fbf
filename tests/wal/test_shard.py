"""The files of a shard: pages read around far frames, and rotations that fail half-way."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from lamina.config import WalSettings
from lamina.log.data_directory import DataDirectory
from lamina.wal.ground import Ground
from lamina.wal.shard import FRAME_BYTES_GUESS, SPAN_BYTES, Shard, WalFile, WalFiles
from lamina_torture.simulated import SimulatedFiles


def ground(files: SimulatedFiles) -> Ground:
    return Ground.of(DataDirectory(files, "/d", lambda: 0), WalSettings(shards=1))


def test_frames_far_from_each_other_are_read_by_their_pages_wherever_the_first_lies() -> None:
    files = SimulatedFiles()
    whole = bytes(np.arange(6 * SPAN_BYTES, dtype=np.uint32) * 2654435761 >> 24 & 0xFF)
    file = files.create("/wal-1.log")
    file.write_at(0, whole)
    positions = np.array([5000, 5100, 5000 + 4 * SPAN_BYTES], dtype=np.int64)
    some, origin, data = WalFile(1, 0, 1, "/wal-1.log", file).window(positions, 8 << 20)
    assert (some.tolist(), origin) == (positions.tolist(), 5000)
    assert isinstance(data, memoryview), "it was read by pages"
    for position in positions.tolist():
        page = bytes(data[position - origin : position - origin + FRAME_BYTES_GUESS])
        assert page == whole[position : position + FRAME_BYTES_GUESS]


@pytest.mark.parametrize("step", ["sync_directory", "rename"])
def test_a_rotation_that_fails_leaves_no_file_and_is_done_again(step: str) -> None:
    files = SimulatedFiles()
    shard = Shard(ground(files), 0, WalFiles())
    shard.rotate()
    before = sorted(files.contents())
    files.fail(step, error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        shard.rotate()
    assert sorted(name for name in files.contents() if "wal-" in name) == [
        name for name in before if "wal-" in name
    ]
    assert shard.rotate().index == 2
    shard.close()
