"""Topics in Protobuf: set, appended, read, evolved; values that Confluent's serializer wrote."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pyarrow as pa
import pytest

import lamina
from lamina.errors import SchemaError, SchemaIncompatible, TopicExists
from tests.formats.test_typed_protobuf import ORDER, Order, sample

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("item", pa.string(), nullable=False),
        pa.field("price", pa.float64()),
    ]
)
ROWS = pa.table({"id": [1, 2], "item": ["pen", ""], "price": [None, 0.0]}, schema=COLUMNS)


def framed(schema_id: int, indexes: bytes, value: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + indexes + value


@pytest.mark.parametrize("framing", ["registry", "plain"])
def test_a_table_comes_back_as_it_was_appended(tmp_path: Path, framing: str) -> None:
    with lamina.open(tmp_path) as store:
        store.create_topic("orders", partitions=2)
        made = store.set_schema("orders", COLUMNS, encoding="protobuf", key="id", framing=framing)
        assert (made.encoding, made.framing) == ("protobuf", framing)
        store.append("orders", ROWS)
        found = store.read("orders").read_all().sort_by("id").select(COLUMNS.names)
        assert found.to_pylist() == ROWS.to_pylist()
        assert store.read("orders", columns=["item"]).read_all().num_columns == 5
        values = [
            each.as_py()
            for part in (0, 1)
            for b in store.scan("orders", part)
            for each in b["value"]
        ]
        prefix = framed(made.id, b"\0", b"") if framing == "registry" else b""
        assert sorted(values)[0].startswith(prefix)
    with lamina.open(tmp_path, read_only=True) as store:
        assert store.read("orders").read_all().num_rows == 2


@pytest.mark.parametrize("default", ["inf", "-inf", "nan", "-1.5"])
def test_a_default_that_json_has_no_number_for_is_kept(tmp_path: Path, default: str) -> None:
    text = f"""
        syntax = "proto2";
        message Reading {{ required int32 id = 1; optional double high = 2 [default = {default}]; }}
    """
    with lamina.open(tmp_path) as store:
        store.create_topic("readings", schema=text, encoding="protobuf")
        store.append("readings", pa.table({"id": pa.array([7], pa.int32()), "high": [0.5]}))
        told = store.schemas("readings")
    with lamina.open(tmp_path) as store:
        assert store.schemas("readings") == told
        [field] = [each for each in json.loads(told[-1].text)["fields"] if each["name"] == "high"]
        assert str(float(field["default"])) == default
        rows = store.read("readings", columns=["id", "high"]).read_all().to_pylist()
        assert [(row["id"], row["high"]) for row in rows] == [(7, 0.5)]


def test_versions_keep_their_numbers_and_read_each_other(tmp_path: Path) -> None:
    with lamina.open(tmp_path) as store:
        store.create_topic("orders", schema=COLUMNS, encoding="protobuf")
        store.create_topic("orders", schema=COLUMNS, encoding="protobuf", exist_ok=True)
        store.append("orders", ROWS)
        wider = COLUMNS.remove(1).append(pa.field("count", pa.int32()))
        with pytest.raises(TopicExists):
            store.create_topic("orders", schema=wider, encoding="protobuf", exist_ok=True)
        assert store.set_schema("orders", wider).version == 2
        store.append("orders", pa.table({"id": [3], "price": [2.5], "count": [7]}))
        found = store.read("orders").read_all().select(["id", "price", "count"]).to_pylist()
        assert found == [
            {"id": 1, "price": None, "count": None},
            {"id": 2, "price": 0.0, "count": None},
            {"id": 3, "price": 2.5, "count": 7},
        ]
        first = store.read("orders", version=1).read_all().to_pylist()[-1]
        assert (first["item"], first["price"]) == ("", 2.5)
        with pytest.raises(SchemaIncompatible) as refused:
            store.set_schema("orders", wider.set(0, pa.field("id", pa.string(), nullable=False)))
        assert refused.value.field == "id"
        # Without a rule it is stored, and what it cannot read is bad.
        text = wider.set(0, pa.field("id", pa.string(), nullable=False))
        store.set_schema("orders", text, compatibility="NONE")
        told = store.read("orders", errors="null").read_all()["_error"].to_pylist()
        assert set(told) == {"a version of the schema that the reader's version cannot read"}


def test_values_of_a_serializer_are_read_and_bad_ones_are_kept_apart(tmp_path: Path) -> None:
    with lamina.open(tmp_path) as store:
        store.create_topic("orders")
        known = store.set_schema("orders", ORDER, encoding="protobuf").id
        value = sample().SerializeToString()
        store.append(
            "orders",
            [
                framed(known, b"\0", value),
                framed(known, b"\2\0", value),
                framed(known, b"\2\2", value),
                framed(known, b"", b""),
                framed(known + 1, b"\0", value),
                framed(known, b"\0", b"\x08"),
                value,
            ],
        )
        found = store.read("orders", errors="null").read_all()
        assert found["id"].to_pylist() == [7, 7, None, None, None, None, None]
        another = "another message of the .proto file than the topic's schema is"
        nobody = "a schema id that nobody knows, or no schema id"
        number = "id: a number that does not end, or is out of range; expected long"
        told = [None, None, another, another, nobody, number, nobody]
        assert found["_error"].to_pylist() == told
        with pytest.raises(SchemaError, match="offset 2: another message"):
            store.read("orders").read_all()
        assert store.read("orders", errors="dead_letter").read_all().num_rows == 2
        assert sum(batch.num_rows for batch in store.scan("orders.dlq")) == 5


def test_a_message_inside_another_is_named_by_its_indexes(tmp_path: Path) -> None:
    with lamina.open(tmp_path) as store:
        store.create_topic("lines", schema=Order.Line, encoding="protobuf")
        known = store.schema("lines")
        # The entries of its two maps are declared inside, too, and come first.
        line = Order.Line(sku="s", tags=["t"])
        store.append("lines", framed(known.id, b"\4\0\4", line.SerializeToString()))
        store.append("lines", pa.table({"sku": ["u"]}))
        rows = store.read("lines").read_all()
        assert rows["sku"].to_pylist() == ["s", "u"]
        values = [each.as_py() for batch in store.scan("lines") for each in batch["value"]]
        assert values[1] == framed(known.id, b"\4\0\4", Order.Line(sku="u").SerializeToString())
