"""`make bench-typed`: values to columns and back, beside what one would use instead, in one run.

Records are a flat event of ten fields and a nested one. What Spark, DuckDB and Polars make of
typed topics is measured by `typed_engines`.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pydantic

import lamina
from benchmarks.bars import Bar, best_of, finish
from benchmarks.typed_engines import spark_bars, ten_minutes_bars
from lamina.formats.keratin import log as keratin
from lamina.formats.typed import avro_decode, avro_encode, avro_program, avro_text, json_decode
from lamina.formats.typed.arrow_types import arrow_schema
from lamina.formats.typed.row_faults import Values
from lamina.records import prepare

FLAT: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": "string"},
        {"name": "session", "type": "string"},
        {"name": "page", "type": "string"},
        {"name": "kind", "type": "int"},
        {"name": "ok", "type": "boolean"},
        {"name": "price", "type": "double"},
        {"name": "load", "type": "float"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": "long"},
    ],
}
NESTED: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {"name": "count", "type": "int"},
                    ],
                },
            },
        },
        {
            "name": "address",
            "type": {
                "type": "record",
                "name": "Address",
                "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": "string"}],
            },
        },
    ],
}


class Event(pydantic.BaseModel):
    id: int
    user: str
    session: str
    page: str
    kind: int
    ok: bool
    price: float
    load: float
    note: str | None
    at: int


def flat(number: int) -> dict[str, Any]:
    return {
        **{"id": number, "user": f"user-{number % 5000}", "session": f"{number * 7919:016x}"},
        **{"page": f"/shop/{number % 97}/item", "kind": number % 12, "ok": number % 3 > 0},
        **{"price": number * 0.25, "load": float(number % 7)},
        **{"note": None if number % 2 else f"note {number}", "at": 1_700_000_000_000 + number},
    }


def nested(number: int) -> dict[str, Any]:
    lines = [{"sku": f"sku-{number % 100 + each}", "count": each + 1} for each in range(number % 4)]
    return {"id": number, "lines": lines, "address": {"city": "Bern", "zip": f"{number % 9999}"}}


def written(schema: dict[str, Any], rows: list[dict[str, Any]]) -> list[bytes]:
    parsed, made = fastavro.parse_schema(schema), []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        made.append(out.getvalue())
    return made


def read_by_fastavro(schema: Any, values: list[bytes]) -> pa.Table:
    rows = [fastavro.schemaless_reader(io.BytesIO(value), schema, None) for value in values]
    return pa.Table.from_pylist(rows)


def appended(values: list[bytes], table: pa.Table, rounds: int) -> dict[str, float]:
    """Appends of the same bytes, typed and untyped, to topics of one store."""
    with tempfile.TemporaryDirectory() as folder, lamina.open(folder) as store:
        store.create_topic("typed", schema=json.dumps(FLAT))
        store.create_topic("plain")
        store.append("typed", table)
        (batch,) = store.scan("typed", max_records=len(values), max_bytes=1 << 30)
        plain = pa.table({"value": batch.column("value")})
        return best_of(
            {
                "typed append": lambda: store.append("typed", table),
                "plain append": lambda: store.append("plain", plain),
            },
            rounds=rounds,
            repeat=1,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--spark-records", type=int, default=1_000_000)
    parser.add_argument("--engine-records", type=int, default=10_000_000)
    asked = parser.parse_args()
    rows = [flat(number) for number in range(asked.records)]
    values, kind = written(FLAT, rows), avro_text.parse(json.dumps(FLAT))
    program, parsed = avro_program.compiled(kind, kind), fastavro.parse_schema(FLAT)
    column = pa.array(values, pa.binary())
    deep, deep_kind = written(NESTED, [nested(n) for n in range(asked.records)]), NESTED
    deep_model = avro_text.parse(json.dumps(NESTED))
    deep_program, deep_parsed = avro_program.compiled(deep_model, deep_model), deep_kind
    deep_column = pa.array(deep, pa.binary())
    documents = [orjson.dumps(row) for row in rows]
    json_column = pa.array(documents, pa.binary())
    log, _ = keratin.encode(prepare(pa.table({"value": column}), "keratin", now_ms=1), 0)
    table = pa.Table.from_pylist(rows, schema=arrow_schema(kind))
    fastavro_deep = fastavro.parse_schema(deep_parsed)
    best = best_of(
        {
            "avro flat": lambda: avro_decode.decode(program, Values.of(column)),
            "avro nested": lambda: avro_decode.decode(deep_program, Values.of(deep_column)),
            "avro encode": lambda: avro_encode.encode(program, table),
            "keratin scan": lambda: keratin.decode(log, keratin.scan(log, 0)),
            "json flat": lambda: json_decode.decode(kind, Values.of(json_column)),
            "fastavro flat": lambda: read_by_fastavro(parsed, values),
            "fastavro nested": lambda: read_by_fastavro(fastavro_deep, deep),
            "orjson flat": lambda: pa.Table.from_pylist([orjson.loads(d) for d in documents]),
            "pydantic flat": lambda: [Event.model_validate_json(each) for each in documents],
        },
        rounds=asked.rounds,
        repeat=1,
    ) | appended(values, table, asked.rounds)
    for name, seconds in best.items():
        print(f"{name:16} {asked.records / seconds / 1e6:9.3f} M records/s")
    with tempfile.TemporaryDirectory() as folder:
        engines = ten_minutes_bars(folder, table, json.dumps(FLAT), asked.engine_records)
    with tempfile.TemporaryDirectory() as folder:
        copies = -(-asked.spark_records // asked.records)
        many = pa.concat_tables([table] * copies).slice(0, asked.spark_records).combine_chunks()
        texts = pa.concat_arrays([json_column] * copies).slice(0, asked.spark_records)
        engines += spark_bars(folder, many, texts, FLAT)
    finish(
        [
            Bar("avro decode / fastavro", best["fastavro flat"] / best["avro flat"], 20),
            Bar("avro decode / keratin scan", best["keratin scan"] / best["avro flat"], 0.25),
            Bar("typed / plain append", best["plain append"] / best["typed append"], 0.5),
            *engines,
        ]
    )


if __name__ == "__main__":
    main()
