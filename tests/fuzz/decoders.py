"""Every decoder of a file or a message as a target, with what must hold of whatever it accepts.

Logs are walked as recovery walks them, over every damaged spot to the end; what comes out must be
sound Arrow and survive being encoded and read again. Small files must decode to what their own
encoder gives back.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lamina.api import Ack, Appended, Gap, ProducerStamp
from lamina.errors import Busy, CorruptData, InvalidRequest, LaminaError, RecordsMissing
from lamina.formats import committed_offsets, producer_journal, tail_file, transaction_file
from lamina.formats.documents import (
    archive_location,
    archive_manifest,
    archive_proof,
    broker_id,
    checkpoint,
    cold_location,
    group_copy,
    group_roster,
    group_settings,
    lease_file,
    ledger,
    position_file,
    producer_ids,
    seat_file,
    sink_transaction,
    tail_boundary,
    tombstone,
    topic_file,
    topic_schemas,
)
from lamina.formats.frame import index as frame_index
from lamina.formats.frame import log as frame_log
from lamina.formats.frame import time_index as frame_timeindex
from lamina.formats.kafka import batch as kafka_batch
from lamina.formats.keratin import delta, manifest, snapshot
from lamina.formats.keratin import index as keratin_index
from lamina.formats.keratin import log as keratin_log
from lamina.formats.keratin import time_index as keratin_timeindex
from lamina.formats.kernels.crc import crc32c_of
from lamina.formats.scan import Budget, Limit, Stop
from lamina.formats.strm import layout as strm_layout
from lamina.formats.strm import segment as strm_segment
from lamina.formats.strm import write as strm_write
from lamina.formats.typed import (
    avro_decode,
    avro_encode,
    avro_program,
    avro_text,
    json_decode,
    json_encode,
    json_leaves,
    json_program,
    json_scan,
    protobuf_decode,
    protobuf_encode,
    protobuf_layout,
    protobuf_program,
    protobuf_schema,
)
from lamina.formats.typed.arrow_types import arrow_schema
from lamina.formats.typed.row_faults import Decoded, Values
from lamina.formats.wal import control, current, headers, places, routing
from lamina.formats.wal import index as wal_index
from lamina.formats.wal import log as wal_log
from lamina.formats.wal import search as wal_search
from lamina.formats.wal import snapshot as wal_snapshot
from lamina.formats.wal.layout import FrameType
from lamina.records import INPUT_SCHEMAS
from lamina.server import jsonrows
from lamina.subjects import changes, entries
from lamina.subjects.book import Book, anything
from lamina.wire import failures, messages
from tests.fuzz import arrow, sealing
from tests.fuzz.target import Target
from tests.support.contract import plain
from tests.support.strategies import batch_of

GOLDEN = Path(__file__).parents[1] / "golden"
NOW = 1_700_000_000_000
HEADERS = [{"key": "h", "value": b"v"}, {"key": "é", "value": None}]


def golden(*names: str) -> list[bytes]:
    return [(GOLDEN / name).read_bytes() for name in names]


def rows(count: int) -> list[dict[str, Any]]:
    """Rows with every field there is, some of them null."""
    return [
        {
            "timestamp": NOW + number,
            "key": None if number % 3 == 0 else b"k%d" % number,
            "value": b"v" * (number % 5) * 3,
            "headers": HEADERS if number % 4 == 1 else None,
            "tag": b"tag" if number % 2 else None,
            "node": b"" if number % 5 == 2 else None,
        }
        for number in range(count)
    ]


# ---------------------------------------------------------------- logs


def walked(module: Any, data: bytes, start: int, read: Callable[..., None]) -> None:
    """Walks a log as recovery does: each sound run, then the next one behind the damage."""
    budget = Budget(len(data))
    position_file: int | None = min(start, len(data))
    while position_file is not None:
        found = module.scan(data, position_file, limit=Limit(max_records=64, budget=budget))
        assert position_file <= found.end <= len(data), "a scan left its buffer"
        assert np.all(np.diff(found.positions) > 0), "a scan went backwards"
        read(data, found)
        if found.stop is Stop.END:
            return
        if found.stop is Stop.LIMIT:
            assert found.end > position_file, "a scan stands still"
            position_file = found.end
            continue
        after = min(found.end + 1, len(data))
        position_file = module.resync(data, after, budget=budget)
        assert position_file is None or position_file >= after, "a search went backwards"


def again(batch: pa.RecordBatch, format_name: str) -> pa.RecordBatch:
    """The same records as an encoder takes them."""
    schema = INPUT_SCHEMAS[format_name]
    return pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)


def read_run(module: Any, format_name: str, data: bytes, found: Any) -> None:
    """Decodes a run, checks it, encodes it, decodes that: the records must be the same."""
    batch = module.decode(data, found)
    batch.validate(full=True)
    assert batch.num_rows == len(found)
    if not batch.num_rows:
        return
    first = batch.column("offset")[0].as_py()
    encoded = bytes(module.encode(again(batch, format_name), first)[0])
    head = bytes(module.FILE_HEADER_BYTES)
    second = module.scan(head + encoded, len(head), expected_offset=first)
    assert second.stop is Stop.END, f"what was read cannot be written: {second.stop!r}"
    assert plain(module.decode(head + encoded, second)) == plain(batch), "records changed"


def check_frame_log(data: bytes) -> None:
    walked(frame_log, data, 0, functools.partial(read_run, frame_log, "frame"))
    frame_index.rebuild(data)


def check_keratin_log(data: bytes) -> None:
    walked(
        keratin_log,
        data,
        keratin_log.FILE_HEADER_BYTES,
        functools.partial(read_run, keratin_log, "keratin"),
    )
    keratin_index.rebuild(data)
    keratin_log.decode_header(data)


def frame_logs() -> list[bytes]:
    batch = batch_of(rows(9), "frame")
    return [*golden("frame-log.bin"), bytes(frame_log.encode(batch, 7)[0])]


def keratin_logs() -> list[bytes]:
    batch = batch_of(rows(9), "keratin")
    head = keratin_log.encode_header(7, NOW)
    return [*golden("keratin-log.bin"), head + bytes(keratin_log.encode(batch, 7)[0])]


def check_wal_log(data: bytes) -> None:
    position_file: int | None = 0
    budget = Budget(len(data))
    while position_file is not None:
        found = wal_log.scan(data, position_file, limit=Limit(max_records=64, budget=budget))
        assert position_file <= found.end <= len(data)
        read_wal_run(data, found)
        if found.stop is Stop.END:
            return
        after = found.end if found.stop is Stop.LIMIT else min(found.end + 1, len(data))
        position_file = wal_search.resync(data, after, budget=budget)


def read_wal_run(data: bytes, found: Any) -> None:
    columns = headers.headers(data, found)
    taken = places.Places()
    others = taken.take(data, found, 0).others
    assert sum(len(each.sequences) for each in taken.by_topic()) == len(taken)
    for at in others.tolist():
        frame = places.control_frame(data, at)
        try:
            body = control.decode(frame.frame_type, frame.body)
        except CorruptData:
            continue
        assert control.encode(body) == frame.body, "a control frame changed"
    chosen = headers.select(found, columns, columns.types == int(FrameType.APPEND))
    batch = wal_log.decode(data, chosen)
    batch.validate(full=True)
    if not batch.num_rows:
        return
    mine = columns.types == int(FrameType.APPEND)
    owners = wal_log.Owners(
        columns.topic_ids[mine].view(np.int64),
        columns.sequences[mine],
        columns.flags[mine] & 4,
    )
    encoded = bytes(wal_log.encode_mixed(again(batch, "wal"), owners)[0])
    second = wal_log.scan(encoded, limit=Limit(max_records=64))
    assert second.stop is Stop.END
    assert plain(wal_log.decode(encoded, second)) == plain(batch), "records changed"


def wal_logs() -> list[bytes]:
    batch = batch_of([row | {"value": row["value"]} for row in rows(9)], "wal")
    encoded = wal_log.encode(batch, topic_id=3, base_sequence=1, durable=True)
    bodies: list[tuple[FrameType, Any]] = [
        (FrameType.TOPIC_CREATE, control.TopicCreate("orders", 1, "{}")),
        (FrameType.TOPIC_DELETE, control.TopicDelete(2)),
        (FrameType.DELETE, control.DeleteBefore(9, 4)),
        (FrameType.DELETE, control.DeleteTag(9, b"tag")),
        (FrameType.DELETE, control.DeleteSequences(9, (1, 2, 5))),
        (FrameType.EVICT_WATERMARK, control.EvictWatermark(1, 2, control.EvictReason(1))),
        (FrameType.CHECKPOINT_MARK, control.CheckpointMark(())),
        (FrameType.ROUTER, routing.Router("r", 3, routing.Match.TAG_PREFIX, 1, 2, b"tag")),
        (FrameType.ROUTED_MARK, routing.RoutedMark(routing.Verdict.VOID, 90, 40)),
    ]
    frames = [
        wal_log.encode_control(kind, 3, 5, NOW, control.encode(body)) for kind, body in bodies
    ]
    return [*golden("wal-log.bin", "wal-routed.bin"), bytes(encoded[0]) + b"".join(frames)]


def check_wal_segment(data: bytes) -> None:
    position_file: int | None = 0
    budget = Budget(len(data))
    while position_file is not None:
        limit = Limit(max_records=64, budget=budget)
        found = wal_log.scan_segment(data, position_file, limit=limit)
        assert position_file <= found.end <= len(data)
        batch = wal_log.decode_segment(data, found)
        batch.validate(full=True)
        assert len(headers.headers_segment(data, found).sequences) == batch.num_rows
        if found.stop is Stop.END:
            return
        after = found.end if found.stop is Stop.LIMIT else min(found.end + 1, len(data))
        position_file = wal_search.resync_segment(data, after, budget=budget)


def wal_segments() -> list[bytes]:
    return golden("wal-segment.bin")


def check_delta(data: bytes) -> None:
    found = delta.scan(data, min(delta.FILE_HEADER_BYTES, len(data)))
    events = delta.decode(data, found)
    encoded = delta.encode_events(events).tobytes()
    second = delta.scan(encoded, 0)
    assert (second.stop, len(second)) == (Stop.END, len(found))
    for ours, theirs in zip(events, delta.decode(encoded, second), strict=True):
        assert np.array_equal(ours, theirs), "events changed"
    delta.decode_header(data)


def check_strm(data: bytes) -> None:
    found = strm_segment.scan(data)
    assert 0 <= found.end <= len(data)
    try:
        read = list(strm_segment.read_from(data))
    except CorruptData:
        read = []
    for batch in read:
        batch.validate(full=True)
    segment = strm_segment.verify(data)
    assert sum(batch.num_rows for batch in read) == segment.header.record_count
    writer = strm_write.Writer(segment.header.coding)
    for batch in read:
        writer.add(batch)
    encoded = writer.finish(topic="orders", partition=0, created_at_ms=NOW)
    assert plain(pa.Table.from_batches(read).combine_chunks().to_batches()[0]) == plain(
        pa.Table.from_batches(list(strm_segment.read_from(encoded)))
        .combine_chunks()
        .to_batches()[0]
    ), "records changed"


def strm_objects() -> list[bytes]:
    made = golden("strm-enveloped.seg", "strm-lz4.seg", "strm-orders.seg")
    batch = batch_of([row | {"offset": 5 + at} for at, row in enumerate(rows(40))], "strm")
    for compression in strm_layout.Compression:
        coding = strm_layout.Coding(compression, True)
        encoded = strm_write.encode(batch, coding, topic="o", partition=1, created_at_ms=NOW)
        made.append(bytes(encoded))
    return made


# ---------------------------------------------------------------- small files


def same(decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> Callable[[bytes], None]:
    """What is accepted is given back by the encoder, and read from that as the same."""

    def check(data: bytes) -> None:
        value = decode(data)
        second = decode(encode(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            for name in names:
                ours, theirs = getattr(value, name), getattr(second, name)
                if isinstance(ours, np.ndarray):
                    assert np.array_equal(ours, theirs), f"{name} changed"
                else:
                    assert ours == theirs or repr(ours) == repr(theirs), f"{name} changed"
        else:
            assert np.array_equal(value, second), "the entries changed"

    return check


def check_keratin_indexes(data: bytes) -> None:
    for module in (keratin_index, keratin_timeindex):
        try:
            index = module.decode(data)
        except CorruptData:
            continue
        if len(index.entries):
            module.encode(index.entries, base_offset=index.base_offset)


def check_producers(data: bytes) -> None:
    assert all(0 <= position_file < len(data) for position_file, _ in producer_journal.walk(data))
    entries = producer_journal.decode(data)
    assert producer_journal.decode(producer_journal.encode(entries)) == entries


def check_offsets(data: bytes) -> None:
    """Every byte behind the header is an entry or part of damage, in order and without overlap."""
    position = committed_offsets.FILE_HEADER_BYTES
    entries = []
    for piece in committed_offsets.walk(data):
        assert position <= piece.position < piece.end <= max(len(data), position)
        position = piece.end
        entries += [piece.entry] if piece.entry is not None else []
    again = committed_offsets.encode_header(NOW) + committed_offsets.encode(entries)
    assert [piece.entry for piece in committed_offsets.walk(again)] == entries
    committed_offsets.decode_header(data)


def check_transaction(data: bytes) -> None:
    """What is read whole is what was written, byte for byte but the header and the flags."""
    placed = list(transaction_file.walk(data))
    assert [each.position for each in placed[1:]] == [each.end for each in placed[:-1]]
    again = b"".join(transaction_file.encode(each.entry) for each in placed)
    head = transaction_file.encode_header(NOW)
    assert [each.entry for each in transaction_file.walk(head + again)] == [
        each.entry for each in placed
    ]


def check_kafka_batch(data: bytes) -> None:
    found = kafka_batch.decode(data, 1 << 20)
    assert found.records.num_rows > 0
    found.records.validate(full=True)


def check_wal_index(data: bytes) -> None:
    entries = wal_index.decode(data)
    wal_index.check(entries, 1 << 20)
    assert wal_index.encode(entries) == data
    wal_index.expired(entries, NOW)
    wal_index.mark_deleted(entries, 1, [(0, 5), (3, 1 << 62)])


def group_snapshots() -> list[bytes]:
    offsets = np.array([3, 5, 9], dtype=np.int64)
    made = snapshot.Snapshot(NOW, 1, 2, 3, offsets, offsets + NOW, offsets)
    return [*golden("keratin-snap.bin"), snapshot.encode(made)]


def manifests() -> list[bytes]:
    sealed = tuple(manifest.SealedSegment(5 * n, 5 * n + 4, 900, 80) for n in range(3))
    made = manifest.Manifest(NOW, 1 << 20, 4096, 8, 15, 18, sealed)
    return [*golden("keratin-manifest.bin"), manifest.encode(made)]


def ledgers() -> list[bytes]:
    reasons = ("retention", "trim", "damage")
    gaps = []
    for number, reason in enumerate(reasons):
        try:
            gaps.append(Gap(10 * number, 10 * number + 5, reason, NOW, "why"))  # type: ignore[arg-type]
        except ValueError:
            continue
    return [ledger.encode(ledger.Ledger(tuple(gaps))), ledger.encode(ledger.Ledger())]


def topics() -> list[bytes]:
    made = topic_file.TopicFile("orders", "keratin", 4, 1, NOW, settings={"retention.ms": 5})
    wal = topic_file.TopicFile("w", "wal", 2, 3, NOW, deleted=True, topic_ids=[4, 5])
    return [topic_file.encode(made), topic_file.encode(wal)]


def rosters() -> list[bytes]:
    return [
        group_roster.encode([group_roster.Listed("orders", 1, "billing", [96, 104])]),
        group_roster.encode([]),
    ]


def group_copies() -> list[bytes]:
    owner = group_copy.Owner("orders", 1, NOW, 0, "billing", "5b1e")
    rows = [[98, 99], [101, 104]], [[96, NOW, 2], [100, NOW, 1]]
    copies = (group_copy.GroupCopy(owner, NOW, 80, 96, *each) for each in (([], []), rows))
    return [group_copy.encode(each) for each in copies]


def in_order(data: bytes) -> list[group_roster.Listed]:
    """A roster as its encoder lists it."""
    return sorted(group_roster.decode(data), key=lambda each: (each.topic, each.group))


def locations() -> list[bytes]:
    return [archive_location.encode(archive_location.ArchiveLocation("s3://bucket/prefix"))]


def proofs() -> list[bytes]:
    found = archive_proof.ArchiveProof(1_700_000_000_000, ("listing: late",), is_trusted=True)
    return [archive_proof.encode(found)]


def leases() -> list[bytes]:
    held = lease_file.Lease(7, "b1/6f", "grpc://a:9300", 15_000, 41)
    return [lease_file.encode(held), lease_file.encode(dataclasses.replace(held, renewals=42))]


def seats() -> list[bytes]:
    states = (seat_file.MOUNTING, seat_file.SERVING, seat_file.SHIPPED)
    return [seat_file.encode(seat_file.SeatFile(7, state)) for state in states]


def boundaries() -> list[bytes]:
    return [tail_boundary.encode(tail_boundary.TailBoundary(912, 7))]


def tails() -> list[bytes]:
    records = tail_file.Section(tail_file.Kind.RECORDS, "orders", b"strm", 3, 10, 12)
    copy = tail_file.Section(tail_file.Kind.COPY, "data/orders/topic.json", b"{}")
    windows = (tail_file.Tail(9, 7), tail_file.Tail(10, 7, (records, copy)))
    return [tail_file.encode(each) for each in windows]


def sealed_tail(data: bytes) -> bytes:
    """A window with the checksum that its bytes would have."""
    covered = data[: -tail_file.CHECKSUM_BYTES]
    return covered + crc32c_of(covered).to_bytes(tail_file.CHECKSUM_BYTES, "big")


def cold_locations() -> list[bytes]:
    return [cold_location.encode(cold_location.ColdLocation("/slow/cold", "/srv/data"))]


def positions() -> list[bytes]:
    read = position_file.TopicPosition("orders", 1, {0: 23, 1: 7})
    unread = position_file.TopicPosition("t", 2, {})
    return [position_file.encode(position_file.Position("billing", (read, unread)))]


def transactions() -> list[bytes]:
    run = sink_transaction.Run("orders", 1, 0, 5, 40, 200, 7)
    part = sink_transaction.Part("part-0", (run, run))
    return [
        sink_transaction.encode_transaction(sink_transaction.Transaction("app", 3, "q", (part,)))
    ]


def archives() -> list[bytes]:
    made = archive_manifest.Manifest("orders", 0, 1, NOW, 2, "writer", 30)
    for first in (0, 10):
        made = made.with_object(
            archive_manifest.ArchivedObject(
                first, first + 9, 10, 0, 5, 500, 0, 400, 77, ((0, 3), (2, 5))
            ),
            30,
        )
    return [archive_manifest.encode(made)]


def group_journals() -> list[bytes]:
    events = delta.encode([1, 2, 3, 4, 5], [4, 5, 6, 7, 0], [NOW, 0, 0, 0, 0], [1, 0, 0, 0, 0])
    return [*golden("keratin-delta.bin"), delta.encode_header(NOW) + events.tobytes()]


def journals() -> list[bytes]:
    entries = [producer_journal.Entry(7, n * 3, n * 3, 3, 1) for n in range(4)]
    return [producer_journal.encode(entries)]


def offset_journals() -> list[bytes]:
    entries = [
        committed_offsets.Entry(committed_offsets.Kind.COMMIT, "g", "t", n, 1, n, 0, "note", NOW)
        for n in range(3)
    ]
    entries.append(committed_offsets.Entry(committed_offsets.Kind.FORGET_GROUP, "g"))
    entries.append(committed_offsets.Entry(committed_offsets.Kind.PRODUCER, "id", partition=1))
    return [committed_offsets.encode_header(NOW) + committed_offsets.encode(entries)]


def transaction_files() -> list[bytes]:
    kind = transaction_file.Kind
    entries = [
        transaction_file.Entry(kind.PRODUCER, "id", partition=1, number=7),
        transaction_file.Entry(kind.BATCH, "t", 1, 0, 5, b"batch"),
        transaction_file.Entry(kind.OFFSETS, "g", body=b"offsets"),
        transaction_file.Entry(kind.END, number=3),
    ]
    encoded = b"".join(map(transaction_file.encode, entries))
    return [transaction_file.encode_header(NOW) + encoded]


def kafka_batches() -> list[bytes]:
    rows = [
        {"offset": n, "timestamp": NOW, "key": b"k", "value": b"v" * n, "headers": []}
        for n in range(3)
    ]
    made = pa.RecordBatch.from_pylist(rows, schema=kafka_batch.INPUT_SCHEMA)
    return [bytes(kafka_batch.encode(made))]


def settings_of_groups() -> list[bytes]:
    found = {"billing": {"share.auto.offset.reset": "earliest", "share.session.timeout.ms": 9000}}
    return [group_settings.encode(found), group_settings.encode({})]


def schemas_of_topics() -> list[bytes]:
    entries = (topic_schemas.Entry(1, 7, SCHEMA), topic_schemas.Entry(2, 9, SCHEMA))
    made = topic_schemas.TopicSchemas("t", NOW, "avro", "registry", "id", "BACKWARD", entries)
    return [topic_schemas.encode(made)]


def registry_records() -> list[bytes]:
    """Keys and values of `_schemas`, with a line's end between them."""
    schema = entries.Schema(SCHEMA, references=(entries.Reference("n", "o", 1),))
    made: list[entries.Entry] = [
        entries.Registered("s", 1, 7, schema),
        entries.Registered("s", 2, 8, entries.Schema("{}", "JSON"), is_deleted=True),
        *(entries.Gone("s", 2), entries.SubjectDeleted("s", 1)),
        *(entries.LevelSet("s", "FULL"), entries.LevelSet("", "NONE"), entries.ModeSet("s")),
    ]
    return [b"\n".join(part or b"" for part in entries.encode(each)) for each in made]


