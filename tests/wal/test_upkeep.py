"""A segment that moves to the cold directory is read there before its hot copy goes."""

from __future__ import annotations

from dataclasses import replace

from lamina_torture.simulated import SimulatedFiles
from tests.wal.stores import SMALL, fill, numbered, opened, values


def test_readers_are_sent_to_the_cold_copy_before_the_hot_one_is_removed() -> None:
    files = SimulatedFiles()
    store = opened("/data", replace(SMALL, cold_directory="/cold", hot_segments=1), files=files)
    store.create_topic("t", format="wal")
    fill(store, 1, 36)
    (topic,) = store.write_ahead_log()._topics.values()
    still_read: list[bool] = []

    def before(kind: str, path: str) -> None:
        if kind == "remove" and path.startswith("/data/segments") and path.endswith(".data"):
            still_read.append(path in {each.path("data") for each in topic.layout.segments})

    files.before = before
    store.maintain()
    assert still_read == [False, False], "two of three sealed segments move"
    assert values(store) == numbered(1, 36)
    store.close()
