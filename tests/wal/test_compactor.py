"""Copying into segments: a segment that is begun takes no more than its topic lets it have."""

from __future__ import annotations

from pathlib import Path

from lamina.config import WalSettings
from tests.wal.stores import opened

LIMIT = 1 << 12


def test_a_segment_that_was_begun_takes_only_what_still_fits(tmp_path: Path) -> None:
    with opened(tmp_path, WalSettings(shards=1)) as store:
        store.create_topic("t", format="wal", config={"segment.bytes": LIMIT})
        store.append("t", b"first")
        store.maintain()
        store.append("t", [b"." * 500] * 40)
        store.maintain()
        (topic,) = store.write_ahead_log()._topics.values()
        assert sum(each.frames for each in topic.layout.segments) == 41
        assert len(topic.layout.segments) > 4
        assert max(each.data_bytes for each in topic.layout.segments) <= LIMIT
