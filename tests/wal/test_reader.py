"""A topic's reader and its indexes: claims, which are believed when the frames bear them out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lamina.store.store import Store
from lamina.wal import segments
from lamina.wal.segments import Segment
from lamina.wal.wal_partition import WalPartition
from tests.wal.stores import fill, opened


def sealed(store: Store) -> tuple[WalPartition, Segment]:
    store.create_topic("t", format="wal")
    fill(store, 1, 9)
    store.roll("t")
    (topic,) = store.write_ahead_log()._topics.values()
    return topic, topic.layout.segments[0]


@pytest.mark.parametrize("field", ["position", "timestamp_ms", "flags"])
def test_an_index_that_differs_in_one_field_is_not_believed(tmp_path: Path, field: str) -> None:
    with opened(tmp_path) as store:
        topic, segment = sealed(store)
        right = segments.load_entries(topic.sources.files, segment)
        assert right is not None
        wrong = right.copy()
        wrong[field][3] ^= 1
        path = Path(segment.path("idx"))
        path.write_bytes(segments.index.encode(wrong))
        assert np.array_equal(topic.sound_entries(segment), right)
        assert segment.first_sequence not in topic.verified
        path.write_bytes(segments.index.encode(right))
        topic.distrusted.clear()
        assert np.array_equal(topic.sound_entries(segment), right)
        assert segment.first_sequence in topic.verified


@pytest.mark.parametrize("lost", [1, 2])
def test_a_segment_whose_last_frames_are_damaged_is_walked_once(tmp_path: Path, lost: int) -> None:
    with opened(tmp_path) as store:
        topic, segment = sealed(store)
        path = Path(segment.path("data"))
        data = path.read_bytes()
        cut = data.index(b"value %d" % (9 - lost))
        path.write_bytes(data[:cut] + bytes(len(data) - cut))
        found = topic._distrust(segment)
        assert len(found.entries) == segment.entry_count == 8
        assert found.entries["length"].tolist()[-lost:] == [0] * lost
        assert topic._distrust(segment) is found