def check_registry_record(data: bytes) -> None:
    key, _, value = data.partition(b"\n")
    entry = entries.decode(key, value or None)
    if entry is not None:
        assert entries.decode(*entries.encode(entry)) == entry
        Book().apply(entry)


def registry_bodies() -> list[bytes]:
    texts = {"AVRO": SCHEMA, "JSON": '{"properties":{"a":{"oneOf":[{"$ref":"#"},true]}}}'}
    texts["PROTOBUF"] = 'syntax = "proto3"; message A { map<string, A> a = 1; enum E { X = 0; } }'
    return [json.dumps({"schema": t, "schemaType": word}).encode() for word, t in texts.items()]


def check_registry_body(data: bytes) -> None:
    """Registers a schema, and holds it against itself."""
    book, given = Book(), changes.asked(messages.decode_object(data))
    made, version = changes.registering(book, "s", given, anything)
    for entry in made:
        book.apply(entry)
    assert changes.registering(book, "s", given, anything) == ([], version)
    meaning = changes.read(book, given.schema)
    assert changes.compared(book, meaning, [version], "FULL") == []


SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": "long"},
            {"name": "b", "type": ["null", "string"], "default": None},
            {"name": "c", "type": {"type": "array", "items": {"type": "map", "values": "int"}}},
            {"name": "d", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}},
        ],
    }
)
TYPED_ROWS = [
    {"a": 5, "b": "text", "c": [[("k", 1), ("l", -2)], []], "d": "Y"},
    {"a": -1, "b": None, "c": [], "d": "X"},
]


