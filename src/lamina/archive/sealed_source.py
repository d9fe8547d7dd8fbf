"""A partition as a source of sealed layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.formats.scan import Limit
from lamina.log.gap_walk import records_over
from lamina.log.layers import Layer, sealed_of
from lamina.log.sealed import Archivable

BATCH = Limit(max_records=1 << 18, max_bytes=4 << 20)


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """The sealed segments of a partition."""

    partition: Archivable

    def sealed(self) -> list[Layer]:
        """Returns the sealed local layers, oldest first; they are durable."""
        return sealed_of(self.partition.layers())

    def records(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yields the records of some sealed offsets, over gaps, which the ledger explains.

        Raises RecordsMissing at what the device does not deliver just now: whatever is archived
        without it would count as all there was, and the local copy would go.
        """
        return records_over(lambda at: self.partition.scan(at, BATCH, end=end), start, end)

    def gone_from(self, offset: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns which offsets from one on have no record any more."""
        return self.partition.gone_from(offset)
