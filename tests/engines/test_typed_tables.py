"""Typed topics as tables: the schema's columns, decoded only where a query needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lamina
from lamina.errors import InvalidRequest, SchemaError
from tests.server.rig import served

COLUMNS = pa.schema([("id", pa.int64()), ("price", pa.float64()), ("city", pa.string())])


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = str(tmp_path / "data")
    with lamina.open(path) as store:
        store.create_topic("orders", partitions=2, schema=COLUMNS, key="city")
        table = {"id": [1, 2, 3], "price": [1.5, 2.5, None], "city": ["a", "b", "a"]}
        store.append("orders", pa.table(table, schema=COLUMNS))
        store.create_topic("documents")
        store.append("documents", [b'{"a": 1}', b"nope", b'{"a": 3}'])
        store.set_schema("documents", pa.schema([("a", pa.int64())]), encoding="json")
    return path


def test_a_typed_topic_has_the_columns_of_its_schema_in_every_engine(data: str) -> None:
    with lamina.dataset(data, "orders") as orders:
        assert orders.schema.names == [
            *("_offset", "_partition", "_timestamp", "_key", "id", "price", "city")
        ]
        query = "select city, sum(price), count(*) from orders where id < 3 group by 1 order by 1"
        assert duckdb.sql(query).fetchall() == [("a", 1.5, 1), ("b", 2.5, 1)]
        assert orders.count_rows(filter=pc.field("price").is_null()) == 1
    lazy = lamina.polars.scan(data, "orders").filter(polars.col("id") > 1).select("id", "city")
    assert sorted(lazy.collect().rows()) == [(2, "b"), (3, "a")]


def test_only_the_columns_of_answer_and_filter_are_decoded(data: str, monkeypatch: Any) -> None:
    with lamina.dataset(data, "orders") as orders:
        asked, read = [], orders._store.read

        def noted(*where: Any, columns: Any = None, **options: Any) -> Any:
            asked.append(columns)
            return read(*where, columns=columns, **options)

        monkeypatch.setattr(orders._store, "read", noted, raising=False)
        found = orders.to_table(columns=["id"], filter=pc.field("city") == "a")
        assert sorted(found.column("id").to_pylist()) == [1, 3]
        assert all(set(each) == {"id", "city"} for each in asked)
        asked.clear()
        assert orders.to_table().num_rows == 3
        assert asked[0] is None


def test_a_record_that_the_schema_does_not_fit_is_an_error_or_a_row_of_nulls(data: str) -> None:
    with lamina.dataset(data, "documents", errors="null") as lenient:
        rows = lenient.to_table(columns=["_offset", "a", "_error"]).to_pylist()
        assert [(row["_offset"], row["a"], row["_error"] is None) for row in rows] == [
            *((0, 1, True), (1, None, False), (2, 3, True))
        ]
    with lamina.dataset(data, "documents") as strict:
        with pytest.raises(SchemaError, match="offset 1"):
            strict.to_table()
        assert isinstance(strict.failure, SchemaError)
    with pytest.raises(InvalidRequest, match="errors"):
        lamina.dataset(data, "documents", errors="dead_letter")


def test_a_server_gives_the_same_table(data: str, tmp_path: Path) -> None:
    with lamina.dataset(data, "orders") as here:
        expected = here.to_table()
    with served(Path(data)) as service, lamina.dataset(service.flight_url, "orders") as there:
        assert there.to_table().equals(expected)
        assert there.to_table(filter=pc.field("id") == 2).num_rows == 1


def test_a_table_keeps_the_columns_of_its_version(data: str) -> None:
    """A later version that names a column otherwise neither empties it nor fails a query."""
    wider = {"id": pa.int64(), "cost": pa.float64(), "city": pa.string()}
    fields = [pa.field(name, kind) for name, kind in wider.items()]
    fields[1] = fields[1].with_metadata({"lamina.aliases": "price"})
    with lamina.open(data) as store, lamina.dataset(store, "orders") as orders:
        expected = orders.to_table()
        lazy = lamina.polars.scan(store, "orders")
        store.set_schema("orders", pa.schema(fields))
        assert orders.to_table().equals(expected)
        assert orders.filter(pc.field("id") > 0).to_table().equals(expected)
        found = duckdb.sql("select price from orders where id < 3 order by id").fetchall()
        assert found == [(1.5,), (2.5,)]
        assert lazy.select(polars.col("price").sum()).collect().item() == 4.0
        with lamina.dataset(store, "orders") as newer:
            assert newer.to_table()["cost"].equals(expected["price"])
