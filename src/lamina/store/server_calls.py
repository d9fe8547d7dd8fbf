"""What a store answers to servers and jobs beside its API: its parts, and its hold on a cluster."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from lamina.groups.coordinator import Coordinator
from lamina.log.partition import Partition
from lamina.log.sealed import Archivable
from lamina.store.lookup import Lookup
from lamina.store.open_topics import OpenTopics
from lamina.store.producer_ids import ProducerIds
from lamina.store.write_ahead import WriteAhead

if TYPE_CHECKING:
    from lamina.archive.tier import Tier
    from lamina.store.seat import Seat
    from lamina.wal.engine import WalEngine
    from lamina.wal.wal_partition import WalPartition


class ServerCalls:
    """Calls of a store that writes, for servers and jobs of the same process."""

    _tier: Tier | None = None
    _seat: Seat | None = None
    _coordinator: Coordinator
    _lookup: Lookup[Archivable]
    _open: OpenTopics
    _producer_ids: ProducerIds
    _write_ahead: WriteAhead

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of classic groups, for the doors that speak its protocol."""
        return self._coordinator

    def new_producer_id(self) -> int:
        """Returns an id for an idempotent producer of Kafka's protocol."""
        self._lookup.require_open()
        return self._producer_ids.take()

    @property
    def tier(self) -> Tier | None:
        """The part that looks after the archive; None without one."""
        return self._tier

    @property
    def seat(self) -> Seat | None:
        """The store's hold on a cluster; None without one."""
        return self._seat

    def ship_lag_ms(self) -> int:
        """Returns how long the oldest durable record may have been in no window; 0 for none."""
        seat = self._seat
        return seat.shipper.lag_ms() if seat is not None and seat.shipper is not None else 0

    def unshipped_records(self) -> int:
        """Returns how many durable records are in no window yet: what a lost machine would take."""
        seat = self._seat
        return seat.shipper.unshipped_records() if seat is not None and seat.shipper else 0

    @property
    def shipped_seq(self) -> int:
        """The slot of the last window that is there; -1 for none."""
        return self._seat.log.next_seq - 1 if self._seat is not None else -1

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
