"""What a store needs from a partition, whatever its format: reading, writing, keeping, removing.

A segmented partition (`log.partition.Partition`) and one behind the write-ahead log
(`wal.wal_partition.WalPartition`) both implement it; the store sees no other difference between
formats.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.api import Decision, Isolation, PartitionInfo
from lamina.config import TopicSettings, WriterSettings
from lamina.errors import Closed, LaminaError
from lamina.formats.documents.ledger import Ledger
from lamina.formats.scan import Limit
from lamina.log.commit import Writer
from lamina.log.requests import Gate, Request
from lamina.records import Records

if TYPE_CHECKING:
    from lamina.log.cold import Cold
    from lamina.log.directory import Place
    from lamina.log.layers import Layer

_Result = TypeVar("_Result")


class Writing(NamedTuple):
    """What the partitions of a store are written with.

    `progress` returns, for a topic and the number of a partition, what each consumer group has
    acked: everything below an offset. `gate` says whether an answer may go out.
    """

    settings: WriterSettings
    executor: Executor
    progress: Callable[[str, int], Mapping[str, int]]
    gate: Gate = None


class LogReader(Protocol):
    """A partition as readers see it."""

    @property
    def place(self) -> Place:
        """Where it lives."""

    @property
    def format_name(self) -> str:
        """The topic's format."""

    @property
    def cold(self) -> Cold | None:
        """Its archived part, where it has one."""

    @property
    def ledger_of_gaps(self) -> Ledger:
        """Why each missing range of offsets is missing."""

    def earliest_offset(self) -> int:
        """The first offset that may be read."""

    def first_readable(self) -> int:
        """The same as `earliest_offset`, but asks the archive if the answer depends on it."""

    def end_offset(self, isolation: Isolation = "durable") -> int:
        """One past the last offset that readers of an isolation see."""

    def scan(
        self, start: int, limit: Limit, *, isolation: Isolation = "durable", end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields batches from an offset up to the end as it is now; RecordsMissing at a gap."""

    def scan_from(
        self, from_offset: int, *, max_bytes: int | None = None, max_msgs: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Streams durable records from an offset: `scan` as the log's document names it."""

    def wait_beyond(self, offset: int, timeout_s: float, isolation: Isolation) -> bool:
        """Waits until the end is beyond an offset."""

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """Returns the first durable offset whose record is at or after a time."""

    def time_at(self, offset: int) -> int | None:
        """Returns about when the record at an offset was made, from indexes."""

    def bytes_from(self, offset: int) -> int:
        """Returns about how many bytes of records there are from an offset on, from indexes."""

    def gone_from(self, offset: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns which offsets from one on, below the durable end, have no record any more.

        They are the starts and the ends (exclusive) of ranges: sorted, apart from each other.
        """

    def listen(self, event: threading.Event) -> None:
        """Registers an event that every append sets: for waiting on several partitions."""

    def unlisten(self, event: threading.Event) -> None:
        """Ends listening."""

    def end_waits(self) -> None:
        """Wakes waiting readers: no more records will come."""

    def layers(self, isolation: Isolation = "written") -> list[Layer]:
        """Returns the pile: where the records lie, oldest first, without overlap."""

    def info(self) -> PartitionInfo:
        """Describes the partition."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """Which records to delete: exactly one of these is given."""

    before: int | None = None
    tag: bytes | None = None
    tag_prefix: bytes | None = None
    offsets: tuple[int, ...] | None = None
    archived: Searched | None = None
    """What the archive holds of it, searched before any append had to wait."""


class Searched(NamedTuple):
    """Which offsets were searched for a tag, and which of them carry it: bounds, from and to."""

    searched: NDArray[np.int64]
    bounds: NDArray[np.int64]


class LogWriter(LogReader, Protocol):
    """A partition as a store that writes sees it. What changes it is called by the leader."""

    settings: TopicSettings

    @property
    def writer(self) -> Writer:
        """The queue in front of it; topics of one shard share one."""

    @property
    def is_poisoned(self) -> bool:
        """Whether a write or fsync failed."""

    def exclusively(self, action: Callable[[], _Result]) -> _Result:
        """Runs an action while nobody else changes the partition."""

    def level(self, acks: int | None) -> int:
        """Returns the durability of an append that asks for this one, or for none in particular."""

    def admit(self, request: Request) -> None:
        """Refuses, in the producer's own thread, what the partition could not store."""

    def append_batch(
        self, records: Records | bytes, *, acks: object = "topic", timeout_s: float | None = None
    ) -> tuple[int, int]:
        """Appends records; returns the offset of the first one and how many were appended."""

    def producer_position(self, producer_id: int) -> tuple[int, int] | None:
        """Returns an idempotent producer's epoch and the sequence it must go on with."""

    def highest_kafka_producer(self) -> int:
        """Returns the highest id of Kafka's producers that is remembered here; -1 for none."""

    def ask_archive(self) -> None:
        """Loads the archive's list if it alone holds some records; raises ArchiveUnavailable."""

    def trim(self, before: int) -> int:
        """Removes what is below an offset; returns the earliest one left."""

    def delete_records(self, before: int) -> int:
        """Removes all below an offset, up to the durable end; returns the earliest one left."""

    def search_archive(self, deletion: Deletion) -> Deletion:
        """Searches the archive for what a deletion covers; runs in the caller's own thread."""

    def delete(self, deletion: Deletion) -> int:
        """Deletes single records; returns how many. InvalidRequest where the format cannot."""

    def explain_retention(self) -> list[Decision]:
        """Returns for each segment whether it goes and why."""

    def apply_retention(self) -> int:
        """Removes what retention lets go; returns how many segments went."""

    def roll(self) -> None:
        """Seals the active segment, if it holds anything."""

    def sync(self) -> None:
        """Makes everything written durable."""

    def retire(self, reason: Closed) -> None:
        """Refuses further appends for good: the topic was deleted."""

    def fail(self, error: BaseException) -> LaminaError:
        """Takes no more appends until the store is opened again; returns why."""

    @property
    def failure(self) -> LaminaError | None:
        """Why it takes no more appends until the store is opened again, if it does not."""
