"""The store against a plain list: whatever is done to it, it holds what the list holds."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lamina.api import ProducerStamp, StoreApi
from lamina.errors import NewerFormat, RecordsMissing
from lamina.records import KEPT_COLUMNS
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from tests.support.contract import plain
from tests.support.directories import Clock, copied, opened, read_only, rows, segments
from tests.support.strategies import batch_of

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""A file system whose fsync is quick: nothing here asks what a power cut leaves."""
SEGMENT_BYTES = 1 << 10
PARTITIONS = 2
PARTITION = st.integers(0, PARTITIONS - 1)
VALUE = st.one_of(
    st.binary(max_size=20), st.integers(0, 3000).map(lambda size: bytes([size % 251]) * size)
)
KEY = st.one_of(st.none(), st.binary(min_size=1, max_size=8))
TIME = st.integers(-3_000, 3_000)
HEADER = st.fixed_dictionaries(
    {"key": st.text("abcé", max_size=3), "value": st.one_of(st.none(), st.binary(max_size=5))}
)
ACKS = st.sampled_from([0, 1, "all", "all"])


class PartitionModel:
    """What one partition should hold: all rows that it ever had, and which of them are gone."""

    def __init__(self, first_offset: int = 0) -> None:
        self.rows: list[dict[str, Any]] = []
        self.first = self.earliest = first_offset
        self.deleted: set[int] = set()

    @property
    def end(self) -> int:
        return self.first + len(self.rows)

    @property
    def held(self) -> list[dict[str, Any]]:
        return self.between(self.first, self.end)

    def between(self, start: int, end: int) -> list[dict[str, Any]]:
        """The rows that can be read from one offset up to another."""
        rows = self.rows[max(start, self.earliest) - self.first : max(0, end - self.first)]
        return [row for row in rows if row["offset"] not in self.deleted]

    def first_at(self, timestamp_ms: int) -> int | None:
        late = (row["offset"] for row in self.held if row["timestamp"] >= timestamp_ms)
        return next(late, None)


