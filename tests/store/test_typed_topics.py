"""Typed topics through every kind of store: schemas that last, tables in, columns out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lamina
from lamina.api import StoreApi
from lamina.errors import (
    CorruptData,
    InvalidRequest,
    SchemaError,
    SchemaIncompatible,
    TopicExists,
    UnknownSchema,
)
from lamina.formats.documents import topic_schemas
from lamina.formats.typed import value_codec
from lamina.storage.files import LocalFiles
from lamina.storage.objects import open_objects
from lamina.store.archive_store import ArchiveStore
from lamina.store.opening import Boot
from lamina.store.restore import restore
from lamina.store.store import Store
from tests.formats.typed_strategies import read_back
from tests.server.rig import served


@dataclasses.dataclass
class Order:
    id: int
    item: str
    price: float | None = None


ROWS = pa.table({"id": [1, 2, 3], "item": ["a", "b", "ç"], "price": [1.5, None, 2.0]})
WIDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "what", "type": "string", "aliases": ["item"]},
            {"name": "price", "type": ["null", "double"], "default": None},
            {"name": "count", "type": "int", "default": 1},
        ],
    }
)

UNREADABLE = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.int64(), nullable=False)]
)


def opened(path: Path, **more: Any) -> Store:
    found = lamina.open(str(path), **more)
    assert isinstance(found, Store)
    return found


def table(store: StoreApi, topic: str = "orders", **asked: Any) -> pa.Table:
    return store.read(topic, **asked).read_all()


def rows(store: StoreApi, **asked: Any) -> list[dict[str, Any]]:
    found = table(store, **asked)
    names = [name for name in found.schema.names if not name.startswith("_")]
    listed: list[dict[str, Any]] = found.select(names).to_pylist()
    return listed


@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
def test_a_table_comes_back_as_the_columns_that_it_was(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", format=format_name, schema=Order)
        store.append("orders", ROWS)
        found = table(store)
        assert found.schema.names == [
            *["_offset", "_partition", "_timestamp", "_key", "id", "item", "price"]
        ]
        assert found.select(["id", "item", "price"]).to_pylist() == ROWS.to_pylist()
        assert found.column("_offset").to_pylist() == list(
            range(store.earliest_offset("orders"), store.latest_offset("orders"))
        )
        assert rows(store, columns=["price", "id"]) == [
            {"price": each["price"], "id": each["id"]} for each in ROWS.to_pylist()
        ]


def test_values_are_what_confluent_s_serializers_write(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=Order, key="id")
        store.append("orders", ROWS)
        known = store.schema("orders")
        (batch,) = store.scan("orders")
        value = batch.column("value")[0].as_py()
        assert value[:5] == b"\0" + known.id.to_bytes(4, "big")
        assert read_back(json.loads(known.text), value[5:]) == ROWS.to_pylist()[0]
        assert batch.column("key").to_pylist() == [b"1", b"2", b"3"]


def test_a_key_sends_rows_to_its_partition_and_all_partitions_are_read(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", partitions=3, schema=Order, key="item")
        many = pa.table({"id": range(100), "item": [f"i{n % 10}" for n in range(100)]})
        store.append("orders", many)
        found = table(store)
        assert sorted(found.column("id").to_pylist()) == list(range(100))
        pairs = set(zip(found["_partition"].to_pylist(), found["_key"].to_pylist(), strict=True))
        assert len(pairs) == 10
        part = table(store, partition=1, start=2, end=4)
        assert part["_offset"].to_pylist() == [2, 3]
        with pytest.raises(InvalidRequest, match="name it"):
            store.read("orders", start=3)


def test_old_records_are_read_under_the_new_schema_and_new_ones_under_the_old(
    tmp_path: Path,
) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=Order)
        store.append("orders", ROWS)
        assert store.set_schema("orders", WIDER).version == 2
        store.append("orders", pa.table({"id": [4], "what": ["d"], "count": [7]}))
        assert rows(store) == [
            {"id": 1, "what": "a", "price": 1.5, "count": 1},
            {"id": 2, "what": "b", "price": None, "count": 1},
            {"id": 3, "what": "ç", "price": 2.0, "count": 1},
            {"id": 4, "what": "d", "price": None, "count": 7},
        ]
        store.append("orders", pa.table({"value": pa.nulls(1, pa.binary())}))
        assert rows(store)[-1] == {"id": None, "what": None, "price": None, "count": None}
        # Version 1 has no alias for `what`, so it cannot read what version 2 wrote.
        found = table(store, version=1, errors="null")
        assert found["_error"].to_pylist()[:3] == [None, None, None]
        assert found["_error"].to_pylist()[3].startswith("a version of the schema that")
        assert [each.version for each in store.schemas("orders")] == [1, 2]


def test_an_incompatible_schema_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    needed = json.loads(WIDER)
    needed["fields"].append({"name": "must", "type": "string"})
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=Order)
        before = store.schemas("orders")
        with pytest.raises(SchemaIncompatible, match="must: the field is new") as caught:
            store.set_schema("orders", json.dumps(needed))
        assert caught.value.field == "must"
        assert store.schemas("orders") == before
        assert store.set_schema("orders", Order) == before[0], "the same adds no version"
        store.set_schema("orders", json.dumps(needed), compatibility="NONE")
        assert store.schema("orders").compatibility == "NONE"
        assert store.schema("orders", 1) == dataclasses.replace(before[0], compatibility="NONE")
        with pytest.raises(UnknownSchema, match="versions 1 to 2"):
            store.schema("orders", 3)


def test_bad_records_are_neither_lost_nor_stop_a_reader(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=Order)
        store.append("orders", ROWS.slice(0, 2))
        store.append("orders", pa.table({"key": [b"k"], "value": [b"not avro"]}))
        store.append("orders", [b"\0\0\0\0\x01\x02\xff"])
        store.append("orders", ROWS.slice(2))
        found = table(store, errors="null")
        assert found["_error"].to_pylist() == [
            *[None, None, "a schema id that nobody knows, or no schema id"],
            *["item: a length that reaches past the value; expected string", None],
        ]
        assert found["id"].to_pylist() == [1, 2, None, None, 3]
        with pytest.raises(SchemaError, match="orders/0, offset 2: a schema id") as caught:
            list(store.read("orders"))
        assert "read on from 3" in str(caught.value)
        with pytest.raises(SchemaError, match="offset 3: item: a length") as caught:
            list(store.read("orders", 0, 3))
        assert caught.value.field == "item"
        assert rows(store, errors="dead_letter") == ROWS.to_pylist()
        (letters,) = store.scan("orders.dlq")
        assert letters["value"].to_pylist() == [b"not avro", b"\0\0\0\0\x01\x02\xff"]
        assert letters["key"].to_pylist() == [b"k", None]
        headers = {each["key"]: each["value"] for each in letters["headers"].to_pylist()[0]}
        assert headers["lamina.dlq.reason"].startswith(b"a schema id")
        assert headers["lamina.dlq.offset"] == b"2"
        assert store.latest_offset("orders") == 5


@pytest.mark.parametrize("encoding", ["avro", "json", "protobuf"])
def test_good_bad_and_null_values_may_be_in_one_batch(tmp_path: Path, encoding: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=Order, encoding=encoding)
        store.append("orders", ROWS.slice(0, 1))
        store.append("orders", [b"bad"])
        store.append("orders", pa.table({"value": pa.array([None, b""], pa.binary())}))
        store.append("orders", ROWS.slice(1))
        found = table(store, errors="null")
        assert found["id"].to_pylist() == [1, None, None, None, 2, 3]
        is_bad = [told is not None for told in found["_error"].to_pylist()]
        assert is_bad == [False, True, False, True, False, False]
        assert table(store, errors="dead_letter")["_offset"].to_pylist() == [0, 2, 4, 5]
        with pytest.raises(SchemaError, match="orders/0, offset 1: "):
            table(store)


def test_rows_before_a_bad_one_are_given_before_it_is_raised(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=Order)
        store.append("orders", ROWS)
        store.append("orders", [b"bad"])
        reading = store.read("orders")
        assert reading.schema.names[4:] == ["id", "item", "price"]
        assert next(reading)["id"].to_pylist() == [1, 2, 3]
        with pytest.raises(SchemaError, match="offset 3"):
            next(reading)


def test_a_table_that_does_not_fit_appends_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=Order)
        with pytest.raises(SchemaError, match="id: row 1 is null"):
            store.append("orders", pa.table({"id": [1, None], "item": ["a", "b"]}))
        with pytest.raises(SchemaError, match="no column 'what'"):
            store.append("orders", pa.table({"id": [1], "what": ["b"]}))
        store.create_topic("plain")
        with pytest.raises(UnknownSchema, match="'plain' has no schema"):
            store.append("plain", pa.table({"id": [1]}))
        assert store.latest_offset("orders") == store.latest_offset("plain") == 0


def test_time_and_key_of_the_table_are_those_of_the_records(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=Order, key="id")
        times = pa.array([5, 6, 7], pa.timestamp("ms", tz="UTC"))
        given = ROWS.append_column("_timestamp", times).append_column("_key", [["x", "y", None]])
        store.append("orders", given)
        found = table(store)
        assert found["_timestamp"].cast(pa.int64()).to_pylist() == [5, 6, 7]
        assert found["_key"].to_pylist() == [b"x", b"y", None]


def test_schemas_outlive_the_store_and_are_seen_beside_it(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=Order, key="id")
        store.create_topic("others", schema=WIDER)
        store.append("orders", ROWS)
        store.set_schema("orders", WIDER)
        written = store.schemas("orders")
        assert [each.id for each in written] == [1, 2]
        assert [each.id for each in store.schemas("others")] == [2], "it is the same schema"
        store.flush()
        with lamina.open(str(tmp_path / "data"), read_only=True) as reader:
            assert reader.schemas("orders") == written
            assert rows(reader, version=1) == ROWS.to_pylist()
            with pytest.raises(InvalidRequest, match="dead_letter"):
                reader.read("orders", errors="dead_letter")
    with opened(tmp_path / "data") as store:
        assert store.schemas("orders") == written
        assert written[-1].arrow.names == ["id", "what", "price", "count"]
        store.delete_topic("orders")
        store.create_topic("orders")
        assert store.schemas("orders") == []


def test_a_damaged_file_of_schemas_is_named_and_the_bytes_can_still_be_read(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=Order)
        store.append("orders", ROWS)
        path = tmp_path / "data/topics/orders/schemas.json"
        sound = path.read_bytes()
        for position in range(len(sound)):
            changed = bytearray(sound)
            changed[position] ^= 1
            try:
                same = topic_schemas.decode(bytes(changed)) == topic_schemas.decode(sound)
            except CorruptData:
                same = True
            assert same, "no change passes for another schema"
        path.write_bytes(sound[:-9])
        with pytest.raises(CorruptData, match=r"schemas\.json"):
            store.schemas("orders")
        assert sum(batch.num_rows for batch in store.scan("orders")) == 3


def test_exist_ok_asks_for_the_same_schema(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=Order)
        store.create_topic("orders", schema=Order, exist_ok=True)
        with pytest.raises(TopicExists) as caught:
            store.create_topic("orders", schema=WIDER, exist_ok=True)
        assert caught.value.difference == "schema"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"schema": Order, "key": "nothing"}, "column 'nothing', which the schema lacks"),
        ({"schema": Order, "key": "id", "format": "wal"}, "wal keeps no keys"),
        ({"schema": Order, "encoding": "morse"}, "encoding is one of"),
        ({"schema": '"long"'}, "a topic's schema is a record"),
        ({"encoding": "avro"}, "belong to a schema"),
    ],
)
def test_a_topic_with_a_wrong_schema_is_not_created(
    tmp_path: Path, asked: dict[str, Any], told: str
) -> None:
    with opened(tmp_path / "data") as store:
        with pytest.raises(InvalidRequest, match=told):
            store.create_topic("orders", **asked)
        assert store.topics() == []


def test_an_existing_topic_of_plain_values_is_given_a_schema(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders")
        store.append("orders", [b"\x02\x02a\x00", b"\x04\x02b\x00"])
        store.set_schema("orders", Order, framing="plain")
        assert rows(store) == [
            {"id": 1, "item": "a", "price": None},
            {"id": 2, "item": "b", "price": None},
        ]
        store.append("orders", ROWS)
        assert rows(store)[2:] == ROWS.to_pylist()


def test_the_archive_keeps_the_schemas_and_gives_them_back(tmp_path: Path) -> None:
    archive = open_objects("memory://")
    config = {"remote.storage.enable": True}
    with opened(tmp_path / "data", archive=archive) as store:
        for name, format_name in (("orders", "keratin"), ("logged", "wal")):
            store.create_topic(name, format=format_name, schema=Order, config=config)
            store.append(name, ROWS)
            store.set_schema(name, WIDER)
            store.roll(name)
        store.archive()
        written = store.schemas("orders")
        expected = {name: rows(store, topic=name) for name in ("orders", "logged")}
    with ArchiveStore(archive) as alone:
        assert alone.schemas("orders") == written
        assert {name: rows(alone, topic=name) for name in ("orders", "logged")} == expected
    (tmp_path / "data2").mkdir()
    restore(archive, Boot(LocalFiles(), str(tmp_path / "data2"), lambda: 1))
    with opened(tmp_path / "data2") as store:
        assert store.schemas("orders") == written
        assert {name: rows(store, topic=name) for name in ("orders", "logged")} == expected


def test_a_served_store_is_typed_too(tmp_path: Path) -> None:
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as store:
        store.create_topic("orders", partitions=2, schema=Order, key="id")
        store.append("orders", ROWS)
        assert sorted(rows(store), key=lambda row: row["id"]) == ROWS.to_pylist()
        made = store.set_schema("orders", WIDER)
        assert store.schema("orders") == made
        assert store.schemas("orders")[-1] == made
        assert {row["count"] for row in rows(store)} == {1}
        with pytest.raises(SchemaIncompatible) as caught:
            store.set_schema("orders", UNREADABLE)
        assert caught.value.field == "x"
        store.append("orders", [b"bad"], partition=0)
        assert len(rows(store, errors="null")) == 4
        with pytest.raises(SchemaError, match="orders/0, offset"):
            rows(store)
        with pytest.raises(InvalidRequest, match="not served"):
            store.read("orders", errors="dead_letter")
        with pytest.raises(UnknownSchema):
            store.schema("orders", 9)


def test_a_topic_of_json_documents_is_given_a_schema_and_read(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("orders")
        store.append(
            "orders", [b'{"id": 1, "item": "a", "price": 1.5}', b"broken", b"\0\0\0\0\x09"]
        )
        store.append("orders", [b'\0\0\0\0\x09{"id": 2, "item": "b"}'])
        store.set_schema("orders", Order, encoding="json")
        found = table(store, errors="null")
        assert found["id"].to_pylist() == [1, None, None, 2]
        assert [each is None for each in found["_error"].to_pylist()] == [True, False, False, True]
        store.append("orders", ROWS)
        assert rows(store, partition=0, start=4) == ROWS.to_pylist()
        (batch,) = store.scan("orders", 0, 4, max_records=1, end=5)
        assert json.loads(batch["value"][0].as_py()) == ROWS.to_pylist()[0]
        store.set_schema("orders", WIDER)
        assert rows(store, partition=0, start=4)[0] == {
            **{"id": 1, "what": "a", "price": 1.5, "count": 1}
        }
        with pytest.raises(InvalidRequest, match="encoding json; that cannot be changed"):
            store.set_schema("orders", WIDER, encoding="avro")


@pytest.mark.parametrize("name", ["_offset", "_partition", "_timestamp", "_key", "_error", "_KEY"])
def test_no_field_has_the_name_of_a_column_that_every_read_gives(tmp_path: Path, name: str) -> None:
    """A table's `_key` became the key of its records, and the field was null: without a word."""
    with opened(tmp_path / "data") as store:
        mine = pa.schema([(name, pa.int64()), ("x", pa.int64())])
        with pytest.raises(SchemaError, match="rename the field") as found:
            store.create_topic("own", schema=mine)
        assert found.value.field == name
        assert "own" not in store.topics()
        store.create_topic("orders", schema=Order)
        with pytest.raises(SchemaError, match="rename the field"):
            store.set_schema("orders", mine)
        inner = pa.schema([("in", pa.struct([("_offset", pa.int64())]))])
        store.create_topic("inner", schema=inner)
        store.append("inner", pa.table({"in": [{"_offset": 7}]}))
        assert rows(store, topic="inner") == [{"in": {"_offset": 7}}]


