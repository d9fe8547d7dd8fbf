"""Where each topic's records lie in the WAL: noted while it is walked, then sorted by topic.

Replay reads the whole WAL and keeps four numbers per record, none of them as Python objects.
`Places` grows like a list; `take` adds what a scan has found, `by_topic` sorts it in one pass.

Rule: `take` is only called with what `log.scan` accepted in the same buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lamina.formats.kernels.binary import address_of, as_bytes, peek_i64, peek_u8, peek_u32
from lamina.formats.kernels.call_size import rows_at
from lamina.formats.kernels.declare import kernel_at_once
from lamina.formats.scan import Scan
from lamina.formats.wal.control import CHECKPOINT_MARK
from lamina.formats.wal.layout import PREFIX, SEGMENT_FRAME, TRAILER, FrameType

if TYPE_CHECKING:
    from typing_extensions import Buffer

_APPEND = int(FrameType.APPEND)
_MARK = int(FrameType.CHECKPOINT_MARK)
_EMPTY_MARK_BYTES = CHECKPOINT_MARK.size
_PREFIX = PREFIX.size
_TOPIC = SEGMENT_FRAME.at("topic_id")
_SEQUENCE = SEGMENT_FRAME.at("sequence")
_DATA_LEN = SEGMENT_FRAME.at("data_len")
_FRAME_LEN_SIZE = SEGMENT_FRAME.at("flags")
_FIRST_ROOM, _GROWTH = 1 << 12, 4
_DIRECT_IDS, _DIRECT_IDS_A_ROW, _DIRECT_IDS_MAX = 1 << 16, 8, 1 << 22
"""Up to which topic id a table has a slot for each: in proportion to the records there are, so that
a few records with large ids cannot claim memory."""


class ControlFrame(NamedTuple):
    """A frame that is no record: its type, the topic it is about, its body."""

    frame_type: int
    topic_id: int
    body: bytes


class Taken(NamedTuple):
    """What else than records a scan has found: control frames, by position.

    `last_barrier` is the last empty CheckpointMark, which only records that an fsync had returned.
    """

    others: NDArray[np.int64]
    last_barrier: int | None


class TopicPlaces(NamedTuple):
    """One topic's records as they come in the WAL; `ascending` is set if each is above the last."""

    topic_id: int
    sequences: NDArray[np.int64]
    locations: NDArray[np.int64]
    size_bytes: int
    ascending: bool


class Places:
    """The records of a WAL, one row each: topic, sequence, location and length of the frame."""

    def __init__(self) -> None:
        self._count = 0
        self._columns = tuple(np.empty(0, dtype=np.int64) for _ in range(4))

    def __len__(self) -> int:
        return self._count

    def take(self, buffer: Buffer, found: Scan, base_location: int) -> Taken:
        """Adds the records of a scan; returns the frames that are none.

        A location is `base_location` plus the frame's position.
        """
        self._make_room(len(found))
        others = np.empty(len(found), dtype=np.int64)
        data = as_bytes(buffer)
        self._count, other_count, barrier = _take(
            data, found.positions, base_location, self._columns, self._count, others
        )
        return Taken(others[:other_count], barrier if barrier >= 0 else None)

    def _make_room(self, rows: int) -> None:
        room, needed = len(self._columns[0]), self._count + rows
        if needed <= room:
            return
        size = max(_FIRST_ROOM, needed, _GROWTH * room)
        grown = tuple(np.empty(size, dtype=np.int64) for _ in self._columns)
        for new, old in zip(grown, self._columns, strict=True):
            new[: self._count] = old[: self._count]
        self._columns = grown

    def by_topic(self) -> Iterator[TopicPlaces]:
        """Yields each topic's records, in the order in which they were taken."""
        if not self._count:
            return
        ids, sequences, locations, lengths = (each[: self._count] for each in self._columns)
        lowest, highest = int(ids.min()), int(ids.max())
        single, names = lowest == highest, None
        direct = min(_DIRECT_IDS_MAX, max(_DIRECT_IDS, _DIRECT_IDS_A_ROW * self._count))
        if lowest < 0 or highest >= direct:
            names, ids = np.unique(ids, return_inverse=True)
            highest = len(names) - 1
        edges, sizes, ascending, *sorted_columns = _sorted(
            ids, (sequences, locations, lengths), highest + 1, single
        )
        for owner in np.flatnonzero(np.diff(edges)).tolist():
            rows = slice(int(edges[owner]), int(edges[owner + 1]))
            topic_id = owner if names is None else int(names[owner]) & ((1 << 64) - 1)
            yield TopicPlaces(
                topic_id,
                sorted_columns[0][rows],
                sorted_columns[1][rows],
                int(sizes[owner]),
                bool(ascending[owner]),
            )


