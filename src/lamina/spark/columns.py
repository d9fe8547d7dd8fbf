"""The columns of the DataFrame: Spark's Kafka columns in their order, ours after them.

| column        | type                                    | from                                  |
|---------------|-----------------------------------------|---------------------------------------|
| key           | binary                                  | the record                            |
| value         | binary                                  | the record                            |
| topic         | string                                  | where it was read                     |
| partition     | int                                     | where it was read                     |
| offset        | long                                    | the record                            |
| timestamp     | timestamp                               | the record                            |
| timestampType | int                                     | 0 CreateTime, 1 LogAppendTime         |
| headers       | array<struct<key:string,value:binary>>  | the record, with `includeHeaders`     |
| tag           | string                                  | the record, with `includeMetadata`    |
| epoch         | int                                     | the topic's, with `includeMetadata`   |
| segment       | string                                  | its file, with `includeMetadata`      |

Rule: what leaves here has exactly Spark's schema, and a column that was not asked for is neither
gathered nor built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lamina.errors import InvalidRequest
from lamina.records import clipped_microseconds
from lamina.spark.options import Given

KAFKA_COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}
HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
HEADERS_COLUMN: dict[str, DataType] = {"headers": ArrayType(HEADER)}
METADATA_COLUMNS: dict[str, DataType] = {
    "tag": StringType(),
    "epoch": IntegerType(),
    "segment": StringType(),
}
COLUMNS = KAFKA_COLUMNS | HEADERS_COLUMN | METADATA_COLUMNS
OF_RECORDS = ("key", "value", "offset", "timestamp", "headers", "tag")
"""The columns that a record carries; the others say where it was read."""


def schema_of(given: Given) -> StructType:
    """Returns the schema that options ask for."""
    chosen = given.names("columns")
    if chosen is None:
        columns = dict(KAFKA_COLUMNS)
        if given.flag("includeHeaders", default=False):
            columns |= HEADERS_COLUMN
        if given.flag("includeMetadata", default=False):
            columns |= METADATA_COLUMNS
    else:
        for name in chosen:
            if name not in COLUMNS:
                raise InvalidRequest(f"unknown column {name!r}; there are {', '.join(COLUMNS)}")
        columns = {name: COLUMNS[name] for name in chosen}
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a batch was read; the same for all of its rows."""

    topic: str
    partition: int
    epoch: int
    segment: str
    timestamp_type: int


class Projection:
    """Turns batches of records into batches of exactly one Spark schema."""

    def __init__(self, schema: StructType, keys: tuple[bytes, ...] | None = None) -> None:
        for field in schema.fields:
            wanted, found = COLUMNS.get(field.name), field.dataType.simpleString()
            if wanted is None or found != wanted.simpleString():
                known = ", ".join(f"{name} {COLUMNS[name].simpleString()}" for name in COLUMNS)
                raise InvalidRequest(
                    f"column {field.name!r} of type {found} is not there; a topic has {known}"
                )
        self._names = schema.fieldNames()
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self.keys = None if keys is None else pa.array(keys, pa.binary())
        self._constants: dict[tuple[str, object], pa.Array] = {}

    @property
    def of_records(self) -> frozenset[str]:
        """The columns that must be gathered from the records: one at least, to count the rows."""
        return frozenset(name for name in self._names if name in OF_RECORDS) or frozenset(
            {"offset"}
        )

    def apply(self, batch: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """Builds the rows of a batch, in the schema's order and types."""
        columns = [
            self._column(name, batch, origin, field.type)
            for name, field in zip(self._names, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(
        self, name: str, batch: pa.RecordBatch, origin: Origin, kind: pa.DataType
    ) -> pa.Array:
        constant = _CONSTANTS.get(name)
        if constant is not None:
            return self._repeated(name, constant(origin), batch.num_rows, kind)
        if name not in batch.schema.names:
            return pa.nulls(batch.num_rows, kind)
        column = batch.column(name)
        if name == "timestamp":
            return clipped_microseconds(column).cast(kind)
        return column if column.type.equals(kind) else column.cast(kind)

    def _repeated(self, name: str, value: object, rows: int, kind: pa.DataType) -> pa.Array:
        """Returns a column of one value; a slice of the longest that was made so far."""
        key = name, value
        known = self._constants.get(key)
        if known is None or len(known) < rows:
            known = self._constants[key] = pa.repeat(pa.scalar(value, kind), rows)
        return known if len(known) == rows else known.slice(0, rows)


_CONSTANTS: dict[str, Callable[[Origin], object]] = {
    "topic": lambda origin: origin.topic,
    "partition": lambda origin: origin.partition,
    "timestampType": lambda origin: origin.timestamp_type,
    "epoch": lambda origin: origin.epoch,
    "segment": lambda origin: origin.segment,
}


def matching(keys: pa.Array, wanted: pa.Array) -> pa.Array:
    """Returns per key whether it is one of those wanted."""
    return pc.is_in(keys, value_set=wanted)
