"""The indexes of a segment are believed as far as its log is known to be durable."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina.log.partition import Partition
from lamina.log.segment import load_entries
from lamina.log.segment_index import SegmentIndex
from tests.support.directories import FORMATS, opened


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
