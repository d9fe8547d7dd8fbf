"""Keratin's golden files: each made here by hand, from the document's tables, without our encoder.

`python -m tests.formats.test_keratin_golden` writes the files and the dumps of the format page.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, TypeAlias

import google_crc32c
import numpy as np
import pytest

from lamina.formats import sparse_index
from lamina.formats.keratin import delta, index, log, manifest, snapshot, time_index
from lamina.formats.scan import Stop
from lamina.formats.sparse_choice import START, select
from lamina.records import prepare
from tests.support.contract import plain

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/formats/keratin.md"
NOW = 1_700_000_000_000
Parts: TypeAlias = list[tuple[bytes, str]]
"""Bytes in the order of the file, each run with what it means."""

# ---------------------------------------------------------------- structures by hand


def crc(data: bytes) -> bytes:
    return struct.pack(">I", google_crc32c.value(data))


def joined(parts: Parts) -> bytes:
    return b"".join(data for data, _ in parts)


def file_header(magic: bytes, size: int, own: Parts) -> Parts:
    parts: Parts = [
        (magic.ljust(8, b"\0"), "magic"),
        (struct.pack(">H", 1), "version 1"),
        (struct.pack(">H", 0), "flags 0"),
        (struct.pack(">I", size), f"header_len {size}"),
        *own,
        (bytes(32), "reserved"),
    ]
    return [*parts, (crc(joined(parts)), "header_crc32c of everything above")]


def based(base_offset: int) -> Parts:
    return [
        (struct.pack(">Q", base_offset), f"base_offset {base_offset}"),
        (struct.pack(">Q", NOW), f"created_ts_ms {NOW}"),
    ]


def record(offset: int, time: int, headers: bytes | Parts, payload: bytes, **other: int) -> Parts:
    fields = {"magic": 0x4B52, "version": 1, "flags": 0, "reserved0": 0} | other
    inner: Parts = [(headers, "headers")] if isinstance(headers, bytes) else headers
    length = len(joined(inner))
    parts: Parts = [
        (struct.pack(">H", fields["version"]), f"version {fields['version']}"),
        (struct.pack(">H", fields["flags"]), f"flags {fields['flags']}"),
        (struct.pack(">H", fields["reserved0"]), "reserved0"),
        (struct.pack(">I", length), f"header_len {length}"),
        (struct.pack(">I", len(payload)), f"payload_len {len(payload)}"),
        (struct.pack(">q", time), f"timestamp_ms {time}"),
        (struct.pack(">Q", offset), f"offset {offset}"),
        *inner,
        (payload, f"payload {payload!r}"),
    ]
    magic = struct.pack(">H", fields["magic"])
    return [(magic, 'magic "KR"'), *parts, (crc(joined(parts)), "crc32c from version on")]


def envelope(flags: int, *rest: tuple[bytes, str]) -> Parts:
    return [
        (b"LE", 'envelope magic "LE"'),
        (bytes([1]), "envelope version 1"),
        (bytes([flags]), f"envelope flags {flags}"),
        *rest,
    ]


def run(data: bytes, meaning: str) -> Parts:
    parts: Parts = [(struct.pack(">I", len(data)), f"{meaning}: {len(data)} bytes")]
    return [*parts, (data, repr(data))] if data else parts


def event(kind: int, name: str, payload: bytes, **other: int) -> Parts:
    fields = {"magic": 0x4B45, "version": 1, "flags": 0} | other
    parts: Parts = [
        (struct.pack(">H", fields["version"]), f"version {fields['version']}"),
        (struct.pack(">H", kind), f"event_type {kind} {name}"),
        (struct.pack(">H", fields["flags"]), f"flags {fields['flags']}"),
        (struct.pack(">I", len(payload)), f"len {len(payload)}"),
        (payload, "payload"),
    ]
    magic = struct.pack(">H", fields["magic"])
    return [(magic, 'magic "KE"'), *parts, (crc(joined(parts)), "crc32c from version on")]


# ---------------------------------------------------------------- the golden files

LOG_ROWS: list[dict[str, Any]] = [
    {"offset": 42, "timestamp": NOW, "key": None, "value": b"plain", "headers": None},
    {
        "offset": 43,
        "timestamp": NOW + 1,
        "key": b"k1",
        "value": b"v",
        "headers": [{"key": "a", "value": b"\x01"}, {"key": "a", "value": None}],
    },
    {"offset": 44, "timestamp": NOW + 2, "key": b"", "value": None, "headers": None},
]
FOREIGN_ROW = {
    "offset": 45,
    "timestamp": NOW + 3,
    "key": None,
    "value": b"hello",
    "headers": [{"key": "keratin.headers", "value": b"h1"}],
}


def log_parts() -> Parts:
    return [
        *file_header(b"KLOG", 68, based(42)),
        *record(42, NOW, [], b"plain"),
        *record(
            43,
            NOW + 1,
            envelope(
                0x05,
                *run(b"k1", "key"),
                (struct.pack(">I", 2), "2 headers"),
                *run(b"a", "name"),
                *run(b"\x01", "value"),
                *run(b"a", "name"),
                (b"\xff\xff\xff\xff", "value: null"),
            ),
            b"v",
        ),
        *record(44, NOW + 2, envelope(0x03, *run(b"", "key")), b""),
        *record(45, NOW + 3, b"h1", b"hello", flags=2),
    ]


def index_parts() -> Parts:
    parts = file_header(b"KIDX", 72, [*based(42), (struct.pack(">HH", 16, 0), "entry_len 16")])
    for relative, position in ((0, 68), (482, 65_620), (964, 131_172)):
        parts += [
            (struct.pack(">I", relative), f"rel_offset {relative}: offset {42 + relative}"),
            (bytes(4), "reserved0"),
            (struct.pack(">Q", position), f"file_pos {position}"),
        ]
    return parts


def time_index_parts() -> Parts:
    parts = file_header(b"KTIX", 72, [*based(42), (struct.pack(">HH", 16, 0), "entry_len 16")])
    for relative, time in ((0, NOW), (482, NOW + 5_000), (964, NOW + 5_000)):
        parts += [
            (struct.pack(">Q", time), f"timestamp_ms {time}"),
            (struct.pack(">I", relative), f"rel_offset {relative}: offset {42 + relative}"),
            (bytes(4), "reserved0"),
        ]
    return parts


def manifest_parts() -> Parts:
    payload: Parts = [
        (struct.pack(">Q", NOW), f"created_ts_ms {NOW}"),
        (struct.pack(">Q", 64 << 20), "segment_max_bytes 64 MiB"),
        (struct.pack(">I", 64 << 10), "index_stride_bytes 64 KiB"),
        (struct.pack(">H", 16), "max_open_segments 16"),
        (bytes(2), "reserved0"),
        (struct.pack(">Q", 42), "active_base_offset 42"),
        (struct.pack(">Q", 46), "next_offset 46"),
        (struct.pack(">I", 1), "segment_count 1"),
        (struct.pack(">Q", 0), "segment: base_offset 0"),
        (struct.pack(">Q", 41), "segment: last_offset 41, inclusive"),
        (struct.pack(">Q", 5_780), "segment: log_bytes 5780"),
        (struct.pack(">Q", 88), "segment: idx_bytes 88"),
    ]
    head: Parts = [
        (b"KERATIN\0", "magic"),
        (struct.pack(">H", 1), "version 1"),
        (struct.pack(">H", 0), "flags 0"),
        (struct.pack(">I", 20), "header_len 20"),
        (crc(joined(payload)), "crc32c of everything below"),
    ]
    return head + payload


def reference_fnv(data: bytes) -> int:
    digest = 14_695_981_039_346_656_037
    for byte in data:
        digest = ((digest ^ byte) * 1_099_511_628_211) % (1 << 64)
    return digest


def snapshot_parts() -> Parts:
    topic, group = reference_fnv(b"orders/0"), reference_fnv(b"billing")
    head = file_header(
        b"KSNAP",
        76,
        [
            (struct.pack(">Q", NOW), f"created_ts_ms {NOW}"),
            (struct.pack(">Q", topic), 'tp_hash of "orders/0"'),
            (struct.pack(">Q", group), 'group_hash of "billing"'),
        ],
    )
    payload: Parts = [
        (struct.pack(">Q", 42), "acked_until 42"),
        (struct.pack(">I", 2), "inflight_count 2"),
        (bytes(4), "reserved0"),
    ]
    for offset, deadline, epoch in ((42, NOW + 30_000, 1), (44, NOW + 20_000, 3)):
        payload += [
            (struct.pack(">Q", offset), f"offset {offset}"),
            (struct.pack(">Q", deadline), f"deadline_ts_ms {deadline}"),
            (struct.pack(">I", epoch), f"epoch {epoch}"),
            (bytes(4), "reserved"),
        ]
    payload.append((struct.pack(">Q", NOW + 20_000), f"min_deadline_hint {NOW + 20_000}"))
    return [*head, *payload, (crc(joined(payload)), "payload_crc32c from acked_until on")]


def delta_parts() -> Parts:
    return [
        *file_header(b"KDELTA", 60, [(struct.pack(">Q", NOW), f"created_ts_ms {NOW}")]),
        *event(1, "MarkInflight", struct.pack(">QQI", 42, NOW + 30_000, 1)),
        *event(2, "Ack", struct.pack(">Q", 42)),
        *event(3, "ClearInflight", struct.pack(">Q", 44)),
        *event(4, "BumpAckedUntil", struct.pack(">Q", 43)),
        *event(5, "Reset", b""),
    ]


GOLDEN: dict[str, Parts] = {
    "keratin-log.bin": log_parts(),
    "keratin-idx.bin": index_parts(),
    "keratin-tidx.bin": time_index_parts(),
    "keratin-manifest.bin": manifest_parts(),
    "keratin-snap.bin": snapshot_parts(),
    "keratin-delta.bin": delta_parts(),
}
MANIFEST = manifest.Manifest(
    created_ms=NOW,
    segment_bytes_max=64 << 20,
    index_stride_bytes=64 << 10,
    open_segments_max=16,
    active_base_offset=42,
    next_offset=46,
    segments=(manifest.SealedSegment(0, 41, 5_780, 88),),
)
SNAPSHOT = snapshot.Snapshot(
    created_ms=NOW,
    tp_hash=reference_fnv(b"orders/0"),
    group_hash=reference_fnv(b"billing"),
    acked_until=42,
    offsets=np.array([42, 44]),
    deadlines_ms=np.array([NOW + 30_000, NOW + 20_000]),
    epochs=np.array([1, 3]),
)


def dump(parts: Parts) -> list[str]:
    """The annotated lines of a dump, at most 16 bytes each."""
    lines, position = [], 0
    for data, meaning in parts:
        for start in range(0, len(data), 16):
            piece = data[start : start + 16]
            lines.append(f"{position:08x}  {piece.hex(' '):<47}  ; {meaning}")
            position += len(piece)
    return lines


# ---------------------------------------------------------------- tests


def golden(name: str) -> bytes:
    return (ROOT / "tests/golden" / name).read_bytes()


@pytest.mark.parametrize("name", GOLDEN)
def test_the_golden_file_is_what_was_made_by_hand(name: str) -> None:
    assert golden(name) == joined(GOLDEN[name]), "run python -m tests.formats.test_keratin_golden"


@pytest.mark.parametrize("name", GOLDEN)
def test_the_page_shows_the_golden_file(name: str) -> None:
    page = PAGE.read_text()
    block = page.split(f"golden=tests/golden/{name} -->\n```hexdump\n")[1].split("\n```")[0]
    assert block.splitlines() == dump(GOLDEN[name])


def test_the_golden_log_is_read() -> None:
    data = golden("keratin-log.bin")
    assert log.decode_header(data) == log.FileHeader(42, NOW)
    found = log.scan(data, expected_offset=42)
    assert found.stop is Stop.END
    assert plain(log.decode(data, found)) == [*LOG_ROWS, FOREIGN_ROW]


def test_the_golden_log_is_written() -> None:
    columns = [{name: row[name] for name in row if name != "offset"} for row in LOG_ROWS]
    data = log.encode_header(42, NOW)
    data += log.encode(prepare(columns, "keratin", now_ms=0), 42)[0].tobytes()
    foreign = len(joined(record(45, NOW + 3, b"h1", b"hello", flags=2)))
    assert data == golden("keratin-log.bin")[:-foreign]


def segment_of_a_thousand() -> bytes:
    """100 bytes a value: 136 a record. Record 100 is five seconds ahead of its time."""
    times = [NOW + row + (4_900 if row == 100 else 0) for row in range(1_000)]
    rows = [{"timestamp": time, "value": b"x" * 100} for time in times]
    data, _ = log.encode(prepare(rows, "keratin", now_ms=0), 42)
    return log.encode_header(42, NOW) + data.tobytes()


def test_the_golden_indexes_are_what_a_rebuild_writes() -> None:
    segment = segment_of_a_thousand()
    offsets = index.encode(index.rebuild(segment), base_offset=42)
    assert index.encode_header(42, NOW) + offsets == golden("keratin-idx.bin")
    times = time_index.encode(time_index.rebuild(segment), base_offset=42)
    assert time_index.encode_header(42, NOW) + times == golden("keratin-tidx.bin")


def test_the_golden_indexes_are_read() -> None:
    found = index.decode(golden("keratin-idx.bin"))
    assert (found.base_offset, found.created_ms, found.cut_bytes) == (42, NOW, 0)
    assert found.entries.tolist() == [(42, 68), (524, 65_620), (1_006, 131_172)]
    times = time_index.decode(golden("keratin-tidx.bin"))
    assert times.entries.tolist() == [(NOW, 42), (NOW + 5_000, 524), (NOW + 5_000, 1_006)]
    assert sparse_index.times_agree(times.entries, found.entries)


def test_the_golden_manifest_is_read_and_written() -> None:
    assert manifest.decode(golden("keratin-manifest.bin")) == MANIFEST
    assert manifest.encode(MANIFEST) == golden("keratin-manifest.bin")
    assert MANIFEST.segments[0].next_offset == MANIFEST.active_base_offset


def test_the_golden_snapshot_is_read_and_written() -> None:
    read = snapshot.decode(golden("keratin-snap.bin"))
    assert (read.created_ms, read.acked_until, read.min_deadline_ms) == (NOW, 42, NOW + 20_000)
    assert read.tp_hash == snapshot.hash_topic_partition("orders", 0) == SNAPSHOT.tp_hash
    assert read.group_hash == snapshot.hash_group("billing") == SNAPSHOT.group_hash
    assert (read.offsets.tolist(), read.epochs.tolist()) == ([42, 44], [1, 3])
    assert read.deadlines_ms.tolist() == [NOW + 30_000, NOW + 20_000]
    assert snapshot.encode(SNAPSHOT) == golden("keratin-snap.bin")


def test_the_golden_delta_is_read_and_written() -> None:
    data = golden("keratin-delta.bin")
    assert delta.decode_header(data) == NOW
    found = delta.scan(data)
    assert found.stop is Stop.END
    events = delta.decode(data, found)
    assert [column.tolist() for column in events] == [
        [1, 2, 3, 4, 5],
        [42, 42, 44, 43, 0],
        [NOW + 30_000, 0, 0, 0, 0],
        [1, 0, 0, 0, 0],
    ]
    assert delta.encode_header(NOW) + delta.encode(*events).tobytes() == data


def test_the_vectors_of_the_formats_page() -> None:
    header = bytes.fromhex(
        "4b4c4f47000000000001000000000044000000000000002a0000018bcfe56800" + "00" * 32 + "73904332"
    )
    assert log.encode_header(42, NOW) == header
    assert log.decode_header(header) == log.FileHeader(42, NOW)
    vector = bytes.fromhex(
        "4b5200010002000000000002000000050000018bcfe568000000000000000005683168656c6c6f1d68beb1"
    )
    assert joined(record(5, NOW, b"h1", b"hello", flags=2)) == vector
    found = log.scan(vector, 0, expected_offset=5)
    row = FOREIGN_ROW | {"offset": 5, "timestamp": NOW}
    assert plain(log.decode(vector, found)) == [row]


def test_an_index_continues_over_batches_as_if_written_at_once() -> None:
    segment = segment_of_a_thousand()
    whole = index.rebuild(segment)
    positions = log.scan(segment).positions
    parts, state = [], START
    for first in range(0, 1_000, 7):
        origin = int(positions[first])
        batch = positions[first : first + 7] - origin
        entries, _, state = select(
            batch, batch, state, index.STRIDE, base_offset=42 + first, origin=origin
        )
        parts += entries.tolist()
    assert parts == whole.tolist()


def main() -> None:
    """Writes the golden files and the dumps of the page."""
    page = PAGE.read_text() if PAGE.exists() else ""
    for name, parts in GOLDEN.items():
        (ROOT / "tests/golden" / name).write_bytes(joined(parts))
        mark = f"<!-- dump: golden=tests/golden/{name} -->\n```hexdump\n"
        if mark in page:
            before, after = page.split(mark)
            page = before + mark + "\n".join(dump(parts)) + "\n```" + after.split("```", 1)[1]
    if page:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
