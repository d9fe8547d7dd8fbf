"""From options to tasks: ranges of partitions, cut by bytes into pieces, packed into tasks.

The planner knows nothing of files. It asks a `Log` for its topics, and for the `Stretch`es of a
partition: segments, objects, the tail, one behind the other without overlap. A stretch knows its
bytes and can be cut into `Piece`s, each of which can read itself in another process. A directory
is one such log; an archive and a server are others.

Rules.
1. Any cut of the same range reads the same rows: pieces neither overlap nor leave anything out.
2. Planning reads indexes, never records, but for the ones that prove an index entry.
3. A range that is missing is judged here, by its recorded reason, before any task starts.
4. What a partition has in two tiers is read once: its stretches do not overlap.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, Protocol

import pyarrow as pa

from lamina.api import Gap
from lamina.errors import InvalidRequest, OffsetOutOfRange, UnknownTopic
from lamina.spark.columns import COLUMNS, Origin
from lamina.spark.gaps import LeftOut, count, is_loss, missing, tell
from lamina.spark.options import EARLIEST, LATEST, Selection, SourceOptions

TASK_BYTES_LEAST, TASK_BYTES_MOST = 4 << 20, 64 << 20
SEGMENT, OBJECT = "segment", "object"


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

    @property
    def name(self) -> str:
        """How messages call the partition."""
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a task wants of the records: some columns, perhaps only some keys."""

    columns: frozenset[str]
    keys: pa.Array | None
    fail_on_data_loss: bool


class Part(NamedTuple):
    """What a piece is a part of: a segment or an object, and which of its blocks it reads.

    Blocks are counted where an index was needed to cut; otherwise all three are zero.
    """

    kind: str
    name: str
    first_block: int = 0
    end_block: int = 0
    blocks: int = 0


class Piece(Protocol):
    """A range of one partition that can read itself, in any process; it can be pickled."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes are read."""

    @property
    def part(self) -> Part:
        """What it is a part of."""

    def read(self, wanted: Wanted) -> Iterator[tuple[Origin, pa.RecordBatch]]:
        """Yields the records, with at least the wanted columns that the format keeps."""


class Stretch(Protocol):
    """Adjacent offsets of a partition that lie in one place: a segment, an object, the tail."""

    @property
    def kind(self) -> str:
        """`segment` or `object`."""

    @property
    def first(self) -> int:
        """The first offset that is read from here."""

    @property
    def end(self) -> int:
        """One past the last offset that is read from here."""

    def size_bytes(self, start: int, end: int) -> int:
        """Returns about how many bytes some offsets have."""

    def offset_within(self, start: int, end: int, max_bytes: int) -> int:
        """Returns about how far some bytes reach from an offset on."""

    def pieces(self, start: int, end: int, cut: Cut) -> Iterable[Piece]:
        """Cuts some offsets into pieces, in their order."""


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

    def stretches(self, topic: str, partition: int) -> Sequence[Stretch]:
        """Returns where the records of a partition lie, in order of offsets, without overlap."""


@dataclass(frozen=True, slots=True)
class Counted:
    """How much of something is read, and how much is skipped."""

    read: int = 0
    skipped: int = 0

    def said(self, what: str) -> str:
        """Says both numbers."""
        return f"{self.read} {what}, {self.skipped} {what} skipped"


@dataclass(frozen=True, slots=True)
class Plan:
    """The tasks of one read, and what was left out; blocks are those of objects that were cut."""

    tasks: list[list[Piece]]
    size_bytes: int
    segments: Counted
    objects: Counted
    blocks: Counted
    columns: Collection[str]
    left_out: tuple[LeftOut, ...] = ()
    """What is known to be missing of the ranges, where the query goes on without."""

    @property
    def sources(self) -> int:
        """How many segments and objects are read."""
        return self.segments.read + self.objects.read

    @property
    def sources_skipped(self) -> int:
        """How many segments and objects are not read."""
        return self.segments.skipped + self.objects.skipped

    def __str__(self) -> str:
        parts = [f"{len(self.tasks)} tasks over {self.size_bytes} bytes of "]
        parts.append(self.segments.said("segments"))
        if self.objects != Counted():
            parts.append(", " + self.objects.said("objects"))
        if self.blocks != Counted():
            parts.append(", " + self.blocks.said("blocks"))
        skipped = len(COLUMNS) - len(self.columns)
        parts.append(f", columns {', '.join(self.columns)}, {skipped} columns skipped")
        if self.left_out:
            parts.append(f", {count(self.left_out)} offsets left out")
        return "".join(parts)


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


class Start(NamedTuple):
    """Where reading a partition starts, and whether only because its log ends there just now."""

    offset: int
    is_latest: bool = False


