"""The last step of finding a record by its time, the same for every format: looking at records."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lamina.engine.log_reader import LogReader
from lamina.errors import RecordsMissing
from lamina.formats.scan import Limit


def first_at_or_after(reader: LogReader, timestamp_ms: int, start: int, end: int) -> int | None:
    """Looks through records, over gaps, for the first that is not older than a time."""
    limit = Limit(max_records=8192, max_bytes=1 << 22)
    while start < end:
        try:
            for batch in reader.scan(start, limit, end=end):
                times = batch.column("timestamp").cast(pa.int64()).to_numpy()
                late = np.flatnonzero(times >= timestamp_ms)
                if len(late):
                    return int(batch.column("offset")[int(late[0])].as_py())
            return None
        except RecordsMissing as missing:
            start = missing.end
    return None