def typed_table() -> tuple[Any, pa.Table]:
    kind = avro_text.parse(SCHEMA)
    return kind, pa.Table.from_pylist(TYPED_ROWS, schema=arrow_schema(kind))


def avro_values() -> list[bytes]:
    kind, table = typed_table()
    found: list[bytes] = avro_encode.encode(avro_program.compiled(kind, kind), table).to_pylist()
    return found


def check_avro(data: bytes) -> None:
    """A value between two good ones is taken or refused alone, and reads the same again."""
    kind, table = typed_table()
    program = avro_program.compiled(kind, kind)
    good = avro_values()[0]
    decoded = avro_decode.decode(program, Values.of(pa.array([good, data, good], pa.binary())))
    _check_typed(decoded, table)
    again = avro_encode.encode(program, _row_of(decoded, table.schema))
    second = avro_decode.decode(program, Values.of(again))
    assert _row_of(decoded, table.schema).equals(pa.table(second.columns, schema=table.schema))


PROTO = """
syntax = "proto3";
message R {
    message M { int32 n = 1; repeated sint64 many = 2; }
    enum E { X = 0; Y = 1; }
    int64 a = 1; optional string b = 2; repeated M c = 3; E d = 4; map<string, int32> e = 5;
    oneof one { bytes f = 6; fixed32 g = 7; }
}
"""
PROTO_ROW = {
    **{"a": 5, "b": "text", "c": [{"n": 1, "many": [2, -3]}, {"n": 0, "many": []}]},
    **{"d": "Y", "e": [("k", 1)], "f": None, "g": 9},
}