def start_of(log: Log, options: SourceOptions, topic: str, partition: int) -> Start:
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
        return Start(end, is_latest=True) if found is None else Start(found)
    given = options.start.offset(topic, partition)
    if given == LATEST:
        return Start(end, is_latest=True)
    offset = earliest if given == EARLIEST else given
    if offset > end:
        raise OffsetOutOfRange(f"{topic}/{partition}: {offset} is beyond the end {end}")
    return Start(offset)


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
            start_of(log, options, topic, partition).offset,
            end_offset(log, options, topic, partition),
        )
        for topic, partition in selected(log.topics(), options.selection)
    ]


def readable(log: Log, wanted: Range, *, fail_on_data_loss: bool) -> tuple[Range, list[LeftOut]]:
    """Returns the part of a range that is still there, and what is missing of it and why.

    Raises for what is missing, if that matters.
    """
    earliest, _ = log.extent(wanted.topic, wanted.partition)
    gaps = [gap for gap in log.gaps(wanted.topic, wanted.partition) if gap.end > wanted.start]
    lost = [gap for gap in gaps if gap.first < wanted.end and is_loss(gap)]
    if wanted.start < min(earliest, wanted.end) and not _covers(gaps, wanted.start, earliest):
        lost.insert(0, Gap(wanted.start, earliest, "lost", 0))
    if lost and fail_on_data_loss:
        raise missing(wanted.name, lost[0], wanted.start)
    left_out = [
        LeftOut(wanted.name, max(gap.first, wanted.start), min(gap.end, wanted.end), gap.reason)
        for gap in lost
    ]
    start = min(max(wanted.start, earliest), wanted.end)
    return Range(wanted.topic, wanted.partition, start, wanted.end), left_out


def _covers(gaps: Sequence[Gap], start: int, end: int) -> bool:
    """Tells whether every offset of a range has a recorded reason."""
    for gap in gaps:
        if gap.first <= start < gap.end:
            start = gap.end
    return start >= end


def outside(first: int, end: int, taken: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yields the parts of a range that none of some ranges, sorted by their start, takes."""
    for start, after in taken:
        if first < min(start, end):
            yield first, min(start, end)
        first = max(first, after)
    if first < end:
        yield first, end


def stretches_of(log: Log, wanted: Range) -> Iterator[tuple[Stretch, int, int]]:
    """Yields the stretches of a range, each with the offsets that are wanted of it."""
    every = log.stretches(wanted.topic, wanted.partition)
    for row in range(bisect_right(every, wanted.start, key=attrgetter("end")), len(every)):
        stretch = every[row]
        if stretch.first >= wanted.end:
            return
        yield stretch, max(stretch.first, wanted.start), min(stretch.end, wanted.end)


def size_bytes(log: Log, wanted: Range) -> int:
    """Returns about how many bytes a range has, by the indexes."""
    return sum(each.size_bytes(start, end) for each, start, end in stretches_of(log, wanted))


def offset_within(log: Log, wanted: Range, max_bytes: int) -> int:
    """Returns how far some bytes reach into a range: about, and at least one record."""
    for each, start, end in stretches_of(log, wanted):
        size = each.size_bytes(start, end)
        if size > max_bytes:
            reached = each.offset_within(start, end, max_bytes)
            return min(max(reached, wanted.start + 1, start + 1), wanted.end)
        max_bytes -= size
    return wanted.end


def plan(
    log: Log, ranges: Sequence[Range], options: SourceOptions, columns: Collection[str]
) -> Plan:
    """Cuts ranges into pieces and packs them into tasks."""
    judged = [
        readable(log, each, fail_on_data_loss=options.fail_on_data_loss)
        for each in ranges
        if each.start < each.end
    ]
    ranges = [each for each, _ in judged]
    left_out = tuple(each for _, some in judged for each in some)
    tell(left_out)
    cut = _cut(sum(size_bytes(log, each) for each in ranges), options)
    pieces = [
        piece
        for each in ranges
        for stretch, start, end in stretches_of(log, each)
        for piece in stretch.pieces(start, end, cut)
    ]
    every = [each.kind for one in ranges for each in log.stretches(one.topic, one.partition)]
    return Plan(
        _packed(pieces, cut),
        sum(piece.size_bytes for piece in pieces),
        _counted(pieces, every, SEGMENT),
        _counted(pieces, every, OBJECT),
        _blocks(pieces),
        columns,
        left_out,
    )


def _counted(pieces: Iterable[Piece], every: list[str], kind: str) -> Counted:
    read = len({piece.part.name for piece in pieces if piece.part.kind == kind})
    return Counted(read, max(every.count(kind) - read, 0))


def _blocks(pieces: Iterable[Piece]) -> Counted:
    """Counts the blocks of those objects whose index was needed to cut them."""
    parts = sorted({piece.part for piece in pieces if piece.part.blocks})
    every = {part.name: part.blocks for part in parts}
    read, reached = 0, ("", 0)
    for part in parts:
        first = max(part.first_block, reached[1]) if part.name == reached[0] else part.first_block
        read += max(part.end_block - first, 0)
        reached = part.name, max(part.end_block, first)
    return Counted(read, sum(every.values()) - read)


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
