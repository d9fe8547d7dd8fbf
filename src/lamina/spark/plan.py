"""From options to tasks: ranges of partitions, cut by bytes into pieces, packed into tasks.

The planner knows nothing of files. It asks a `Log` for its topics, and for the layers of a
partition (`log/layers.py`), as far as a query may read them, in order and without overlap: each
with a `Cutter`, which cuts it into `Piece`s that read themselves in any process. `spark/logs` has
the logs: a directory, an archive, a server.

Rules.
1. However a range is cut, the same rows are read: pieces neither overlap nor leave anything out.
2. Planning reads indexes and no records, except those that prove an index entry.
3. Whether a missing range fails the query is decided here, by its recorded reason, before any task
   starts.
4. Records that are in two tiers are read once: layers do not overlap.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, Protocol

import pyarrow as pa

from lamina.api import Gap, TopicSchema
from lamina.errors import InvalidRequest, OffsetOutOfRange, UnknownTopic
from lamina.formats.ranges import Ranges, Span
from lamina.log.gap_walk import first_not_removed
from lamina.log.layers import Kind, Layer
from lamina.spark.columns import COLUMNS, Origin
from lamina.spark.gaps import LeftOut, count, is_loss, missing, tell
from lamina.spark.options import EARLIEST, LATEST, Selection, SourceOptions
from lamina.storage import machine

TASK_BYTES_LEAST, TASK_BYTES_MOST = 4 << 20, 64 << 20
SEGMENT, OBJECT = "segment", "object"


@dataclass(frozen=True, slots=True)
class Topic:
    """What planning needs to know about a topic."""

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
        """The partition as messages name it."""
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a task wants of the records: some columns, and perhaps only some keys."""

    columns: frozenset[str]
    keys: pa.Array | None
    fail_on_data_loss: bool


class Part(NamedTuple):
    """What a piece is a part of: a segment or an object, and which of its blocks it reads.

    Blocks are counted only if an index was needed to cut; otherwise all three numbers are zero.
    """

    kind: str
    name: str
    first_block: int = 0
    end_block: int = 0
    blocks: int = 0


class Piece(Protocol):
    """A range of one partition that can be pickled and reads itself in any process."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes are read."""

    @property
    def part(self) -> Part:
        """The segment or object that it is a part of."""

    def read(self, wanted: Wanted) -> Iterator[tuple[Origin, pa.RecordBatch]]:
        """Yields the records, with at least the wanted columns that the format keeps."""


class Cutter(Protocol):
    """Cuts a layer (a segment, an object, the tail of a write-ahead log) into pieces."""

    @property
    def layer(self) -> Layer:
        """The layer, as far as it is read."""

    def size_bytes(self, start: int, end: int) -> int:
        """Estimates the bytes of a range of offsets."""

    def offset_within(self, start: int, end: int, max_bytes: int) -> int:
        """Estimates the offset that so many bytes reach from `start` on."""

    def pieces(self, start: int, end: int, cut: Cut) -> Iterable[Piece]:
        """Cuts a range of offsets into pieces, in order."""


class Log(Protocol):
    """Something that holds topics: a directory, an archive, a server."""

    def look(self) -> object:
        """Looks for news; returns a token that stays equal as long as there are none."""

    def topics(self) -> dict[str, Topic]:
        """Returns all topics by name."""

    def extent(self, topic: str, partition: int) -> tuple[int, int]:
        """Returns the first offset that may be read, and one past the last durable one."""

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Returns the first offset at or after a time; None if no record is."""

    def gaps(self, topic: str, partition: int) -> Sequence[Gap]:
        """Returns the missing ranges of a partition, with their reasons."""

    def cutters(self, topic: str, partition: int) -> Sequence[Cutter]:
        """Returns one for each layer of a partition, in order of offsets, without overlap."""

    def schemas(self, topic: str) -> Sequence[TopicSchema]:
        """Returns every version of a topic's schema, oldest first; none for an untyped one."""


@dataclass(frozen=True, slots=True)
class Counted:
    """How much of something is read, and how much is skipped."""

    read: int = 0
    skipped: int = 0

    def said(self, what: str) -> str:
        """Returns both numbers as text."""
        return f"{self.read} {what}, {self.skipped} {what} skipped"


