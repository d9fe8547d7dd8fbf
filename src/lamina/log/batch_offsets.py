"""Where a batch of records begins, ends and has holes, for readers of every format."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa


def runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Splits a batch where its offsets have a hole."""
    offsets = batch.column("offset").to_numpy()
    if offsets[-1] - offsets[0] + 1 == batch.num_rows:
        yield batch
        return
    edges = [0, *(np.flatnonzero(np.diff(offsets) > 1) + 1).tolist(), batch.num_rows]
    for start, end in pairwise(edges):
        yield batch.slice(start, end - start)


def first_of(batch: pa.RecordBatch) -> int:
    """Returns the first offset of a batch that is not empty."""
    first: int = batch.column("offset")[0].as_py()
    return first


def after(batch: pa.RecordBatch) -> int:
    """Returns one past the last offset of a batch that is not empty."""
    last: int = batch.column("offset")[batch.num_rows - 1].as_py()
    return last + 1
