"""Wal topics against plain lists: whatever is done to them, they hold what the lists hold.

The machine is that of the other formats; here are the rules that only wal topics have: tags, nodes,
deletes, diff reads, numbers of shards, a cold directory, topics that are deleted and made again.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from lamina.api import StoreApi
from lamina.config import WalSettings
from lamina.errors import NewerFormat
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from tests.store.test_store_model import (
    ACKS,
    PARTITION,
    PARTITIONS,
    TIME,
    VALUE,
    PartitionModel,
    StoreMachine,
    hurt,
)
from tests.support.contract import plain
from tests.support.directories import copied, opened
from tests.support.strategies import batch_of

TAG = st.one_of(st.none(), st.sampled_from([b"a", b"ab", b"abc", b"b", b"\xff"]))
NODE = st.one_of(st.none(), st.sampled_from([b"n1", b"n2"]))
SHARDS = st.integers(1, 8)
OTHERS = ("u", "v")
"""Topics that share the log with the one that is looked at."""


class WalModel(PartitionModel):
    """A partition whose oldest records may be evicted, which readers are told, or deleted."""

    evicted_below = 1

    def delete(self, chosen: set[int]) -> int:
        """Forgets records; returns how many were there."""
        live = {row["offset"] for row in self.held} & chosen
        self.deleted |= live
        return len(live)


class WalMachine(StoreMachine):
    """A store whose log is small enough that everything happens often."""

    format_name = "wal"
    first_offset = 1
    derived = ("*.idx", "snapshot-*.bin", "CURRENT")
    append_pairs = None  # type: ignore[assignment]
    a_repeat_is_not_stored_twice = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.shards = 2
        self.fragile = False
        self.epoch = 1
        self.others: dict[str, list[bytes]] = {}
        super().__init__()

    def empty(self) -> list[PartitionModel]:
        return [WalModel(self.first_offset) for _ in range(PARTITIONS)]

    @property
    def wal(self) -> WalSettings:
        return WalSettings(
            shards=self.shards,
            wal_bytes=4096,
            segment_events=7,
            segment_bytes=2048,
            cold_directory=str(self.path / "cold"),
            hot_segments=1,
        )

    def open(self) -> Store:
        return opened(self.path, self.clock, wal=self.wal)

    def beside(self) -> ReadOnlyStore:
        return ReadOnlyStore(str(self.path), wal=self.wal)

    # ------------------------------------------------------------------ appending

    @rule(partition=PARTITION, data=st.data(), acks=ACKS)
    def append_arrow(self, partition: int, data: st.DataObject, acks: Any) -> None:
        columns = {"timestamp": TIME, "value": VALUE, "tag": TAG, "node": NODE}
        drawn = data.draw(st.lists(st.fixed_dictionaries(columns), min_size=1, max_size=8))
        drawn = [row | {"timestamp": self.clock.now_ms + row["timestamp"]} for row in drawn]
        self._append(partition, batch_of(drawn, "wal"), drawn, acks)

    def durability_of(self, acks: Any) -> str:
        return "fsynced"  # what the topic promises; `acks` can only ask for more

    @rule(topic=st.sampled_from(OTHERS), drawn=st.lists(VALUE, min_size=1, max_size=5))
    def append_to_another(self, topic: str, drawn: list[bytes]) -> None:
        if topic not in self.others:
            self.store.create_topic(topic, format="wal")
            self.others[topic] = []
        ack = self.store.append(topic, drawn)
        assert ack.base_offset == 1 + len(self.others[topic])
        self.others[topic] += drawn

    @precondition(lambda self: self.others)
    @rule(topic=st.sampled_from(OTHERS))
    def delete_another(self, topic: str) -> None:
        if topic in self.others:
            self.store.delete_topic(topic)
            del self.others[topic]

    @rule()
    def delete_and_create_again(self) -> None:
        self.store.delete_topic("t")
        self.create_topic()
        self.epoch += 1
        self.model = self.empty()

    # ------------------------------------------------------------------ reading

    def told_gone_below(self, model: PartitionModel) -> int:
        assert isinstance(model, WalModel)
        return model.evicted_below

    @rule(
        partition=PARTITION,
        where=st.floats(0, 1),
        limit=st.integers(1, 40),
        max_bytes=st.sampled_from([1, 300, 1 << 20]),
        node=NODE,
    )
    def diff(
        self, partition: int, where: float, limit: int, max_bytes: int, node: bytes | None
    ) -> None:
        model = self.model[partition]
        assert isinstance(model, WalModel)
        at = start = max(1, int(where * model.end))
        found: list[dict[str, Any]] = []
        gaps = []
        for _ in range(1000):
            answer = self.store.diff(
                "t", partition, at, limit=limit, max_bytes=max_bytes, exclude_node=node
            )
            assert answer.records.num_rows <= limit
            assert answer.next_offset > at or answer.caught_up
            found += plain(answer.records)
            gaps += [(gap.first, gap.end, gap.reason) for gap in answer.gaps]
            at = answer.next_offset
            if answer.caught_up:
                break
        assert at == max(model.end, start)
        expected = model.between(start, model.end)
        assert found == [row for row in expected if node is None or row["node"] != node]
        first = max(start, 1)
        evicted = [(first, model.evicted_below, "retention")] if first < model.evicted_below else []
        assert gaps == evicted

    # ------------------------------------------------------------------ deleting

    @rule(partition=PARTITION, where=st.floats(0, 1.1))
    def trim(self, partition: int, where: float) -> None:
        model = self.model[partition]
        before = int(where * model.end)
        model.earliest = max(model.earliest, min(before, model.end))
        assert self.store.trim("t", partition, before) == model.earliest

    @rule(partition=PARTITION, where=st.floats(0, 1.1))
    def delete_before(self, partition: int, where: float) -> None:
        model = self.model[partition]
        before = int(where * model.end)
        count = len(model.between(0, min(before, model.end)))
        assert self.store.delete("t", partition, before=before) == count
        model.earliest = max(model.earliest, min(before, model.end))

    def _delete(self, partition: int, chosen: set[int], **which: Any) -> None:
        model = self.model[partition]
        assert isinstance(model, WalModel)
        count = model.delete(chosen)
        assert self.store.delete("t", partition, **which) == count

    @rule(partition=PARTITION, tag=TAG.filter(bool))
    def delete_tag(self, partition: int, tag: bytes) -> None:
        held = self.model[partition].held
        self._delete(partition, {row["offset"] for row in held if row["tag"] == tag}, tag=tag)

    @rule(partition=PARTITION, prefix=st.sampled_from([b"", b"a", b"ab", b"x"]))
    def delete_prefix(self, partition: int, prefix: bytes) -> None:
        held = self.model[partition].held
        chosen = {
            row["offset"]
            for row in held
            if row["tag"] is not None and row["tag"].startswith(prefix)
        }
        self._delete(partition, chosen, tag_prefix=prefix)

    @rule(partition=PARTITION, where=st.lists(st.floats(0, 1.2), max_size=5))
    def delete_offsets(self, partition: int, where: list[float]) -> None:
        chosen = {int(each * self.model[partition].end) for each in where}
        self._delete(partition, chosen, offsets=sorted(chosen))

    # ------------------------------------------------------------------ eviction

    @rule(retention_ms=st.integers(1, 6_000), passed_ms=st.integers(0, 6_000))
    def retain_by_age(self, retention_ms: int, passed_ms: int) -> None:
        self.clock.now_ms += passed_ms
        cutoff_ms = self.clock.now_ms - retention_ms
        self.store.alter_topic("t", {"retention.ms": retention_ms})
        for partition, model in enumerate(self.model):
            for row in self._evicted(partition, model):
                assert row["timestamp"] < cutoff_ms, "evicted and not too old"
            for decision in self.store.explain_retention("t", partition):
                too_old = decision.goes and decision.segment.next_offset > model.earliest
                assert not too_old, "too old and not evicted"
        self.store.alter_topic("t", {"retention.ms": -1})

    @rule(retention_bytes=st.integers(0, 6_000))
    def retain_by_size(self, retention_bytes: int) -> None:
        self._retain_by_cap("retention.bytes", retention_bytes)

    @rule(retention_records=st.integers(0, 30))
    def retain_by_count(self, retention_records: int) -> None:
        self._retain_by_cap("retention.records", retention_records)

    def _retain_by_cap(self, key: str, cap: int) -> None:
        self.store.alter_topic("t", {key: cap})
        for partition, model in enumerate(self.model):
            decisions = self.store.explain_retention("t", partition)
            going = [each.segment.next_offset for each in decisions if each.goes]
            expected = max([model.earliest, *going])
            held = len(model.between(0, model.end))
            self._evicted(partition, model)
            assert model.earliest == expected
            if key == "retention.records":
                assert len(model.between(0, model.end)) >= min(held, cap), "more went than the cap"
        self.store.alter_topic("t", {key: -1})

    def _evicted(self, partition: int, model: PartitionModel) -> list[dict[str, Any]]:
        """Applies retention; returns the records that went."""
        assert isinstance(model, WalModel)
        self.store.apply_retention("t", partition)
        earliest = self.store.earliest_offset("t", partition)
        assert earliest >= model.earliest
        gone = model.between(model.earliest, earliest)
        if earliest > model.earliest:
            model.earliest = model.evicted_below = earliest
        return gone

    # ------------------------------------------------------------------ ends and accidents

    @rule(shards=SHARDS, killed=st.booleans())
    def reopen_with_other_shards(self, shards: int, killed: bool) -> None:
        if killed:
            left_behind = copied(self.path)
        self.store.close()
        if killed:
            self.path = left_behind
        self.shards = shards
        self._reopen()

    @rule(passed_ms=st.integers(0, 10_000))
    def maintain(self, passed_ms: int) -> None:
        self.clock.now_ms += passed_ms
        self.store.maintain()
        self.fragile = False

    @rule()
    def kill_in_the_middle_of_maintenance(self) -> None:
        assert self.store._write_ahead.engine is not None
        self.store._write_ahead.engine.checkpoint()
        self.kill()

    @rule()
    def seal_by_age(self) -> None:
        self.store.maintain()
        self.clock.now_ms += 3_600_001
        self.store.maintain()
        self.fragile = False
        for decision in self.store.explain_retention("t", 0):
            assert decision.segment.sealed or decision.segment.size_bytes == 0

    @rule(
        data=st.data(),
        accident=st.sampled_from(["delete", "empty", "truncate", "flip"]),
        killed=st.booleans(),
    )
    def damage_a_derived_file(self, data: st.DataObject, accident: str, killed: bool) -> None:
        """Any one may be lost; a second snapshot only after the store had time for a new one."""
        if killed:
            left_behind = copied(self.path)
        self.store.close()
        if killed:
            self.path = left_behind
        else:
            self.fragile = False
        found = sorted(file for kind in self.derived for file in self.path.rglob(kind))
        found = [file for file in found if not (self.fragile and file.suffix == ".bin")]
        if found:
            names = [str(each.relative_to(self.path)) for each in found]
            file = self.path / data.draw(st.sampled_from(names))
            self.fragile = self.fragile or file.suffix == ".bin"
            hurt(file, accident, data)
        try:
            self._reopen()
        except NewerFormat:  # a version has no checksum: refused, and the file can be removed
            assert accident == "flip"
            file.unlink()
            self._reopen()

    # ------------------------------------------------------------------ the comparison

    def _compare(self, store: StoreApi) -> None:
        assert store.topics() == sorted(["t", *self.others])
        assert store.describe_topic("t").epoch == self.epoch
        for topic, expected in self.others.items():
            found = [row["value"] for batch in store.scan(topic) for row in plain(batch)]
            assert found == expected
        super()._compare(store)

    def _compare_gaps(self, store: StoreApi, partition: int, model: PartitionModel) -> None:
        assert isinstance(model, WalModel)
        told = {
            offset: gap.reason
            for gap in store.gaps("t", partition)
            for offset in range(gap.first, gap.end)
        }
        evicted = range(1, model.evicted_below)
        trimmed = range(model.evicted_below, model.earliest)
        assert told == dict.fromkeys(evicted, "retention") | dict.fromkeys(trimmed, "trim")


RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def test_wal_topics_are_lists_that_forget_only_what_they_were_told_to() -> None:
    short = settings(
        max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=RELAXED
    )
    run_state_machine_as_test(WalMachine, settings=short)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_wal_topics_are_lists_in_a_long_run() -> None:
    long = settings(
        max_examples=2_000, stateful_step_count=60, deadline=None, suppress_health_check=RELAXED
    )
    run_state_machine_as_test(WalMachine, settings=long)
