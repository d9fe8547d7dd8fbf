"""`make bench-typed`: values to columns and back, beside what one would use instead, in one run.

Records are a flat event of ten fields and a nested one (`typed_codecs`). What Spark, DuckDB and
Polars make of typed topics is measured by `typed_engines`. With `--into docs/measured.md` the
figures take the place of those between the two marks of that page.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import pyarrow as pa

import lamina
from benchmarks.bars import Bar, best_of, finish
from benchmarks.typed_codecs import FLAT, measured, rows_of, table_of
from benchmarks.typed_engines import spark_bars, ten_minutes_bars
from lamina.formats.typed import avro_text, json_encode
from lamina.formats.typed.arrow_types import arrow_schema

BEGIN, END = "<!-- bench-typed -->", "<!-- end of bench-typed -->"


def appended(table: pa.Table, rounds: int) -> dict[str, float]:
    """Appends of the same bytes, typed and untyped, to topics of one store."""
    with tempfile.TemporaryDirectory() as folder, lamina.open(folder) as store:
        store.create_topic("typed", schema=json.dumps(FLAT))
        store.create_topic("plain")
        store.append("typed", table)
        (batch,) = store.scan("typed", max_records=table.num_rows, max_bytes=1 << 30)
        plain = pa.table({"value": batch.column("value")})
        return best_of(
            {
                "typed append": lambda: store.append("typed", table),
                "plain append": lambda: store.append("plain", plain),
            },
            rounds=rounds,
            repeat=1,
        )


def filled_in(page: str, figures: str) -> str:
    """Returns a page with the figures of a run between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}"


def figures_of(best: dict[str, float], records: int, bars: list[Bar]) -> str:
    """What a page shows of a run: the table, and each bar as it was measured."""
    told = [f"- {str(bar).removeprefix('bar ')}" for bar in bars]
    return "\n".join([table_of(best, records), "", *told])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--spark-records", type=int, default=1_000_000)
    parser.add_argument("--engine-records", type=int, default=10_000_000)
    parser.add_argument("--into", type=Path, help="a page whose figures are replaced")
    asked = parser.parse_args()
    kind = avro_text.parse(json.dumps(FLAT))
    table = pa.Table.from_pylist(rows_of("flat", asked.records), schema=arrow_schema(kind))
    best = measured(asked.records, asked.rounds)
    appends = appended(table, asked.rounds)
    for name, seconds in (best | appends).items():
        print(f"{name:24} {asked.records / seconds / 1e6:9.3f} M records/s")
    documents = json_encode.encode(json_encode.template(kind), table)
    with tempfile.TemporaryDirectory() as folder:
        engines = ten_minutes_bars(folder, table, json.dumps(FLAT), asked.engine_records)
    with tempfile.TemporaryDirectory() as folder:
        copies = -(-asked.spark_records // asked.records)
        many = pa.concat_tables([table] * copies).slice(0, asked.spark_records).combine_chunks()
        texts = pa.concat_arrays([documents] * copies).slice(0, asked.spark_records)
        engines += spark_bars(folder, many, texts, FLAT)
    flat_s = best["avro flat decode"]
    bars = [
        Bar("avro decode / fastavro", best["fastavro flat decode"] / flat_s, 20),
        Bar("avro decode / keratin scan", best["keratin scan"] / flat_s, 0.25),
        Bar("typed / plain append", appends["plain append"] / appends["typed append"], 0.5),
        *engines,
    ]
    if asked.into is not None:
        page = asked.into.read_text(encoding="utf-8")
        asked.into.write_text(
            filled_in(page, figures_of(best, asked.records, bars)), encoding="utf-8"
        )
    finish(bars)


if __name__ == "__main__":
    main()
