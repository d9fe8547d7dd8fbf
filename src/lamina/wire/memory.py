"""Makes the C library keep the memory of one message for the next.

gRPC takes memory for every message and frees it again. glibc gives what is free at the end of an
arena back to the system, above a threshold that starts at 128 KiB, so that each message pays for
its pages again: that was half of what receiving cost. The threshold is twice the largest block
that was ever freed (of those up to 32 MiB), so that freeing one of 16 MiB raises it to 32 MiB.

Rules.
1. Nothing is set: where somebody chose thresholds of their own (`MALLOC_TRIM_THRESHOLD_`), glibc
   learns from no block, and theirs stay.
2. The block is never written to, so that it costs no memory.
"""

from __future__ import annotations

import pyarrow as pa

_BLOCK_BYTES = 16 << 20


def keep_freed() -> None:
    """Has memory kept that messages free, up to 32 MiB an arena; does nothing without glibc."""
    bytes(_BLOCK_BYTES)  # made of fresh zero pages, and freed at once


def pool() -> pa.MemoryPool:
    """The pool for what is copied to be sent: Arrow's own gives large blocks back at once."""
    return pa.system_memory_pool()
