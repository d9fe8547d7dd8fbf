"""Eviction: how far the floor rises, and the reason that goes to disk with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lamina.formats.wal.control import EvictReason
from lamina.wal import eviction
from tests.support.directories import START_MS, Clock, opened, timed

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"retention.ms": 2 * DAY_MS}, EvictReason.AGE),
        ({"retention.records": 10}, EvictReason.RECORD_CAP),
        ({"retention.bytes": 1500}, EvictReason.BYTE_CAP),
        ({"retention.ms": 2 * DAY_MS, "retention.bytes": 1500}, EvictReason.AGE),
        ({"retention.ms": 2 * DAY_MS, "retention.records": 10}, EvictReason.AGE),
    ],
)
def test_the_reason_on_disk_is_the_rule_by_which_the_records_went(
    tmp_path: Path, config: dict[str, Any], reason: EvictReason
) -> None:
    clock = Clock()
    with opened(tmp_path / "data", clock) as store:
        store.create_topic("t", format="wal")
        for day in range(3):
            store.append("t", timed([START_MS + day * DAY_MS] * 10, size=100))
            store.roll("t")
        clock.now_ms = START_MS + 3 * DAY_MS + 1
        partition: Any = store._lookup.partition("t", 0)
        assert eviction.due(partition, clock.now_ms, {}) is None
        store.alter_topic("t", config)
        due = eviction.due(partition, clock.now_ms, {})
        assert due is not None
        assert due.reason is reason
        assert due.floor in (11, 21)


def test_nothing_is_due_while_a_group_is_waited_for(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path / "data", clock) as store:
        store.create_topic("t", format="wal", config={"retention.wait.groups": "g"})
        for _ in range(2):
            store.append("t", timed([START_MS] * 10))
            store.roll("t")
        store.alter_topic("t", {"retention.records": 10})
        partition: Any = store._lookup.partition("t", 0)
        assert eviction.due(partition, clock.now_ms, {"g": 10}) is None
        due = eviction.due(partition, clock.now_ms, {"g": 11})
        assert due is not None
        assert (due.floor, due.reason) == (11, EvictReason.RECORD_CAP)
