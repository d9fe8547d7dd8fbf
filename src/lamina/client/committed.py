"""Where a consumer's committed positions are kept: in a consumer group, or with the program.

With `group.id` they are those of the store's group of that name in each topic: they outlive the
program, and its lag can be seen. Without, they end with the consumer.
"""

from __future__ import annotations

import threading
from typing import Protocol

from lamina.api import GroupApi, Start, StoreApi
from lamina.errors import UnknownGroup


class Positions(Protocol):
    """Keeps the next offset of each partition for one group."""

    def load(self, topic: str, partition: int) -> int | None:
        """Returns the committed offset; None where none is."""

    def begin(self, topic: str, partition: int, start: Start) -> int | None:
        """Makes the group where there is none; returns the committed offset, if that gives one."""

    def save(self, topic: str, partition: int, offset: int) -> int:
        """Commits an offset, the next one to be read; returns what is committed now."""


class InMemory:
    """Positions that end with the program."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def load(self, topic: str, partition: int) -> int | None:
        """Returns the committed offset; None where none is."""
        return self._offsets.get((topic, partition))

    def begin(self, topic: str, partition: int, start: Start) -> int | None:
        """Leaves it to the consumer where to begin."""
        del topic, partition, start
        return None

    def save(self, topic: str, partition: int, offset: int) -> int:
        """Commits an offset."""
        with self._lock:
            self._offsets[topic, partition] = offset
        return offset


class InGroup:
    """Positions that are those of a consumer group of the store."""

    def __init__(self, store: StoreApi, group: str) -> None:
        self._store = store
        self._group = group
        self._known: dict[str, GroupApi] = {}

    def load(self, topic: str, partition: int) -> int | None:
        """Returns the group's committed offset; None where there is no group."""
        try:
            return self._of(topic, "none").committed(partition)
        except UnknownGroup:
            return None

    def begin(self, topic: str, partition: int, start: Start) -> int | None:
        """Makes the group: from now on it has a place, which a later start finds again."""
        return self._of(topic, start).committed(partition)

    def save(self, topic: str, partition: int, offset: int) -> int:
        """Commits an offset; a group's place never moves back but by a seek of the group."""
        return self._of(topic, "earliest").commit(offset, partition)

    def _of(self, topic: str, start: Start) -> GroupApi:
        if topic not in self._known:
            self._known[topic] = self._store.group(topic, self._group, start=start)
        return self._known[topic]
