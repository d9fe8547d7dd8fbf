"""How far a group is behind, from its state and the partition's indexes; no record is read."""

from __future__ import annotations

import numpy as np

from lamina.api import PartitionLag
from lamina.groups.state import State, merged
from lamina.log.interfaces import LogReader


def lag_of(reader: LogReader, state: State, now_ms: int) -> PartitionLag:
    """Computes from a state and the partition's indexes how far behind a group is."""
    end = reader.end_offset("durable")
    first = max(state.acked_until, reader.earliest_offset())
    starts, ends = np.maximum(state.starts, first), np.minimum(state.ends, end)
    acked = (starts[starts < ends], ends[starts < ends])
    ahead = int((acked[1] - acked[0]).sum())
    done = merged(acked, reader.gone_from(first))  # what was acked may be gone, too
    records = max(0, end - first - int((done[1] - done[0]).sum()))
    newest = reader.time_at(first) if records else None
    return PartitionLag(
        partition=reader.place.partition,
        committed=state.acked_until,
        end=end,
        records=records,
        bytes=reader.bytes_from(first) if records else 0,
        seconds=max(0.0, (now_ms - newest) / 1000) if newest is not None else 0.0,
        inflight=state.running(now_ms),
        acked_ahead=ahead,
    )
