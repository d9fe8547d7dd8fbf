"""Typed tables as their readers see them, and what they should hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

import lamina
from lamina.spark.jobs.tables.table_contract import TableLake

DAY_MS = 86_400_000
V1 = """{"type": "record", "name": "O", "fields": [
    {"name": "id", "type": "int"}, {"name": "item", "type": "string"},
    {"name": "old", "type": ["null", "string"], "default": null}]}"""
V2 = """{"type": "record", "name": "O", "fields": [
    {"name": "id", "type": "long"}, {"name": "article", "type": "string", "aliases": ["item"]},
    {"name": "note", "type": ["null", "string"], "default": null}]}"""

MESSAGES_1 = """syntax = "proto3"; message O {
    enum Kind { PLAIN = 0; RED = 1; }
    message In { int32 x = 1; string y = 2; }
    int32 id = 1; string item = 2; optional string old = 3; int32 count = 4;
    optional double price = 5; Kind kind = 6; In in = 7; repeated int64 many = 8;
    map<string, string> named = 9; uint64 large = 10;
}"""
MESSAGES_2 = """syntax = "proto3"; message O {
    enum Kind { PLAIN = 0; RED = 1; BLUE = 2; }
    message In { int64 x = 1; string z = 2; optional bool more = 3; }
    int64 id = 1; string article = 2; optional int32 count = 4; double price = 5; Kind kind = 6;
    In in = 7; repeated int64 many = 8; map<string, string> named = 9; uint64 large = 10;
    optional string note = 11; int32 fresh = 12;
}"""
"""Renamed, widened, dropped, made optional and not so, added with null and with zero."""


def catalog_of(folder: Path) -> dict[str, str]:
    uri = f"sqlite:///{folder}/catalog.db"
    return {"type": "sql", "uri": uri, "warehouse": f"file://{folder}/lake"}


def lake_of(kind: str, folder: Path) -> TableLake:
    if kind == "iceberg":
        from lamina.spark.jobs.tables.iceberg_rows import IcebergRows

        return IcebergRows("shop.orders", "default", catalog_of(folder))
    if kind == "delta":
        from lamina.spark.jobs.tables.delta_rows import DeltaRows

        return DeltaRows(str(folder / "lake" / kind))
    from lamina.spark.jobs.tables.parquet_rows import ParquetRows

    return ParquetRows(str(folder / "lake" / kind))


def read_table(kind: str, folder: Path) -> pa.Table:
    """The table by a reader that is not ours."""
    if kind == "iceberg":
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("default", **catalog_of(folder))
        return catalog.load_table("shop.orders").scan().to_arrow()
    path = str(folder / "lake" / kind)
    if kind == "delta":
        from deltalake import DeltaTable

        return DeltaTable(path).to_pyarrow_table()
    from lamina.spark.jobs.tables.parquet_rows import files_of_table

    found = duckdb.read_parquet(files_of_table(path), union_by_name=True)
    return found.to_arrow_table()


def read_rows(kind: str, folder: Path) -> list[dict[str, Any]]:
    """Every row, with columns in one order."""
    return sorted_rows(read_table(kind, folder))


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    names = sorted(table.schema.names)
    at = table.schema.get_field_index("_timestamp")
    times = table.column(at).cast(pa.timestamp("us", tz="UTC"))
    rows = table.set_column(at, "_timestamp", times).select(names).to_pylist()
    return sorted(rows, key=lambda row: (row["_partition"], row["_offset"]))


def wanted_rows(folder: Path, *, latest: bool = False) -> list[dict[str, Any]]:
    """What `store.read` says that a table should hold."""
    gone = set()
    with lamina.open(folder / "data", read_only=True) as store:
        rows = sorted_rows(store.read("orders").read_all())
        for number in range(store.format_of("orders")[1]):
            for batch in store.scan("orders", number):
                null = batch.filter(batch["value"].is_null())["offset"].to_pylist()
                gone |= {(number, offset) for offset in null}
    if not latest:
        return rows
    last = {row["_key"]: row for row in rows if row["_key"] is not None}
    kept = [row for row in last.values() if (row["_partition"], row["_offset"]) not in gone]
    return sorted(kept, key=lambda row: (row["_partition"], row["_offset"]))
