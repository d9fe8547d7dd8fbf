"""Columns of a schema as Spark has them: types both ways, and Arrow arrays in Spark's own types.

| in the schema                         | in Spark                                            |
|---------------------------------------|-----------------------------------------------------|
| boolean, int, long, float, double     | boolean, int, long, float, double                   |
| unsigned numbers of 32 and 64 bits    | bigint, decimal(20,0)                               |
| string, enum, uuid                    | string                                              |
| bytes, fixed                          | binary                                              |
| decimal                               | decimal of the same precision and scale             |
| date, time                            | date, time(6)                                       |
| timestamp, local timestamp            | timestamp, timestamp_ntz: microseconds, clipped     |
| duration                              | interval day to second: microseconds, clipped       |
| record, array, map                    | struct, array, map                                  |

Columns may be null, because a null value is a row of nulls; inside of them only what the schema
lets be null.

Rules.
1. What leaves here has exactly Spark's type, names and nullability of inner fields included;
   buffers are handed on as they are wherever Spark has the same layout.
2. A time that microseconds cannot count becomes the first or last one that they can: one record
   never fails a query.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

OFFSET, PARTITION, TIMESTAMP, KEY = "_offset", "_partition", "_timestamp", "_key"
ERROR = "_error"
PLACED = (
    StructField(OFFSET, LongType(), nullable=False),
    StructField(PARTITION, IntegerType(), nullable=False),
    StructField(TIMESTAMP, TimestampType(), nullable=False),
    StructField(KEY, BinaryType()),
)
"""Where and when a record is: in front of the schema's own columns."""
TOLD = StructField(ERROR, StringType())
GONE = "_deleted"
DELETED = StructField(GONE, BooleanType(), nullable=False)
"""Whether the record has a null value; only for queries that ask for it by name."""
DAY_NS = 86_400_000_000_000
FARTHEST = (1 << 63) - 1
_UNSIGNED = {8: ShortType(), 16: IntegerType(), 32: LongType(), 64: DecimalType(20, 0)}


def spark_type(kind: pa.DataType) -> DataType:
    """Returns the Spark type of a column of a schema."""
    if kinds.is_dictionary(kind):
        return spark_type(kind.value_type)
    if kinds.is_unsigned_integer(kind):
        return _UNSIGNED[kind.bit_width]
    if kinds.is_time(kind):
        return TimeType(6)
    if kinds.is_timestamp(kind):
        return TimestampType() if kind.tz else TimestampNTZType()
    if kinds.is_struct(kind):
        return StructType([_field(kind.field(place)) for place in range(kind.num_fields)])
    if kinds.is_map(kind):
        return MapType(StringType(), spark_type(kind.item_type), kind.item_field.nullable)
    if kinds.is_list(kind):
        return ArrayType(spark_type(kind.value_type), kind.value_field.nullable)
    return from_arrow_type(kind)


def _field(field: pa.Field) -> StructField:
    return StructField(field.name, spark_type(field.type), field.nullable)


def columns_of(schema: pa.Schema) -> list[StructField]:
    """Returns the columns of a schema as Spark's; each of them may be null."""
    return [StructField(field.name, spark_type(field.type)) for field in schema]


def conformed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns an array of a schema's type as one of the type that Spark expects."""
    if kinds.is_struct(kind):
        return _struct(array, kind)
    if kinds.is_map(kind):
        entries = pa.StructArray.from_arrays(
            [conformed(array.keys, kind.key_type), conformed(array.items, kind.item_type)],
            fields=[kind.key_field, kind.item_field],
        )
        return _listed(array, kind, entries)
    if kinds.is_list(kind):
        return _listed(array, kind, conformed(array.values, kind.value_type))
    if array.type.equals(kind):
        return array
    if kinds.is_timestamp(kind) or kinds.is_duration(kind):
        return _microseconds(array, kind)
    if kinds.is_time(kind):
        return _nanoseconds(array)
    return array.cast(kind)


def _struct(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.offset:
        array = pa.concat_arrays([array])  # its children begin where it does
    children = [
        conformed(array.field(place), kind.field(place).type) for place in range(kind.num_fields)
    ]
    buffers = [array.buffers()[0]]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, 0, children)


def _listed(array: pa.Array, kind: pa.DataType, inside: pa.Array) -> pa.Array:
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(
        kind, len(array), buffers, array.null_count, array.offset, [inside]
    )


