"""The groups that clients of a server use: opened once, shared by all who name them.

A call from elsewhere names its group, where a program holds an object. The server keeps the
object, so that partitions take turns over the calls of all clients.

Rules.
1. Only `open` makes a group: any other call on one that is not there is UnknownGroup.
2. Whoever is gone holds nothing but leases, which end by themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from lamina.api import Held, Start
from lamina.errors import Closed, InvalidRequest, UnknownGroup, UnknownTopic
from lamina.groups.group import Group
from lamina.store.store import Store
from lamina.wire.messages import OFFSETS
from lamina.wire.operations import Named


class OpenGroups:
    """The group objects of one served store."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Group] = {}

    def open(self, store: Store, topic: str, name: str, start: Start = "earliest") -> Group:
        """Opens a group, with its topic's settings as they are now; makes it as `start` says."""
        made = self._open[topic, name] = store.group(topic, name, start=start)
        return made

    def forget(self, topic: str, name: str | None) -> None:
        """Drops a group that was deleted, or all of a topic; names come and go for years."""
        for each in list(self._open):
            if each[0] == topic and name in (None, each[1]):
                self._open.pop(each, None)

    @contextlib.contextmanager
    def using(self, store: Store, topic: str, name: str) -> Iterator[Group]:
        """Finds a group for one call; raises UnknownGroup for one that is not there (any more)."""
        found = self._open.get((topic, name))
        if found is None:
            try:
                found = self.open(store, topic, name, "none")
            except UnknownTopic as error:
                raise UnknownGroup(str(error.args[0])) from error
        try:
            yield found
        except Closed as error:
            self._open.pop((topic, name), None)
            if type(error) is Closed and not _is_there(store, topic, name):
                raise UnknownGroup(str(error)) from error
            raise


def _is_there(store: Store, topic: str, name: str) -> bool:
    return (topic, name) in store.groups(topic)


def call(group: Group, name: str, given: dict[str, Any]) -> Any:
    """Calls a method of a group, or reads a property."""
    found = getattr(group, name)
    if "held" in given:
        given["held"] = held_of(given["held"])
    return found(**given) if callable(found) else found


def held_of(given: list[int] | list[Named] | pa.RecordBatch) -> Held:
    """Makes what a group takes of the records that a call names."""
    if isinstance(given, pa.RecordBatch):
        for name in given.schema.names:
            column = given.column(name)
            if not pa.types.is_integer(column.type) or column.null_count:
                raise InvalidRequest(f"column {name[:80]!r} must be whole numbers")
        return given.column(OFFSETS) if given.schema.names == [OFFSETS] else given
    if not given or isinstance(given[0], int):
        return given
    columns: dict[str, list[int]] = {}
    for name in ("offset", "partition", "epoch"):
        numbers = [getattr(each, name) for each in given]
        if all(number is not None for number in numbers):
            columns[name] = numbers
        elif any(number is not None for number in numbers):
            raise InvalidRequest(f"either all or none of the records have their {name!r}")
    arrays = [pa.array(numbers, pa.int64()) for numbers in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))