def message_table() -> tuple[Any, pa.Table]:
    kind = protobuf_schema.parse(PROTO)
    return kind, pa.Table.from_pylist([PROTO_ROW], schema=arrow_schema(kind))


def protobuf_values() -> list[bytes]:
    kind, table = message_table()
    found: list[bytes] = protobuf_encode.encode(protobuf_layout.compiled(kind), table).to_pylist()
    return found


def check_protobuf(data: bytes) -> None:
    """A message between two good ones is taken or refused alone, and reads the same again."""
    kind, table = message_table()
    program = protobuf_program.compiled(kind, kind)
    good = protobuf_values()[0]
    given = Values.of(pa.array([good, data, good], pa.binary()))
    decoded = protobuf_decode.decode(program, given)
    _check_typed(decoded, table)
    again = protobuf_encode.encode(protobuf_layout.compiled(kind), _row_of(decoded, table.schema))
    second = protobuf_decode.decode(program, Values.of(again))
    assert _row_of(decoded, table.schema).equals(pa.table(second.columns, schema=table.schema))


def json_values() -> list[bytes]:
    kind, table = typed_table()
    found: list[bytes] = json_encode.encode(json_encode.template(kind), table).to_pylist()
    return found


def check_json(data: bytes) -> None:
    kind, table = typed_table()
    good = json_values()[0]
    decoded = json_decode.decode(kind, Values.of(pa.array([good, data, good], pa.binary())))
    _check_typed(decoded, table)


