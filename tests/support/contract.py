"""What every log format must show; one subclass a format runs it on that format's own functions.

The oracle is one sentence: what a scan accepts of damaged bytes is what was written, in full, up to
some record, and nothing else.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina.formats.scan import Budget, Limit, Scan, Stop
from tests.support.strategies import LARGE, batch_of, rows


@contextmanager
def grows_at_most(kib: int) -> Iterator[None]:
    """Asserts that resident memory never rose by more, whatever the process used before.

    The kernel's high-water mark is reset first: without that it hides all growth below an old peak.
    """
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident_peak_kib()
    yield
    grown = _resident_peak_kib() - before
    assert grown < kib, f"memory rose by {grown} KiB, {kib} are allowed"


def _resident_peak_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


class LogContract:
    """Subclasses give the format's name, its functions and a small sample of rows."""

    format_name: str
    sample: list[dict[str, Any]]
    hostile_inputs = 5_000
    header_bytes = 0
    """Bytes of a file header before the first record; `encode` includes it, scans skip it."""
    fixed_bytes: int
    """Bytes of a record before its variable fields."""
    value_column = 1
    """Which of a scan's measures is that of the values."""
    length_bytes: Sequence[int] = ()
    """Where in a record its lengths are, if they are there only once."""
    has_order = True
    """Whether a search can tell leftovers by their offsets."""

    def encode(self, batch: pa.RecordBatch) -> bytes:
        raise NotImplementedError

    def scan(self, data: bytes, start: int, limit: Limit) -> Scan:
        raise NotImplementedError

    def decode(self, data: bytes, found: Scan) -> pa.RecordBatch:
        raise NotImplementedError

    def resync(
        self, data: bytes, start: int, *, minimum: int = 0, budget: Budget | None = None
    ) -> int | None:
        raise NotImplementedError

    def reseal(self, record: bytes) -> bytes:
        """The record with a checksum that fits it, made by another library than ours."""
        raise NotImplementedError

    def lures(self, count: int) -> bytes:
        """So many sound records, each followed by a header that claims nearly all that follows."""
        raise NotImplementedError

    def expected(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """What decoding gives for an encoded batch, as plain rows; offsets count from the first."""
        raise NotImplementedError

    # ------------------------------------------------------------------ helpers

    def sample_bytes(self) -> bytes:
        return self.encode(batch_of(self.sample, self.format_name))

    def read(self, data: bytes) -> tuple[list[dict[str, Any]], Scan]:
        found = self.scan(data, self.header_bytes, Limit())
        return plain(self.decode(data, found)), found

    def walk(self, data: bytes) -> tuple[int, Budget]:
        """Counts the sound records of a file over all its damage, as every walker does."""
        budget = Budget(len(data))
        position: int | None = self.header_bytes
        count = 0
        while position is not None and position < len(data):
            found = self.scan(data, position, Limit(budget=budget))
            count += len(found)
            position = found.end
            if found.stop.is_damage:
                position = self.resync(data, position, budget=budget)
        return count, budget

    # ------------------------------------------------------------------ the contract

    def test_any_records_come_back_as_they_went_in(self) -> None:
        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
        @given(rows(self.format_name))
        def check(drawn: list[dict[str, Any]]) -> None:
            batch = batch_of(drawn, self.format_name)
            data = self.encode(batch)
            read, found = self.read(data)
            assert found.stop is Stop.END
            assert found.end == len(data)
            assert read == self.expected(batch)
            self.decode(data, found).validate(full=True)

        check()

    def test_large_values_come_back_as_they_went_in(self) -> None:
        @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
        @given(rows(self.format_name), st.lists(LARGE, min_size=1, max_size=3))
        def check(drawn: list[dict[str, Any]], large: list[bytes]) -> None:
            drawn += [self.sample[0] | {"value": value} for value in large]
            batch = batch_of(drawn, self.format_name)
            read, found = self.read(self.encode(batch))
            assert (read == self.expected(batch), found.stop) == (True, Stop.END)

        check()

    def test_a_slice_of_a_batch_is_encoded_like_the_same_rows_alone(self) -> None:
        batch = batch_of(self.sample, self.format_name)
        sliced = batch.slice(1, 2)
        rebuilt = batch_of(self.sample[1:3], self.format_name)
        assert self.encode(sliced) == self.encode(rebuilt)

    def test_every_prefix_holds_a_whole_number_of_records(self) -> None:
        data = self.sample_bytes()
        whole, found = self.read(data)
        ends = [*found.positions.tolist()[1:], found.end]
        for size in range(self.header_bytes, len(data)):
            read, cut = self.read(data[:size])
            complete = sum(end <= size for end in ends)
            assert read == whole[:complete]
            at_boundary = size in (self.header_bytes, *ends)
            assert cut.stop is (Stop.END if at_boundary else Stop.TORN)

    def test_every_single_byte_change_is_detected_and_leaves_what_is_before_it(self) -> None:
        data = self.sample_bytes()
        whole, found = self.read(data)
        starts = found.positions.tolist()
        for position in range(self.header_bytes, len(data)):
            damaged_record = sum(start <= position for start in starts) - 1
            for change in (0x01, 0x80, 0xFF, data[position]):
                damaged = bytearray(data)
                damaged[position] ^= change
                if damaged == data:
                    continue
                read, cut = self.read(bytes(damaged))
                assert read == whole[:damaged_record], f"byte {position} ^ {change:#x}"
                assert cut.stop.is_damage

    def test_zeros_after_the_last_record_are_a_torn_tail(self) -> None:
        data = self.sample_bytes()
        whole, _ = self.read(data)
        for zeros in (1, 3, 8, 64, 4096):
            read, found = self.read(data + bytes(zeros))
            assert (read, found.stop, found.end) == (whole, Stop.TORN, len(data))

    def test_limits_split_a_scan_into_the_same_records(self) -> None:
        data = self.sample_bytes()
        whole, _ = self.read(data)
        for limit in (Limit(max_records=1), Limit(max_records=2), Limit(max_bytes=1)):
            read: list[dict[str, Any]] = []
            position, stop = self.header_bytes, Stop.LIMIT
            while stop is Stop.LIMIT:
                found = self.scan(data, position, limit)
                assert len(found) >= 1
                read += plain(self.decode(data, found))
                position, stop = found.end, found.stop
            assert (read, stop) == (whole, Stop.END)

    def test_a_scan_of_a_part_measures_the_values_of_that_part(self) -> None:
        data = self.sample_bytes()
        whole, found = self.read(data)
        for row, start in enumerate(found.positions.tolist()):
            for count in (1, 2, len(whole)):
                part = self.scan(data, int(start), Limit(max_records=count))
                values = [each["value"] or b"" for each in whole[row : row + count]]
                assert part.column_bytes[self.value_column] == sum(map(len, values))
                assert plain(self.decode(data, part)) == whole[row : row + count]

    def test_after_damage_the_next_sound_record_is_found(self) -> None:
        data = self.sample_bytes()
        _, found = self.read(data)
        starts = found.positions.tolist()
        for damaged_record in range(len(starts) - 1):
            damaged = bytearray(data)
            damaged[starts[damaged_record + 1] - 1] ^= 0x5A
            after = starts[damaged_record] + 1
            assert self.resync(bytes(damaged), after) == starts[damaged_record + 1]
        assert self.resync(data[: starts[-1]], starts[-2] + 1) is None

    def test_a_record_inside_of_a_damaged_one_does_not_count(self) -> None:
        plain_row = self.sample[0] | {"value": b"plain"}
        inner = self.encode(batch_of([plain_row], self.format_name))[self.header_bytes :]
        rows = [plain_row, self.sample[0] | {"value": b"<" + inner * 3 + b">"}, plain_row]
        data = self.encode(batch_of(rows, self.format_name))
        _, found = self.read(data)
        _, second, third = found.positions.tolist()
        ends = {"a record follows": data, "the end": data[:third]}
        ends["space"] = data[:third] + bytes(4096)
        for name, whole in ends.items():
            expected = third if whole is data else None
            for position in {*range(second, third)} - self.only_lengths(second):
                damaged = bytearray(whole)
                damaged[position] ^= 0x10
                after = self.scan(bytes(damaged), self.header_bytes, Limit()).end
                assert after == second
                assert self.resync(bytes(damaged), second) == expected, (name, position - second)

    def only_lengths(self, position: int) -> set[int]:
        """The bytes of a record at a position without which nothing says where it ends."""
        return {position + at for at in self.length_bytes}

    def test_a_record_inside_of_a_damaged_one_does_not_count_behind_other_damage(self) -> None:
        plain_row = self.sample[0] | {"value": b"plain"}
        inner = self.encode(batch_of([plain_row], self.format_name))[self.header_bytes :]
        rows = [plain_row, self.sample[0] | {"value": b"<" + inner * 3 + b">"}, plain_row]
        damaged = bytearray(self.encode(batch_of(rows, self.format_name)))
        _, found = self.read(bytes(damaged))
        first, _, third = found.positions.tolist()
        damaged[first : first + self.fixed_bytes] = b"\xee" * self.fixed_bytes
        damaged[third - 20] ^= 1  # of the value
        assert self.resync(bytes(damaged), first) == third

    def test_hostile_bytes_stop_a_scan_cleanly_and_cost_no_memory(self) -> None:
        data = self.sample_bytes()
        whole, _ = self.read(data)
        drawn = random.Random(20_240_601)
        with grows_at_most(64 << 10):
            for _ in range(self.hostile_inputs):
                hostile = mutate(data, drawn)
                found = self.scan(hostile, min(self.header_bytes, len(hostile)), Limit())
                assert 0 <= found.end <= len(hostile)
                assert np.all(np.diff(found.positions) > 0)
                self.judge_hostile(whole, plain(self.decode(hostile, found)))
                self.resync(hostile, drawn.randrange(len(hostile) + 1))

    def judge_hostile(self, whole: list[dict[str, Any]], read: list[dict[str, Any]]) -> None:
        agreed = sum(1 for old, new in zip(whole, read, strict=False) if old == new)
        assert agreed == min(len(read), len(whole)), "a damaged record was returned"

    def test_wrong_fields_under_the_right_checksum_are_refused_or_read_in_bounds(self) -> None:
        data = self.sample_bytes()
        _, sound = self.read(data)
        starts = [*sound.positions.tolist(), len(data)]
        drawn = random.Random(20_240_607)
        with grows_at_most(64 << 10):
            for _ in range(self.hostile_inputs // 2):
                row = drawn.randrange(len(starts) - 1)
                record = bytearray(data[starts[row] : starts[row + 1]])
                at = drawn.randrange(self.fixed_bytes)
                width = min(drawn.choice([1, 2, 4, 8]), self.fixed_bytes - at)
                value = drawn.choice([*EXTREMES, len(record), (1 << 63) - 1, (1 << 64) - 1])
                order: Any = drawn.choice(["little", "big"])
                record[at : at + width] = (value % (1 << (8 * width))).to_bytes(width, order)
                changed = data[: starts[row]] + self.reseal(bytes(record)) + data[starts[row + 1] :]
                found = self.scan(changed, self.header_bytes, Limit())
                assert len(found) >= row
                batch = self.decode(changed, found)
                batch.validate(full=True)
                self.resync(changed, starts[row])

    def test_a_walk_over_headers_that_claim_the_rest_takes_linear_work(self) -> None:
        spent = []
        for count in (600, 1200):
            data = self.lures(count)
            found, budget = self.walk(data)
            assert found == count, "a sound record was missed"
            spent.append(budget.spent)
        assert spent[1] < 3 * spent[0], "the work grew faster than the file"

    def test_a_search_through_nested_sound_records_takes_linear_work(self) -> None:
        if not self.has_order:
            pytest.skip("every sound record counts, so that a search stops at the first")
        spent = []
        for levels in (400, 800):
            nested = b""
            for _ in range(levels):
                batch = batch_of([self.sample[0] | {"value": nested}], self.format_name)
                nested = self.encode(batch)[self.header_bytes :]
            budget = Budget(len(nested))
            assert self.resync(nested, 0, minimum=1 << 40, budget=budget) is None
            spent.append(budget.spent)
        assert spent[1] < 3 * spent[0], "the work grew faster than the file"

    def test_a_start_outside_of_the_buffer_is_refused(self) -> None:
        data = self.sample_bytes()
        for start in (-1, -(1 << 62), len(data) + 1, 1 << 62):
            with pytest.raises(ValueError, match="starts at"):
                self.scan(data, start, Limit())
            with pytest.raises(ValueError, match="starts at"):
                self.resync(data, start)
        assert self.scan(data, len(data), Limit()).stop is Stop.END
        assert self.resync(data, len(data)) is None

    def test_a_scan_that_stops_at_once_costs_little_memory(self) -> None:
        data = b"\xff" * (32 << 20)
        self.scan(data, 0, Limit())
        tracemalloc.start()
        try:
            self.scan(data, 0, Limit())
            assert tracemalloc.get_traced_memory()[1] < 64 << 10
        finally:
            tracemalloc.stop()


def plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as Python values; times as milliseconds, which datetime could not hold."""
    index = batch.schema.get_field_index("timestamp")
    return batch.set_column(index, "timestamp", batch.column(index).cast(pa.int64())).to_pylist()


EXTREMES = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


def mutate(data: bytes, drawn: random.Random) -> bytes:
    """Damages bytes the way disks, bugs and attackers do."""
    out = bytearray(data)
    for _ in range(drawn.randrange(1, 4)):
        kind = drawn.randrange(6)
        at = drawn.randrange(len(out) + 1)
        if kind == 0:
            del out[at:]
        elif kind == 1:
            out[at : at + 4] = drawn.choice(EXTREMES).to_bytes(4, drawn.choice(["little", "big"]))
        elif kind == 2:
            out[at : at + 8] = drawn.randbytes(8)
        elif kind == 3:
            out[at:at] = drawn.randbytes(drawn.randrange(40))
        elif kind == 4:
            other = drawn.randrange(len(out) + 1)
            out[at:at] = out[other : other + drawn.randrange(120)]
        elif at < len(out):
            out[at] ^= 1 << drawn.randrange(8)
    return bytes(out)


OFFSETS = st.integers(0, (1 << 62))
