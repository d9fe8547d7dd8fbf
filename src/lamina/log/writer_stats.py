"""Counts what a writer does, as it does it; `lamina.api.writer_counts` is what others see of it.

Rule: only the leader counts. A copy may see a commit half counted, never a torn number.
"""

from __future__ import annotations

from collections.abc import Sequence

from lamina.api.writer_counts import Pulse, bucket_of
from lamina.log.requests import Request


class RunningPulse(Pulse):
    """The counts of a writer that is at work."""

    __slots__ = ()

    def note_group(self, group: Sequence[Request]) -> None:
        """Counts a group that was written."""
        records = size_bytes = 0
        for request in group:
            records += request.count
            size_bytes += request.size_bytes
        self.groups += 1
        self.requests += len(group)
        self.records += records
        self.size_bytes += size_bytes
        self.group_requests[bucket_of(len(group))] += 1

    def note_sync(self, nanoseconds: int) -> None:
        """Counts an fsync that succeeded."""
        self.syncs += 1
        self.sync_microseconds[bucket_of(nanoseconds // 1000)] += 1
