"""How much memory the compressed records of one request may take when they are unpacked.

A few bytes may unpack to any size, and a request may hold many batches. So there is one bound for
the whole request, and unpacked bytes count as bytes in flight while they grow.

Rules.
1. Nothing is unpacked of a batch whose topic its client may not write to.
2. Once a request has ended, or its client has hung up, nothing more is unpacked for it.
"""

from __future__ import annotations

import threading

from lamina.errors import Busy
from lamina.formats.kafka.faults import BadBatch, Fault
from lamina.server.kafka.sessions import Call

UNPACKED_FACTOR = 8
"""Unpacked records may be this many times as large as the largest request."""
LOOP_BYTES = 256 << 10
"""Up to this size, records are unpacked in the event loop, uncounted like small requests."""
_COPIES = 2
"""Unpacked records, and the columns that are made of them."""


class TooMuchForTheLoop(BadBatch):
    """Raised for what a thread has to unpack: in the loop everybody else would wait for it."""


class UnpackingRoom:
    """Counts what one request's records become; `end` gives it back."""

    def __init__(self, call: Call, *, in_loop: bool) -> None:
        broker = call.door.broker
        self.bytes_max = broker.settings.request_bytes * UNPACKED_FACTOR
        self._inflight = broker.inflight
        self._came_with = call.size_bytes
        self._in_loop = in_loop
        self._taking = threading.Lock()
        self._unpacked_bytes = 0
        self._held_bytes = 0
        self._is_over = False

    def take(self, size_bytes: int) -> None:
        """Takes room for more; raises BadBatch beyond the bound, Busy where there is none."""
        with self._taking:
            if self._is_over:
                raise Busy("the client is gone")
            self._unpacked_bytes += size_bytes
            if self._in_loop:
                if self._unpacked_bytes > LOOP_BYTES:
                    raise TooMuchForTheLoop(Fault.TOO_LARGE, "the batch is not small")
                return
            if self._unpacked_bytes > self.bytes_max:
                raise BadBatch(
                    Fault.TOO_LARGE,
                    f"the batches of the request decompress to more than {self.bytes_max} bytes",
                )
            own = self._came_with + self._held_bytes
            self._inflight.take(size_bytes * _COPIES, own)
            self._held_bytes += size_bytes * _COPIES

    def end(self) -> None:
        """Gives back what was taken; nothing more can be."""
        with self._taking:
            self._is_over = True
            self._inflight.give_back(self._held_bytes)
            self._held_bytes = 0
