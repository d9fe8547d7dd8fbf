"""The last step of finding a record by its time, the same for every format: looking at records."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lamina.errors import RecordsMissing
from lamina.formats.scan import Limit
from lamina.log.interfaces import LogReader

FIRST_LOOK = Limit(max_records=1024, max_bytes=128 << 10)
"""A time index leaves so much to look at, mostly."""
FURTHER = Limit(max_records=8192, max_bytes=4 << 20)


def first_at_or_after(reader: LogReader, timestamp_ms: int, start: int, end: int) -> int | None:
    """Looks through records, over gaps, for the first that is not older than a time."""
    limit = FIRST_LOOK
    while start < end:
        try:
            for batch in reader.scan(start, limit, end=end):
                times = batch.column("timestamp").cast(pa.int64()).to_numpy()
                late = np.flatnonzero(times >= timestamp_ms)
                if len(late):
                    return int(batch.column("offset")[int(late[0])].as_py())
                if batch.num_rows:
                    start = int(batch.column("offset")[-1].as_py()) + 1
                if limit is FIRST_LOOK:
                    break
            else:
                return None
        except RecordsMissing as missing:
            start = missing.end
        limit = FURTHER
    return None
