"""Records and their copies: made by the writer, and judged after a crash, all of them or none.

Power loss may keep any part of a group that was not synced. A record that is copied and its copies
are flagged, and a RoutedMark ends their group: see `formats.wal.routing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lamina.errors import InvalidRequest
from lamina.formats.ranges import Ranges
from lamina.formats.scan import Damage, Limit, runs
from lamina.formats.wal import control, log
from lamina.formats.wal.headers import body_of, headers
from lamina.formats.wal.layout import ROUTED, FrameType
from lamina.formats.wal.routing import RoutedMark, Verdict
from lamina.formats.wal.walks import WalFrames
from lamina.log.requests import Request
from lamina.wal.topic import TopicState

if TYPE_CHECKING:
    from typing_extensions import Buffer

_STEP = Limit(max_records=1 << 15, max_bytes=1 << 30)


class Route(NamedTuple):
    """A router's rule as the writer uses it, for one partition of its source."""

    router: str
    target: TopicState
    column: str
    pattern: bytes
    exact: bool


class Copy(Request):
    """Records on their way to a router's target, with the times that they have in its source."""

    __slots__ = ()


def copies_of(
    batch: pa.RecordBatch, routes: tuple[Route, ...], acks: int
) -> list[tuple[str, Copy]]:
    """Makes the copies of a source's records, one request per target, each with its router's name.

    Whole columns are compared: no record becomes a Python object.
    """
    chosen: dict[TopicState, tuple[str, pa.Array]] = {}
    for route in routes:
        column = batch.column(route.column)
        if column.null_count == len(column):
            continue
        compare = pc.equal if route.exact else pc.starts_with
        found = pc.fill_null(compare(column, route.pattern), False)
        before = chosen.get(route.target)
        merged = found if before is None else pc.or_(before[1], found)
        chosen[route.target] = route.router, merged
    made = []
    for target, (router, found) in chosen.items():
        rows = batch.filter(found)
        if rows.num_rows:
            copy = Copy(rows, size_bytes=rows.nbytes, acks=acks)
            copy.target = target
            made.append((router, copy))
    return made


def refuse_large(router: str, copy: Copy) -> InvalidRequest | None:
    """Returns why a target cannot take a copy by its size, if it cannot."""
    limit = copy.target.settings.max_message_bytes
    assert isinstance(copy.records, pa.RecordBatch), "copies are batches"
    largest = pc.max(pc.binary_length(copy.records.column("value"))).as_py()
    if largest <= limit:
        return None
    return InvalidRequest(
        f"router {router!r} cannot copy a value of {largest} bytes to {copy.target.place.name},"
        f" which takes {limit}: raise its max.message.bytes"
    )


def mark_of(length: int, now_ms: int) -> bytes:
    """Encodes the frame that ends a group with copies, which began that many bytes before."""
    body = control.encode(RoutedMark(Verdict.WHOLE, length, length))
    return log.encode_control(FrameType.ROUTED_MARK, 0, 0, now_ms, body)


# ---------------------------------------------------------------------- after a crash


class Span(NamedTuple):
    """Bytes of a WAL file, from `first` to below `end`."""

    first: int
    end: int


def span_of(mark: RoutedMark, position: int) -> Span:
    """Returns which bytes a mark at a position covers."""
    first = max(0, position - mark.distance)
    return Span(first, min(position, first + mark.length))


def left_over(data: Buffer, start: int, end: int, torn_from: int) -> list[Span]:
    """Finds the flagged frames behind the last barrier that are not whole with their group.

    `start` is the barrier: what lies before it had been synced. Before `torn_from` everything was
    written: what is damaged there has rotted since. Touching frames are one span.
    """
    whole: list[Span] = []
    damaged: list[Span] = []
    flagged = [np.empty((0, 2), dtype=np.int64)]
    frames_in = WalFrames(memoryview(data).cast("B")[:end])
    for step in runs(frames_in, start, limit=_STEP):
        if isinstance(step, Damage):
            damaged.append(Span(step.position, step.end))
            continue
        found = step.found
        columns = headers(data, found)
        for row in np.flatnonzero(columns.types == int(FrameType.ROUTED_MARK)).tolist():
            mark = control.decode(FrameType.ROUTED_MARK, body_of(data, found, columns, row))
            assert isinstance(mark, RoutedMark), "the type says so"
            if mark.verdict is Verdict.WHOLE:
                whole.append(span_of(mark, int(found.positions[row])))
        is_append = columns.types == int(FrameType.APPEND)
        mine = is_append & (columns.flags & np.uint8(ROUTED) != 0)
        positions = found.positions[mine]
        flagged.append(np.stack([positions, positions + columns.lengths[mine]], axis=1))
    frames = np.concatenate(flagged)
    damaged = [each for each in damaged if each.end > torn_from]
    for span in whole:
        if not any(each.first < span.end and span.first < each.end for each in damaged):
            inside = (frames[:, 0] >= span.first) & (frames[:, 1] <= span.end)
            frames = frames[~inside]
    return [Span(*pair) for pair in Ranges.of(frames.tolist()).pairs()]


def void_marks(spans: list[Span], position: int, now_ms: int) -> bytes:
    """Encodes the frames that declare spans void, to be written at a position."""
    marks = b""
    for span in spans:
        distance = position + len(marks) - span.first
        body = control.encode(RoutedMark(Verdict.VOID, distance, span.end - span.first))
        marks += log.encode_control(FrameType.ROUTED_MARK, 0, 0, now_ms, body)
    return marks
