"""The small JSON files of frame: tombstone, checkpoint and broker identity."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.api import BrokerId
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents import broker_id, checkpoint, tombstone
from lamina.formats.documents.checkpoint import Checkpoint, PartitionCheckpoint
from lamina.formats.documents.tombstone import Tomb

GOLDEN = Path(__file__).parents[1] / "golden"
COUNTS = st.integers(0, (1 << 63) - 1)

TOMB = Tomb(4096, "retention", 1_700_000_000_000)
CHECKPOINT = Checkpoint(
    (
        PartitionCheckpoint("orders", 0, 2, 0, 86, 2),
        PartitionCheckpoint("orders", 1, 0, 0, 0),
    )
)
BROKER = BrokerId(
    UUID("6f1c24de-0b57-4c1e-9d3a-2f6b8e90a1c4"),
    datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    "alpha",
)
FILES: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any], Any]] = {
    "frame-tomb.json": (tombstone.encode, tombstone.decode, TOMB),
    "frame-checkpoint.json": (checkpoint.encode, checkpoint.decode, CHECKPOINT),
    "frame-broker.json": (broker_id.encode, broker_id.decode, BROKER),
}


def test_a_checkpoint_keeps_a_floor_under_a_checksum() -> None:
    kept = checkpoint.checkpoint_of([PartitionCheckpoint("orders", 0, 20, 0, 86, 20, floor=12)])
    raw = checkpoint.encode(kept)
    assert checkpoint.decode(raw) == kept
    without = re.sub(rb', "floor_crc32": "[0-9a-f]*"', b"", raw)
    assert len(without) < len(raw)
    for other in (raw.replace(b'"floor": 12', b'"floor": 13'), without):
        with pytest.raises(CorruptData, match="does not match its checksum"):
            checkpoint.decode(other)
    assert b"floor" not in checkpoint.encode(CHECKPOINT), "older releases read it"
    with pytest.raises(ValueError, match="no more can be removed"):
        PartitionCheckpoint("orders", 0, 20, 0, 86, 20, floor=21)


def test_a_checkpoint_names_its_broker_under_a_checksum() -> None:
    owned = replace(CHECKPOINT, broker="6f1c24de-0b57-4c1e-9d3a-2f6b8e90a1c4")
    raw = checkpoint.encode(owned)
    assert checkpoint.decode(raw) == owned
    spoilt = raw.replace(b"6f1c24de", b"6f1c24df")
    without = re.sub(rb'"broker_crc32": "[0-9a-f]*", ', b"", raw)
    assert len(without) < len(raw)
    for other in (spoilt, without, raw.replace(b'"broker": ', b'"broken": ')):
        with pytest.raises(CorruptData):
            checkpoint.decode(other)
    with pytest.raises(CorruptData, match="does not match its checksum"):
        checkpoint.decode(spoilt)


def test_the_golden_log_is_made_from_the_tables_of_the_document() -> None:
    data = b""
    for offset, key, value in ((0, b"", b"\x01\x02\x03"), (1, b"\x09", b"\x04\x05")):
        head = struct.pack("<IHHqq", 0xB10B5E01, 1, 0, offset, 1_700_000_000_000 + offset)
        head += struct.pack("<II", len(key), len(value)) + key + value
        data += head + struct.pack("<II", zlib.crc32(head), 43)
    assert (GOLDEN / "frame-log.bin").read_bytes() == data


@pytest.mark.parametrize("name", FILES)
def test_golden_files_are_read_and_written(name: str) -> None:
    encode, decode, value = FILES[name]
    data = (GOLDEN / name).read_bytes()
    assert decode(data) == value
    assert encode(value) == data


@pytest.mark.parametrize("name", FILES)
def test_every_prefix_of_a_file_is_corrupt(name: str) -> None:
    _, decode, _ = FILES[name]
    data = (GOLDEN / name).read_bytes().rstrip()
    for size in range(1, len(data)):
        with pytest.raises(CorruptData) as caught:
            decode(data[:size])
        assert 0 <= caught.value.position <= size


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "data",
    [b"null", b"[]", b"1", b"{}", b"\xff", b"\x00" * 80, b"[" * 100_000, b'{"version": NaN}'],
)
def test_what_is_no_such_object_is_corrupt(name: str, data: bytes) -> None:
    with pytest.raises(CorruptData):
        FILES[name][1](data)


def changed(name: str, path: list[str | int], value: object) -> bytes:
    """A golden file with one field set; `...` deletes it."""
    document = json.loads((GOLDEN / name).read_bytes())
    target = document
    for step in path[:-1]:
        target = target[step]
    if value is ...:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return json.dumps(document).encode()


def fields_of(name: str) -> list[list[str | int]]:
    document = json.loads((GOLDEN / name).read_bytes())
    inner = document["partitions"][0] if "partitions" in document else {}
    return [[field] for field in document] + [["partitions", 0, field] for field in inner]


EVERY_FIELD = [(name, path) for name in FILES for path in fields_of(name)]
OPTIONAL = {"last_flushed_offset", "node_name"}


@pytest.mark.parametrize(("name", "path"), EVERY_FIELD)
def test_a_missing_field_is_corrupt_unless_optional(name: str, path: list[str | int]) -> None:
    data = changed(name, path, ...)
    if path[-1] in OPTIONAL:
        FILES[name][1](data)
    else:
        with pytest.raises(CorruptData):
            FILES[name][1](data)


@pytest.mark.parametrize(("name", "path"), EVERY_FIELD)
@pytest.mark.parametrize("value", [None, True, 1.0, -1, 1 << 63, {}, [1]], ids=str)
def test_a_field_of_another_type_is_corrupt(
    name: str, path: list[str | int], value: object
) -> None:
    with pytest.raises(CorruptData):
        FILES[name][1](changed(name, path, value))


@pytest.mark.parametrize(("name", "path"), EVERY_FIELD)
def test_an_unknown_field_is_corrupt(name: str, path: list[str | int]) -> None:
    with pytest.raises(CorruptData, match="unknown field"):
        FILES[name][1](changed(name, [*path[:-1], "surprise"], 1))


@pytest.mark.parametrize("name", FILES)
def test_a_field_given_twice_is_corrupt(name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    field, _, value = data.strip(b"{}\n").partition(b", ")[0].partition(b": ")
    doubled = data.replace(b"{", b"{" + field + b": " + value + b", ", 1)
    json.loads(doubled)
    with pytest.raises(CorruptData, match="twice"):
        FILES[name][1](doubled)


@pytest.mark.parametrize("name", ["frame-tomb.json", "frame-checkpoint.json"])
def test_a_higher_version_is_newer_whatever_else_it_holds(name: str) -> None:
    assert b'"surprise"' not in changed(name, ["version"], 2)
    document = json.loads((GOLDEN / name).read_bytes()) | {"version": 2, "surprise": 1}
    with pytest.raises(NewerFormat) as caught:
        FILES[name][1](json.dumps(document).encode())
    assert (caught.value.expected, caught.value.found) == ("1", "2")


@pytest.mark.parametrize("name", ["frame-tomb.json", "frame-checkpoint.json"])
def test_a_version_that_never_was_is_corrupt_and_not_newer(name: str) -> None:
    with pytest.raises(CorruptData) as caught:
        FILES[name][1](changed(name, ["version"], 0))
    assert not isinstance(caught.value, NewerFormat)


def test_the_position_of_damage_is_in_bytes() -> None:
    with pytest.raises(CorruptData) as caught:
        broker_id.decode('{"node_name": "äöü", x'.encode())
    assert caught.value.position == len('{"node_name": "äöü", '.encode())
    with pytest.raises(CorruptData) as caught:
        broker_id.decode(b'{"uuid": "\xff"}')
    assert caught.value.position == 10


# ---------------------------------------------------------------- every single-byte change


def undetected(name: str) -> dict[str, set[int]]:
    """Which fields each single-byte change of a golden file changes unseen, and at which bytes.

    None of these files has a checksum (the documents give them none), so what is still such a file
    is believed. A change that leaves the value as it was is harmless and not counted.
    """
    _, decode, value = FILES[name]
    data = (GOLDEN / name).read_bytes()
    found: dict[str, set[int]] = {}
    for position, before in enumerate(data):
        for byte in set(range(256)) - {before}:
            try:
                read = decode(data[:position] + bytes([byte]) + data[position + 1 :])
            except CorruptData:
                continue
            for field in differing(value, read):
                found.setdefault(field, set()).add(position)
    return found


def differing(one: Any, other: Any) -> set[str]:
    if isinstance(one, Checkpoint):
        # Partitions are sorted when they are read: a changed name may change the order.
        ours, theirs = one.partitions, other.partitions
        pairs = min(
            (list(zip(ours, order, strict=True)) for order in (theirs, theirs[::-1])),
            key=lambda pairs: sum(len(differing(*pair)) for pair in pairs),
        )
        return {f"{ours.index(a)}.{field}" for a, b in pairs for field in differing(a, b)}
    return {
        item.name for item in fields(one) if getattr(one, item.name) != getattr(other, item.name)
    }


def bytes_of(name: str, *texts: str, within: str = "") -> set[int]:
    """The bytes of a golden file at which texts lie, each after what `within` ends with."""
    data = (GOLDEN / name).read_text()
    start = data.index(within)
    found: set[int] = set()
    for text in texts:
        start = data.index(text, start)
        found |= set(range(start, start + len(text)))
    return found


def test_of_a_tombstone_only_its_numbers_change_unseen() -> None:
    """A digit, or the space before a number turned into one. `verify` knows the base offset."""
    name = "frame-tomb.json"
    assert undetected(name) == {
        "base_offset": bytes_of(name, " 4096"),
        "created_ms": bytes_of(name, " 1700000000000"),
    }


def test_of_a_checkpoint_only_names_and_numbers_that_still_agree_change_unseen() -> None:
    """Derived: boot compares it with the files; a wrong one costs a scan of the last segment."""
    name = "frame-checkpoint.json"
    first, second = '"topic": ', '},\n{"topic": '
    after = {
        "log_end": '"log_end_offset":',
        "base": '"active_segment_base_offset":',
        "size": '"active_segment_size_bytes":',
        "flushed": '"last_flushed_offset":',
        "partition": '"partition":',
    }

    def span(text: str, label: str, row: str) -> set[int]:
        data = (GOLDEN / name).read_text()
        start = data.index(after[label], data.index(row)) + len(after[label])
        start = data.index(text, start)
        return set(range(start, start + len(text)))

    assert undetected(name) == {
        "0.topic": bytes_of(name, "orders", within=first),
        "0.partition": span(" 0", "partition", first),
        "0.log_end_offset": span(" 2", "log_end", first),
        "0.active_segment_base_offset": span("0", "base", first),
        "0.active_segment_size_bytes": span(" 86", "size", first),
        "0.last_flushed_offset": span("2", "flushed", first),
        "1.topic": bytes_of(name, "orders", within=second),
        "1.partition": span(" 1", "partition", second),
        "1.log_end_offset": span(" 0", "log_end", second),
        "1.active_segment_size_bytes": span(" 0", "size", second),
    }


def test_of_a_broker_identity_only_its_three_values_change_unseen() -> None:
    name = "frame-broker.json"
    assert undetected(name) == {
        "uuid": bytes_of(name, "6f1c24de", "0b57", "4c1e", "9d3a", "2f6b8e90a1c4"),
        "created_at": bytes_of(name, "2023", "11", "14", "22", "13", "20", within="created_at"),
        "node_name": bytes_of(name, "alpha", within="node_name"),
    }


def test_a_changed_digit_of_a_broker_identity_is_another_broker() -> None:
    """Nothing in the data directory repeats the identity, so nothing can tell: the store opens as
    a broker that never was, with all its records. Only what was told the old identity notices.
    """
    data = (GOLDEN / "frame-broker.json").read_bytes()
    other = broker_id.decode(data.replace(b"6f1c24de", b"7f1c24de"))
    assert other == replace(BROKER, uuid=UUID("7f1c24de-0b57-4c1e-9d3a-2f6b8e90a1c4"))
    assert broker_id.decode(data.replace(b"6f1c24de", b"6F1C24DE")) == BROKER


# ---------------------------------------------------------------- tombstone


def test_an_empty_tombstone_is_legal_and_says_nothing() -> None:
    assert tombstone.decode(b"") == tombstone.EMPTY == Tomb(None, None, None)
    assert tombstone.encode(tombstone.EMPTY) == b""


@pytest.mark.parametrize("reason", tombstone.REASONS)
def test_each_reason_comes_back(reason: tombstone.Reason) -> None:
    written = Tomb(0, reason, 0)
    assert tombstone.decode(tombstone.encode(written)) == written


def test_an_unknown_reason_is_corrupt() -> None:
    with pytest.raises(CorruptData, match="reason"):
        tombstone.decode(changed("frame-tomb.json", ["reason"], "boredom"))


@pytest.mark.parametrize("field", ["base_offset", "reason", "created_ms"])
def test_a_tombstone_says_all_or_nothing(field: str) -> None:
    with pytest.raises(ValueError, match="all or nothing"):
        tombstone.encode(replace(TOMB, **{field: None}))


# ---------------------------------------------------------------- checkpoint


@st.composite
def partitions(draw: st.DrawFn) -> PartitionCheckpoint:
    end = draw(COUNTS)
    return PartitionCheckpoint(
        topic=draw(st.text(min_size=1, max_size=8)),
        partition=draw(st.integers(0, 3)),
        log_end_offset=end,
        active_segment_base_offset=draw(st.integers(0, end)),
        active_segment_size_bytes=draw(COUNTS),
        last_flushed_offset=draw(st.none() | st.integers(0, end)),
        floor=draw(st.integers(0, end)),
    )


@settings(max_examples=100, deadline=None)
@given(
    st.lists(partitions(), max_size=6, unique_by=lambda entry: (entry.topic, entry.partition)),
    st.randoms(use_true_random=False),
)
def test_a_checkpoint_comes_back_and_its_bytes_do_not_depend_on_order(
    entries: list[PartitionCheckpoint], order: Any
) -> None:
    written = checkpoint.checkpoint_of(entries)
    data = checkpoint.encode(written)
    assert checkpoint.decode(data) == written
    order.shuffle(entries)
    assert checkpoint.encode(checkpoint.checkpoint_of(entries)) == data


def test_the_first_checkpoint_has_no_partitions() -> None:
    assert checkpoint.encode(Checkpoint()) == b'{"version": 1, "partitions": []}\n'
    assert checkpoint.decode(b'{"version": 1, "partitions": []}\n') == Checkpoint()


def test_partitions_are_read_in_any_order_but_once() -> None:
    document = json.loads((GOLDEN / "frame-checkpoint.json").read_bytes())
    document["partitions"].reverse()
    assert checkpoint.decode(json.dumps(document).encode()) == CHECKPOINT
    document["partitions"].append(document["partitions"][0])
    with pytest.raises(CorruptData, match="once"):
        checkpoint.decode(json.dumps(document).encode())
    with pytest.raises(ValueError, match="sorted"):
        Checkpoint(CHECKPOINT.partitions[::-1])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topic", ""),
        ("log_end_offset", 1),
        ("active_segment_base_offset", 3),
        ("last_flushed_offset", 3),
    ],
)
def test_a_checkpoint_that_contradicts_itself_is_corrupt(field: str, value: object) -> None:
    with pytest.raises(CorruptData, match="contradicts"):
        checkpoint.decode(changed("frame-checkpoint.json", ["partitions", 0, field], value))


@pytest.mark.parametrize(
    "field", ["partition", "active_segment_base_offset", "last_flushed_offset"]
)
def test_nothing_below_zero_is_written(field: str) -> None:
    with pytest.raises(ValueError, match="got"):
        replace(CHECKPOINT.partitions[0], **{field: -1})  # type: ignore[arg-type]


# ---------------------------------------------------------------- broker identity


@settings(max_examples=100, deadline=None)
@given(
    st.uuids(),
    st.datetimes(timezones=st.just(UTC)),
    st.none() | st.text(max_size=20),
)
def test_an_identity_comes_back(uuid: UUID, created_at: datetime, node_name: str | None) -> None:
    written = BrokerId(uuid, created_at, node_name)
    assert broker_id.decode(broker_id.encode(written)) == written


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("uuid", "6f1c24de0b574c1e9d3a2f6b8e90a1c4"),
        ("uuid", "{6f1c24de-0b57-4c1e-9d3a-2f6b8e90a1c4}"),
        ("uuid", "6f1c24de-0b57-4c1e-9d3a-2f6b8e90a1cg"),
        ("created_at", "2023-11-14"),
        ("created_at", "2023-11-14T22:13:20"),
        ("created_at", "2023-11-14T22:13:20+01:00"),
        ("created_at", "2023-11-31T22:13:20Z"),
        ("created_at", "2023-11-14T25:13:20Z"),
    ],
)
def test_a_malformed_identity_is_corrupt(field: str, value: str) -> None:
    with pytest.raises(CorruptData, match="malformed"):
        broker_id.decode(changed("frame-broker.json", [field], value))


def test_other_spellings_of_utc_are_read() -> None:
    data = changed("frame-broker.json", ["created_at"], "2023-11-14T22:13:20.5+00:00")
    assert broker_id.decode(data).created_at == BROKER.created_at + timedelta(milliseconds=500)


@pytest.mark.parametrize("zone", [None, timezone(timedelta(hours=1))])
def test_an_identity_is_created_in_utc(zone: timezone | None) -> None:
    with pytest.raises(ValueError, match="UTC"):
        BrokerId(BROKER.uuid, BROKER.created_at.replace(tzinfo=zone))
