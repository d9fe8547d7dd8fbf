"""Values of a topic as columns and back, by what the topic says of itself.

With framing "registry" a value begins with a zero byte and the id of the schema that it was written
with, in four bytes, highest first: each record is read by its own writer's schema. In Protobuf the
message's place in its file follows (`protobuf_framing`). Plain values have nothing in front: they
are read by the schema that the reader chose.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.api import TopicSchema
from lamina.errors import InvalidRequest, SchemaError, UnknownSchema
from lamina.formats.typed import (
    avro_decode,
    avro_encode,
    avro_program,
    avro_text,
    json_decode,
    json_encode,
    protobuf_decode,
    protobuf_encode,
    protobuf_framing,
    protobuf_layout,
    protobuf_program,
    protobuf_rules,
)
from lamina.formats.typed.arrow_types import arrow_schema
from lamina.formats.typed.given_columns import refuse_doubled
from lamina.formats.typed.row_faults import (
    FINE,
    OTHER_MESSAGE,
    OTHER_VERSION,
    UNKNOWN_SCHEMA,
    Decoded,
    Values,
)
from lamina.formats.typed.schema_model import Type
from lamina.formats.typed.schema_source import JSON, PROTOBUF
from lamina.records import TIMESTAMP

OFFSET, PARTITION, TIME, KEY, ERROR = "_offset", "_partition", "_timestamp", "_key", "_error"
OWN_COLUMNS = (OFFSET, PARTITION, TIME, KEY, ERROR)
"""What stands beside the columns of a schema in a typed read; no field may have such a name."""
REGISTRY, PLAIN = "registry", "plain"
FRAMINGS = (REGISTRY, PLAIN)
FILLED_BYTES_MAX = 64 << 20
"""About how many bytes of defaults the columns of one batch may hold."""
_PREFIX = struct.Struct(">bI")
Decode: TypeAlias = Callable[[Values], Decoded]
"""Makes columns of values that one schema wrote."""
Later: TypeAlias = Callable[[], Sequence[TopicSchema]]
"""Returns the versions that a topic has now: some may have come since a reader began."""


def newest(topic: str, versions: Sequence[TopicSchema], version: int | None = None) -> TopicSchema:
    """Returns a version of a schema, the last by default; raises UnknownSchema."""
    if not versions:
        raise UnknownSchema(
            f"topic {topic!r} has no schema; set_schema gives it one. Records without one are in a"
            " column 'value'"
        )
    if version is None:
        return versions[-1]
    if not 1 <= version <= len(versions):
        raise UnknownSchema(f"topic {topic!r} has versions 1 to {len(versions)}, not {version}")
    return versions[version - 1]


class TypedReader:
    """Decodes batches of one topic under one version of its schema."""

    def __init__(
        self,
        topic: str,
        versions: Sequence[TopicSchema],
        *,
        version: int | None = None,
        columns: Sequence[str] | None = None,
        with_errors: bool = False,
        later: Later | None = None,
    ) -> None:
        chosen = newest(topic, versions, version)
        self._later = later
        self._framing = chosen.framing
        self._encoding = chosen.encoding
        self._own = chosen.id
        self._whole = avro_text.parse(chosen.text)
        self._reader = _projected(self._whole, columns)
        self._texts = {each.id: each.text for each in versions}
        self._decoders: dict[int, Decode | None] = {}
        meta = [
            pa.field(OFFSET, pa.int64(), nullable=False),
            pa.field(PARTITION, pa.int32(), nullable=False),
            pa.field(TIME, TIMESTAMP, nullable=False),
            pa.field(KEY, pa.binary()),
        ]
        # A bad record, and a null value, is null in every column, whatever the schema says.
        typed = [each.with_nullable(True) for each in arrow_schema(self._reader)]
        errors = [pa.field(ERROR, pa.string())] if with_errors else []
        self.schema = pa.schema([*meta, *typed, *errors])
        """The columns of every batch."""
        filled = sum(len(each.default or "") for each in self._reader.fields)
        self.rows_at_once = max(1, FILLED_BYTES_MAX // max(1, filled))
        """How many records are decoded at once: a default may be far larger than its record."""

    def rows(self, batch: pa.RecordBatch, partition: int) -> tuple[pa.RecordBatch, Decoded]:
        """Returns a batch of records as columns, and what was found of each row."""
        decoded = self._decode(batch.column("value"))
        count = batch.num_rows
        has_keys = "key" in batch.schema.names
        columns = [
            batch.column("offset"),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            batch.column("timestamp"),
            batch.column("key") if has_keys else pa.nulls(count, pa.binary()),
            *decoded.columns,
        ]
        if self.schema.names[-1] == ERROR:
            columns.append(_told(decoded))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), decoded

    def _decode(self, column: pa.Array) -> Decoded:
        values = Values.of(column)
        if self._encoding == JSON:
            return json_decode.decode(self._reader, _unframed(values))
        if self._framing == PLAIN:
            return self._run(self._own, values)
        is_there = values.starts >= 0
        ids = self._known(_ids(values), is_there)
        kinds = np.unique(ids[is_there])
        if len(kinds) <= 1:
            return self._run(int(kinds[0]) if len(kinds) else self._own, values.behind(5))
        parts = [np.flatnonzero((ids == kind) & is_there) for kind in kinds]
        parts.append(np.flatnonzero(~is_there))
        done = [
            self._run(int(kind), values.chosen(rows).behind(5))
            for kind, rows in zip((*kinds, self._own), parts, strict=True)
        ]
        return _joined(done, np.concatenate(parts))

    def _known(self, ids: NDArray[np.int64], is_there: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Returns the ids of schemas, with -1 for what is none; asks once for those that came."""
        named = set(np.unique(ids[is_there]).tolist()) - {-1}
        if self._later is not None and not named <= self._texts.keys():
            self._texts |= {each.id: each.text for each in self._later()}
        if named <= self._texts.keys():
            return ids
        return np.where(np.isin(ids, list(self._texts)), ids, -1)

    def _run(self, schema_id: int, values: Values) -> Decoded:
        """Decodes values that one schema wrote; without a schema for them they are all bad."""
        decode = self._decoder(schema_id)
        if decode is not None:
            return decode(values)
        own = self._decoder(self._own)
        assert own is not None, "a schema reads itself"
        there = values.starts >= 0
        nothing = values._replace(starts=np.full_like(values.starts, -1))
        decoded = own(nothing)
        known = schema_id in self._texts
        decoded.codes[there] = OTHER_VERSION if known else UNKNOWN_SCHEMA
        return decoded

    def _decoder(self, schema_id: int) -> Decode | None:
        """What decodes values of a schema; None where the reader's version cannot read them."""
        if schema_id not in self._texts:
            return None
        if schema_id not in self._decoders:
            made = None
            with contextlib.suppress(SchemaError):  # another version that this one does not read
                made = self._compiled(avro_text.parse(self._texts[schema_id]))
            self._decoders[schema_id] = made
        return self._decoders[schema_id]

    def _compiled(self, writer: Type) -> Decode | None:
        if self._encoding != PROTOBUF:
            program = avro_program.compiled(self._reader, writer)
            return functools.partial(avro_decode.decode, program)
        if protobuf_rules.unreadable(self._whole, writer):
            return None
        message = protobuf_program.compiled(self._reader, self._whole)
        if self._framing == PLAIN:
            return functools.partial(protobuf_decode.decode, message)
        return functools.partial(_framed_messages, message, writer.indexes)