def test_a_large_default_is_filled_in_for_a_few_records_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a mebibyte of small records would become as many defaults as there are records."""
    monkeypatch.setattr(value_codec, "FILLED_BYTES_MAX", 10_000)
    added = json.loads(WIDER)
    added["fields"][3] = {"name": "text", "type": "string", "default": "x" * 3_000}
    with opened(tmp_path / "data") as store:
        store.create_topic("orders", schema=Order)
        for _ in range(3):
            store.append("orders", ROWS)
        store.set_schema("orders", json.dumps(added))
        batches = list(store.read("orders"))
        assert [each.num_rows for each in batches] == [3, 3, 3]
        assert {len(text) for each in batches for text in each["text"].to_pylist()} == {3_000}
        assert [each.num_rows for each in store.read("orders", version=1)] == [9]


@pytest.mark.parametrize("encoding", ["avro", "json"])
def test_below_a_null_there_need_be_nothing(tmp_path: Path, encoding: str) -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}
    field = {"name": "i", "type": ["null", inner], "default": None}
    schema = json.dumps({"type": "record", "name": "R", "fields": [field]})
    rows = [None, {"x": 1}, None]
    with lamina.open(str(tmp_path / "data")) as store:
        store.create_topic("t", schema=schema, encoding=encoding)
        store.append("t", pa.table({"i": rows}))  # Arrow's own types: x may be null
        assert store.read("t").read_all()["i"].to_pylist() == rows
        with pytest.raises(SchemaError, match=r"i\.x: row 1 is null, and the schema has none"):
            store.append("t", pa.table({"i": [None, {"x": None}, {"x": 2}]}))
