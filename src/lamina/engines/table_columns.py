"""The columns of a topic as a table: where a record is, when it was, and what it carries.

| column       | type                                     | meaning                                |
|--------------|------------------------------------------|----------------------------------------|
| `_offset`    | int64                                    | the record's number in its partition   |
| `_partition` | int32                                    | its partition                          |
| `_timestamp` | timestamp[us, UTC]                       | its time; SQL engines count in these   |
| `_key`       | binary                                   | null where there is none               |
| value        | binary                                   | as it was appended                     |
| headers      | list<struct<key: string, value: binary>> | of formats that keep them              |
| tag, node    | binary                                   | of wal topics                          |

A topic with a schema has the schema's columns instead of those after `_key`, and with
`errors="null"` a column `_error`.

Rule: a time that no count of microseconds holds becomes the first or last one that does, so that
one record never fails a query.
"""

from __future__ import annotations

import pyarrow as pa

from lamina.records import OUTPUT_SCHEMAS, clipped_microseconds

OFFSET, PARTITION, TIMESTAMP, KEY = "_offset", "_partition", "_timestamp", "_key"
ERROR = "_error"
PLACED = (OFFSET, PARTITION, TIMESTAMP, KEY)
"""Where and when a record is: the columns of every table."""
TIME = pa.timestamp("us", tz="UTC")
_RENAMED = {"offset": OFFSET, "timestamp": TIMESTAMP, "key": KEY}


def schema_of(format_name: str) -> pa.Schema:
    """Returns the columns of a topic of a format."""
    carried = [each for each in OUTPUT_SCHEMAS[format_name] if each.name not in _RENAMED]
    return pa.schema(
        [
            pa.field(OFFSET, pa.int64(), nullable=False),
            pa.field(PARTITION, pa.int32(), nullable=False),
            pa.field(TIMESTAMP, TIME, nullable=False),
            pa.field(KEY, pa.binary()),
            *carried,
        ]
    )


def table_batch(batch: pa.RecordBatch, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """Returns records of a partition as rows of the table; values are not copied."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    rows = batch.num_rows
    made = {
        OFFSET: columns["offset"],
        PARTITION: pa.repeat(pa.scalar(partition, pa.int32()), rows),
        TIMESTAMP: clipped_microseconds(columns["timestamp"]).cast(TIME),
        KEY: columns.get("key"),
    }
    if made[KEY] is None:
        made[KEY] = pa.nulls(rows, pa.binary())
    arrays = [made[field.name] if field.name in made else columns[field.name] for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def with_microseconds(schema: pa.Schema) -> pa.Schema:
    """Returns the columns of a typed topic: times as SQL engines count them, and all may be null.

    A column that a query does not need is not decoded, whatever the schema says of it.
    """
    at = schema.get_field_index(TIMESTAMP)
    fields = [field if field.name in PLACED else field.with_nullable(True) for field in schema]
    return pa.schema(fields).set(at, pa.field(TIMESTAMP, TIME, nullable=False))


def carried(needed: list[str] | None) -> list[str] | None:
    """Returns which columns of a schema must be decoded; None for all, as for a row's error."""
    if needed is None or ERROR in needed:
        return None
    return [name for name in needed if name not in PLACED]


def numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns rows of a typed topic with their offsets by the name that a walk over gaps reads."""
    names = ["offset" if name == OFFSET else name for name in batch.schema.names]
    return batch.rename_columns(names)


def typed_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns `numbered` rows as rows of the table; columns that were left out are null."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns[OFFSET] = columns["offset"]
    columns[TIMESTAMP] = clipped_microseconds(columns[TIMESTAMP]).cast(TIME)
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
