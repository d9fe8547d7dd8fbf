"""Which partition a key belongs to: XXH3-64 of the key's bytes, modulo the number of partitions.

The same in every process and version: moving a key to another partition would break its order.
Records without a key have none (-1): the code that appends them chooses one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.formats.kernels import arrow
from lamina.formats.kernels.binary import address_of, poke_i64
from lamina.formats.kernels.declare import kernel
from lamina.formats.kernels.xxh3 import xxh3
from lamina.records import split

NO_KEY = -1


def partitions_of(keys: pa.Array, partitions: int) -> NDArray[np.int64]:
    """Returns the partition of each key; NO_KEY for null."""
    batch = pa.RecordBatch.from_arrays([keys.cast(pa.binary())], ["key"])
    chosen = np.empty(len(keys), dtype=np.int64)
    arrow.with_exported(
        batch, lambda address: _partitions_of(address, np.uint64(partitions), chosen)
    )
    return chosen


def split_by_key(
    batch: pa.RecordBatch, partitions: int, unkeyed: int
) -> list[tuple[int, pa.RecordBatch]]:
    """Splits a batch by the hash of its keys, order kept; records without a key go to `unkeyed`."""
    chosen = partitions_of(batch.column("key"), partitions)
    chosen[chosen == NO_KEY] = unkeyed
    return split(batch, chosen, partitions)


@kernel
def _partitions_of(batch: int, partitions: Any, chosen: Any) -> None:
    keys = arrow.column(batch, 0)
    target = address_of(chosen)
    for row in range(arrow.length_of(batch)):
        partition: Any = np.int64(NO_KEY)
        if not arrow.is_null(keys, row):
            key, length = arrow.slot(keys, row)
            partition = np.int64(xxh3(key, length, np.uint64(0)) % partitions)
        poke_i64(target + 8 * row, partition)
