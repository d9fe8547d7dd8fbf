"""A scan is sent in parts: one part per call, each batch counted while it is on its way.

Rules.
1. While a batch is sent, the next one is made, if the part goes on.
2. A part ends when it has about `SCAN_BYTES`, or as much as goes out in `SCAN_S`, whichever is
   more: so long a reader may hold a removed segment. It ends early where the caller says so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from lamina.server.ahead import ReadAhead

SCAN_BYTES, SCAN_S = 64 << 20, 10.0
Batches: TypeAlias = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Sending:
    """What surrounds the batches of one part."""

    holding: Callable[[int], contextlib.AbstractContextManager[None]]
    """Takes the room of a batch while it is sent."""
    sent: Callable[[pa.RecordBatch], None]
    """Counts a batch that was sent; raises where no other may follow."""
    may_go_on: Callable[[], bool]
    """Returns whether the caller may have more in this part."""


def sent(first: pa.RecordBatch | None, ahead: ReadAhead, sending: Sending) -> Batches:
    """Yields the batches of one part, the first of which was read to learn the schema."""
    started, sent_bytes, batch = time.monotonic(), 0, first
    try:
        while batch is not None:
            size_bytes = batch.get_total_buffer_size()
            sent_bytes += size_bytes
            goes_on = sent_bytes < SCAN_BYTES or time.monotonic() - started < SCAN_S
            with sending.holding(size_bytes):
                if goes_on:
                    ahead.begin(size_bytes)
                yield batch
            sending.sent(batch)
            batch = ahead.following() if goes_on and sending.may_go_on() else None
    finally:
        ahead.close()
