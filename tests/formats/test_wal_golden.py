"""The wal files made by hand: from the document's tables, with `struct` and `xxhash` only.

The same pieces are the golden files and the annotated dumps of docs/formats/wal.md. After a change
that is meant, `python -m tests.formats.test_wal_golden` writes the files and prints the dumps.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from numpy.typing import NDArray

from lamina.formats.scan import Stop
from lamina.formats.wal import control, current, index, log, snapshot
from lamina.formats.wal.headers import Headers, body_of, headers, select
from lamina.formats.wal.layout import FrameType
from lamina.formats.wal.routing import Match, RoutedMark, Router, Verdict, router_of
from lamina.records import prepare
from tests.support.contract import plain

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
PAGE = ROOT / "docs" / "formats" / "wal.md"
TOPIC = 0x0A0B
Pieces = list[tuple[bytes, str]]


def frame_pieces(
    kind: int,
    sequence: int,
    timestamp_ms: int,
    data: bytes,
    *,
    tag: bytes | None = None,
    node: bytes | None = None,
    **wrong: int,
) -> Pieces:
    """A WAL frame, field by field; `wrong` overrides a field before the checksum is made."""
    names = (node or b"") + (tag or b"")
    fields = {
        "frame_len": 41 + len(names) + len(data),
        "flags": (tag is not None) | (node is not None) << 1 | 4,
        "topic_id": TOPIC,
        "node_len": len(node or b""),
        "tag_len": len(tag or b""),
        "data_len": len(data),
        "seed": 0 if kind == 1 else kind,
    } | wrong
    head = struct.pack("<BQQ", fields["flags"], fields["topic_id"], sequence)
    head += struct.pack("<q", timestamp_ms)
    lens = struct.pack("<HHI", fields["node_len"], fields["tag_len"], fields["data_len"])
    checksum = xxhash.xxh3_64_intdigest(head + lens + names + data, fields["seed"])
    title = {1: "Append", 2: "TopicCreate", 3: "TopicDelete", 6: "Delete"}
    title |= {4: "Router", 7: "EvictWatermark", 8: "CheckpointMark", 9: "RoutedMark"}
    pieces = [
        (struct.pack("<B", kind), f"frame_type {kind}: {title.get(kind, 'unknown')}"),
        (struct.pack("<I", fields["frame_len"]), f"frame_len {fields['frame_len']}"),
        (head[:1], f"flags {fields['flags']}"),
        (head[1:9], f"topic_id {fields['topic_id']:#x}"),
        (head[9:17], f"sequence {sequence}"),
        (head[17:25], f"timestamp_ms {timestamp_ms}"),
        (lens[:2], f"node_len {fields['node_len']}"),
        (lens[2:4], f"tag_len {fields['tag_len']}"),
        (lens[4:], f"data_len {fields['data_len']}"),
        (node or b"", "node"),
        (tag or b"", "tag"),
        (data, "data"),
        (struct.pack("<Q", checksum), f"xxh3, seed {fields['seed']}"),
    ]
    return [piece for piece in pieces if piece[0]]


def joined(pieces: Pieces) -> bytes:
    return b"".join(data for data, _ in pieces)


def frame_by_hand(kind: int, sequence: int, data: bytes, **rest: Any) -> bytes:
    return joined(frame_pieces(kind, sequence, rest.pop("timestamp_ms", 1), data, **rest))


def appends_of(columns: Headers, topic_id: int) -> NDArray[np.bool_]:
    """Marks the rows that are records of a topic."""
    mine: NDArray[np.bool_] = columns.topic_ids == np.uint64(topic_id)
    return mine & (columns.types == int(FrameType.APPEND))


NOW = 1_700_000_000_000
CONFIG = '{"retention.ms":60000}'
CREATE = struct.pack("<BQHI", 1, 1, 6, len(CONFIG)) + b"orders" + CONFIG.encode()
CHECKPOINT = struct.pack("<BI", 1, 1) + struct.pack("<6Q", TOPIC, 3, 2, 2, 1, 101)
ROUTER = struct.pack("<BBQQQHH", 1, 2, 5, TOPIC, TOPIC + 1, 6, 2) + b"alerts" + b"re"
BODIES: list[tuple[int, bytes, control.Control]] = [
    (2, CREATE, control.TopicCreate("orders", 1, CONFIG)),
    (3, struct.pack("<BQ", 1, 1), control.TopicDelete(1)),
    (6, struct.pack("<BBQQ", 1, 1, 4, 2), control.DeleteBefore(4, 2)),
    (6, struct.pack("<BBQQ", 1, 2, 4, 3) + b"red", control.DeleteTag(4, b"red")),
    (6, struct.pack("<BBQQ", 1, 3, 4, 1) + b"r", control.DeleteTagPrefix(4, b"r")),
    (6, struct.pack("<BBQQQQ", 1, 4, 4, 2, 1, 3), control.DeleteSequences(4, (1, 3))),
    (7, struct.pack("<BBQQ", 1, 1, 2, 2), control.EvictWatermark(2, 2, control.EvictReason.AGE)),
    (8, CHECKPOINT, control.CheckpointMark((control.TopicCheckpoint(TOPIC, 3, 2, 2, 1, 101),))),
    (4, ROUTER, Router("alerts", 5, Match.TAG_PREFIX, TOPIC, TOPIC + 1, b"re")),
    (4, struct.pack("<BBQQQHH", 1, 0, 6, 7, 8, 1, 0) + b"a", Router("a", 6, Match.GONE, 7, 8)),
    (9, struct.pack("<BBQQ", 1, 1, 114, 114), RoutedMark(Verdict.WHOLE, 114, 114)),
    (9, struct.pack("<BBQQ", 1, 2, 90, 40), RoutedMark(Verdict.VOID, 90, 40)),
]

FIRST = frame_pieces(1, 1, NOW, b"\x01\x02\x03")
THIRD = frame_pieces(1, 3, NOW + 5, b"hello", tag=b"red", node=b"")
WAL: Pieces = [
    *frame_pieces(2, 0, NOW, CREATE),
    *FIRST,
    *THIRD,
    *frame_pieces(6, 3, NOW + 6, BODIES[3][1]),
    *frame_pieces(7, 3, NOW + 7, BODIES[6][1]),
    *frame_pieces(8, 0, NOW + 8, CHECKPOINT, topic_id=0),
    *frame_pieces(3, 3, NOW + 9, BODIES[1][1]),
]
SOURCE = frame_pieces(1, 4, NOW + 5, b"hello", tag=b"red", flags=13)
COPY = frame_pieces(1, 1, NOW + 5, b"hello", tag=b"red", flags=13, topic_id=TOPIC + 1)
BOTH_BYTES = len(joined(SOURCE + COPY))
WHOLE = struct.pack("<BBQQ", 1, 1, BOTH_BYTES, BOTH_BYTES)
ROUTED: Pieces = [
    *frame_pieces(4, 3, NOW, ROUTER),
    *SOURCE,
    *COPY,
    *frame_pieces(9, 0, NOW + 6, WHOLE, topic_id=0),
]
SEGMENT = [*FIRST[1:], *THIRD[1:]]
FIRST_BYTES, THIRD_BYTES = len(joined(FIRST[1:])), len(joined(THIRD[1:]))
INDEX: Pieces = [
    (struct.pack("<IIQB3x", 0, FIRST_BYTES, NOW, 0), "sequence 1: at 0, no tag, no node"),
    (struct.pack("<IIQB3x", FIRST_BYTES, 0, NOW, 0), "sequence 2: a hole"),
    (struct.pack("<IIQB3x", FIRST_BYTES, THIRD_BYTES, NOW + 5, 3), "sequence 3: tag and node"),
]
SNAPSHOT_PAYLOAD: Pieces = [
    (struct.pack("<Q", TOPIC + 1), "next_topic_id"),
    (struct.pack("<Q", 3), "last_checkpoint_sequence"),
    (struct.pack("<IIII", 1, 1, 1, 1), "1 topic, 1 deleted topic, 1 shard, 1 router"),
    (struct.pack("<QQ", TOPIC, 1), "topic_id, epoch"),
    (struct.pack("<QQ", 2, 2), "evict_floor, earliest_sequence"),
    (struct.pack("<Q", 2), "delete_below"),
    (struct.pack("<HII", 6, len(CONFIG), 1), "name_len, config_len, range_count"),
    (b"orders", "name"),
    (CONFIG.encode(), "config"),
    (struct.pack("<QQ", 3, 4), "deleted from 3 to before 4"),
    (struct.pack("<QQ", 7, 2), "deleted topic 7, its epoch 2"),
    (struct.pack("<IQ", 0, 12), "shard 0 writes to wal-12.log"),
    (struct.pack("<I", len(ROUTER)) + ROUTER, f"a router of {len(ROUTER)} bytes"),
]
PAYLOAD = joined(SNAPSHOT_PAYLOAD)
SNAPSHOT: Pieces = [
    (b"LAMSNAP\x00", "magic"),
    (struct.pack("<HH", 1, 0), "version 1, flags 0"),
    (struct.pack("<I", len(PAYLOAD)), f"payload_len {len(PAYLOAD)}"),
    (struct.pack("<Q", xxhash.xxh3_64_intdigest(PAYLOAD)), "xxh3 of what follows"),
    *SNAPSHOT_PAYLOAD,
]
META = snapshot.Snapshot(
    next_topic_id=TOPIC + 1,
    last_checkpoint_sequence=3,
    topics=(snapshot.TopicMeta(TOPIC, "orders", 1, CONFIG, 2, 2, 2, ((3, 4),)),),
    deleted_topics=(snapshot.DeletedTopic(7, 2),),
    current_wal=(snapshot.CurrentWal(0, 12),),
    routers=(ROUTER,),
)
FILES: dict[str, Pieces] = {
    "wal-log.bin": WAL,
    "wal-routed.bin": ROUTED,
    "wal-segment.bin": SEGMENT,
    "wal-index.bin": INDEX,
    "wal-snapshot.bin": SNAPSHOT,
    "wal-current.bin": [(b"wal-12.log\n", "the active file's name and a line feed")],
}
ROWS = [
    {"offset": 1, "timestamp": NOW, "value": b"\x01\x02\x03", "tag": None, "node": None},
    {"offset": 3, "timestamp": NOW + 5, "value": b"hello", "tag": b"red", "node": b""},
]


def dump_of(pieces: Pieces) -> str:
    """The annotated dump of the format page."""
    lines, position = [], 0
    for data, note in pieces:
        for start in range(0, len(data), 16):
            part = data[start : start + 16]
            text = note if start == 0 else f"… {note}"
            lines.append(f"{position + start:08x}  {part.hex(' '):<47}  ; {text}")
        position += len(data)
    return "\n".join(lines)


@pytest.mark.parametrize("name", FILES)
def test_golden_files_are_the_bytes_made_by_hand(name: str) -> None:
    regenerate = "python -m tests.formats.test_wal_golden"
    assert (GOLDEN / name).read_bytes() == joined(FILES[name]), f"if meant: {regenerate}"


@pytest.mark.parametrize("name", FILES)
def test_the_page_shows_each_golden_file(name: str) -> None:
    block = rf"<!-- dump: golden=tests/golden/{name} -->\n```hexdump\n(.*?)\n```"
    shown = re.search(block, PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert shown
    assert shown[1] == dump_of(FILES[name])


def test_the_golden_wal_is_read() -> None:
    data = joined(WAL)
    found = log.scan(data)
    assert (found.stop, found.end) == (Stop.END, len(data))
    columns = headers(data, found)
    assert columns.types.tolist() == [2, 1, 1, 6, 7, 8, 3]
    assert columns.topic_ids.tolist() == [*[TOPIC] * 5, 0, TOPIC]
    assert columns.sequences.tolist() == [0, 1, 3, 3, 3, 0, 3]
    assert columns.timestamps.tolist() == [NOW, NOW, *range(NOW + 5, NOW + 10)]
    assert columns.flags.tolist() == [4, 4, 7, 4, 4, 4, 4]
    assert columns.lengths.tolist() == [*(found.positions[1:] - found.positions[:-1]), 55]
    records = select(found, columns, appends_of(columns, TOPIC))
    assert plain(log.decode(data, records)) == ROWS
    assert len(select(found, columns, appends_of(columns, TOPIC + 1))) == 0
    bodies = [body_of(data, found, columns, row) for row in range(7)]
    assert bodies[1:3] == [ROWS[0]["value"], ROWS[1]["value"]]
    kinds = {int(columns.types[row]): bodies[row] for row in (0, 3, 4, 5, 6)}
    read = {type(control.decode(kind, body)) for kind, body in kinds.items()}
    assert len(read) == 5


def test_the_golden_copy_has_the_bytes_of_its_source_but_for_topic_and_sequence() -> None:
    data = joined(ROUTED)
    found = log.scan(data)
    assert (found.stop, found.end) == (Stop.END, len(data))
    columns = headers(data, found)
    assert columns.types.tolist() == [4, 1, 1, 9]
    assert columns.flags.tolist() == [4, 13, 13, 4]
    assert columns.topic_ids.tolist() == [TOPIC, TOPIC, TOPIC + 1, 0]
    mark = control.decode(9, body_of(data, found, columns, 3))
    assert isinstance(mark, RoutedMark)
    assert int(found.positions[3]) - mark.distance == int(found.positions[1])
    assert router_of(META.routers[0]) == BODIES[8][2]


def test_the_golden_segment_is_read() -> None:
    data = joined(SEGMENT)
    found = log.scan_segment(data, topic_id=TOPIC)
    assert (found.stop, found.positions.tolist()) == (Stop.END, [0, FIRST_BYTES])
    assert plain(log.decode_segment(data, found)) == ROWS
    assert index.encode(index.build(data, found, first_sequence=1)) == joined(INDEX)


def test_the_golden_appends_are_written() -> None:
    for row, pieces in zip(ROWS, (FIRST, THIRD), strict=True):
        record = {name: value for name, value in row.items() if name != "offset"}
        batch = prepare([record], "wal", now_ms=0)
        sequence = int(str(row["offset"]))
        data, positions = log.encode(batch, topic_id=TOPIC, base_sequence=sequence, durable=True)
        assert data.tobytes() == joined(pieces)
        assert positions.tolist() == [0]


@pytest.mark.parametrize(("kind", "raw", "body"), BODIES)
def test_control_frames_made_by_hand_are_read_and_written(
    kind: int, raw: bytes, body: control.Control
) -> None:
    assert control.encode(body) == raw
    assert control.decode(kind, raw) == body
    frame = frame_by_hand(kind, 9, raw, timestamp_ms=-5)
    assert log.encode_control(control.type_of(body), TOPIC, 9, -5, raw) == frame
    assert log.scan(frame).stop is Stop.END
    assert control.type_of(body) is FrameType(kind)


def test_golden_snapshot_and_current_are_read_and_written() -> None:
    assert snapshot.decode(joined(SNAPSHOT)) == META
    assert snapshot.encode(META) == joined(SNAPSHOT)
    assert current.decode(b"wal-12.log\n") == 12
    assert current.encode(12) == b"wal-12.log\n"


if __name__ == "__main__":
    for file_name, file_pieces in FILES.items():
        (GOLDEN / file_name).write_bytes(joined(file_pieces))
        print(f"<!-- dump: golden=tests/golden/{file_name} -->")
        print(f"```hexdump\n{dump_of(file_pieces)}\n```\n")
