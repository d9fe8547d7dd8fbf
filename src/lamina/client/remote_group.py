"""A consumer group of a served store: the same methods, types and errors as an embedded one.

The server keeps the group; this object only names it. Polled records come as Arrow, and those
that a call speaks of go back as the few columns that name them.

Rules.
1. What a method does, and with which arguments, is said by `GroupApi` alone.
2. A poll that was not answered is asked again: what it may have handed out comes again after its
   deadline, as with a consumer that died.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import flight

from lamina.api import (
    DURABLE,
    POLL_BYTES,
    GroupAcks,
    GroupApi,
    Held,
    Lags,
    PartitionLag,
    Skipped,
    as_offsets,
    level_of,
    numbers_of,
)
from lamina.arguments import wait_s
from lamina.client.calls import call
from lamina.client.connection import Connection, Patience
from lamina.errors import Closed, UnknownGroup
from lamina.wire import messages
from lamina.wire.operations import OPERATIONS, Operation

_NAMING = ("offset", "partition", "epoch")


class RemoteGroup(GroupApi):
    """A group of consumers of one topic of a served store. Get it from `store.group`."""

    def __init__(self, connection: Connection, topic: str, name: str, format_name: str) -> None:
        super().__init__(topic, name, format_name)
        self._connection = connection

    # ------------------------------------------------------------------ queue style

    def poll(
        self,
        max_records: int = 500,
        lease_ms: int | None = None,
        *,
        wait_ms: int = 0,
        partitions: Sequence[int] | None = None,
        max_bytes: int = POLL_BYTES,
        acks: GroupAcks = "all",
    ) -> pa.RecordBatch:
        """Hands out up to `max_records` that nobody holds, for `lease_ms`; see `GroupApi`."""
        level, chosen = _level(acks), None if partitions is None else list(partitions)
        waiting = Patience.of(wait_s(wait_ms))
        while True:
            wait_ms = self._connection.waiting_ms(waiting)
            asked = messages.Poll(
                *(self.topic, self.name, max_records, lease_ms, wait_ms, chosen, max_bytes, level)
            )
            ticket = flight.Ticket(messages.encode_question(asked))

            def ask(options: Any, ticket: Any = ticket) -> pa.RecordBatch:
                return self._connection.client.do_get(ticket, options).read_chunk().data

            patience = Patience.of(self._connection.timeout_s)
            batch = self._known(lambda: self._connection.repeat(ask, patience))  # noqa: B023
            if batch.num_rows or waiting.left_s <= 0.001:
                return batch

    def ack(self, held: Held, *, partition: int | None = None, acks: GroupAcks = "all") -> int:
        """Marks records as done: they never come again; see `GroupApi`."""
        return int(self._call("ack", held, partition=partition, acks=_level(acks)))

    def release(self, held: Held, *, partition: int | None = None, acks: GroupAcks = "all") -> int:
        """Gives records back: they are deliverable at once; see `GroupApi`."""
        return int(self._call("release", held, partition=partition, acks=_level(acks)))

    def extend(
        self,
        held: Held,
        lease_ms: int | None = None,
        *,
        partition: int | None = None,
        acks: GroupAcks = "all",
    ) -> int:
        """Moves deadlines to `lease_ms` from now; see `GroupApi`."""
        more = {"lease_ms": lease_ms, "partition": partition, "acks": _level(acks)}
        return int(self._call("extend", held, **more))

    def reject(self, held: Held, reason: str = "rejected", *, partition: int | None = None) -> int:
        """Sends records to the dead-letter topic at once and acks them; see `GroupApi`."""
        return int(self._call("reject", held, reason=reason, partition=partition))

    # ------------------------------------------------------------------ stream style

    def commit(self, offset: int, partition: int = 0, *, acks: GroupAcks = "all") -> int:
        """Acks everything below an offset; see `GroupApi`."""
        given = {"offset": offset, "partition": partition, "acks": _level(acks)}
        return int(self._call("commit", None, **given))

    def committed(self, partition: int = 0) -> int:
        """Returns the offset below which everything is acked, durably."""
        return int(self._call("committed", None, partition=partition))

    # ------------------------------------------------------------------ looking at it

    def lag(self) -> list[PartitionLag]:
        """Returns for each partition how far the group is behind."""
        return Lags(self._call("lag", None), f"group {self.name!r} of {self.topic!r}")

    @property
    def skipped(self) -> list[Skipped]:
        """The latest ranges that the group went past because their records are gone."""
        found: list[Skipped] = self._call("skipped", None)
        return found

    # ------------------------------------------------------------------ calling

    def _call(self, name: str, held: Held | None, **more: Any) -> Any:
        operation: Operation = OPERATIONS[f"group.{name}"]
        given = {"topic": self.topic, "group": self.name} | more
        columns = None if held is None else _columns(held)
        return self._known(lambda: call(self._connection, operation, given, columns))

    def _known(self, action: Any) -> Any:
        """Runs a call; a group that is gone is closed for all of its users."""
        try:
            return action()
        except UnknownGroup as error:
            gone = self.topic not in call(self._connection, OPERATIONS["topics"], {})
            what = f"group {self.name!r} of {self.topic!r}"
            what = f"topic {self.topic!r}" if gone else what
            raise Closed(f"{what} was deleted") from error


def _level(acks: object) -> str:
    return "all" if level_of(acks) == DURABLE else "1"


def _columns(held: Held) -> pa.RecordBatch:
    """Makes the few columns that name records; what names none is refused here."""
    if isinstance(held, pa.RecordBatch | pa.Table):
        names = [name for name in _NAMING if name in held.schema.names]
        if held.num_rows and "offset" not in names:
            numbers_of(held, "offset")
        arrays = [pa.array(numbers_of(held, name)) for name in names]
        return pa.RecordBatch.from_arrays(arrays, names)
    return pa.RecordBatch.from_arrays([pa.array(as_offsets(held))], [messages.OFFSETS])
