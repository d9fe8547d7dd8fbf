"""The values that public calls take and return, apart from those about records themselves.

The same for every kind of store: what travels on the wire, what commands print and what the
console draws are these. They carry no behaviour but sums over their own fields.

Rule: a value is frozen, and its fields are plain (numbers, text, bytes, other values), so that it
can be sent and compared as it is. No Arrow here: whoever looks into a small file loads none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias
from uuid import UUID

from lamina.api.portraits import Bar, Portrait, Shown, counted, shown_size, table_portrait
from lamina.api.writer_counts import Pulse
from lamina.errors import UNREADABLE, InvalidRequest

Isolation: TypeAlias = Literal["durable", "written"]
"""Which records a reader sees: those that are fsynced, or all that are written."""
Start: TypeAlias = Literal["earliest", "latest", "none"]
"""Where a consumer group begins that is not there yet; with `none` it is not made."""
State: TypeAlias = Literal["gone", "cold", "sealed", "active"]
REASONS = ("retention", "trim", "deleted", "compacted", "truncated", "lost", "archived")
"""Why offsets are missing; the ledger's module explains each."""


# ---------------------------------------------------------------------- topics and partitions


@dataclass(frozen=True, slots=True)
class BrokerId:
    """The identity of a data directory; `node_name` None if nobody named it."""

    uuid: UUID
    created_at: datetime
    node_name: str | None = None

    def __post_init__(self) -> None:
        if self.created_at.utcoffset() != timedelta(0):
            raise ValueError(f"created_at must be in UTC, got {self.created_at.isoformat()}")


@dataclass(frozen=True, slots=True, repr=False)
class PartitionInfo(Shown):
    """Where a partition begins and ends, and what it holds.

    `earliest_offset` is the first that can be read, from whatever tier. `segments` and `size_bytes`
    are on the local disk; the archived ones hold what nothing local does, as far as the archive
    has been asked.
    """

    partition: int
    earliest_offset: int
    durable_offset: int
    written_offset: int
    segments: int
    size_bytes: int
    archived_segments: int = 0
    archived_bytes: int = 0

    def _portrait(self) -> Portrait:
        title = (
            f"partition {self.partition}: offsets {self.earliest_offset:,} … "
            f"{self.durable_offset:,}, {shown_size(self.size_bytes)} in "
            f"{counted(self.segments, 'segment')}"
        )
        if self.archived_segments:
            archived = counted(self.archived_segments, "archived object")
            title += f", {shown_size(self.archived_bytes)} in {archived}"
        return Portrait(title, ("layers",), ((self._bar(),),))

    def _bar(self) -> Bar:
        """Draws where the bytes lie: archived, then on the local disk."""
        total = self.size_bytes + self.archived_bytes or 1
        cold = ((self.archived_bytes / total, "cold"),) if self.archived_bytes else ()
        return Bar((*cold, (self.size_bytes / total, "active")))


@dataclass(frozen=True, slots=True, repr=False)
class TopicInfo(Shown):
    """A topic as it is now; `settings` includes the defaults."""

    name: str
    format: str
    epoch: int
    created_ms: int
    settings: dict[str, Any]
    partitions: tuple[PartitionInfo, ...]

    def _portrait(self) -> Portrait:
        size = shown_size(sum(each.size_bytes for each in self.partitions))
        count = counted(len(self.partitions), "partition")
        columns = ("partition", "layers", "earliest", "durable", "written", "segments", "size")
        rows = (
            (
                *(str(each.partition), each._bar(), each.earliest_offset, each.durable_offset),
                *(each.written_offset, each.segments, shown_size(each.size_bytes)),
            )
            for each in self.partitions
        )
        title = f"topic {self.name!r}: {self.format}, {count}, {size}"
        return table_portrait(title, columns, rows, len(self.partitions))


@dataclass(frozen=True, slots=True)
class RouterInfo:
    """A rule: which records of `source` are copied to `target`, by tag, tag prefix or node."""

    name: str
    source: str
    target: str
    tag: bytes | None = None
    tag_prefix: bytes | None = None
    node: bytes | None = None


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """A segment as retention sees it, and `describe`."""

    base_offset: int
    next_offset: int
    size_bytes: int
    newest_timestamp_ms: int | None
    sealed: bool
    cold: bool = False
    """Whether it is only in the archive."""
    removed: int = 0
    """How many of its offsets have no record that could be read: deleted singly, or trimmed."""
    least_timestamp_ms: int | None = None
    """The least time of its records; only the list of an archive knows it."""

    @property
    def records(self) -> int:
        """How many records a cap counts."""
        return self.next_offset - self.base_offset - self.removed


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a segment goes, and the sentence that says why."""

    segment: SegmentFacts
    goes: bool
    why: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets from `first` up to `end`, exclusive, are missing, since `at_ms`, for a reason."""

    first: int
    end: int
    reason: str
    at_ms: int
    detail: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end:
            raise ValueError(f"a gap holds at least one offset, got {self.first} to {self.end}")
        if self.reason not in REASONS and self.reason != UNREADABLE:
            raise ValueError(f"a gap has one of the reasons {REASONS}, got {self.reason!r}")


