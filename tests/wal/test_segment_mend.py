"""A damaged segment is made whole from the archive, to the byte; what nobody has is lost."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from lamina.config import WalSettings
from lamina.log.sound_copies import Mended
from lamina.store.store import Store
from lamina.wal.segment_mend import mend
from lamina.wal.wal_partition import WalPartition
from tests.wal.stores import contents, fill, numbered

ARCHIVED = {"remote.storage.enable": True, "archive.delay.ms": 0}


def opened(path: Path) -> Store:
    wal = WalSettings(shards=1, segment_events=10)
    return Store(str(path / "data"), wal=wal, tick_ms=1 << 30, archive=str(path / "archive"))


def partition_of(store: Store) -> WalPartition:
    (topic,) = store.write_ahead_log()._topics.values()
    return topic


def damage(path: Path, *offsets: int) -> bytes:
    """Flips a bit in each of some values; returns the bytes as they were."""
    whole = path.read_bytes()
    data = bytearray(whole)
    for offset in offsets:
        data[data.index(b"value %d" % offset)] ^= 1
    path.write_bytes(data)
    return whole


@pytest.mark.parametrize("offsets", [(14,), (14, 15, 16), (11, 20)])
def test_what_the_archive_has_comes_back_with_the_bytes_that_it_had(
    tmp_path: Path, offsets: tuple[int, ...]
) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal", config=ARCHIVED)
        fill(store, 1, 31)
        store.maintain()
        store.archive()
        topic = partition_of(store)
        segment = topic.layout.segments[1]
        whole = damage(Path(segment.path("data")), *offsets)
        mended = topic.exclusively(partial(mend, topic, segment))
        assert [n for first, end in mended.restored for n in range(first, end)] == [*offsets]
        assert mended.lost == ()
        assert Path(segment.path("data")).read_bytes() == whole
        assert contents(store) == (numbered(1, 31), [])


def test_without_an_archive_it_is_entered_as_lost(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal")
        fill(store, 1, 31)
        store.maintain()
        topic = partition_of(store)
        segment = topic.layout.segments[1]
        damage(Path(segment.path("data")), 14, 15)
        assert topic.exclusively(partial(mend, topic, segment)) == Mended((), ((14, 16),))
        found, gaps = contents(store)
        assert found == {n: each for n, each in numbered(1, 31).items() if n not in (14, 15)}
        assert [(gap.first, gap.end, gap.reason) for gap in gaps] == [(14, 16, "lost")]
