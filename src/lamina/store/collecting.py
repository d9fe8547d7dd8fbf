"""Removes windows that are no longer needed, so that a takeover reads few of them.

    many windows ──▶ a full one ──▶ earlier records are archived ──▶ boundary moves ──▶ removed

A full window repeats every copy and every producer, so earlier windows are needed for their records
only. These are sealed and archived first: the archive's lists must reach as far as the windows did
when the full one was made.

Rule: the boundary is moved to a full window, and only when every record below it is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from lamina.archive.tier import Tier
from lamina.cluster.steps import run
from lamina.cluster.tails import TailLog, Takeover, collect
from lamina.formats.tail_file import Section
from lamina.log.partition import Partition
from lamina.storage.objects import Objects
from lamina.store.seat_directory import Ends
from lamina.store.window_contents import Contents, Draft

WINDOWS_MAX = 300
"""With more windows than this, the older ones are removed."""
BYTES_MAX = 64 << 20
"""The same, in bytes."""


class Left(NamedTuple):
    """The windows that earlier epochs have left."""

    first_seq: int
    size_bytes: int

    @staticmethod
    def of(taken: Takeover) -> Left:
        """Measures what a takeover has read."""
        first_seq = min([taken.log.next_seq, *(tail.seq for tail in taken.tails)])
        return Left(first_seq, sum(_size_of(tail.sections) for tail in taken.tails))


class Collector:
    """Counts the windows, and removes the older ones."""

    def __init__(
        self,
        tier: Tier,
        partitions: Callable[[], list[Partition]],
        contents: Contents,
        log: TailLog,
        left: Left,
    ) -> None:
        self._tier = tier
        self._partitions = partitions
        self._contents = contents
        self._log = log
        self._first_seq, self._size_bytes = left
        self._behind_bytes = 0
        """The bytes of the windows behind the full one."""
        self._full_seq: int | None = None
        self._below: Ends = {}
        """How far the windows before the full one reached."""
        self.wants_full = False

    @property
    def windows(self) -> int:
        """How many windows a takeover would read."""
        return self._log.next_seq - self._first_seq

    def note(self, draft: Draft, before: Ends, seq: int) -> None:
        """Notes a window that was committed."""
        size_bytes = _size_of(draft.sections)
        self._size_bytes += size_bytes
        self._behind_bytes += size_bytes
        if draft.is_full:
            self._full_seq, self._below, self.wants_full = seq, before, False
            self._behind_bytes = 0
        for place in [each for each in self._below if each[0] in draft.made_again]:
            del self._below[place]  # nobody will archive what was below in its name

    def collect(self, objects: Objects) -> None:
        """Takes the next step, if one is due."""
        if self.windows <= WINDOWS_MAX and self._size_bytes <= BYTES_MAX:
            return
        if self._full_seq is None or self._full_seq <= self._first_seq:
            self.wants_full = True
            return
        listed = {
            (each.topic, each.partition): each.archived_offset for each in self._tier.status()
        }
        lacking = [
            each
            for each in self._partitions()
            if listed.get(key := (each.place.topic, each.place.partition), 0)
            < self._below.get(key, 0)
        ]
        if lacking:
            self._archive(lacking)
            return
        run(objects, collect(self._full_seq, self._log))
        self._first_seq, self._full_seq = self._full_seq, None
        self._size_bytes = self._behind_bytes

    def _archive(self, lacking: list[Partition]) -> None:
        """Seals and archives what windows hold that are to go."""
        for partition in lacking:
            place = partition.place
            if partition.sealed_end < self._below[place.topic, place.partition]:
                partition.exclusively(partition.roll)
        self._tier.tick(force=True)


def _size_of(sections: Iterable[Section]) -> int:
    return sum(len(each.body) for each in sections)
