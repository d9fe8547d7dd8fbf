"""What is told about groups: plain values, the same for a writer, a reader, pages and commands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Skipped:
    """Offsets that a group went past without delivering them, and the ledger's reason."""

    partition: int
    first: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in one partition, told from indexes, without reading records.

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


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group as it is now."""

    topic: str
    group: str
    partitions: tuple[PartitionLag, ...]

    @property
    def lag(self) -> int:
        """How many records are still to be acked."""
        return sum(each.records for each in self.partitions)


@dataclass(frozen=True, slots=True)
class Move:
    """What a reset does, or would do, to one partition."""

    partition: int
    before: int
    after: int
