"""Where a streaming query stands, told to the log, so that lag and retention can see it.

Spark's checkpoint stays the truth; a published position is for others to look at, and it may be one
micro-batch behind. How it is published depends on who holds the groups:

- a server commits it to the group at once;
- a directory belongs to the process that has the store open. The query holds no lock, so it leaves
  a small file, which the store takes over at its next tick, or when it is next opened;
- an archive alone has no groups: nothing is published.

Rule: a position that cannot be published is logged, and never stops a query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import lamina
from lamina.errors import LaminaError
from lamina.formats.documents.position_file import Position, TopicPosition
from lamina.groups.positions import leave
from lamina.spark.access import ServerAccess, Where
from lamina.spark.gaps import LOGGER
from lamina.spark.logs.local import boot_of
from lamina.spark.logs.open_log import is_archive
from lamina.storage.files import LocalFiles


class Publisher(Protocol):
    """Takes the position of a query after each committed micro-batch."""

    def publish(self, position: Position) -> None:
        """Is told that all records below these offsets are processed."""


class Unpublished:
    """Publishes nothing: an archive has no groups."""

    def publish(self, position: Position) -> None:
        """Does nothing."""


class LeftBehind:
    """Leaves positions in a directory, for the store that has it open or will have."""

    def __init__(self, path: str) -> None:
        self._data = boot_of(path).data
        self._files = LocalFiles()

    def publish(self, position: Position) -> None:
        """Replaces the query's file."""
        leave(self._files, self._data, position)


class Committed:
    """Commits positions to the groups of a server."""

    def __init__(self, access: ServerAccess) -> None:
        self._access = access
        self._store: lamina.RemoteStore | None = None

    def publish(self, position: Position) -> None:
        """Commits each partition's offset; one that was committed before moves nothing."""
        if self._store is None:
            self._store = self._access.connect()
        for each in position.topics:
            group = self._store.group(each.topic, position.group)
            for partition, offset in each.offsets.items():
                group.commit(offset, partition)


class Positions:
    """Publishes positions that changed; what goes wrong is only told."""

    def __init__(self, where: Where) -> None:
        self._publisher = _publisher(where)
        self._last: Position | None = None

    def publish(
        self, group: str, ends: Mapping[tuple[str, int], int], epochs: Mapping[str, int]
    ) -> None:
        """Publishes that everything below some offsets is processed."""
        offsets: dict[str, dict[int, int]] = {}
        for (topic, partition), end in sorted(ends.items()):
            offsets.setdefault(topic, {})[partition] = end
        topics = [TopicPosition(name, epochs[name], those) for name, those in offsets.items()]
        position = Position(group, tuple(topics))
        if position == self._last:
            return
        try:
            self._publisher.publish(position)
            self._last = position
        except (OSError, LaminaError) as error:
            LOGGER.warning("the position of %s could not be published: %s", group, error)


def _publisher(where: Where) -> Publisher:
    if where.server is not None:
        return Committed(where.server)
    if where.path is not None and not is_archive(where.path):
        return LeftBehind(where.path)
    return Unpublished()
