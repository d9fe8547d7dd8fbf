"""A search for what has expired that meets a freed WAL file is made again, and hides nothing."""

from __future__ import annotations

from pathlib import Path

from lamina.wal.expiry import NOTHING, Expiry
from lamina.wal.shard import WalFiles
from lamina.wal.topic import Sources
from tests.wal.stores import Clock, fill, opened


def test_a_wal_file_that_was_just_freed_leaves_the_answer_as_it_was(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, now_ms=clock) as store:
        store.create_topic("t", format="wal", config={"retention.ms": 1000})
        fill(store, 1, 6)
        clock.ms += 2000
        (topic,) = store.write_ahead_log()._topics.values()
        freed = Sources(topic.sources.files, WalFiles(), topic.sources.arrivals)
        assert Expiry(freed).now(topic) is NOTHING
        found = Expiry(topic.sources).now(topic)
        assert (found.first, found.end) == (1, 6)
