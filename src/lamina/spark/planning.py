"""From options to tasks: ranges of partitions, cut by bytes into pieces, packed into tasks.

The planner knows nothing of files. It asks a `Log` for its topics and for `Piece`s: ranges of one
partition with a size, each of which can read itself in another process. A directory is one such
log; an archive, a server, or several of them one behind the other are others.

Rules.
1. Any cut of the same range reads the same rows: pieces neither overlap nor leave anything out.
2. Planning reads indexes, never records, but for the ones that prove an index entry.
3. A range that is missing is judged here, by its recorded reason, before any task starts.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from lamina.errors import InvalidRequest, OffsetOutOfRange, RecordsMissing, UnknownTopic
from lamina.formats.ledger import Gap
from lamina.spark.columns import Origin
from lamina.spark.options import EARLIEST, LATEST, Selection, SourceOptions

LOGGER = logging.getLogger("lamina.spark")

TASK_BYTES_LEAST, TASK_BYTES_MOST = 4 << 20, 64 << 20
NO_LOSS = frozenset({"deleted", "truncated", "compacted", "aborted"})
"""Reasons that take nothing from a reader: erased on purpose, or never durable."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What planning needs to know of a topic."""

    name: str
    epoch: int
    partitions: int


@dataclass(frozen=True, slots=True)
class Cut:
    """How large a piece may be."""

    max_bytes: int
    max_records: int


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition, `end` exclusive."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a task wants of the records: some columns, perhaps only some keys."""

    columns: frozenset[str]
    keys: pa.Array | None
    fail_on_data_loss: bool


class Piece(Protocol):
    """A range of one partition that can read itself, in any process; it can be pickled."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes are read."""

    @property
    def source(self) -> str:
        """What it is a part of: a segment, an object."""

    def read(self, wanted: Wanted) -> Iterator[tuple[Origin, pa.RecordBatch]]:
        """Yields the records, with at least the wanted columns that the format keeps."""


class Log(Protocol):
    """Something that holds topics: a directory, an archive, a server."""

    def look(self) -> object:
        """Looks for what is new; returns a token that is equal as long as nothing is."""

    def topics(self) -> dict[str, Topic]:
        """Returns the topics there are, by name."""

    def extent(self, topic: str, partition: int) -> tuple[int, int]:
        """Returns the first offset that may be read, and one past the last durable one."""

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Returns the first offset at or after a time; None if there is none."""

    def gaps(self, topic: str, partition: int) -> Sequence[Gap]:
        """Returns the missing ranges of a partition, with their reasons."""

    def pieces(self, wanted: Range, cut: Cut) -> list[Piece]:
        """Returns the pieces of a range, in order of offsets."""

    def sources(self, topic: str, partition: int) -> int:
        """Returns how many segments or objects the partition has."""

    def size_bytes(self, wanted: Range) -> int:
        """Returns about how many bytes a range has."""

    def offset_within(self, wanted: Range, max_bytes: int) -> int:
        """Returns how far some bytes reach into a range: about, and at least one record."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The tasks of one read, and what was left out."""

    tasks: list[list[Piece]]
    size_bytes: int
    sources: int
    sources_skipped: int
    columns: Collection[str]

    def __str__(self) -> str:
        return (
            f"{len(self.tasks)} tasks over {self.size_bytes} bytes of {self.sources} segments,"
            f" {self.sources_skipped} segments skipped, columns {', '.join(self.columns)}"
        )


def selected(topics: dict[str, Topic], selection: Selection) -> list[tuple[str, int]]:
    """Returns the partitions that a selection names, sorted; what is named must be there."""
    if selection.pattern is not None:
        names = [name for name in topics if re.fullmatch(selection.pattern, name)]
        return [(name, number) for name in sorted(names) for number in _all(topics[name])]
    chosen = selection.assigned or dict.fromkeys(selection.topics, ())
    found = []
    for name in sorted(chosen):
        if name not in topics:
            raise UnknownTopic(f"there is no topic {name!r}; there are {sorted(topics)}")
        if not selection.assigned:
            found += [(name, number) for number in _all(topics[name])]
            continue
        for number in sorted(set(chosen[name])):
            if not 0 <= number < topics[name].partitions:
                raise UnknownTopic(f"topic {name!r} has no partition {number}")
            found.append((name, number))
    return found


def _all(topic: Topic) -> range:
    return range(topic.partitions)