PLAIN_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": "long"},
            {"name": "b", "type": ["null", "string"], "default": None},
            {"name": "c", "type": {"type": "array", "items": ["null", "double"]}},
            {"name": "d", "type": "boolean"},
        ],
    }
)
PLAIN_ROW = {"a": -5, "b": "text", "c": [1.5, None, -2e3], "d": True}


def plain_documents() -> list[bytes]:
    return [json.dumps(PLAIN_ROW, indent=indent).encode() for indent in (None, 1)]


def check_plain_json(data: bytes) -> None:
    """What the kernel takes is what Arrow's reader makes of it; the rest is refused here."""
    kind = avro_text.parse(PLAIN_SCHEMA)
    program = json_program.compiled(kind)
    assert program is not None
    values = Values.of(pa.array([plain_documents()[0], data], pa.binary()))
    found, wanted = json_scan.decode(program, values), json_decode.by_reader(kind, values)
    for column in found.columns:
        column.validate(full=True)
    if found.codes[1] == json_leaves.NOT_PLAIN:
        raise InvalidRequest("the kernel leaves it to Arrow's reader")
    assert found.codes.tolist() == wanted.codes.tolist() == [0, 0]
    for mine, theirs in zip(found.columns, wanted.columns, strict=True):
        assert repr(mine.to_pylist()) == repr(theirs.to_pylist())


