"""What an engine answers over a topic is what it answers over the same rows in memory.

Every type has nulls, numbers have NaN and both zeros; the conditions are drawn at random, and each
engine is held against itself: it may mean what it likes by them, but the same for a topic.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lamina
from lamina.engines.dataset import LogDataset

ROWS, QUERIES = 60, 150
NAN = float("nan")
COLUMNS = pa.schema(
    [
        ("long", pa.int64()),
        ("int", pa.int32()),
        ("double", pa.float64()),
        ("float", pa.float32()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("money", pa.decimal128(10, 2)),
        ("list", pa.list_(pa.int64())),
        ("pair", pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ]
)
FLAT = COLUMNS.names[:-2]
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
SIGNS = ("<", "<=", ">", ">=", "=", "<>")


def value(name: str, chance: random.Random) -> Any:
    """Draws a value of a column: few different ones, so that conditions meet rows."""
    day = datetime.date(2020, 1, chance.randint(1, 4))
    return {
        "long": chance.randint(-2, 3),
        "int": chance.randint(-2, 2),
        "double": chance.choice([-1.0, 0.0, -0.0, 1.5, NAN, float("inf")]),
        "float": chance.choice([0.5, -1.5, NAN]),
        "text": chance.choice(["", "a", "b", "z"]),
        "bytes": chance.choice([b"", b"a", b"b"]),
        "flag": chance.choice([True, False]),
        "day": day,
        "time": datetime.datetime.combine(day, datetime.time(), datetime.UTC),
        "money": Decimal(chance.randint(-200, 200)) / 100,
        "list": [chance.randint(0, 2) for _ in range(chance.randint(0, 2))],
        "pair": {"a": chance.choice([None, 1]), "b": chance.choice([None, "q"])},
    }[name]


@dataclass
class Topic:
    data: str
    table: LogDataset
    rows: pa.Table


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    data, chance = str(tmp_path_factory.mktemp("rows") / "data"), random.Random(1)
    columns = {
        name: [None if chance.random() < 0.3 else value(name, chance) for _ in range(ROWS)]
        for name in COLUMNS.names
    }
    with lamina.open(data) as store:
        store.create_topic("t", partitions=2, schema=COLUMNS)
        made = pa.table(columns, schema=COLUMNS)
        for partition in range(2):
            store.append("t", made.slice(partition * ROWS // 2, ROWS // 2), partition=partition)
    with lamina.dataset(data, "t") as table:
        yield Topic(data, table, table.to_table())


def drawn(chance: random.Random, leaf: Callable[[random.Random], Any], joined: Any) -> Any:
    """Draws a condition of up to three levels; `joined` builds not, and, or."""

    def grown(depth: int) -> Any:
        kind = chance.random()
        if depth == 0 or kind < 0.3:
            return leaf(chance)
        if kind < 0.5:
            return joined("not", grown(depth - 1))
        return joined("and" if kind < 0.75 else "or", grown(depth - 1), grown(depth - 1))

    return grown(3)


def of_expressions(kind: str, *parts: Any) -> Any:
    return (
        ~parts[0]
        if kind == "not"
        else parts[0] & parts[1]
        if kind == "and"
        else (parts[0] | parts[1])
    )


def chosen(names: list[str], chance: random.Random) -> list[str]:
    return chance.sample(names, chance.randint(1, 4)) if chance.random() < 0.7 else names


# ------------------------------------------------------------------ Polars


def polars_leaf(chance: random.Random) -> pl.Expr:
    name = chance.choice([*FLAT, "_offset", "_partition"])
    column, compare = pl.col(name), chance.choice(COMPARED)
    if name.startswith("_"):
        return getattr(column, compare)(chance.randint(0, 3))

    def literal() -> pl.Expr:
        drawn = None if chance.random() < 0.1 else value(name, chance)
        return pl.lit(drawn, dtype=pl.Series(pa.array([], COLUMNS.field(name).type)).dtype)

    nested = [pl.col("pair").is_null(), pl.col("list").list.len() > 1, pl.col("list").is_not_null()]
    options: list[Callable[[], pl.Expr]] = [
        column.is_null,
        column.is_not_null,
        lambda: column.is_in([value(name, chance), value(name, chance)]),
        lambda: column.is_in([value(name, chance), None]),
        lambda: column.eq_missing(literal()),
        lambda: column.ne_missing(literal()),
        column.is_nan if name in ("double", "float") else column.is_null,
        lambda: chance.choice([*nested, pl.col("pair").struct.field("a") == 1]),
        lambda: column if name == "flag" else column.is_between(literal(), literal()),
    ]
    options += [lambda: getattr(column, compare)(literal())] * len(options)
    return chance.choice(options)()


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
@pytest.mark.parametrize("seed", range(2))
def test_polars_answers_what_it_answers_over_a_frame_in_memory(
    topic: Topic, seed: int, engine: Any
) -> None:
    chance, rows = random.Random(seed), pl.DataFrame(topic.rows)
    scanned = lamina.polars.scan(topic.data, "t")
    for _ in range(QUERIES):
        condition = drawn(chance, polars_leaf, of_expressions)
        columns, limit = chosen(rows.columns, chance), chance.choice([None, None, 1, 5])
        steps = [("filter", condition)]
        if limit is not None:
            steps.insert(chance.randint(0, 1), ("head", limit))
        found, expected = scanned, rows.lazy()
        for step, argument in steps:
            found, expected = (getattr(each, step)(argument) for each in (found, expected))
        same = (
            found.select(columns)
            .collect(engine=engine)
            .equals(expected.select(columns).collect(engine=engine))
        )
        assert same, (str(condition), columns, steps)


def test_polars_prunes_by_the_parts_of_a_predicate_that_arrow_has_words_for(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, stripes = [], LogDataset.stripes

    def noted(table: LogDataset, filter: Any = None) -> Any:
        asked.append(stripes(table, filter))
        return asked[-1]

    monkeypatch.setattr(LogDataset, "stripes", noted)
    scanned = lamina.polars.scan(topic.data, "t")
    odd = pl.col("text").str.contains("a") | pl.col("text").is_null()
    scanned.filter(odd & (pl.col("_offset") >= 5), pl.col("_partition") == 1).collect()
    ((stripe,),) = asked
    assert (stripe.partition, stripe.first) == (1, 5)
    scanned.head(40).filter(pl.col("_partition") == 1).collect()
    assert len(asked[1]) == 2  # the first rows are of both partitions


# ------------------------------------------------------------------ DuckDB


def sql_leaf(chance: random.Random) -> str:
    name, sign = chance.choice([*FLAT, "_offset", "_partition"]), chance.choice(SIGNS)
    if name.startswith("_"):
        return f"{name} {sign} {chance.randint(0, 3)}"
    column = f'"{name}"'

    def literal() -> str:
        found = value(name, chance)
        if chance.random() < 0.1:
            return "null"
        text = found.decode() if isinstance(found, bytes) else str(found)
        kind = {"text": "varchar", "bytes": "blob", "flag": "boolean", "day": "date"}
        kind |= {"time": "timestamptz", "money": "decimal(10, 2)"}
        return f"'{text}'::{kind.get(name, name)}"

    return chance.choice(
        [
            f"{column} is null",
            f"{column} is not null",
            f"{column} in ({literal()}, {literal()})",
            f"{column} not in ({literal()}, {literal()})",
            f"{column} is distinct from {literal()}",
            f"{column} is not distinct from {literal()}",
            f"{column} between {literal()} and {literal()}",
            chance.choice(["pair.a = 1", "pair is null", "pair.b is not null", "len(list) > 1"]),
            "flag",
            *[f"{column} {sign} {literal()}"] * 9,
        ]
    )


def of_text(kind: str, *parts: str) -> str:
    return f"not ({parts[0]})" if kind == "not" else f"(({parts[0]}) {kind} ({parts[1]}))"


@pytest.mark.parametrize("seed", range(2))
def test_duckdb_answers_what_it_answers_over_a_table_of_its_own(topic: Topic, seed: int) -> None:
    chance = random.Random(seed)
    with duckdb.connect() as connection:
        connection.register("scanned", topic.table)
        connection.register("rows", topic.rows)
        connection.execute("create table held as select * from rows")

        def asked(table: str) -> str:
            return repr(connection.sql(f"select {columns} from {table} {rest}").fetchall())

        for _ in range(QUERIES):
            condition = drawn(chance, sql_leaf, of_text)
            columns = ", ".join(f'"{name}"' for name in chosen(topic.rows.column_names, chance))
            rest = f"where {condition} order by _partition, _offset"
            assert asked("scanned") == asked("held"), (columns, rest)


# ------------------------------------------------------------------ Arrow


def arrow_leaf(chance: random.Random) -> pc.Expression:
    name = chance.choice([*FLAT, "_offset", "_partition"])
    column, compare = pc.field(name), f"__{chance.choice(COMPARED)}__"
    if name.startswith("_"):
        return getattr(column, compare)(chance.randint(0, 3))
    kind = COLUMNS.field(name).type

    def literal() -> pa.Scalar:
        return pa.scalar(None if chance.random() < 0.1 else value(name, chance), kind)

    options: list[Callable[[], pc.Expression]] = [
        column.is_null,
        lambda: column.is_null(nan_is_null=True),
        column.is_valid,
        lambda: column.isin(pa.array([value(name, chance), None], kind)),
        lambda: column.isin(pa.array([value(name, chance), value(name, chance)], kind)),
        lambda: pc.field("pair", "a") == 1,
        lambda: pc.list_value_length(pc.field("list")) > 1,
        lambda: column if name == "flag" else column.is_null(),
    ]
    options += [lambda: getattr(column, compare)(literal())] * len(options)
    return chance.choice(options)()


@pytest.mark.parametrize("seed", range(2))
def test_arrow_answers_what_it_answers_over_a_table(topic: Topic, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(QUERIES):
        condition = drawn(chance, arrow_leaf, of_expressions)
        columns = chosen(topic.rows.column_names, chance)
        found = topic.table.to_table(columns=columns, filter=condition)
        expected = topic.rows.filter(condition).select(columns)
        assert repr(found.to_pylist()) == repr(expected.to_pylist()), (condition, columns)
