"""What servers and jobs of the same process ask a store for beside its records: its parts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from lamina.api import TierStatus
from lamina.errors import InvalidRequest
from lamina.log.partition import Partition
from lamina.log.sealed import Archivable
from lamina.store.lookup import Lookup
from lamina.store.open_topics import OpenTopics
from lamina.store.producer_ids import ProducerIds
from lamina.store.write_ahead import WriteAhead

if TYPE_CHECKING:
    from lamina.archive.tier import Tier
    from lamina.wal.engine import WalEngine
    from lamina.wal.wal_partition import WalPartition


class _Failing(Protocol):
    def failures(self) -> dict[str, str]: ...


class ServerCalls:
    """Lends partitions, asks the archive, gives numbers to producers, and says what has failed."""

    def __init__(
        self,
        lookup: Lookup[Archivable],
        open_topics: OpenTopics,
        write_ahead: WriteAhead,
        producer_ids: ProducerIds,
        tier: Tier | None,
        failing: Iterable[_Failing],
    ) -> None:
        self._lookup = lookup
        self._open = open_topics
        self._write_ahead = write_ahead
        self._producer_ids = producer_ids
        self._tier = tier
        self._failing = failing

    def failures(self) -> dict[str, str]:
        """Returns the partitions and groups that are poisoned, and why."""
        found = {
            partition.place.name: str(partition.failure)
            for partition in self._open.every()
            if partition.failure is not None
        }
        for each in self._failing:
            found |= each.failures()
        return found

    def archive(self) -> None:
        """Archives everything that is sealed now, even in small objects; raises what failed."""
        self._lookup.require_open()
        if self._tier is None:
            raise InvalidRequest(
                "the store has no archive: open it with archive='s3://bucket/prefix' or a directory"
            )
        self._tier.archive()

    def tier_status(self) -> list[TierStatus]:
        """Returns how far the archive of each archived partition is behind."""
        self._lookup.require_open()
        return self._tier.status() if self._tier is not None else []

    def new_producer_id(self) -> int:
        """Returns an id for an idempotent producer of Kafka's protocol."""
        self._lookup.require_open()
        return self._producer_ids.take()

    def segmented(self, topics: Collection[str] | None = None) -> list[Partition]:
        """Returns the segmented partitions, for jobs that work on segments."""
        self._lookup.require_open()
        return self._open.segmented(topics)

    def wal_partitions(self, topics: Collection[str] | None = None) -> list[WalPartition]:
        """Returns the partitions behind the write-ahead log, for jobs that work on them."""
        self._lookup.require_open()
        return self._open.behind_wal(topics)

    def write_ahead_log(self) -> WalEngine:
        """Returns the write-ahead log, which is created for the first topic that needs it."""
        return self._write_ahead.begun()

    def purge_wal(self) -> None:
        """Copies everything into segments and frees every WAL file that holds a record."""
        self._lookup.require_open()
        if self._write_ahead.engine is not None:
            self._write_ahead.engine.purge()
