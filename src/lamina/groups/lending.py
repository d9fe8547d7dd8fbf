"""A group as Kafka's share consumers use it: records are lent to a consumer, which settles them.

Besides the calls that every consumer makes there are two for a door that identifies its consumers:
it keeps what each one holds (`holding`), and passes on what that one decides (`verdicts`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.api import DURABLE, POLL_RECORDS_MAX, numbers_of
from lamina.groups.group import Group, Wanted
from lamina.groups.shared_partition import GroupPartition
from lamina.groups.state import Chosen
from lamina.groups.verdicts import Verdict, are_held, settle


class LendingGroup(Group):
    """A group of consumers of one topic, some of which may only settle what they hold."""

    def partition(self, number: int) -> GroupPartition:
        """Returns the group's share in one partition; raises UnknownTopic."""
        return self._partition(number)

    def acquire(
        self, number: int, max_records: int, max_bytes: int
    ) -> tuple[pa.RecordBatch, Chosen, int]:
        """Hands out records of one partition as Kafka's share consumers get them.

        Up to as many as the topic allows to be held at once, for the topic's own lease. Returns the
        records, their offsets and epochs, and when the lease ends.
        """
        most = min(max_records, POLL_RECORDS_MAX)
        wanted = Wanted(self.settings.lease_ms, DURABLE, self.settings.record_locks_max)
        batch = self._poll_once([self.partition(number)], most, max_bytes, wanted)
        chosen = Chosen(numbers_of(batch, "offset"), numbers_of(batch, "epoch"))
        if not batch.num_rows:
            return batch, chosen, 0
        deadlines_ms = batch.column("deadline").cast(pa.int64()).to_numpy()
        return batch, chosen, int(deadlines_ms.min())

    def settle(self, number: int, held: Chosen, verdicts: NDArray[np.int8]) -> int | None:
        """Settles records that one consumer holds as it decides, durably: all of them, or none.

        Returns when leases that were renewed end; None if one of the records is not held any more.
        """
        target = self.partition(number)
        rejected = held.only(verdicts == Verdict.REJECT)
        if len(rejected.offsets):
            if not are_held(target, held):
                return None
            self._write_letters(target, rejected, "rejected")
        return settle(target, held, verdicts, self.settings.lease_ms)
