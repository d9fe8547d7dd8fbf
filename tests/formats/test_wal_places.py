"""Places of records in a WAL: what replay keeps, against a plain loop over the same frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.formats.scan import Limit, Scan, Stop
from lamina.formats.wal import control, log
from lamina.formats.wal.headers import headers
from lamina.formats.wal.layout import FrameType
from lamina.formats.wal.places import ControlFrame, Places, control_frame
from lamina.records import prepare

BASE = 5 << 33
BARRIER = log.encode_control(
    FrameType.CHECKPOINT_MARK, 0, 0, 0, control.encode(control.CheckpointMark(()))
)
MARK = control.encode(control.CheckpointMark((control.TopicCheckpoint(3, 9, 1, 1, 0, 0),)))


def append(topic_id: int, sequence: int, value: bytes = b"v", tag: bytes = b"") -> bytes:
    row = pa.table({"value": [value], "tag": [tag]})
    batch = prepare(row, "wal", now_ms=1)
    return log.encode(batch, topic_id=topic_id, base_sequence=sequence, durable=True)[0].tobytes()


def taken(wal: bytes, step: int = 1 << 20) -> tuple[Places, list[int]]:
    """Takes a whole WAL, so many frames at a time."""
    places, others, position = Places(), [], 0
    while position < len(wal):
        found = log.scan(wal, position, limit=Limit(max_records=step))
        assert found.stop in (Stop.END, Stop.LIMIT)
        others += places.take(wal, found, BASE).others.tolist()
        position = found.end
    return places, others


def by_hand(wal: bytes) -> dict[int, tuple[list[int], list[int], int, bool]]:
    found: Scan = log.scan(wal)
    columns = headers(wal, found)
    topics: dict[int, tuple[list[int], list[int], int, bool]] = {}
    for row in range(len(found)):
        if columns.types[row] != FrameType.APPEND:
            continue
        topic_id, sequence = int(columns.topic_ids[row]), int(columns.sequences[row])
        sequences, locations, size, rising = topics.get(topic_id, ([], [], 0, True))
        rising = rising and (not sequences or sequence > sequences[-1])
        sequences.append(sequence)
        locations.append(BASE + int(found.positions[row]))
        topics[topic_id] = (sequences, locations, size + int(columns.lengths[row]), rising)
    return topics


def sorted_places(places: Places) -> dict[int, tuple[list[int], list[int], int, bool]]:
    return {
        each.topic_id: (
            each.sequences.tolist(),
            each.locations.tolist(),
            each.size_bytes,
            each.ascending,
        )
        for each in places.by_topic()
    }


SMALL_IDS = st.integers(1, 4)
ANY_IDS = st.sampled_from([1, 2, 1 << 22, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])


@pytest.mark.parametrize("ids", [SMALL_IDS, ANY_IDS, st.just(7), st.just(1 << 63)])
@settings(deadline=None)  # the first example compiles
@given(data=st.data(), step=st.integers(1, 9))
def test_each_topic_gets_its_own_records_in_the_order_of_the_wal(
    ids: st.SearchStrategy[int], data: Any, step: int
) -> None:
    rows = data.draw(st.lists(st.tuples(ids, st.integers(1, 5)), max_size=12))
    frames = [append(topic, sequence, b"v" * sequence, b"t") for topic, sequence in rows]
    for at in data.draw(st.lists(st.integers(0, len(frames)), max_size=3)):
        frames.insert(at, BARRIER)
    wal = b"".join(frames)
    places, others = taken(wal, step)
    assert others == []
    assert len(places) == len(rows)
    assert sorted_places(places) == by_hand(wal)


def test_control_frames_are_left_to_the_caller_and_barriers_to_nobody() -> None:
    delete = control.encode(control.DeleteTag(4, b"red"))
    frames = [
        append(3, 1),
        log.encode_control(FrameType.DELETE, (1 << 64) - 2, 3, 0, delete),
        BARRIER,
        log.encode_control(FrameType.CHECKPOINT_MARK, 0, 0, 0, MARK),
        append(3, 2),
    ]
    wal = b"".join(frames)
    places, others = taken(wal)
    assert [control_frame(wal, position) for position in others] == [
        ControlFrame(FrameType.DELETE, (1 << 64) - 2, delete),
        ControlFrame(FrameType.CHECKPOINT_MARK, 0, MARK),
    ]
    assert sorted_places(places)[3][0] == [1, 2]


@pytest.mark.parametrize(("barriers", "last"), [((), None), ((0,), 0), ((0, 2), 2)])
def test_the_last_barrier_is_told(barriers: tuple[int, ...], last: int | None) -> None:
    mark = log.encode_control(FrameType.CHECKPOINT_MARK, 0, 0, 0, MARK)
    frames = [BARRIER if row in barriers else append(3, row + 1) for row in range(4)] + [mark]
    wal = b"".join(frames)
    position = None if last is None else sum(map(len, frames[:last]))
    assert Places().take(wal, log.scan(wal), BASE).last_barrier == position


def test_nothing_taken_is_nothing() -> None:
    assert list(Places().by_topic()) == []
    places, others = taken(BARRIER)
    assert (len(places), others, list(places.by_topic())) == (0, [], [])


def test_room_grows_with_what_is_taken() -> None:
    count = 20_000
    batch = prepare(pa.table({"value": [b""] * count}), "wal", now_ms=1)
    wal = log.encode(batch, topic_id=3, base_sequence=1, durable=True)[0].tobytes()
    (only,) = taken(wal, step=1_000)[0].by_topic()
    assert np.array_equal(only.sequences, np.arange(1, count + 1))
    assert np.array_equal(only.locations - BASE, log.scan(wal).positions)
    assert only.size_bytes == len(wal)
