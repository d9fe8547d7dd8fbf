"""Old rows of a table under a new version of the schema.

What a new version makes of old records is the codec's to say, so old rows go through it: they are
encoded as the version that the table has, and decoded as the new one reads that. A default, a
field's new name and a number's new width come out as in any read.

Rule: a row of nulls, which a null value or a bad record has left, stays one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_type

from lamina.formats.typed import (
    avro_decode,
    avro_encode,
    avro_program,
    avro_text,
    protobuf_decode,
    protobuf_encode,
    protobuf_layout,
    protobuf_program,
)
from lamina.formats.typed.arrow_types import arrow_schema
from lamina.formats.typed.row_faults import Decoded, Values
from lamina.formats.typed.schema_model import Type
from lamina.formats.typed.schema_source import PROTOBUF
from lamina.spark.jobs.tables.lake_columns import fitted
from lamina.spark.typed_columns import ERROR, PLACED, columns_of, conformed

_OWN = (*(field.name for field in PLACED), ERROR)


@dataclass(frozen=True, slots=True)
class Carrying:
    """Turns rows of one version into rows of another; can be pickled."""

    encoding: str
    old_text: str
    new_text: str
    schema: pa.Schema
    """How files are written now."""

    def carried(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows of the old version, under all columns of it, as rows of the new one."""
        old, new = avro_text.parse(self.old_text), avro_text.parse(self.new_text)
        given = arrow_schema(old)
        rows = _typed(batch, given)
        there = _is_there(batch, given)
        values = self._encoded(old, rows.filter(there))
        places = np.where(there, np.cumsum(there) - 1, -1)
        taken = values.take(pa.array(np.where(there, places, 0), mask=~there))
        decoded = self._decoded(new, old, Values.of(taken))
        found = dict(zip((each.name for each in new.fields), decoded.columns, strict=True))
        return fitted(_joined(batch, arrow_schema(new), found), self.schema)

    def _encoded(self, old: Type, rows: pa.RecordBatch) -> pa.Array:
        """JSON has the versions of Avro, so its rows go through Avro, too."""
        if self.encoding == PROTOBUF:
            return protobuf_encode.encode(protobuf_layout.compiled(old), rows)
        return avro_encode.encode(avro_program.compiled(old, old), rows)

    def _decoded(self, new: Type, old: Type, values: Values) -> Decoded:
        if self.encoding == PROTOBUF:
            return protobuf_decode.decode(protobuf_program.compiled(new), values)
        return avro_decode.decode(avro_program.compiled(new, old), values)


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the columns of a schema in the schema's own types."""
    arrays = [_own_type(batch.column(field.name), field.type) for field in schema]
    fields = [pa.field(each.name, array.type) for each, array in zip(schema, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _own_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if kinds.is_duration(kind):
        return array.cast(pa.duration("us")).cast(kind, safe=False)
    if kinds.is_time(kind) and kinds.is_int64(array.type):
        return array.cast(pa.time64("us")).cast(kind, safe=False)
    if kinds.is_timestamp(kind):
        return array.cast(kind, safe=False)
    if kinds.is_nested(kind) or kinds.is_dictionary(kind):
        return array  # the codec casts what is inside
    return array.cast(kind)


def _is_there(batch: pa.RecordBatch, schema: pa.Schema) -> NDArray[np.bool_]:
    """Returns per row whether it has values: no column is null that the schema does not let be."""
    there = np.ones(batch.num_rows, dtype=bool)
    for field in schema:
        if not field.nullable:
            there &= np.asarray(pc.is_valid(batch.column(field.name)))
    if len(schema) and all(field.nullable for field in schema):
        there = np.zeros(batch.num_rows, dtype=bool)
        for field in schema:
            there |= np.asarray(pc.is_valid(batch.column(field.name)))
    return there


def _joined(batch: pa.RecordBatch, schema: pa.Schema, found: dict[str, pa.Array]) -> pa.RecordBatch:
    """Returns the record's own columns as they were, and the schema's as tables have them."""
    spark = {field.name: field.dataType for field in columns_of(schema)}
    arrays, names = [], []
    for name in _OWN:
        if name in batch.schema.names:
            arrays.append(batch.column(name))
        elif name == ERROR:
            arrays.append(pa.nulls(batch.num_rows, pa.string()))
        names.append(name)
    for name, array in found.items():
        arrays.append(conformed(array, to_arrow_type(spark[name], timezone="UTC")))
        names.append(name)
    return pa.RecordBatch.from_arrays(arrays, names)