class StoreMachine(RuleBasedStateMachine):
    """Every rule does the same to the store and to the lists; every step compares the two."""

    format_name: str
    first_offset = 0
    derived = ("*.idx", "*.timeidx", "*.tidx", "manifest.bin", "checkpoint.json")

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="lamina-model-", dir=MEMORY))
        self.path = self.root / "data"
        self.clock = Clock()
        self.model = self.empty()
        self.store: Store

    def empty(self) -> list[PartitionModel]:
        return [PartitionModel(self.first_offset) for _ in range(PARTITIONS)]

    def open(self) -> Store:
        return opened(self.path, self.clock)

    def beside(self) -> ReadOnlyStore:
        return read_only(self.path)

    @initialize()
    def create(self) -> None:
        self.store = self.open()
        self.create_topic()

    def create_topic(self) -> None:
        self.store.create_topic(
            "t",
            partitions=PARTITIONS,
            format=self.format_name,
            config={"segment.bytes": SEGMENT_BYTES},
        )

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        shutil.rmtree(self.root)

    # ------------------------------------------------------------------ appending

    def _append(self, partition: int, records: Any, drawn: list[dict[str, Any]], acks: Any) -> None:
        model = self.model[partition]
        first = model.end
        answer = self.store.append("t", records, partition=partition, acks=acks)
        assert answer.count == len(drawn)
        if acks != 0:
            ack = answer.parts[partition]
            assert (ack.base_offset, ack.count) == (first, len(drawn))
            assert ack.durability == self.durability_of(acks)
        for number, row in enumerate(drawn):
            model.rows.append(self.stored(first + number, row))
        self.store.flush()

    def durability_of(self, acks: Any) -> str:
        return "fsynced" if acks == "all" else "written"

    def stored(self, offset: int, row: dict[str, Any]) -> dict[str, Any]:
        """What a row that was handed in is read back as."""
        empty = dict.fromkeys(KEPT_COLUMNS[self.format_name])
        full = {**empty, "offset": offset, "timestamp": self.clock.now_ms, **row}
        if self.format_name == "frame":
            full["key"] = full["key"] or None
        return full

    @rule(partition=PARTITION, drawn=st.lists(VALUE, min_size=1, max_size=30), acks=ACKS)
    def append_values(self, partition: int, drawn: list[bytes], acks: Any) -> None:
        self._append(partition, drawn, [{"value": value} for value in drawn], acks)

    @rule(
        partition=PARTITION,
        drawn=st.lists(st.tuples(KEY, VALUE), min_size=1, max_size=8),
        acks=ACKS,
    )
    def append_pairs(self, partition: int, drawn: list[tuple[bytes, bytes]], acks: Any) -> None:
        expected = [{"key": key, "value": value} for key, value in drawn]
        self._append(partition, drawn, expected, acks)

    @rule(partition=PARTITION, data=st.data(), acks=ACKS)
    def append_arrow(self, partition: int, data: st.DataObject, acks: Any) -> None:
        columns: dict[str, Any] = {"timestamp": TIME, "key": KEY, "value": VALUE}
        if self.format_name == "keratin":
            columns["value"] = st.one_of(st.none(), VALUE)
            columns["headers"] = st.one_of(st.none(), st.lists(HEADER, max_size=3))
        drawn = data.draw(st.lists(st.fixed_dictionaries(columns), min_size=1, max_size=8))
        drawn = [row | {"timestamp": self.clock.now_ms + row["timestamp"]} for row in drawn]
        self._append(partition, batch_of(drawn, self.format_name), drawn, acks)

    @rule(partition=PARTITION)
    def a_repeat_is_not_stored_twice(self, partition: int) -> None:
        model = self.model[partition]
        stamp = ProducerStamp(7, 0, model.end)
        if any(row["value"] == b"stamped" for row in model.rows):
            stamp = ProducerStamp(7, model.end, 0)
        first = model.end
        self._append_stamped(partition, stamp)
        again = self.store.append("t", [b"stamped"], partition=partition, producer=stamp)
        assert again.parts[partition].base_offset == first

    def _append_stamped(self, partition: int, stamp: Any) -> None:
        model = self.model[partition]
        self.store.append("t", [b"stamped"], partition=partition, producer=stamp)
        model.rows.append(self.stored(model.end, {"value": b"stamped"}))

    # ------------------------------------------------------------------ reading

    @rule(
        partition=PARTITION,
        where=st.floats(0, 1),
        max_records=st.integers(1, 40),
        max_bytes=st.sampled_from([1, 100, 4000, 1 << 20]),
    )
    def read_from_anywhere(
        self, partition: int, where: float, max_records: int, max_bytes: int
    ) -> None:
        model = self.model[partition]
        start = max(model.first, int(where * model.end))
        limits = {"max_records": max_records, "max_bytes": max_bytes}
        if start < self.told_gone_below(model):
            with pytest.raises(RecordsMissing) as missing:
                self.store.fetch("t", partition, start, **limits)
            assert (missing.value.first, missing.value.reason) in [
                (start, "trim"),
                (start, "retention"),
            ]
            return
        one = plain(self.store.fetch("t", partition, start, **limits))
        expected = model.between(start, model.end)
        assert one == expected[: len(one)]
        assert len(one) <= max_records
        assert bool(one) == bool(expected)
        assert rows(self.store, "t", partition, start, **limits) == expected

    def told_gone_below(self, model: PartitionModel) -> int:
        """Reading from below this offset is refused with a reason."""
        return model.earliest

    @rule(partition=PARTITION, ahead_ms=TIME)
    def look_up_a_time(self, partition: int, ahead_ms: int) -> None:
        timestamp_ms = self.clock.now_ms + ahead_ms
        expected = self.model[partition].first_at(timestamp_ms)
        assert self.store.offset_for_time("t", partition, timestamp_ms) == expected

    # ------------------------------------------------------------------ rolling and removing

    @rule(partition=PARTITION)
    def roll(self, partition: int) -> None:
        self.store.roll("t", partition)

    @rule(partition=PARTITION, where=st.floats(0, 1.1))
    def trim(self, partition: int, where: float) -> None:
        model = self.model[partition]
        before = int(where * model.end)
        earliest = self.store.trim("t", partition, before)
        assert model.earliest <= earliest <= max(before, model.earliest)
        if before >= model.end:
            assert earliest == model.end
        model.earliest = earliest

    @rule(retention_ms=st.integers(1, 6_000), passed_ms=st.integers(0, 6_000))
    def retain_by_age(self, retention_ms: int, passed_ms: int) -> None:
        self.clock.now_ms += passed_ms
        self.store.alter_topic("t", {"retention.ms": retention_ms})
        self._retain()
        self.store.alter_topic("t", {"retention.ms": -1})

    @rule(retention_bytes=st.integers(0, 6_000))
    def retain_by_size(self, retention_bytes: int) -> None:
        self.store.alter_topic("t", {"retention.bytes": retention_bytes})
        before = [each.size_bytes for each in self.store.describe_topic("t").partitions]
        self._retain()
        for info, size_bytes in zip(self.store.describe_topic("t").partitions, before, strict=True):
            assert info.size_bytes >= min(size_bytes, retention_bytes), "more went than the cap"
            oldest = self.store.explain_retention("t", info.partition)[0].segment
            assert info.size_bytes - oldest.size_bytes < retention_bytes or not oldest.sealed
        self.store.alter_topic("t", {"retention.bytes": -1})

    def _retain(self) -> None:
        for partition, model in enumerate(self.model):
            decisions = self.store.explain_retention("t", partition)
            going = [decision.segment for decision in decisions if decision.goes]
            for segment in going:
                rows_of = model.rows[segment.base_offset : segment.next_offset]
                times = [row["timestamp"] for row in rows_of]
                assert segment.newest_timestamp_ms == max(times)
            assert self.store.apply_retention("t", partition) == len(going)
            if going:
                model.earliest = going[-1].next_offset

    @rule(passed_ms=st.integers(0, 10_000))
    def maintain(self, passed_ms: int) -> None:
        self.clock.now_ms += passed_ms
        self.store.maintain()

    @rule(value=st.sampled_from([1024, 2048, 4096]))
    def alter(self, value: int) -> None:
        self.store.alter_topic("t", {"segment.bytes": value})
        assert self.store.describe_topic("t").settings["segment.bytes"] == value

    # ------------------------------------------------------------------ ends and accidents

    def _reopen(self) -> None:
        self.store = self.open()

    @rule()
    def close_and_reopen(self) -> None:
        self.store.close()
        self._reopen()
        assert not self.store.recovery_report.events

    @rule()
    def kill(self) -> None:
        left_behind = copied(self.path)
        self.store.close()
        self.path = left_behind
        self._reopen()

    @rule(
        data=st.data(),
        accident=st.sampled_from(["delete", "empty", "truncate", "flip"]),
        killed=st.booleans(),
    )
    def damage_a_derived_file(self, data: st.DataObject, accident: str, killed: bool) -> None:
        if killed:
            left_behind = copied(self.path)
        self.store.close()
        if killed:
            self.path = left_behind
        found = sorted(file for kind in self.derived for file in self.path.rglob(kind))
        file = data.draw(st.sampled_from([str(each.relative_to(self.path)) for each in found]))
        hurt(self.path / file, accident, data)
        try:
            self._reopen()
        except NewerFormat:  # a version has no checksum: refused, and the file can be removed
            assert accident == "flip"
            (self.path / file).unlink()
            self._reopen()

    @rule()
    def look_from_beside(self) -> None:
        self.store.flush()
        with self.beside() as beside:
            self._compare(beside)

    @rule()
    def look_with_no_writer(self) -> None:
        self.store.close()
        with self.beside() as alone:
            self._compare(alone)
        self._reopen()

    # ------------------------------------------------------------------ the comparison

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def the_store_holds_what_the_lists_hold(self) -> None:
        self._compare(self.store)

    def _compare(self, store: StoreApi) -> None:
        for partition, model in enumerate(self.model):
            assert store.earliest_offset("t", partition) == model.earliest
            assert store.latest_offset("t", partition) == model.end
            assert rows(store, "t", partition) == model.held
            self._compare_gaps(store, partition, model)

    def _compare_gaps(self, store: StoreApi, partition: int, model: PartitionModel) -> None:
        gaps = store.gaps("t", partition)
        assert {gap.reason for gap in gaps} <= {"trim", "retention"}
        covered = [offset for gap in gaps for offset in range(gap.first, gap.end)]
        assert covered == list(range(model.earliest))
        assert not list(segments(self.path, "t", partition).glob("*.tomb"))