def _microseconds(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Times of another unit; nanoseconds are cut, milliseconds too far away are clipped."""
    if array.type.unit == "ns":
        return _by_numbers(array, kind, lambda numbers: numbers // 1000)
    most = FARTHEST // 1000
    return _by_numbers(array, kind, lambda numbers: np.clip(numbers, -most, most) * 1000)


def _nanoseconds(array: pa.Array) -> pa.Array:
    """Times of a day; one outside of any day is clipped to the day's first or last moment."""
    each = 1_000_000 if array.type.unit == "ms" else 1000
    last = (DAY_NS - 1) // each
    wide = array.cast(pa.int32()).cast(pa.int64()) if array.type.bit_width == 32 else array
    return _by_numbers(wide, pa.time64("ns"), lambda numbers: np.clip(numbers, 0, last) * each)


def _by_numbers(
    array: pa.Array, kind: pa.DataType, change: Callable[[np.ndarray], np.ndarray]
) -> pa.Array:
    """Changes the 64-bit numbers of an array, keeps its nulls, and gives it another type."""
    _, data = array.buffers()
    numbers = np.frombuffer(data, dtype=np.int64, count=array.offset + len(array))
    changed = change(numbers[array.offset :])
    mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(changed, pa.int64(), mask=mask).cast(kind)


# ---------------------------------------------------------------------- writing

_WIDER: dict[type[DataType], tuple[type[DataType], ...]] = {
    ShortType: (ByteType,),
    IntegerType: (ByteType, ShortType),
    LongType: (ByteType, ShortType, IntegerType),
    DoubleType: (FloatType,),
}
"""What a number of a type may be written from: nothing is lost on the way."""


def misfit(found: DataType, kind: pa.DataType, path: str) -> str:
    """Returns why a column of a frame cannot be written as a schema's type; empty if it can.

    Nulls are not judged here: Spark calls most columns nullable, and a null where the schema has
    none fails the task that has it.
    """
    wanted = spark_type(kind)
    if isinstance(wanted, StructType) and isinstance(found, StructType):
        return _other_fields(found, kind, path)
    if isinstance(wanted, ArrayType) and isinstance(found, ArrayType):
        return misfit(found.elementType, kind.value_type, f"{path}[]")
    if isinstance(wanted, MapType) and isinstance(found, MapType):
        keys = misfit(found.keyType, kind.key_type, f"{path}.key")
        return keys or misfit(found.valueType, kind.item_type, f"{path}.value")
    if isinstance(wanted, DecimalType) and isinstance(found, DecimalType):
        fits = found.scale <= wanted.scale
        fits &= found.precision - found.scale <= wanted.precision - wanted.scale
    else:
        same = type(found) is type(wanted)
        fits = same or isinstance(found, _WIDER.get(type(wanted), ()))
    if fits:
        return ""
    return f"column {path!r} must be {wanted.simpleString()}, not {found.simpleString()}"


def _other_fields(found: StructType, kind: pa.DataType, path: str) -> str:
    """Fields of a record are found by their place, so they must be the schema's, in its order."""
    names = [kind.field(place).name for place in range(kind.num_fields)]
    if found.fieldNames() != names:
        return f"column {path!r} must have the fields {names}, not {found.fieldNames()}"
    problems = (
        misfit(field.dataType, kind.field(place).type, f"{path}.{field.name}")
        for place, field in enumerate(found.fields)
    )
    return next((problem for problem in problems if problem), "")


def cut_times(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cuts Spark's microseconds to milliseconds where the schema counts in those."""
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        at = schema.get_field_index(field.name)
        kind = field.type if at < 0 else _cut(field.type, schema.field(at).type)
        # Only times change, so an unchecked cast loses nothing else.
        columns.append(column if kind.equals(field.type) else column.cast(kind, safe=False))
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _cut(found: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Returns a frame's type with milliseconds where the schema has them."""
    if kinds.is_timestamp(wanted) and wanted.unit == "ms":
        return pa.timestamp("ms", found.tz)
    if kinds.is_time32(wanted):
        return pa.time32("ms")
    if kinds.is_duration(wanted) and wanted.unit == "ms":
        return pa.duration("ms")
    if kinds.is_struct(wanted):
        places = range(wanted.num_fields)
        fields = [(found.field(at), wanted.field(at).type) for at in places]
        return pa.struct([each.with_type(_cut(each.type, kind)) for each, kind in fields])
    if kinds.is_map(wanted):
        inner = _cut(found.item_type, wanted.item_type)
        return pa.map_(found.key_field, found.item_field.with_type(inner))
    if kinds.is_list(wanted):
        return pa.list_(found.value_field.with_type(_cut(found.value_type, wanted.value_type)))
    return found
