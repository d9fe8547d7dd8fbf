"""Records inside records, lists and maps: a schema that is kept is read again, and nothing is lost.

A nested record is named by its path, and a path may be no name, or make the same name twice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lamina
from lamina.errors import InvalidRequest, LaminaError, SchemaError
from lamina.formats.typed import avro_text, schema_source
from lamina.formats.typed.schema_model import Kind, Type, named_apart, record
from tests.server.rig import served

X, Y = pa.struct([("x", pa.int64())]), pa.struct([("y", pa.string())])
SHAPES: dict[str, tuple[pa.DataType, Any]] = {
    "list": (pa.list_(X), [{"x": 1}, {"x": None}]),
    "list of lists": (pa.list_(pa.list_(X)), [[{"x": 1}], []]),
    "map": (pa.map_(pa.string(), X), [("k", {"x": 1})]),
    "struct": (X, {"x": 1}),
}


def json_schema(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        return {
            "type": "object",
            "properties": {each.name: json_schema(each.type) for each in kind},
        }
    if pa.types.is_map(kind):
        return {"type": "object", "additionalProperties": json_schema(kind.item_type)}
    if pa.types.is_list(kind):
        return {"type": "array", "items": json_schema(kind.value_type)}
    return {"type": "integer" if pa.types.is_integer(kind) else "string"}


def text_of(columns: dict[str, pa.DataType]) -> str:
    return json.dumps(json_schema(pa.struct(list(columns.items()))))


def comes_back(place: Path, given: Any, encoding: str, table: pa.Table) -> None:
    with lamina.open(str(place)) as store:
        store.create_topic("t")
        store.set_schema("t", given, encoding=encoding)
        store.append("t", table)
    with lamina.open(str(place)) as store:
        read = store.read("t").read_all()
        assert read.select(table.schema.names).to_pylist() == table.to_pylist()


@pytest.mark.parametrize("encoding", ["json", "avro"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_record_inside_of_anything_is_kept_and_read_again(
    tmp_path: Path, name: str, encoding: str
) -> None:
    kind, value = SHAPES[name]
    table = pa.table({"a": pa.array([value], kind)})
    comes_back(tmp_path / "text", text_of({"a": kind}), encoding, table)
    comes_back(tmp_path / "arrow", table.schema, encoding, table)


def test_a_name_that_json_alone_has_may_hold_a_record(tmp_path: Path) -> None:
    table = pa.table({"user-agent": pa.array([{"x": 1}], X), "1.5 €": pa.array([{"x": 2}], X)})
    comes_back(tmp_path / "text", text_of({"user-agent": X, "1.5 €": X}), "json", table)
    comes_back(tmp_path / "arrow", table.schema, "json", table)


@pytest.mark.parametrize("encoding", ["json", "avro"])
def test_two_records_whose_paths_make_one_name_stay_two(tmp_path: Path, encoding: str) -> None:
    one, other = pa.struct([("b_c", X)]), pa.struct([("c", Y)])
    columns = {"a": one, "a_b": other}
    rows = [{"a": {"b_c": {"x": 1}}, "a_b": {"c": {"y": "kept"}}}]
    table = pa.Table.from_pylist(rows, schema=pa.schema(list(columns.items())))
    comes_back(tmp_path / "text", text_of(columns), encoding, table)
    comes_back(tmp_path / "arrow", table.schema, encoding, table)


def test_names_that_are_good_stay_as_they_are() -> None:
    text = json.dumps(
        {"type": "record", "name": "shop.Order", "fields": [
            {"name": "from", "type": {"type": "record", "name": "Place", "fields": []}},
            {"name": "to", "type": ["null", "shop.Place"]},
        ]}
    )  # fmt: skip
    kind = avro_text.parse(text)
    assert named_apart(kind) == kind
    same = record("r", [])
    two = Type(Kind.RECORD, name="r", fields=avro_text.parse(text).fields)
    assert avro_text.parse(avro_text.text_of(named_apart(same))) == same
    assert named_apart(two) == two


def test_a_schema_that_could_not_be_read_again_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = text_of({"user-agent": X})
    with lamina.open(str(tmp_path)) as store:
        store.create_topic("t")
        with monkeypatch.context() as patch:
            patch.setattr(schema_source, "named_apart", lambda kind: kind)
            with pytest.raises(SchemaError, match="name"):
                store.set_schema("t", text, encoding="json")
            with pytest.raises(SchemaError, match="name"):
                store.create_topic("new", schema=text, encoding="json")
        assert (store.schemas("t"), store.topics()) == ([], ["t"])
        store.set_schema("t", text, encoding="json")
        assert len(store.schemas("t")) == 1


TWICE = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
MORE = pa.array([{"x": 1, "z": 2}])
LEFT_OUT = {
    "a column twice": pa.table([pa.array([{"x": 1}], X)] * 2, names=["s", "s"]),
    "a time twice": pa.table([pa.array([0], pa.timestamp("ms"))] * 2, names=["_timestamp"] * 2),
    "a key twice": pa.table([pa.array([b"k"])] * 2, names=["_key", "_key"]),
    "a field twice": pa.table({"s": TWICE}),
    "a field twice, in a list": pa.table({"l": pa.array([[None]], pa.list_(TWICE.type))}),
    "a field twice, in a map": pa.table(
        {"m": pa.MapArray.from_arrays(pa.array([0, 1]), pa.array(["k"]), TWICE)}
    ),
    "another field": pa.table({"s": MORE}),
    "another field, in a list": pa.table({"l": pa.array([[{"x": 1, "z": 2}]])}),
    "another field, in a map": pa.table(
        {"m": pa.MapArray.from_arrays(pa.array([0, 1]), pa.array(["k"]), MORE)}
    ),
}
"""Tables of which Arrow would leave something out without a word."""


def test_nothing_that_a_table_has_is_left_out_in_silence(tmp_path: Path) -> None:
    columns = {"s": X, "l": pa.list_(X), "m": pa.map_(pa.string(), X)}
    with (
        served(tmp_path / "served") as service,
        lamina.open(str(tmp_path / "data")) as store,
        lamina.connect(service.flight_url) as remote,
    ):
        for each in (store, remote):
            for encoding in ("json", "avro"):
                each.create_topic(encoding)
                each.set_schema(encoding, text_of(columns), encoding=encoding)
                for what, table in LEFT_OUT.items():
                    try:
                        each.append(encoding, table)
                    except LaminaError:
                        continue
                    pytest.fail(f"{what} was taken")
                with pytest.raises(InvalidRequest, match="named by text"):
                    each.append(encoding, [{"s": {"x": 1}, 7: "seven"}])
                assert each.latest_offset(encoding) == 0
