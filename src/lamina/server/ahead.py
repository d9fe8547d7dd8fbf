"""Makes the next batch of a scan while the one before is being sent.

    sender   send 1 ───────▶ send 2 ───────▶ send 3 …
    pool     make 2 ──▶      make 3 ──▶

Rules.
1. At most one batch is made ahead, and counted as bytes at work as if it were being sent.
2. Only what is spare is spent: of small batches, on a busy server and with a busy pool nothing is
   made ahead, and who sends makes the next batch when it is due.
3. An error made ahead is raised where it would have been: after the batch before it.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from typing import TypeAlias

import pyarrow as pa

from lamina.server.limits import Allowance
from lamina.storage import machine

WORTH_BYTES = 256 << 10
"""Below this, handing a batch over costs about as much as it gains."""
_Coming: TypeAlias = concurrent.futures.Future[pa.RecordBatch | None]


class Pool:
    """The threads that work ahead, for all scans together; they end with it."""

    def __init__(self, room: Allowance) -> None:
        self.room = room
        self._threads = concurrent.futures.ThreadPoolExecutor(
            machine.processors(), thread_name_prefix="lamina-ahead"
        )

    def begin(self, batches: Iterator[pa.RecordBatch]) -> _Coming:
        """Schedules the next batch for the first free thread."""
        return self._threads.submit(next, batches, None)


class ReadAhead:
    """The batches of one scan, used by one thread; close it."""

    def __init__(self, batches: Iterator[pa.RecordBatch], pool: Pool) -> None:
        self._batches = batches
        self._pool = pool
        self._coming: _Coming | None = None
        self._taken_bytes = 0

    def begin(self, like_bytes: int) -> None:
        """Begins to make the next batch, likely of so many bytes, if that is worth it."""
        if like_bytes >= WORTH_BYTES and self._pool.room.take_spare(like_bytes):
            self._taken_bytes = like_bytes
            self._coming = self._pool.begin(self._batches)

    def following(self) -> pa.RecordBatch | None:
        """Returns the next batch, None at the end."""
        coming = self._begun()
        return next(self._batches, None) if coming is None else coming.result()

    def close(self) -> None:
        """Gives back what was taken, having waited for what is being made."""
        coming = self._begun()
        if coming is not None:
            concurrent.futures.wait((coming,))

    def _begun(self) -> _Coming | None:
        """Gives back the room; returns what is being made, None if no thread has begun it."""
        coming, self._coming = self._coming, None
        if coming is None:
            return None
        self._pool.room.give_back(self._taken_bytes)
        return None if coming.cancel() else coming
