"""The last step of finding a record by its time, the same for every format: looking at records."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lamina.errors import RecordsMissing
from lamina.formats.scan import Limit
from lamina.log.batch_offsets import after
from lamina.log.gap_walk import scan_over
from lamina.log.interfaces import LogReader

FIRST_LOOK = Limit(max_records=1024, max_bytes=128 << 10)
"""What a time index usually leaves to look at."""
FURTHER = Limit(max_records=8192, max_bytes=4 << 20)


def first_at_or_after(reader: LogReader, timestamp_ms: int, start: int, end: int) -> int | None:
    """Looks through records, over gaps, for the first that is not older than a time."""
    first_look = iter((FIRST_LOOK,))

    def scan(at: int) -> Iterator[pa.RecordBatch]:
        for limit in first_look:
            for batch in reader.scan(at, limit, end=end):
                yield batch
                at = after(batch) if batch.num_rows else at
                break
            else:
                return
        yield from reader.scan(at, FURTHER, end=end)

    for step in scan_over(scan, start, end):
        if isinstance(step, RecordsMissing):
            continue
        times = step.column("timestamp").cast(pa.int64()).to_numpy()
        late = np.flatnonzero(times >= timestamp_ms)
        if len(late):
            return int(step.column("offset")[int(late[0])].as_py())
    return None