def start_offset(log: Log, options: SourceOptions, topic: str, partition: int) -> int:
    """Returns where reading a partition starts."""
    earliest, end = log.extent(topic, partition)
    time_ms = options.start.time_ms(topic, partition)
    if time_ms is not None:
        found = log.offset_for_time(topic, partition, time_ms)
        if found is None and options.unmatched_time == "error":
            raise InvalidRequest(
                f"{topic}/{partition} has no record at or after {time_ms}; set"
                " startingOffsetsByTimestampStrategy to latest to start at its end"
            )
        return end if found is None else found
    given = options.start.offset(topic, partition)
    offset = {EARLIEST: earliest, LATEST: end}.get(given, given)
    if offset > end:
        raise OffsetOutOfRange(f"{topic}/{partition}: {offset} is beyond the end {end}")
    return offset


def end_offset(log: Log, options: SourceOptions, topic: str, partition: int) -> int:
    """Returns where a batch read of a partition ends."""
    _, end = log.extent(topic, partition)
    time_ms = options.end.time_ms(topic, partition)
    if time_ms is not None:
        found = log.offset_for_time(topic, partition, time_ms)
        return end if found is None else found
    given = options.end.offset(topic, partition)
    if given == LATEST:
        return end
    if given > end:
        raise OffsetOutOfRange(f"{topic}/{partition}: {given} is beyond the end {end}")
    return given


def batch_ranges(log: Log, options: SourceOptions) -> list[Range]:
    """Returns what a batch query reads of each partition."""
    return [
        Range(
            topic,
            partition,
            start_offset(log, options, topic, partition),
            end_offset(log, options, topic, partition),
        )
        for topic, partition in selected(log.topics(), options.selection)
    ]


def readable(log: Log, wanted: Range, *, fail_on_data_loss: bool) -> Range:
    """Returns the part of a range that is still there, or says what is missing of it and why."""
    earliest, _ = log.extent(wanted.topic, wanted.partition)
    gaps = [gap for gap in log.gaps(wanted.topic, wanted.partition) if gap.end > wanted.start]
    lost = [gap for gap in gaps if gap.first < wanted.end and gap.reason not in NO_LOSS]
    if wanted.start < min(earliest, wanted.end) and not _covers(gaps, wanted.start, earliest):
        lost.insert(0, Gap(wanted.start, earliest, "lost", 0))
    if lost and fail_on_data_loss:
        raise missing(wanted, lost[0])
    if lost:
        LOGGER.warning("%s", missing(wanted, lost[0]))
    return Range(wanted.topic, wanted.partition, max(wanted.start, earliest), wanted.end)


def _covers(gaps: Sequence[Gap], start: int, end: int) -> bool:
    """Tells whether every offset of a range has a recorded reason."""
    for gap in gaps:
        if gap.first <= start < gap.end:
            start = gap.end
    return start >= end


def missing(wanted: Range, gap: Gap) -> RecordsMissing:
    """Says which records a query will not get, why, and what can be done."""
    return RecordsMissing(
        f"{wanted.topic}/{wanted.partition}: records that the query has not read are gone; start"
        " at a later offset, or set failOnDataLoss to false to go on without them",
        first=max(gap.first, wanted.start),
        end=gap.end,
        reason=gap.reason,
    )


def plan(
    log: Log, ranges: Sequence[Range], options: SourceOptions, columns: Collection[str]
) -> Plan:
    """Cuts ranges into pieces and packs them into tasks."""
    ranges = [
        readable(log, each, fail_on_data_loss=options.fail_on_data_loss)
        for each in ranges
        if each.start < each.end
    ]
    cut = _cut(sum(log.size_bytes(each) for each in ranges), options)
    pieces = [piece for each in ranges for piece in log.pieces(each, cut)]
    tasks = _packed(pieces, cut)
    used = len({piece.source for piece in pieces})
    every = sum(log.sources(each.topic, each.partition) for each in ranges)
    size_bytes = sum(piece.size_bytes for piece in pieces)
    return Plan(tasks, size_bytes, used, every - used, columns)


def _cut(total_bytes: int, options: SourceOptions) -> Cut:
    """Chooses the size of a task: every core gets one, none is tiny, none is huge."""
    cores = os.cpu_count() or 1
    most = options.max_partition_bytes or TASK_BYTES_MOST
    wanted = min(most, max(total_bytes // cores + 1, TASK_BYTES_LEAST))
    if options.min_partitions:
        a_little_less = total_bytes * 9 // (options.min_partitions * 10)  # sizes are estimates
        wanted = min(wanted, max(a_little_less, 1))
    return Cut(wanted, options.max_partition_records or 1 << 62)


def _packed(pieces: list[Piece], cut: Cut) -> list[list[Piece]]:
    """Puts pieces that follow each other into one task as long as it stays small enough."""
    tasks: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        if not tasks or piece.size_bytes > room or cut.max_records < 1 << 62:
            tasks.append([])
            room = cut.max_bytes
        tasks[-1].append(piece)
        room -= piece.size_bytes
    return tasks