def _check_typed(decoded: Decoded, table: pa.Table) -> None:
    for column in decoded.columns:
        column.validate(full=True)
    rows = pa.table(decoded.columns, names=table.schema.names).to_pylist()
    assert rows[0] == rows[2] == table.to_pylist()[0]
    if decoded.codes[1] > 0:
        assert set(rows[1].values()) == {None}
        raise InvalidRequest(decoded.fault(1))


def _row_of(decoded: Decoded, schema: pa.Schema) -> pa.Table:
    return pa.table([each.slice(1, 1) for each in decoded.columns], names=schema.names).cast(schema)


def reserved_ids() -> list[bytes]:
    return [producer_ids.encode(producer_ids.Reserved(3000))]


# ---------------------------------------------------------------- messages


def check_order(data: bytes) -> None:
    order, values = messages.decode_order(pa.py_buffer(data), 1 << 20)
    plain_values = values if isinstance(values, list) else None
    again = messages.encode_order(order, plain_values)
    second, same_values = messages.decode_order(pa.py_buffer(again), 1 << 20)
    assert repr(second) == repr(order)
    assert same_values == plain_values


def orders() -> list[bytes]:
    order = messages.Order("t", 1, "all", 2.5, ProducerStamp(1, 2, 3))
    plain_order = messages.encode_order(messages.Order("t"), [b"ab", b"", b"c"])
    return [messages.encode_order(order), plain_order]


