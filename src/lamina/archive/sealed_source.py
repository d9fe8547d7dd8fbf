"""A partition as a source of sealed ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.errors import UNREADABLE, RecordsMissing
from lamina.formats.scan import Limit
from lamina.log.sealed import Archivable, SealedRange

BATCH = Limit(max_records=1 << 18, max_bytes=4 << 20)


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """The sealed segments of a partition."""

    partition: Archivable

    def sealed_ranges(self) -> list[SealedRange]:
        """Returns the sealed segments, oldest first; they are durable."""
        return self.partition.sealed_ranges()

    def records(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yields the records of some sealed offsets, over gaps, which the ledger explains.

        Raises RecordsMissing at what the device does not deliver just now: whatever is archived
        without it would count as all there was, and the local copy would go.
        """
        while start < end:
            try:
                for batch in self.partition.scan(start, BATCH, end=end):
                    yield batch
                    start = int(batch.column("offset")[batch.num_rows - 1].as_py()) + 1
                return
            except RecordsMissing as missing:
                if missing.reason == UNREADABLE:
                    raise
                start = missing.end

    def gone_from(self, offset: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns which offsets from one on have no record any more."""
        return self.partition.gone_from(offset)
