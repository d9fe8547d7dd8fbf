"""Where a consumer's committed positions are kept: in a classic group, or with the program.

With `group.id` they are those of the store's classic group of that name, where Kafka's clients
find them, too: they outlive the program, and their lag can be seen. Without, they end with the
consumer.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from lamina.api import StoreApi
from lamina.api.memberships import Committed, Identity, Refusal
from lamina.errors import Fenced, UnknownGroup


class Positions(Protocol):
    """Keeps the next offset of each partition for one group."""

    def load(self, topic: str, partition: int) -> int | None:
        """Returns the committed offset; None where none is."""

    def begin(self, offsets: Iterable[tuple[str, int, int]]) -> None:
        """Notes where a group without a place begins: a later start must not miss what follows."""

    def save(self, offsets: Iterable[tuple[str, int, int]]) -> None:
        """Commits offsets (topic, partition, the next offset to be read), durably."""


class InMemory:
    """Positions that end with the program."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def load(self, topic: str, partition: int) -> int | None:
        """Returns the committed offset; None where none is."""
        return self._offsets.get((topic, partition))

    def begin(self, offsets: Iterable[tuple[str, int, int]]) -> None:
        """Leaves it to the consumer where to begin: there is no later start."""

    def save(self, offsets: Iterable[tuple[str, int, int]]) -> None:
        """Commits offsets."""
        with self._lock:
            for topic, partition, offset in offsets:
                self._offsets[topic, partition] = offset


class InGroup:
    """Positions that are those of a classic group of the store.

    Earlier releases kept them in a share group of the same name: where the classic group has none
    yet, those count.
    """

    def __init__(
        self, store: StoreApi, group: str, member: Callable[[], Identity | None] = lambda: None
    ) -> None:
        self._store = store
        self._group = group
        self._member = member

    def load(self, topic: str, partition: int) -> int | None:
        """Returns the group's committed offset; None where there is none."""
        for each in self._store.committed_offsets(self._group):
            if (each.topic, each.partition) == (topic, partition):
                # Kafka's clients may commit any number, and take one below 0 for none.
                return each.offset if each.offset >= 0 else None
        try:
            return self._store.group(topic, self._group, start="none").committed(partition)
        except UnknownGroup:
            return None

    def begin(self, offsets: Iterable[tuple[str, int, int]]) -> None:
        """Commits where the group begins; members that share it do so for themselves."""
        with contextlib.suppress(Fenced):
            self.save(offsets)

    def save(self, offsets: Iterable[tuple[str, int, int]]) -> None:
        """Commits offsets; raises Fenced where the share they are of is somebody else's now."""
        entries = [Committed(*each) for each in offsets]
        if not entries:
            return
        refusal = self._store.commit_offsets(self._group, entries, self._member())
        if refusal is Refusal.UNKNOWN_MEMBER_ID and self._member() is None:
            raise Fenced(
                f"group {self._group!r} has members that share its partitions; a consumer that"
                " assigns partitions to itself cannot commit for it: subscribe, or use another"
                " group.id"
            )
        if refusal is not None:
            raise Fenced(
                f"group {self._group!r} has moved on ({refusal.name}): its partitions may be"
                " another consumer's now; poll, and commit what is handed out from there"
            )
