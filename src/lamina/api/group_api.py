"""Everything that a consumer group can be asked, embedded or served.

    group = store.group("orders", "billing")
    batch = group.poll(1000, lease_ms=30_000)     # an Arrow batch, with partition, epoch, deadline
    group.ack(batch)                              # durable when this returns

Any number of threads may share a group, each polling for itself: no record is with two of them at
once. A consumer that dies loses only its leases: its records are redelivered after the deadline.

Rule: every kind of group does all of this; the docstrings here are the contract, and what `help`
shows for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import pyarrow as pa

from lamina.api.acks import GroupAcks
from lamina.api.answers import GroupInfo, PartitionLag, Skipped
from lamina.api.held_records import MORE_FIELDS, POLL_BYTES, Held
from lamina.api.portraits import Portrait, Shown
from lamina.arguments import TypedCalls
from lamina.records import OUTPUT_SCHEMAS


class GroupApi(Shown, TypedCalls, ABC):
    """A group of consumers of one topic. Get it from `store.group`.

    `schema` is that of polled batches: the columns of the topic's format, then partition, epoch
    and deadline.
    """

    def __init__(self, topic: str, name: str, format_name: str) -> None:
        self.topic = topic
        self.name = name
        self.schema = pa.schema([*OUTPUT_SCHEMAS[format_name], *MORE_FIELDS])

    def _portrait(self) -> Portrait:
        return Portrait(f"<lamina group {self.name!r} of {self.topic!r}>")

    # ------------------------------------------------------------------ queue style

    @abstractmethod
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
        """Hands out up to `max_records` that nobody holds, for `lease_ms`.

        Waits up to `wait_ms` for the first one. Records come again, with a higher epoch, when they
        are not acked by their deadline; after the delivery limit they go to the dead-letter topic.
        """

    @abstractmethod
    def ack(self, held: Held, *, partition: int | None = None, acks: GroupAcks = "all") -> int:
        """Marks records as done: they never come again. Returns how many are newly acked.

        Any order, any number of times, also what is not held (any more).
        """

    @abstractmethod
    def release(self, held: Held, *, partition: int | None = None, acks: GroupAcks = "all") -> int:
        """Gives records back: they are deliverable at once. Returns how many were held.

        Of a polled batch only what is still held under its epochs is given back.
        """

    @abstractmethod
    def extend(
        self,
        held: Held,
        lease_ms: int | None = None,
        *,
        partition: int | None = None,
        acks: GroupAcks = "all",
    ) -> int:
        """Moves deadlines to `lease_ms` from now. Returns how many records were still held."""

    @abstractmethod
    def reject(self, held: Held, reason: str = "rejected", *, partition: int | None = None) -> int:
        """Sends records to the dead-letter topic at once and acks them. Returns how many."""

    # ------------------------------------------------------------------ stream style

    @abstractmethod
    def commit(self, offset: int, partition: int = 0, *, acks: GroupAcks = "all") -> int:
        """Acks everything below an offset; returns what is committed, which never moves back."""

    @abstractmethod
    def committed(self, partition: int = 0) -> int:
        """Returns the offset below which everything is acked, durably."""

    # ------------------------------------------------------------------ looking at it

    @abstractmethod
    def lag(self) -> list[PartitionLag]:
        """Returns for each partition how far the group is behind."""

    def describe(self) -> GroupInfo:
        """Describes the group."""
        return GroupInfo(self.topic, self.name, tuple(self.lag()))

    @property
    @abstractmethod
    def skipped(self) -> list[Skipped]:
        """The latest ranges that the group went past because their records are gone."""
