"""What every log format must show; one subclass a format runs it on that format's own functions.

The oracle is one sentence: what a scan accepts of damaged bytes is what was written, in full, up to
some record, and nothing else.
"""

from __future__ import annotations

import random
import resource
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina.formats.scan import Limit, Scan, Stop
from tests.support.strategies import batch_of, rows


class LogContract:
    """Subclasses give the format's name, its functions and a small sample of rows."""

    format_name: str
    sample: list[dict[str, Any]]
    hostile_inputs = 5_000
    header_bytes = 0
    """Bytes of a file header before the first record; `encode` includes it, scans skip it."""

    def encode(self, batch: pa.RecordBatch) -> bytes:
        raise NotImplementedError

    def scan(self, data: bytes, start: int, limit: Limit) -> Scan:
        raise NotImplementedError

    def decode(self, data: bytes, found: Scan) -> pa.RecordBatch:
        raise NotImplementedError

    def resync(self, data: bytes, start: int) -> int | None:
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

    def test_hostile_bytes_stop_a_scan_cleanly_and_cost_no_memory(self) -> None:
        data = self.sample_bytes()
        whole, _ = self.read(data)
        drawn = random.Random(20_240_601)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(self.hostile_inputs):
            hostile = mutate(data, drawn)
            found = self.scan(hostile, min(self.header_bytes, len(hostile)), Limit())
            assert 0 <= found.end <= len(hostile)
            assert np.all(np.diff(found.positions) > 0)
            read = plain(self.decode(hostile, found))
            agreed = sum(1 for old, new in zip(whole, read, strict=False) if old == new)
            assert agreed == min(len(read), len(whole)), "a damaged record was returned"
            self.resync(hostile, drawn.randrange(len(hostile) + 1))
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kib < 64 << 10


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