def hurt(file: Path, accident: str, data: st.DataObject) -> None:
    size = file.stat().st_size
    if accident == "delete":
        file.unlink()
    elif accident == "empty":
        file.write_bytes(b"")
    elif accident == "truncate":
        file.write_bytes(file.read_bytes()[: data.draw(st.integers(0, size))])
    elif size:
        contents = bytearray(file.read_bytes())
        contents[data.draw(st.integers(0, size - 1))] ^= data.draw(st.integers(1, 255))
        file.write_bytes(contents)


class FrameMachine(StoreMachine):
    format_name = "frame"


class KeratinMachine(StoreMachine):
    format_name = "keratin"


MACHINES = pytest.mark.parametrize("machine", [FrameMachine, KeratinMachine])
RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@MACHINES
def test_the_store_is_a_list_that_forgets_only_what_it_was_told_to(
    machine: type[StoreMachine],
) -> None:
    short = settings(
        max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=RELAXED
    )
    run_state_machine_as_test(machine, settings=short)


@pytest.mark.long
@pytest.mark.timeout(3600)
@MACHINES
def test_the_store_is_a_list_in_a_long_run(machine: type[StoreMachine]) -> None:
    long = settings(
        max_examples=2_000, stateful_step_count=60, deadline=None, suppress_health_check=RELAXED
    )
    run_state_machine_as_test(machine, settings=long)
