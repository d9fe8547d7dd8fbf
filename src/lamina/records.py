"""The record as Arrow columns: which there are, what each format keeps, how input becomes them.

A batch of records is a `pyarrow.RecordBatch`; no record is ever a Python object inside the engine.

| column    | type                                     | meaning                               |
|-----------|------------------------------------------|---------------------------------------|
| offset    | int64                                    | the record's number in its partition  |
| timestamp | timestamp[ms, UTC]                       | event time; missing means append time |
| key       | binary                                   | null is not empty, except in frame    |
| value     | binary                                   | null is a tombstone, where kept       |
| headers   | list<struct<key: string, value: binary>> | ordered, names may repeat             |
| tag, node | binary                                   | what to delete by; who wrote it (wal) |

Rule: a column that a format cannot keep is refused, naming a format that can; it is never dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.errors import InvalidRequest, UnknownSchema, UnsupportedField
from lamina.received import refuse_broken, shown

TIMESTAMP = pa.timestamp("ms", tz="UTC")
HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("item", HEADER, nullable=False))

RECORD_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("tag", pa.binary()),
        pa.field("node", pa.binary()),
    ]
)
"""Every column that a record can have, in order."""

FARTHEST_MS = ((1 << 63) - 1) // 1000
"""The last time that counts of microseconds hold, in January of the year 294247."""

COLUMN_TYPES: dict[str, pa.DataType] = {field.name: field.type for field in RECORD_SCHEMA}
"""The exact type of each column: what a batch from elsewhere has to have."""

KEPT_COLUMNS: dict[str, tuple[str, ...]] = {
    "frame": ("timestamp", "key", "value"),
    "keratin": ("timestamp", "key", "value", "headers"),
    "wal": ("timestamp", "value", "tag", "node"),
    "strm": ("offset", "timestamp", "key", "value", "headers", "tag", "node"),
}
"""What a writer of each format takes: the columns it can give back."""

NULL_VALUES = frozenset({"keratin", "strm"})
"""The formats that tell a null value from an empty one."""


def _select(names: Iterable[str]) -> pa.Schema:
    return pa.schema([RECORD_SCHEMA.field(name) for name in names])


INPUT_SCHEMAS = {format_name: _select(names) for format_name, names in KEPT_COLUMNS.items()}
"""The exact schema that each format's `encode` takes; `prepare` makes it from what a user has."""

OUTPUT_SCHEMAS = {
    format_name: _select(dict.fromkeys(("offset", *names)))
    for format_name, names in KEPT_COLUMNS.items()
}
"""The exact schema that each format's `decode` gives."""

_PLACES = {
    format_name: {name: index for index, name in enumerate(names)}
    for format_name, names in KEPT_COLUMNS.items()
}

_NAMES = tuple(RECORD_SCHEMA.names)
_KNOWN = frozenset(_NAMES)
_LISTS = (list, tuple, type(None))
_FIELDS = {
    format_name: tuple((field.name, field.type) for field in schema)
    for format_name, schema in INPUT_SCHEMAS.items()
}


class Decoded:
    """A batch that a kernel of ours has made, and nobody else has touched: its buffers are sound.

    Checking it as a stranger's would take longer than appending a small one.
    """

    __slots__ = ("batch",)

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch


class DataFrame(Protocol):
    """Whatever hands out a stream of Arrow: frames of pandas and Polars, DuckDB's relations."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns a capsule with the stream."""


Rows: TypeAlias = Sequence[bytes | tuple[bytes | None, bytes | None] | Mapping[str, Any]]
Records: TypeAlias = pa.RecordBatch | pa.Table | DataFrame | Rows


