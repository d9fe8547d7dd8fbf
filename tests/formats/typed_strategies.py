"""Schemas and rows that fit them, for hypothesis: as Avro's documents, which fastavro reads."""

from __future__ import annotations

import datetime
import decimal
import io
import itertools
from typing import Any

import fastavro
from hypothesis import strategies as st

INT = st.integers(-(1 << 31), (1 << 31) - 1)
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
FLOAT = st.floats(width=32, allow_nan=False)
CLOCK = st.times()


def _in_millis(time: datetime.time) -> datetime.time:
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", INT),
    ("long", LONG),
    ("float", FLOAT),
    ("double", st.floats(allow_nan=False)),
    ("string", st.text(max_size=40)),
    ("bytes", st.binary(max_size=40)),
    ({"type": "int", "logicalType": "date"}, st.dates()),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        st.datetimes(
            datetime.datetime(1700, 1, 1),
            datetime.datetime(2200, 1, 1),
            timezones=st.just(datetime.UTC),
        ),
    ),
    ({"type": "int", "logicalType": "time-millis"}, CLOCK.map(_in_millis)),
    ({"type": "long", "logicalType": "time-micros"}, CLOCK),
    (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3},
        st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: decimal.Decimal(n).scaleb(-3)),
    ),
]


def leaves(
    names: Any, *, in_json: bool = False
) -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    def named(size: int) -> tuple[Any, st.SearchStrategy[Any]]:
        kind = {"type": "fixed", "name": f"F{next(names)}", "size": size}
        return kind, st.binary(min_size=size, max_size=size)

    def enum(symbols: list[str]) -> tuple[Any, st.SearchStrategy[Any]]:
        kind = {"type": "enum", "name": f"E{next(names)}", "symbols": symbols}
        return kind, st.sampled_from(symbols)

    if in_json:  # which has no bytes, and no infinite numbers
        finite = st.floats(allow_nan=False, allow_infinity=False)
        pool = [each for each in LEAVES if each[0] not in ("bytes", "float", "double")]
        return st.sampled_from([*pool, ("double", finite)])
    symbols = st.lists(st.sampled_from("ABCDEFG"), min_size=1, unique=True)
    return st.one_of(st.sampled_from(LEAVES), st.integers(1, 20).map(named), symbols.map(enum))


def optional(given: tuple[Any, Any], order: int) -> tuple[Any, Any]:
    kind, values = given
    if isinstance(kind, list) or order == 2:
        return given
    return (["null", kind] if order else [kind, "null"]), st.none() | values


@st.composite
def typed_rows(draw: Any, *, in_json: bool = False) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A record schema and rows of it."""
    names = itertools.count()

    def nest(inner: Any) -> Any:
        def array(given: Any) -> Any:
            return {"type": "array", "items": given[0]}, st.lists(given[1], max_size=4)

        def mapping(given: Any) -> Any:
            values = st.dictionaries(st.text(max_size=5), given[1], max_size=3)
            return {"type": "map", "values": given[0]}, values

        def struct(given: list[Any]) -> Any:
            return record(given, next(names))

        inner = st.tuples(inner, st.integers(0, 2)).map(lambda pair: optional(*pair))
        return st.one_of(
            inner.map(array),
            inner.map(mapping),
            st.lists(inner, min_size=1, max_size=3).map(struct),
        )

    types = st.recursive(leaves(names, in_json=in_json), nest, max_leaves=6)
    types = st.tuples(types, st.integers(0, 2)).map(lambda pair: optional(*pair))
    # Names are counted while drawing, so that one is never defined twice.
    fields = [draw(types) for _ in range(draw(st.integers(1, 5)))]
    schema, values = record(fields, next(names))
    return _unshared(schema), draw(st.lists(values, max_size=8))


def record(fields: list[Any], number: int) -> tuple[Any, Any]:
    kind = {
        "type": "record",
        "name": f"R{number}",
        "fields": [{"name": f"f{at}", "type": each[0]} for at, each in enumerate(fields)],
    }
    return kind, st.fixed_dictionaries({f"f{at}": each[1] for at, each in enumerate(fields)})


def _unshared(schema: Any) -> Any:
    """Gives every named type a name of its own: hypothesis may use one object in two places."""
    numbers = itertools.count()

    def walk(kind: Any) -> Any:
        if isinstance(kind, list):
            return [walk(each) for each in kind]
        if not isinstance(kind, dict):
            return kind
        made = {
            key: value for key, value in kind.items() if key not in ("items", "values", "fields")
        }
        if "name" in kind:
            made["name"] = f"N{next(numbers)}"
        for key in ("items", "values"):
            if key in kind:
                made[key] = walk(kind[key])
        if "fields" in kind:
            made["fields"] = [{**each, "type": walk(each["type"])} for each in kind["fields"]]
        return made

    return walk(schema)


def written(schema: Any, row: Any) -> bytes:
    """One row as fastavro writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def read_back(schema: Any, value: bytes, reader: Any = None) -> Any:
    """One row as fastavro reads it."""
    parsed = fastavro.parse_schema(schema)
    other = fastavro.parse_schema(reader) if reader is not None else None
    return fastavro.schemaless_reader(io.BytesIO(value), parsed, other)