def control_frame(buffer: Buffer, position: int) -> ControlFrame:
    """Reads a frame that `Places.take` left out."""
    data = as_bytes(buffer)
    fields = SEGMENT_FRAME.unpack(data.data, position + _PREFIX)
    length = _PREFIX + _FRAME_LEN_SIZE + int(fields["frame_len"])
    end = position + length - TRAILER.size
    body = data[end - int(fields["data_len"]) : end].tobytes()
    return ControlFrame(int(data[position]), int(fields["topic_id"]), body)


@kernel_at_once(rows_at)
def _take(
    data: Any, positions: Any, base_location: int, columns: Any, count: int, others: Any
) -> tuple[int, int, int]:
    topic_ids, sequences, locations, lengths = columns
    origin = address_of(data)
    other_count, barrier = 0, -1
    for row in range(len(positions)):
        position = positions[row]
        frame_type = peek_u8(origin + position)
        frame = origin + position + _PREFIX
        if frame_type == _APPEND:
            topic_ids[count] = peek_i64(frame + _TOPIC)
            sequences[count] = peek_i64(frame + _SEQUENCE)
            locations[count] = base_location + position
            lengths[count] = _PREFIX + _FRAME_LEN_SIZE + peek_u32(frame)
            count += 1
        elif frame_type == _MARK and peek_u32(frame + _DATA_LEN) == _EMPTY_MARK_BYTES:
            barrier = position
        else:
            others[other_count] = position
            other_count += 1
    return count, other_count, barrier


def _sorted(
    owners: NDArray[np.int64],
    columns: tuple[NDArray[np.int64], ...],
    owner_count: int,
    single: bool,
) -> tuple[NDArray[Any], ...]:
    """Sorts rows by owner, stable: (edges, sizes, whether ascending, sequences, locations)."""
    sequences, locations, lengths = columns
    edges = np.zeros(owner_count + 1, dtype=np.int64)
    sizes = np.zeros(owner_count, dtype=np.int64)
    ascending = np.ones(owner_count, dtype=np.bool_)
    _count_rows(owners, sequences, lengths, edges, (sizes, ascending))
    np.cumsum(edges, out=edges)
    if single:  # nothing to sort, and no second copy of everything
        return edges, sizes, ascending, sequences, locations
    out = np.empty(len(owners), dtype=np.int64), np.empty(len(owners), dtype=np.int64)
    _scatter(owners, edges[:-1].copy(), (sequences, locations), out)
    return edges, sizes, ascending, *out


@kernel_at_once(lambda owners, *_: len(owners))
def _count_rows(owners: Any, sequences: Any, lengths: Any, edges: Any, facts: Any) -> None:
    sizes, ascending = facts
    latest = np.zeros(len(sizes), dtype=np.int64)
    for row in range(len(owners)):
        owner = owners[row]
        edges[owner + 1] += 1
        sizes[owner] += lengths[row]
        if sequences[row] <= latest[owner]:
            ascending[owner] = False
        latest[owner] = sequences[row]


@kernel_at_once(lambda owners, *_: len(owners))
def _scatter(owners: Any, nexts: Any, columns: Any, out: Any) -> None:
    sequences, locations = columns
    sorted_sequences, sorted_locations = out
    for row in range(len(owners)):
        at = nexts[owners[row]]
        nexts[owners[row]] = at + 1
        sorted_sequences[at] = sequences[row]
        sorted_locations[at] = locations[row]
