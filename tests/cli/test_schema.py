"""`lamina schema`, and `topic create --schema`, on both doors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2

import lamina as library
from tests.cli.test_topic import ok, typed, where

__all__ = ["typed", "where"]
ORDER = Path(__file__).parent / "order.avsc"
WIDER = b"""{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "item", "type": "string"},
    {"name": "count", "type": "int", "default": 1}]}"""


def test_a_typed_topic_is_made_and_its_schema_grows(
    lamina: Any, where: list[str], typed: Any
) -> None:
    create = ("topic", "create", "orders", "--schema", ORDER, "--key-column", "id")
    ok(lamina(*create, *where))
    (row,) = ok(lamina("schema", "list", "orders", "--json", *where)).rows
    assert (row["version"], row["encoding"], row["key"], row["columns"]) == (1, "avro", "id", 2)
    typed(WIDER)
    (made,) = ok(lamina("schema", "set", "orders", "-", "--json", *where)).rows
    assert (made["topic"], made["version"], made["columns"]) == ("orders", 2, 3)
    assert len(ok(lamina("schema", "list", "orders", "--json", *where)).rows) == 2
    (shown,) = ok(lamina("schema", "show", "orders", "--json", *where)).rows
    assert [each["column"] for each in shown["columns"]] == ["id", "item", "count"]
    assert '"count"' in shown["text"]
    (first,) = ok(lamina("schema", "show", "orders", "--version", 1, "--json", *where)).rows
    assert [each["column"] for each in first["columns"]] == ["id", "item"]
    said = ok(lamina("schema", "show", "orders", *where)).out
    assert said.startswith("orders: version 2, avro, id ")
    assert "int64" in said


def test_records_under_a_schema_of_a_file_are_read_as_columns(lamina: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    ok(lamina("topic", "create", "orders", "--schema", ORDER, "--data", data))
    with library.open(data) as store:
        store.append("orders", pa.table({"id": [1], "item": ["pen"]}))
        assert store.read("orders", columns=["item"]).read_all()["item"].to_pylist() == ["pen"]


def test_what_cannot_follow_is_refused_and_changes_nothing(
    lamina: Any, where: list[str], typed: Any
) -> None:
    ok(lamina("topic", "create", "orders", "--schema", ORDER, *where))
    typed(WIDER.replace(b', "default": 1', b""))
    refused = lamina("schema", "set", "orders", "-", *where)
    assert (refused.code, refused.err.count("\n"), "count" in refused.err) == (2, 1, True)
    assert len(ok(lamina("schema", "list", "orders", "--json", *where)).rows) == 1


def test_a_file_that_is_no_schema_is_one_line_and_makes_no_topic(
    lamina: Any, where: list[str], tmp_path: Path
) -> None:
    garbage = tmp_path / "garbage.avsc"
    garbage.write_text('{"type": "record"')
    for file in (tmp_path / "none.avsc", tmp_path, garbage):
        refused = lamina("topic", "create", "orders", "--schema", file, *where)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
    alone = lamina("topic", "create", "orders", "--encoding", "json", *where)
    assert (alone.code, "--schema" in alone.err) == (2, True)
    assert ok(lamina("topic", "list", "--json", *where)).out == ""


def test_an_untyped_topic_says_how_to_begin(lamina: Any, where: list[str]) -> None:
    ok(lamina("topic", "create", "plain", *where))
    said = ok(lamina("schema", "list", "plain", *where)).out
    assert said == "topic 'plain' has no schema; `lamina schema set plain FILE` gives it one\n"
    assert lamina("schema", "show", "plain", *where).code == 2


def test_a_descriptor_of_protobuf_is_no_text_and_is_taken(
    lamina: Any, where: list[str], tmp_path: Path
) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto3")
    field = file.message_type.add(name="Order").field.add(name="id", number=1)
    field.type, field.label = field.TYPE_INT64, field.LABEL_OPTIONAL
    given = tmp_path / "order.bin"
    given.write_bytes(file.SerializeToString())
    ok(lamina("topic", "create", "orders", *where))
    made = lamina("schema", "set", "orders", given, "--encoding", "protobuf", "--json", *where)
    assert ok(made).rows[0]["columns"] == 1
