"""A topic's columns as tables have them, and batches cast to them.

| in Spark                | in a table                                                           |
|-------------------------|----------------------------------------------------------------------|
| time                    | time of microseconds; microseconds as a long where a table has none  |
| interval day to second  | microseconds as a long                                               |
| everything else         | the same; every field inside of a struct, a list or a map may be null |

Rules.
1. A file has its table's columns in its table's order, and nothing is lost in casting to them.
2. Columns are found by their numbers where files have numbers, by their names elsewhere.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as kinds
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lamina.errors import InvalidRequest
from lamina.spark.typed_columns import ERROR, PLACED, TOLD, columns_of

NUMBER = b"PARQUET:field_id"


def table_columns(schema: pa.Schema, *, with_errors: bool, has_times: bool) -> pa.Schema:
    """Returns the columns of a table over a version of a topic's schema."""
    told = [TOLD] if with_errors else []
    spark = to_arrow_schema(StructType([*PLACED, *columns_of(schema), *told]), timezone="UTC")
    own = {field.name for field in PLACED} | {ERROR}
    clash = sorted(own & set(schema.names))
    if clash:
        raise InvalidRequest(f"the schema has a column {clash[0]!r}, which is the record's own")
    fields = []
    for field in spark:
        if kinds.is_null(field.type):
            raise InvalidRequest(f"column {field.name!r} is always null: tables have no such type")
        fields.append(pa.field(field.name, _kind(field.type, has_times), field.nullable))
    return pa.schema(fields)


def _kind(kind: pa.DataType, has_times: bool) -> pa.DataType:
    if kinds.is_time(kind):
        return pa.time64("us") if has_times else pa.int64()
    if kinds.is_duration(kind):
        return pa.int64()
    if kinds.is_struct(kind):
        return pa.struct([(each.name, _kind(each.type, has_times)) for each in kind])
    if kinds.is_map(kind):
        return pa.map_(_kind(kind.key_type, has_times), _kind(kind.item_type, has_times))
    if kinds.is_list(kind):
        return pa.list_(pa.field("element", _kind(kind.value_type, has_times)))
    return kind


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns rows with exactly the columns of a schema, which all of them have by name."""
    arrays = [_cast(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def read_as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns rows of an old file under the columns of its table; what it lacks is null."""
    places = {_identity(field): place for place, field in enumerate(batch.schema)}
    arrays = []
    for field in schema:
        place = places.get(_identity(field))
        if place is None:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        else:
            arrays.append(_cast(batch.column(place), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _identity(field: pa.Field) -> bytes:
    number: bytes | None = (field.metadata or {}).get(NUMBER)
    name: str = field.name
    return name.encode() if number is None else b"#" + number


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Casts; lists, maps and structs part by part, as Arrow does not for all that differ inside."""
    if array.type.equals(kind):
        return array
    if kinds.is_time(array.type) and kinds.is_int64(kind):
        return array.cast(pa.time64("us")).cast(kind)
    if kinds.is_duration(array.type) and kinds.is_int64(kind):
        return array.cast(pa.duration("us")).cast(kind)
    if kinds.is_struct(kind):
        if array.offset:
            array = pa.concat_arrays([array])
        fields = [kind.field(place) for place in range(kind.num_fields)]
        inside = [_cast(array.field(field.name), field.type) for field in fields]
        return pa.StructArray.from_arrays(inside, fields=fields, mask=array.is_null())
    if kinds.is_map(kind):
        entries = pa.StructArray.from_arrays(
            [_cast(array.keys, kind.key_type), _cast(array.items, kind.item_type)],
            fields=[kind.key_field, kind.item_field],
        )
        return _listed(array, kind, entries)
    if kinds.is_list(kind):
        return _listed(array, kind, _cast(array.values, kind.value_type))
    return array.cast(kind)


def _listed(array: pa.Array, kind: pa.DataType, values: pa.Array) -> pa.Array:
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(
        kind, len(array), buffers, array.null_count, array.offset, [values]
    )