def _framed_messages(
    program: protobuf_program.Program, indexes: tuple[int, ...], values: Values
) -> Decoded:
    """Decodes messages behind their indexes; those of another message are bad."""
    inside, others = protobuf_framing.behind_indexes(values, indexes)
    decoded = protobuf_decode.decode(program, inside)
    decoded.codes[others] = OTHER_MESSAGE
    return decoded


def _projected(schema: Type, columns: Sequence[str] | None) -> Type:
    if columns is None:
        return schema
    known = {field.name: field for field in schema.fields}
    for name in columns:
        if name not in known:
            raise SchemaError(f"the schema has no column {name!r}; it has {', '.join(known)}")
    return replace(schema, fields=tuple(known[name] for name in dict.fromkeys(columns)))


def _unframed(values: Values) -> Values:
    """Values without what a serializer put in front; no JSON document begins with a zero byte."""
    framed = _ids(values) >= 0
    return values._replace(starts=np.where(framed, values.starts + 5, values.starts))


def _ids(values: Values) -> NDArray[np.int64]:
    """The schema's id in front of each value; -1 where there is none."""
    lengths = values.ends - values.starts
    framed = (values.starts >= 0) & (lengths >= 5)
    at = np.where(framed, values.starts, 0)
    if len(values.data) < 5:
        return np.full(len(at), -1, dtype=np.int64)
    at = np.minimum(at, len(values.data) - 5)
    ids = np.zeros(len(at), dtype=np.int64)
    for place in range(1, 5):
        ids = ids << 8 | values.data[at + place]
    return np.where(framed & (values.data[at] == 0), ids, -1)