@dataclass(frozen=True, slots=True)
class Plan:
    """The tasks of one read, and what it leaves out. Blocks are those of objects that were cut."""

    tasks: list[list[Piece]]
    size_bytes: int
    segments: Counted
    objects: Counted
    blocks: Counted
    columns: Collection[str]
    left_out: tuple[LeftOut, ...] = ()
    """Known losses in the ranges, which the query goes on without."""
    available: int = len(COLUMNS)
    """How many columns a query could have asked for."""

    @property
    def sources(self) -> int:
        """How many segments and objects are read."""
        return self.segments.read + self.objects.read

    def __str__(self) -> str:
        parts = [f"{len(self.tasks)} tasks over {self.size_bytes} bytes of "]
        parts.append(self.segments.said("segments"))
        if self.objects != Counted():
            parts.append(", " + self.objects.said("objects"))
        if self.blocks != Counted():
            parts.append(", " + self.blocks.said("blocks"))
        skipped = self.available - len(self.columns)
        parts.append(f", columns {', '.join(self.columns)}, {skipped} columns skipped")
        if self.left_out:
            parts.append(f", {count(self.left_out)} offsets left out")
        return "".join(parts)


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a filter made of a read: prints as text. `ranges` are offsets as options have them."""

    topic: str
    partitions: Counted
    segments: Counted
    objects: Counted
    size_bytes: Counted
    ranges: dict[int, tuple[int, int]]
    keys: int | None
    plan: Plan

    def __str__(self) -> str:
        said = [f"{self.topic}: {self.partitions.said('partitions')}"]
        said.append(self.segments.said("segments"))
        if self.objects != Counted():
            said.append(self.objects.said("objects"))
        said.append(self.size_bytes.said("bytes"))
        lines = [", ".join(said)]
        for partition, (first, end) in sorted(self.ranges.items()):
            begin = "the first record" if first == EARLIEST else f"offset {first}"
            until = "the end" if end == LATEST else f"offset {end}"
            lines.append(f"partition {partition}: from {begin} to {until}")
        if self.keys is not None:
            lines.append(f"keys: only {self.keys}, chosen by the workers")
        lines.append(f"tasks: {self.plan}")
        return "\n".join(lines)


PRUNED = "_lamina_pruned"
"""The attribute of a frame that says what was pruned."""


def selected(topics: dict[str, Topic], selection: Selection) -> list[tuple[str, int]]:
    """Returns the partitions that a selection names, sorted; raises for one that is not there."""
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
    """Where reading a partition starts. `is_latest`: only because its log ends there now."""

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
    if given == EARLIEST:  # what is lost is judged, also where nothing is left before it
        return Start(first_not_removed(log.gaps(topic, partition), earliest))
    offset = given
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
    """Returns the part of a range that can be read, and what is lost of it and why.

    With `fail_on_data_loss`, raises for the first loss instead.
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
    """Returns whether every offset of a range has a recorded reason."""
    return not outside(start, end, ((gap.first, gap.end) for gap in gaps))


def outside(first: int, end: int, taken: Iterable[Span]) -> tuple[Span, ...]:
    """Returns the parts of a range that none of the other ranges covers."""
    return Ranges.between(first, end).minus(Ranges.of(taken)).pairs()


def cutters_of(log: Log, wanted: Range) -> Iterator[tuple[Cutter, int, int]]:
    """Yields the cutters of a range's layers, with the first and the end offset wanted of each."""
    every = log.cutters(wanted.topic, wanted.partition)
    ends = attrgetter("layer.next_offset")
    for row in range(bisect_right(every, wanted.start, key=ends), len(every)):
        layer = every[row].layer
        if layer.base_offset >= wanted.end:
            return
        yield every[row], max(layer.base_offset, wanted.start), min(layer.next_offset, wanted.end)


def size_bytes(log: Log, wanted: Range) -> int:
    """Estimates the bytes of a range by the indexes."""
    return sum(each.size_bytes(start, end) for each, start, end in cutters_of(log, wanted))


def offset_within(log: Log, wanted: Range, max_bytes: int) -> int:
    """Estimates the offset that so many bytes reach in a range: at least one record further."""
    for each, start, end in cutters_of(log, wanted):
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
        for cutter, start, end in cutters_of(log, each)
        for piece in cutter.pieces(start, end, cut)
    ]
    every = [kind_of(each) for one in ranges for each in log.cutters(one.topic, one.partition)]
    return Plan(
        _packed(pieces, cut),
        sum(piece.size_bytes for piece in pieces),
        _counted(pieces, every, SEGMENT),
        _counted(pieces, every, OBJECT),
        _blocks(pieces),
        columns,
        left_out,
    )


def kind_of(cutter: Cutter) -> str:
    """Returns what a layer is counted as: a segment or an object."""
    return OBJECT if cutter.layer.kind is Kind.OBJECT else SEGMENT


def _counted(pieces: Iterable[Piece], every: list[str], kind: str) -> Counted:
    read = len({piece.part.name for piece in pieces if piece.part.kind == kind})
    return Counted(read, max(every.count(kind) - read, 0))


def _blocks(pieces: Iterable[Piece]) -> Counted:
    """Counts the blocks of objects that were cut by their index."""
    parts = sorted({piece.part for piece in pieces if piece.part.blocks})
    every = {part.name: part.blocks for part in parts}
    read, reached = 0, ("", 0)
    for part in parts:
        first = max(part.first_block, reached[1]) if part.name == reached[0] else part.first_block
        read += max(part.end_block - first, 0)
        reached = part.name, max(part.end_block, first)
    return Counted(read, sum(every.values()) - read)


def _cut(total_bytes: int, options: SourceOptions) -> Cut:
    """Chooses the size of a task: one for every core, but none tiny and none huge."""
    cores = machine.processors()
    most = options.max_partition_bytes or TASK_BYTES_MOST
    wanted = min(most, max(total_bytes // cores + 1, TASK_BYTES_LEAST))
    if options.min_partitions:
        a_little_less = total_bytes * 9 // (options.min_partitions * 10)  # sizes are estimates
        wanted = min(wanted, max(a_little_less, 1))
    return Cut(wanted, options.max_partition_records or 1 << 62)


def _packed(pieces: list[Piece], cut: Cut) -> list[list[Piece]]:
    """Puts consecutive pieces into one task as long as it stays small enough."""
    tasks: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        if not tasks or piece.size_bytes > room or cut.max_records < 1 << 62:
            tasks.append([])
            room = cut.max_bytes
        tasks[-1].append(piece)
        room -= piece.size_bytes
    return tasks
