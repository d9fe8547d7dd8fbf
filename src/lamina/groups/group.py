"""A consumer group of a topic: the calls that consumers make.

    group = store.group("orders", "billing")
    batch = group.poll(1000, lease_ms=30_000)     # an Arrow batch, with partition, epoch, deadline
    group.ack(batch)                              # durable when this returns

Any number of threads may share a group, each polling for itself: no record is with two of them at
once. A consumer that dies loses only its leases: its records are redelivered after the deadline.

Rules.
1. Nothing is answered before it is as safe as `acks` asks for (`all`, the default, is fsynced).
2. What is answered by a poll is what its consumer holds: a lease each, journaled.
3. No storage logic here: one `GroupPartition` for each partition knows what was delivered.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from lamina.api import (
    DURABLE,
    LEASE_MS_MAX,
    MORE_FIELDS,
    POLL_BYTES,
    POLL_RECORDS_MAX,
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
from lamina.arguments import no_partition, wait_s
from lamina.config import TopicSettings
from lamina.errors import InvalidRequest, UnknownTopic
from lamina.groups import dead_letters
from lamina.groups.shared_partition import GroupPartition
from lamina.groups.state import Chosen, Numbers

_Target: TypeAlias = tuple[GroupPartition, Numbers, Numbers | None]


class Wanted(NamedTuple):
    """What a poll asks for. With `held_max` no more records of a partition are held at once."""

    lease_ms: int
    level: int = DURABLE
    held_max: int | None = None


class Group(GroupApi):
    """A group of consumers of one topic. Get it from `store.group`."""

    def __init__(
        self,
        host: dead_letters.Host,
        topic: str,
        name: str,
        partitions: Sequence[GroupPartition],
        settings: TopicSettings,
    ) -> None:
        format_name, _ = host.format_of(topic)
        super().__init__(topic, name, format_name)
        self._host = host
        self._partitions = partitions
        self.settings = settings
        self._turn = itertools.count()

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
        """Hands out records; waits for the first of them, and for deadlines that free some."""
        lease_ms = self._lease(lease_ms)
        if not 1 <= max_records <= POLL_RECORDS_MAX or not 1 <= max_bytes <= 1 << 30:
            raise InvalidRequest(
                f"a poll takes 1 to {POLL_RECORDS_MAX} records and up to 1 GiB,"
                f" not {max_records} and {max_bytes} bytes"
            )
        wanted = Wanted(lease_ms, level_of(acks))
        chosen = [self._partition(number) for number in self._numbers(partitions)]
        if wait_ms <= 0:
            return self._poll_once(chosen, max_records, max_bytes, wanted)
        until = time.monotonic() + wait_s(wait_ms)
        while True:
            event = threading.Event()
            for each in chosen:
                each.listen(event)
            try:
                batch = self._poll_once(chosen, max_records, max_bytes, wanted)
                left_s = until - time.monotonic()
                if batch.num_rows or left_s <= 0:
                    return batch
                event.wait(min(left_s, self._until_a_deadline_s(chosen, left_s)))
            finally:
                for each in chosen:
                    each.unlisten(event)

    def _until_a_deadline_s(self, chosen: Sequence[GroupPartition], otherwise_s: float) -> float:
        deadlines = [each.next_deadline_ms() for each in chosen]
        earliest = min((each for each in deadlines if each is not None), default=None)
        if earliest is None:
            return otherwise_s
        return max(0.001, (earliest - chosen[0].now_ms()) / 1000)

    def _poll_once(
        self,
        chosen: Sequence[GroupPartition],
        max_records: int,
        max_bytes: int,
        wanted: Wanted,
    ) -> pa.RecordBatch:
        """Takes from the partitions in turn, starting with another one each time."""
        first = next(self._turn)
        parts: list[pa.RecordBatch] = []
        for number in range(len(chosen)):
            target = chosen[(first + number) % len(chosen)]
            while max_records > 0 and max_bytes > 0:
                part, is_over = self._take(target, max_records, max_bytes, wanted)
                if part is not None:
                    parts.append(part)
                    max_records -= part.num_rows
                    max_bytes -= part.get_total_buffer_size()
                if is_over:
                    break
        if not parts:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _take(
        self, target: GroupPartition, max_records: int, max_bytes: int, wanted: Wanted
    ) -> tuple[pa.RecordBatch | None, bool]:
        """Takes records of one partition; returns whether there is no need to look further."""
        limit = self.settings.delivery_limit
        ticket, chosen, spent = target.choose(max_records, limit, wanted.held_max)
        try:
            if len(spent.offsets):
                self._bury(target, spent, f"delivered {limit} times, not acked")
            if not len(chosen.offsets):
                return None, not len(spent.offsets)
            batch, there = target.read(chosen, max_bytes)
            if batch is None:
                return None, False  # only holes: they are known now
            given, deadline_ms = target.mark(there, wanted.lease_ms, wanted.level)
        finally:
            target.put_back(ticket)
        epochs = there.epochs + 1
        if not given.all():
            batch, epochs = batch.filter(pa.array(given)), epochs[given]
        if not batch.num_rows:
            return None, False
        return self._with_leases(target.partition, batch, epochs, deadline_ms), True

    def _with_leases(
        self, partition: int, batch: pa.RecordBatch, epochs: Numbers, deadline_ms: int
    ) -> pa.RecordBatch:
        count = batch.num_rows
        made = (
            np.full(count, partition, dtype=np.int32),
            epochs,
            np.full(count, deadline_ms, dtype=np.int64),
        )
        columns = [
            pa.Array.from_buffers(field.type, count, [None, pa.py_buffer(numbers)])
            for field, numbers in zip(MORE_FIELDS, made, strict=True)
        ]
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=self.schema)

    def ack(self, held: Held, *, partition: int | None = None, acks: GroupAcks = "all") -> int:
        """Marks records as done; returns how many are newly acked."""
        level = level_of(acks)
        return sum(
            target.ack(offsets, level) for target, offsets, _ in self._targets(held, partition)
        )

    def release(self, held: Held, *, partition: int | None = None, acks: GroupAcks = "all") -> int:
        """Releases records; returns how many were held."""
        level = level_of(acks)
        targets = self._targets(held, partition)
        return sum(target.release(offsets, epochs, level) for target, offsets, epochs in targets)

    def extend(
        self,
        held: Held,
        lease_ms: int | None = None,
        *,
        partition: int | None = None,
        acks: GroupAcks = "all",
    ) -> int:
        """Moves deadlines; returns how many records were still held."""
        lease, level = self._lease(lease_ms), level_of(acks)
        targets = self._targets(held, partition)
        return sum(
            target.extend(offsets, epochs, lease, level)[0] for target, offsets, epochs in targets
        )

    def reject(self, held: Held, reason: str = "rejected", *, partition: int | None = None) -> int:
        """Sends records to the dead-letter topic at once and acks them. Returns how many."""
        count = 0
        for target, offsets, _ in self._targets(held, partition):
            state = target.durable
            open_ = offsets[~state.are_acked(offsets)]
            rows = state.lease_rows(open_)
            known = state.epochs[rows] if len(state.epochs) else np.zeros_like(open_)
            count += self._bury(target, Chosen(open_, np.where(rows >= 0, known, 0)), reason)
        return count

    def _bury(self, target: GroupPartition, spent: Chosen, reason: str) -> int:
        """Makes dead letters, then acks; what is not there any more is only acked."""
        count = self._write_letters(target, spent, reason)
        if len(spent.offsets):
            target.ack(spent.offsets, DURABLE)
        return count

    def _write_letters(self, target: GroupPartition, spent: Chosen, reason: str) -> int:
        count = 0
        left = spent
        while len(left.offsets):
            batch, there = target.read(left, POLL_BYTES)
            if batch is not None:
                where = self.topic, target.partition, self.name, target.life or ""
                sender = dead_letters.Sender(*where)
                dead_letters.send(self._host, sender, batch, there.epochs, reason)
                count += batch.num_rows
            if batch is None:
                break
            left = left.only(left.offsets > there.offsets[-1])
        return count

    # ------------------------------------------------------------------ stream style

    def commit(self, offset: int, partition: int = 0, *, acks: GroupAcks = "all") -> int:
        """Acks everything below an offset; returns what is committed, which never moves back."""
        if offset < 0:
            raise InvalidRequest(f"offsets count from 0, got {offset}")
        return self._partition(partition).commit(offset, level_of(acks))

    def committed(self, partition: int = 0) -> int:
        """Returns the offset below which everything is acked, durably."""
        return self._partition(partition).durable.acked_until

    # ------------------------------------------------------------------ looking at it

    def lag(self) -> list[PartitionLag]:
        """Returns for each partition how far the group is behind."""
        lags = [each.lag() for each in self._partitions]
        return Lags(lags, f"group {self.name!r} of {self.topic!r}")

    @property
    def skipped(self) -> list[Skipped]:
        """The latest ranges that the group went past because their records are gone."""
        return [one for each in self._partitions for one in each.skipped]

    # ------------------------------------------------------------------ what callers name

    def _partition(self, number: int) -> GroupPartition:
        if not 0 <= number < len(self._partitions):
            raise UnknownTopic(no_partition(self.topic, len(self._partitions), number))
        return self._partitions[number]

    def _numbers(self, given: Sequence[int] | None) -> Sequence[int]:
        return range(len(self._partitions)) if given is None else given

    def _lease(self, given: int | None) -> int:
        lease_ms = self.settings.lease_ms if given is None else given
        if not 1 <= lease_ms <= LEASE_MS_MAX:
            raise InvalidRequest(f"a lease is 1 to {LEASE_MS_MAX} ms, not {lease_ms}")
        return lease_ms

    def _targets(self, held: Held, partition: int | None) -> list[_Target]:
        """Sorts what a caller names by partition: ascending offsets, with epochs if they are given.

        The order and repeats of the offsets do not matter.
        """
        if isinstance(held, pa.RecordBatch | pa.Table):
            return self._targets_of_batch(held, partition)
        if partition is None and len(self._partitions) > 1:
            raise InvalidRequest("offsets need their partition; or hand in what poll returned")
        offsets = as_offsets(held)
        if not len(offsets):
            return []
        return [(self._partition(partition or 0), np.unique(offsets), None)]

    def _targets_of_batch(self, held: Any, partition: int | None) -> list[_Target]:
        if not held.num_rows:
            return []
        offsets = numbers_of(held, "offset")
        names = held.schema.names
        epochs = numbers_of(held, "epoch") if "epoch" in names else None
        if "partition" in names:
            numbers = numbers_of(held, "partition")
        else:
            if partition is None and len(self._partitions) > 1:
                raise InvalidRequest("these records have no column 'partition'; name it")
            numbers = np.full(len(offsets), partition or 0, dtype=np.int64)
        if _ascend(offsets) and (numbers == numbers[0]).all():
            return [(self._partition(int(numbers[0])), offsets, epochs)]
        found: list[_Target] = []
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            unique, first = np.unique(offsets[rows], return_index=True)
            mine = None if epochs is None else epochs[rows][first]
            found.append((self._partition(number), unique, mine))
        return found


def _ascend(offsets: Numbers) -> bool:
    return bool((offsets[1:] > offsets[:-1]).all())