def questions() -> list[bytes]:
    return [messages.encode_question(messages.Question("scan", "t", 0, 5, 9))]


def check_question(data: bytes) -> None:
    asked = messages.decode_question(data)
    assert messages.decode_question(messages.encode_question(asked)) == asked


def check_answer(data: bytes) -> None:
    """An error that comes back is raised as it was; anything else is what was appended."""
    told = failures.decode(data)
    try:
        assert isinstance(messages.decode_answer(data), Appended)
    except LaminaError as error:
        if b'"error"' not in data or type(error) is not type(told):
            raise


def answers() -> list[bytes]:
    appended = Appended({0: Ack(5, 2, "fsynced")}, 2)  # type: ignore[arg-type]
    errors = [Busy("later", 2.0), RecordsMissing("gone", first=1, end=2, reason="trim")]
    return [messages.encode_appended(appended), *map(failures.encode, errors)]


def check_rows(data: bytes) -> None:
    made = jsonrows.parse(messages.decode_object(data).get("records"))
    assert made


def row_bodies() -> list[bytes]:
    record = {"value": "text", "key": {"base64": "aGk="}, "headers": [["a", "b"]]}
    more = {"value": None, "timestamp_ms": NOW, "tag": "t", "node": "n"}
    return [json.dumps({"records": [record, more]}).encode()]