def prepare(records: Records | Decoded, format_name: str, *, now_ms: int) -> pa.RecordBatch:
    """Makes the exact input batch of a format from a batch, a table or a list of small rows.

    Missing timestamps become `now_ms`. Raises UnsupportedField for a column or a null that the
    format cannot keep, InvalidRequest for an unknown column, a type that does not fit, or a batch
    whose buffers are shorter than it says.
    """
    given = _as_batch(records)
    schema = INPUT_SCHEMAS[format_name]
    is_exact = given.schema.equals(schema)
    arrays = given.columns if is_exact else _conform(given, format_name, now_ms)
    place = _PLACES[format_name]
    at = place["timestamp"]
    if arrays[at].null_count:
        arrays[at] = arrays[at].fill_null(pa.scalar(now_ms, TIMESTAMP))
        is_exact = False
    if "offset" in place and arrays[place["offset"]].null_count:
        raise InvalidRequest(f"format {format_name} needs an offset for each record")
    if "headers" in place:
        _refuse_nameless(arrays[place["headers"]])
    if format_name not in NULL_VALUES and arrays[place["value"]].null_count:
        raise UnsupportedField(
            f"format {format_name} has no null values; use an empty value, or a keratin topic"
        )
    return given if is_exact else pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as_batch(records: Records | Decoded) -> pa.RecordBatch:
    """The columns that are given, in one batch of sound buffers."""
    if type(records) is Decoded:
        return records.batch
    if isinstance(records, pa.RecordBatch):
        refuse_broken(records)
        return records
    if isinstance(records, pa.Table):
        refuse_broken(records)
    table = as_table(records)
    arrays = [
        column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


def exact(given: pa.RecordBatch) -> pa.RecordBatch:
    """Gives the columns of a checked batch their exact types; a server takes no others."""
    names = given.schema.names
    if all(COLUMN_TYPES.get(field.name) == field.type for field in given.schema):
        return given
    _refuse_unknown(names)
    arrays = [
        column if column.type == COLUMN_TYPES[name] else _cast(column, name, COLUMN_TYPES[name])
        for name, column in zip(names, given.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names)


def as_table(records: Records) -> pa.Table:
    """Makes a table of what a user hands in; only the columns that are given."""
    if isinstance(records, pa.Table):
        return records
    if isinstance(records, pa.RecordBatch):
        return pa.Table.from_batches([records])
    if isinstance(records, str | Mapping) or not isinstance(records, Iterable):
        refuse_kind(records)
    try:
        given = list(records)
    except TypeError as error:  # an array without dimensions
        raise InvalidRequest(f"records are a list, a batch or a table: {error}") from error
    rows = [_as_dict(row) for row in given]
    names = {name for row in rows for name in row} | {"value"}
    schema = _select(name for name in RECORD_SCHEMA.names if name in names)
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidRequest(f"a record's field has a value that does not fit: {error}") from error


def refuse_kind(records: object) -> NoReturn:
    """Raises InvalidRequest for what is no kind of records, and says how to hand it in."""
    if isinstance(records, str):
        raise InvalidRequest("a record is bytes, not text: use text.encode()")
    if isinstance(records, Mapping):
        raise InvalidRequest("records are a list, a batch or a table: put a single dict in a list")
    kind = "None" if records is None else type(records).__name__
    raise InvalidRequest(f"records are a list, a batch or a table, not {kind}")


def _as_dict(row: object) -> Mapping[str, Any]:
    if isinstance(row, bytes | bytearray | memoryview):
        return {"value": bytes(row)}
    if isinstance(row, tuple) and len(row) == 2:
        return {"key": row[0], "value": row[1]}
    if isinstance(row, Mapping):
        _refuse_unknown(row)
        if "value" not in row:
            raise InvalidRequest("a record needs a 'value'; a tombstone says 'value': None")
        headers = row.get("headers")
        if not isinstance(headers, _LISTS):
            raise InvalidRequest(f"headers are a list, not {type(headers).__name__}")
        for header in headers or ():
            if isinstance(header, Mapping) and header.keys() != {"key", "value"}:
                raise InvalidRequest(
                    f"a header has a key and a value, not {', '.join(map(str, header))[:80]}"
                )
        return row
    if isinstance(row, str):
        refuse_kind(row)
    raise InvalidRequest(
        f"a record is bytes, a (key, value) tuple or a dict of columns, not {type(row).__name__}"
    )


def _refuse_unknown(names: Iterable[str]) -> None:
    for name in names:
        if name not in _KNOWN:
            known = ", ".join(RECORD_SCHEMA.names)
            raise InvalidRequest(f"unknown column {name!r}; a record has {known}")


def _refuse_doubled(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"column {name!r} is given {names.count(name)} times")


def _refuse_nameless(headers: pa.Array) -> None:
    """Arrow lets nulls into fields that have none; a header without a name has no meaning."""
    if headers.null_count == len(headers) or not _has_nameless(headers.values):
        return
    if _has_nameless(headers.flatten()):  # a copy, so only when some null is there at all
        raise InvalidRequest("a header has a null key; every header has a name")


def _has_nameless(items: pa.Array) -> bool:
    return bool(items.null_count or items.field("key").null_count)


class _Source(NamedTuple):
    """Where a column of a format comes from; `column` is None for one that was not given."""

    name: str
    kind: pa.DataType
    column: int | None
    fits: bool


class _Plan(NamedTuple):
    """How the columns of one schema become those of a format."""

    schema: pa.Schema
    sources: tuple[_Source, ...]
    unkept: tuple[int, ...]


_plans: dict[str, _Plan] = {}
"""The last plan of each format: a producer's batches have one schema."""


def _plan(schema: pa.Schema, format_name: str) -> _Plan:
    known = _plans.get(format_name)
    if known is not None and known.schema.equals(schema):
        return known
    names = schema.names
    _refuse_unknown(names)
    _refuse_doubled(names)
    sources = []
    for name, kind in _FIELDS[format_name]:
        index = schema.get_field_index(name)
        if index < 0 and name in ("value", "offset"):
            raise InvalidRequest(f"records need a column {name!r}")
        fits = index >= 0 and schema.field(index).type == kind
        sources.append(_Source(name, kind, index if index >= 0 else None, fits))
    place = _PLACES[format_name]
    unkept = tuple(index for index, name in enumerate(names) if name not in place)
    _plans[format_name] = made = _Plan(schema, tuple(sources), unkept)
    return made


def _conform(given: pa.RecordBatch, format_name: str, now_ms: int) -> list[pa.Array]:
    """The columns of a format: as they are given, of the type it needs; else now, or nulls."""
    plan = _plan(given.schema, format_name)
    rows = given.num_rows
    columns = given.columns
    for index in plan.unkept:
        if columns[index].null_count < rows:
            _refuse_unkept(plan.schema.names[index], format_name)
    arrays = []
    for name, kind, column, fits in plan.sources:
        if column is None:
            arrays.append(_missing(name, kind, rows, now_ms))
        else:
            arrays.append(columns[column] if fits else _cast(columns[column], name, kind))
    return arrays


def _refuse_unkept(name: str, format_name: str) -> None:
    if name == "offset":
        raise InvalidRequest("offsets are assigned by the log; leave the column out")
    able = [other for other in ("keratin", "wal") if name in KEPT_COLUMNS[other]]
    raise UnsupportedField(
        f"format {format_name} cannot keep {name!r}; a topic of format {' or '.join(able)} can"
    )


def _missing(name: str, kind: pa.DataType, rows: int, now_ms: int) -> pa.Array:
    if name != "timestamp":
        return pa.nulls(rows, kind)
    now = pa.py_buffer(np.full(rows, now_ms, dtype=np.int64))
    return pa.Array.from_buffers(TIMESTAMP, rows, [None, now])


def _refuse_left_out(headers: pa.DataType) -> None:
    """Refuses fields of a header that Arrow would leave out without a word."""
    each = getattr(headers, "value_type", None)
    if each is None or not pa.types.is_struct(each):
        return
    names = [field.name for field in each]
    if len(set(names)) < len(names) or not {"key", "value"}.issuperset(names):
        raise InvalidRequest(f"a header has a key and a value, each once, not {shown(each)}")


def _cast(column: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    if name == "headers":
        _refuse_left_out(column.type)
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise InvalidRequest(
            f"column {name!r} must be {kind}, not {shown(column.type)}: {error}"
        ) from error


def has_keys(records: Records | bytes) -> bool:
    """Returns whether any record may have a key; plain values have none."""
    if isinstance(records, pa.RecordBatch | pa.Table):
        index = records.schema.get_field_index("key")
        return bool(index >= 0 and records.column(index).null_count < records.num_rows)
    if type(records) is bytes:
        return False
    return type(records) is not list or not all(type(value) is bytes for value in records)


def as_columns(records: Any) -> Any:
    """Returns a table for a data frame and for rows with typed columns, all else as it is.

    A data frame is whatever hands out a stream of Arrow: those of pandas, Polars and DuckDB. Rows
    have typed columns if the first one has a column that no record has.
    """
    if isinstance(records, bytes | pa.RecordBatch | pa.Table):
        return records
    if isinstance(records, list | tuple):
        first = records[0] if records else None
        is_typed = isinstance(first, Mapping) and not _KNOWN.issuperset(first)
        return _typed_table(records) if is_typed else records
    if not hasattr(records, "__arrow_c_stream__"):
        return records
    try:
        return pa.table(records)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRequest(f"{type(records).__name__} is not a table: {error}") from error


def _typed_table(rows: Sequence[Any]) -> pa.Table:
    for row in rows:
        if not isinstance(row, Mapping):
            raise InvalidRequest(f"rows are dicts, all of them or none: {type(row).__name__}")
    names = dict.fromkeys(name for row in rows for name in row)
    odd = next((name for name in names if not isinstance(name, str)), "")
    if odd != "":
        raise InvalidRequest(f"columns are named by text, not by {str(odd)[:80]!r}")
    try:
        return pa.table({name: [row.get(name) for row in rows] for name in names})
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidRequest(f"a column has values of more than one type: {error}") from error


def refuse_untyped(topic: str, names: Sequence[str]) -> NoReturn:
    """Raises UnknownSchema for columns that neither a record nor the topic has."""
    unknown = [name for name in names if name not in _KNOWN]
    problem = f"unknown column {unknown[0]!r}" if unknown else "there is no column 'value'"
    raise UnknownSchema(
        f"{problem}: topic {topic!r} has no schema, and a record has {', '.join(_NAMES)};"
        " set_schema gives the topic columns of its own"
    )


def has_typed_columns(records: Any) -> bool:
    """Returns whether a table has columns of its own, and not those of records.

    With a column `value` and no unknown one it is a table of records, of a typed topic too.
    """
    if not isinstance(records, pa.RecordBatch | pa.Table):
        return False
    names = records.schema.names
    return "value" not in names or not _KNOWN.issuperset(names)


def split(
    batch: pa.RecordBatch, chosen: NDArray[np.int64], partitions: int
) -> list[tuple[int, pa.RecordBatch]]:
    """Splits a batch by the partition that was chosen for each record, order kept."""
    order = np.argsort(chosen, kind="stable")
    sorted_batch = batch.take(pa.array(order))
    edges = np.searchsorted(chosen[order], np.arange(partitions + 1))
    return [
        (number, sorted_batch.slice(edges[number], edges[number + 1] - edges[number]))
        for number in range(partitions)
        if edges[number] < edges[number + 1]
    ]


def clipped_microseconds(column: pa.Array) -> pa.Array:
    """Returns times in milliseconds as int64 microseconds; far cheaper than a checked cast.

    A time that no count of microseconds holds becomes the first or last one that does: one record
    never fails a query, and order is kept.
    """
    milliseconds = column.cast(pa.int64()).to_numpy(zero_copy_only=column.null_count == 0)
    if len(milliseconds) and (
        milliseconds.max() > FARTHEST_MS or milliseconds.min() < -FARTHEST_MS
    ):
        milliseconds = np.clip(milliseconds, -FARTHEST_MS, FARTHEST_MS)
    return pa.array(milliseconds * 1000, pa.int64())
