"""The last row of each key, of rows that were there and changes to them.

Within a partition the offset decides, whatever the times say. A key that is in several partitions,
as it may be after partitions were added, is represented by the later of their last rows.

Rule: a change whose record has a null value removes its key, and is in no table.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lamina.spark.typed_columns import GONE, KEY, OFFSET, PARTITION, TIMESTAMP


def last_of_each(rows: pa.Table) -> pa.Table:
    """Returns the last row of each key, in the order of their places in the log."""
    if not rows.num_rows:
        return rows
    keys = rows.column(KEY).combine_chunks().dictionary_encode()
    keys = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    ids = keys.indices.to_numpy(zero_copy_only=False)
    partition, offset = (_numbers(rows, name) for name in (PARTITION, OFFSET))
    order = np.lexsort((offset, partition, ids))
    is_last = np.append((np.diff(ids[order]) != 0) | (np.diff(partition[order]) != 0), True)
    rest = order[is_last]
    time = _numbers(rows, TIMESTAMP)
    order = rest[np.lexsort((partition[rest], time[rest], ids[rest]))]
    chosen = order[np.append(np.diff(ids[order]) != 0, True)]
    return rows.take(pa.array(chosen[np.lexsort((offset[chosen], partition[chosen]))]))


def merged(old: pa.Table, new: pa.Table) -> pa.Table:
    """Returns what changes (with GONE) make of rows (without), both under the same columns."""
    kept = old.append_column(new.schema.field(GONE), pa.repeat(pa.scalar(False), old.num_rows))
    every = pa.concat_tables([kept, new])
    last = last_of_each(every)
    return last.filter(pc.invert(last.column(GONE))).drop_columns([GONE])


def _numbers(rows: pa.Table, name: str) -> NDArray[np.int64]:
    return np.asarray(rows.column(name).cast(pa.int64()).to_numpy(), dtype=np.int64)