def _joined(parts: list[Decoded], rows: NDArray[np.intp]) -> Decoded:
    """Puts rows that were decoded apart back into their order."""
    order = np.empty(len(rows), dtype=np.int64)
    order[rows] = np.arange(len(rows))
    back = pa.array(order)
    paths: list[str] = []
    kinds: list[Type | None] = []
    fields = []
    for part in parts:
        fields.append(np.where(part.fields >= 0, part.fields + len(paths), -1).astype(np.int32))
        paths += part.paths
        kinds += part.kinds
    columns = [
        pa.concat_arrays([part.columns[at] for part in parts]).take(back)
        for at in range(len(parts[0].columns))
    ]
    codes = np.concatenate([part.codes for part in parts])[order]
    return Decoded(columns, codes, np.concatenate(fields)[order], tuple(paths), tuple(kinds))


def _told(decoded: Decoded) -> pa.Array:
    """What is wrong with each row, null where nothing is."""
    bad = np.flatnonzero(decoded.codes > FINE)
    if not len(bad):
        return pa.nulls(len(decoded.codes), pa.string())
    texts: list[str | None] = [None] * len(decoded.codes)
    for row in bad:
        texts[row] = decoded.fault(int(row))
    return pa.array(texts, pa.string())


# ---------------------------------------------------------------------- writing


def encoded(schema: TopicSchema, table: pa.Table | pa.RecordBatch) -> pa.Table:
    """Returns the records of a table with typed columns: key, value, and time where it is given.

    A column `_timestamp` is the time of the records, `_key` their key in place of the schema's.
    """
    refuse_doubled(table.schema.names)
    names = [name for name in table.schema.names if name not in (TIME, KEY)]
    typed = table.select(names)
    value = _values(schema, avro_text.parse(schema.text), typed)
    made = {"value": value}
    if KEY in table.schema.names:
        made["key"] = _single(table.column(KEY))
    elif schema.key:
        made["key"] = keys_of(table, schema.key)
    if TIME in table.schema.names:
        made["timestamp"] = _single(table.column(TIME))
    return pa.table(made)


def _values(schema: TopicSchema, kind: Type, typed: pa.Table | pa.RecordBatch) -> pa.Array:
    is_framed = schema.framing == REGISTRY
    prefix = _PREFIX.pack(0, schema.id) if is_framed else b""
    if schema.encoding == JSON:
        return json_encode.encode(json_encode.template(kind), typed, prefix)
    if schema.encoding == PROTOBUF:
        prefix += protobuf_framing.index_bytes(kind.indexes) if is_framed else b""
        return protobuf_encode.encode(protobuf_layout.compiled(kind), typed, prefix)
    return avro_encode.encode(avro_program.compiled(kind, kind), typed, prefix)


def _single(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column


def keys_of(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    """Returns a column as keys: bytes as they are, everything else as its text."""
    if name not in table.schema.names:
        raise SchemaError(f"the key is column {name!r}, which the table lacks", field=name)
    column = _single(table.column(name))
    try:
        if not pa.types.is_binary(column.type):
            column = column.cast(pa.string())
        return column.cast(pa.binary())
    except (pa.ArrowException, NotImplementedError) as error:
        raise SchemaError(f"column {name!r} makes no key: {error}", field=name) from error


def checked_framing(framing: str) -> str:
    """Returns a framing; raises InvalidRequest for an unknown one."""
    if framing not in FRAMINGS:
        raise InvalidRequest(f"framing is {' or '.join(FRAMINGS)}, not {framing!r}")
    return framing
