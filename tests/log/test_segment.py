"""A segment's indexes are believed as far as its log is durable; damage in it is walked over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lamina.formats.offset_log import OffsetLog
from lamina.formats.scan import Damage, Limit, runs
from lamina.log.partition import Partition
from lamina.log.sealed_segment import SealedSegment, extend_index, load_entries
from lamina.log.segment import Bound, Sound
from lamina.log.segment_index import SegmentIndex
from tests.support.directories import FORMATS, opened

if TYPE_CHECKING:
    from typing_extensions import Buffer


@pytest.mark.parametrize("format_name", FORMATS)
def test_entries_above_what_is_durable_are_not_taken(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format=format_name)
        for _ in range(40):
            store.append("t", [b"." * 2000] * 5)
        store.roll("t")
        partition = store._lookup.partition("t", 0)
        assert isinstance(partition, Partition)
        (segment,) = partition.layout.sealed

        def reached(durable_to: int | None) -> int:
            index = SegmentIndex(segment.codec, segment.base_offset)
            return load_entries(segment, index, durable_to=durable_to)[1]

        whole = reached(None)
        assert reached(200) == whole > 100
        assert 50 <= reached(100) <= 100
        assert reached(0) == 0


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_file_and_its_bytes_in_memory_are_walked_alike(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format=format_name)
        for _ in range(40):
            store.append("t", [b"." * 2000] * 5)
        store.roll("t")
        partition = store._lookup.partition("t", 0)
        assert isinstance(partition, Partition)
        (segment,) = partition.layout.sealed
        path = Path(segment.path("log"))
        data = bytearray(path.read_bytes())
        for position in (20_000, 30_000, 31_000, 200_000, len(data) - 10):
            data[position] ^= 0xFF
        path.write_bytes(data)
        spots: list[tuple[int, int, int | None]] = []
        sound: list[int] = []
        start = Bound(segment.base_offset, segment.codec.header_bytes)
        for step in segment.walk(start, segment.end, Limit(max_records=7)):
            if isinstance(step, Sound):
                sound += range(step.offset, step.end.next_offset)
            else:
                following = step.following.next_offset if step.following else None
                spots.append((step.position or 0, step.offset, following))
        in_memory = list(runs(OffsetLog(segment.codec.log, data), start.position, 0))
    damages = [step for step in in_memory if isinstance(step, Damage)]
    assert spots == [(each.position, each.expected, each.following) for each in damages]
    assert len(spots) >= 4
    numbers = [range(step.first, step.end) for step in in_memory if not isinstance(step, Damage)]
    assert sound == [offset for each in numbers for offset in each]


class Counted(SealedSegment):
    """Counts the bytes that are read."""

    read_bytes = 0

    def window(self, position: int, length: int, bound: Bound) -> Buffer:
        buffer = super().window(position, length, bound)
        self.read_bytes += memoryview(buffer).nbytes
        return buffer


def test_many_damaged_spots_do_not_each_read_the_rest_of_the_file(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="keratin")
        for _ in range(400):
            store.append("t", [b"." * 2000] * 5)
        store.roll("t")
        partition = store._lookup.partition("t", 0)
        assert isinstance(partition, Partition)
        (whole,) = partition.layout.sealed
        path = Path(whole.path("log"))
        data = bytearray(path.read_bytes())
        for position in range(5_000, len(data), 50_000):
            data[position] ^= 0xFF
        path.write_bytes(data)
        segment = Counted(whole.codec, whole.files, whole.directory, base_offset=0, end=whole.end)
        index = SegmentIndex(segment.codec, 0)
        assert extend_index(segment, index, (segment.codec.header_bytes, 0)) > 0.9 * len(data)
    assert segment.read_bytes < 8 * len(data)