@dataclass(frozen=True, slots=True)
class TierStatus:
    """How far a partition's archive is behind its sealed segments and its end.

    `records_behind` counts durable records that are not archived, `bytes_behind` local bytes of
    sealed segments that are not, `seconds_behind` how long sealed ones have been waiting.
    """

    topic: str
    partition: int
    archived_offset: int
    objects: int
    size_bytes: int
    records_behind: int
    bytes_behind: int
    seconds_behind: float
    last_error: str


# ---------------------------------------------------------------------- groups


@dataclass(frozen=True, slots=True)
class Skipped:
    """Offsets that a group went past without delivering them, and the ledger's reason."""

    partition: int
    first: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in one partition, known from indexes, without reading records.

    `records` are neither acked nor gone. `bytes` and `seconds` are those from the first of them on:
    the size of the log from there, and how old it is.
    """

    partition: int
    committed: int
    end: int
    records: int
    bytes: int
    seconds: float
    inflight: int
    acked_ahead: int


def lag_portrait(name: str, lags: Iterable[PartitionLag]) -> Portrait:
    """Draws how far a group is behind."""
    known = list(lags)
    behind = sum(lag.records for lag in known)
    columns = ("partition", "committed", "end", "behind", "held", "acked ahead", "bytes", "seconds")
    rows = (
        (
            *(str(lag.partition), lag.committed, lag.end, lag.records, lag.inflight),
            *(lag.acked_ahead, shown_size(lag.bytes), f"{lag.seconds:.1f}"),
        )
        for lag in known
    )
    return table_portrait(f"{name}: {counted(behind, 'record')} behind", columns, rows, len(known))


@dataclass(frozen=True, slots=True, repr=False)
class GroupInfo(Shown):
    """A group as it is now."""

    topic: str
    group: str
    partitions: tuple[PartitionLag, ...]

    @property
    def lag(self) -> int:
        """How many records are still to be acked."""
        return sum(each.records for each in self.partitions)

    def _portrait(self) -> Portrait:
        name = f"group {self.group!r} of {self.topic!r}"
        return lag_portrait(name, self.partitions)


@dataclass(frozen=True, slots=True)
class Move:
    """What a reset does, or would do, to one partition."""

    partition: int
    before: int
    after: int


# ---------------------------------------------------------------------- the inside of a store


@dataclass(frozen=True, slots=True)
class Layer:
    """A run of offsets that lies in one file or object, or that is gone and why.

    `compression` is that of an archived object ("none" is one, too), else empty. `archived` says
    of a local segment that the archive has all of it. `where` is its file, its object's key, or
    the reason.
    """

    state: State
    base_offset: int
    next_offset: int
    size_bytes: int
    oldest_ms: int | None
    newest_ms: int | None
    compression: str
    blocks: int
    archived: bool
    where: str


@dataclass(frozen=True, slots=True)
class Block:
    """Records between two entries of an index. `joined` counts how many blocks it stands for."""

    base_offset: int
    next_offset: int
    position: int
    size_bytes: int
    newest_ms: int | None
    joined: int


@dataclass(frozen=True, slots=True)
class Window:
    """Which offsets are looked at, and how many blocks at most are wanted of them."""

    first: int = 0
    end: int = 1 << 62
    limit: int = 256

    def __post_init__(self) -> None:
        if self.limit < 1 or self.first < 0 or self.end < self.first:
            raise InvalidRequest(f"nothing can be shown of {self}")


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record as it lies in a file."""

    path: str
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class WriterFacts:
    """A writer as it is now. Partitions of wal topics share one per shard, which has no topic.

    `unsynced_records` were written and are not durable yet: how far the watermark is behind.
    """

    name: str
    topic: str | None
    depth: int
    written_offset: int
    durable_offset: int
    pulse: Pulse
    failure: str = ""

    @property
    def unsynced_records(self) -> int:
        """How many written records an fsync is still to cover."""
        return self.written_offset - self.durable_offset


@dataclass(frozen=True, slots=True)
class SinkFacts:
    """An application that writes through Spark's sink, and the last transaction it stored."""

    application: str
    number: int
    query: str
    stored_ms: int


def window(name: str, value: object) -> Window:
    """Checks a window that a caller hands in."""
    if not isinstance(value, Window):
        raise InvalidRequest(f"{name} must be a Window, not a {type(value).__name__}")
    return value