_KERATIN_INDEX = sealing.header_of(keratin_index.FILE_HEADER)
_FILES = (
    Target("frame-log", frame_logs, check_frame_log, sealing.frames),
    Target("keratin-log", keratin_logs, check_keratin_log, sealing.keratin_records),
    Target("wal-log", wal_logs, check_wal_log, sealing.WAL_LOG),
    Target("wal-segment", wal_segments, check_wal_segment, sealing.WAL_SEGMENT),
    Target("strm", strm_objects, check_strm, sealing.strm_object),
    Target(
        "frame-idx", lambda: golden("frame-idx.bin"), same(frame_index.decode, frame_index.encode)
    ),
    Target(
        "frame-timeidx",
        lambda: golden("frame-timeidx.bin"),
        same(frame_timeindex.decode, frame_timeindex.encode),
    ),
    Target(
        "keratin-idx",
        lambda: golden("keratin-idx.bin", "keratin-tidx.bin"),
        check_keratin_indexes,
        _KERATIN_INDEX,
    ),
    Target("wal-idx", lambda: golden("wal-index.bin"), check_wal_index),
    Target(
        "keratin-manifest",
        manifests,
        same(manifest.decode, manifest.encode),
        sealing.partition_manifest,
    ),
    Target(
        "group-snap",
        group_snapshots,
        same(snapshot.decode, snapshot.encode),
        sealing.group_snapshot,
    ),
    Target("group-delta", group_journals, check_delta, sealing.events),
    Target(
        "wal-snapshot",
        lambda: golden("wal-snapshot.bin"),
        same(wal_snapshot.decode, wal_snapshot.encode),
        sealing.metadata,
    ),
    Target("producers", journals, check_producers, sealing.journal),
    Target("offsets", offset_journals, check_offsets, sealing.offsets),
    Target("transaction", transaction_files, check_transaction, sealing.transaction),
    Target("kafka-batch", kafka_batches, check_kafka_batch, sealing.kafka_batch),
    Target("CURRENT", lambda: golden("wal-current.bin"), same(current.decode, current.encode)),
)
_DOCUMENTS = (
    Target("ledger", ledgers, same(ledger.decode, ledger.encode), sealing.document, True),
    Target(
        "group-settings",
        settings_of_groups,
        same(group_settings.decode, group_settings.encode),
        sealing.document,
        True,
    ),
    Target(
        "topic-schemas",
        schemas_of_topics,
        same(topic_schemas.decode, topic_schemas.encode),
        sealing.document,
        True,
    ),
    Target("registry-record", registry_records, check_registry_record, is_text=True),
    Target("registry-body", registry_bodies, check_registry_body, is_text=True),
    Target("avro-values", avro_values, check_avro),
    Target("protobuf-values", protobuf_values, check_protobuf),
    Target("json-values", json_values, check_json, is_text=True),
    Target("plain-json-values", plain_documents, check_plain_json, is_text=True),
    Target(
        "producer-ids",
        reserved_ids,
        same(producer_ids.decode, producer_ids.encode),
        sealing.document,
        True,
    ),
    Target("roster", rosters, same(in_order, group_roster.encode), sealing.document, True),
    Target(
        "group-copy",
        group_copies,
        same(group_copy.decode, group_copy.encode),
        sealing.document,
        True,
    ),
    Target(
        "location",
        locations,
        same(archive_location.decode, archive_location.encode),
        sealing.document,
        True,
    ),
    Target("lease", leases, same(lease_file.decode, lease_file.encode), sealing.document, True),
    Target("seat", seats, same(seat_file.decode, seat_file.encode), sealing.document, True),
    Target(
        "tail-boundary",
        boundaries,
        same(tail_boundary.decode, tail_boundary.encode),
        sealing.document,
        True,
    ),
    Target("tail", tails, same(tail_file.decode, tail_file.encode), sealed_tail),
    Target(
        "archive-proof",
        proofs,
        same(archive_proof.decode, archive_proof.encode),
        sealing.document,
        True,
    ),
    Target(
        "cold-location",
        cold_locations,
        same(cold_location.decode, cold_location.encode),
        sealing.document,
        True,
    ),
    Target(
        "position",
        positions,
        same(position_file.decode, position_file.encode),
        sealing.document,
        True,
    ),
    Target("topic", topics, same(topic_file.decode, topic_file.encode), sealing.document, True),
    Target(
        "transaction",
        transactions,
        same(sink_transaction.decode_transaction, sink_transaction.encode_transaction),
        sealing.document,
        True,
    ),
    Target(
        "transaction-state",
        lambda: [sink_transaction.encode_state(sink_transaction.State("app", 3, "q"))],
        same(sink_transaction.decode_state, sink_transaction.encode_state),
        sealing.document,
        True,
    ),
    Target(
        "archive",
        archives,
        same(archive_manifest.decode, archive_manifest.encode),
        sealing.document,
        True,
    ),
    Target(
        "broker",
        lambda: golden("frame-broker.json"),
        same(broker_id.decode, broker_id.encode),
        is_text=True,
    ),
    Target(
        "checkpoint",
        lambda: golden("frame-checkpoint.json"),
        same(checkpoint.decode, checkpoint.encode),
        is_text=True,
    ),
    Target(
        "tomb",
        lambda: golden("frame-tomb.json"),
        same(tombstone.decode, tombstone.encode),
        is_text=True,
    ),
)
_MESSAGES = (
    Target("arrow", arrow.streams, arrow.check),
    Target("arrow-held", arrow.held_streams, arrow.check_held),
    Target("order", orders, check_order, is_text=True),
    Target("question", questions, check_question, is_text=True),
    Target("answer", answers, check_answer, is_text=True),
    Target("records-json", row_bodies, check_rows, is_text=True),
)
DECODERS: dict[str, Target] = {each.name: each for each in (*_FILES, *_DOCUMENTS, *_MESSAGES)}
"""Every decoder by name."""
