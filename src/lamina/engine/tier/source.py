"""A segmented partition as a source of sealed ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from lamina.engine.reading import PartitionReader
from lamina.engine.tier.encoding import SealedRange
from lamina.errors import RecordsMissing
from lamina.formats.scan import Limit

BATCH = Limit(max_records=1 << 18, max_bytes=4 << 20)


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """The sealed segments of a partition."""

    partition: PartitionReader

    def sealed_ranges(self) -> list[SealedRange]:
        """Returns the sealed segments, oldest first; they are durable."""
        return list(self.partition.layout.sealed)

    def records(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yields the records of some sealed offsets, over gaps, which the ledger explains."""
        while start < end:
            try:
                for batch in self.partition.scan(start, BATCH, end=end):
                    yield batch
                    start = int(batch.column("offset")[batch.num_rows - 1].as_py()) + 1
                return
            except RecordsMissing as missing:
                start = missing.end
