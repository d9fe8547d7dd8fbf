"""Records of a typed topic as rows of one Spark schema: decoded in the worker, by the kernels.

The driver chooses the version of the schema once, when the query begins: that of the option
`schemaVersion`, or the newest one that has the columns of the query. Each task brings the versions
that there were when it was planned, so what was written under an older or a newer version is read
under the query's own, as `store.read` does it.

Rules.
1. Only the columns of the query are decoded; without any of them, values are not even gathered.
2. A record that the schema does not fit is judged by `errors`, in the worker, before Spark sees it.
3. What decodes is loaded where a batch is decoded: the driver plans without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from lamina.api import TopicSchema
from lamina.errors import InvalidRequest, SchemaError, UnknownSchema, UnknownTopic
from lamina.spark.columns import Origin
from lamina.spark.options import Given, Selection, SourceOptions, Typing
from lamina.spark.plan import Log
from lamina.spark.typed_columns import (
    DELETED,
    ERROR,
    GONE,
    KEY,
    OFFSET,
    PLACED,
    TOLD,
    columns_of,
    conformed,
)

if TYPE_CHECKING:
    from lamina.formats.typed.value_codec import TypedReader
    from lamina.spark.commit.buried_rows import Burial

_PLACES = tuple(field.name for field in PLACED)
_WHOLE = frozenset({"offset", "timestamp", "key", "value", "headers", "tag", "node"})
"""A whole record, as a dead letter keeps it."""


def only_topic(selection: Selection) -> str:
    """Returns the topic that a query reads; raises InvalidRequest if it may be several."""
    names = sorted({*selection.topics, *selection.assigned})
    if len(names) != 1 or selection.pattern is not None:
        raise InvalidRequest(
            "typed columns are those of one topic: name it by 'subscribe' or 'assign'"
        )
    return names[0]


def available(schema: pa.Schema, errors: str) -> list[StructField]:
    """Returns every column that a typed query gets unless it chooses; it may ask for GONE, too."""
    taken = [name for name in schema.names if name in (*_PLACES, ERROR)]
    if taken:
        raise InvalidRequest(f"the schema has a column {taken[0]!r}, which is the record's own")
    told = [TOLD] if errors == "null" else []
    return [*PLACED, *columns_of(schema), *told]


def typed_schema(given: Given, schema: pa.Schema, errors: str) -> StructType:
    """Returns the columns that the options ask for."""
    usual = {field.name: field for field in available(schema, errors)}
    every = {GONE: DELETED, **usual}
    chosen = given.names("columns")
    for name in chosen or ():
        if name not in every:
            raise InvalidRequest(f"unknown column {name!r}; there are {', '.join(usual)}")
    return StructType([every[name] for name in chosen or usual])


def chosen_version(
    schema: StructType, typing: Typing, topic: str, versions: Sequence[TopicSchema]
) -> TopicSchema:
    """Returns the version that a query reads by: the newest that has its columns.

    Raises InvalidRequest for columns that no version has.
    """
    if not versions:
        raise UnknownSchema(
            f"topic {topic!r} has no schema; set_schema gives it one, or give valueFormat and"
            " valueSchema"
        )
    if typing.version is not None:
        if not 1 <= typing.version <= len(versions):
            raise UnknownSchema(
                f"topic {topic!r} has versions 1 to {len(versions)}, not {typing.version}"
            )
        versions = [versions[typing.version - 1]]
    problems = [_misfit(schema, version, typing.errors) for version in reversed(versions)]
    for version, problem in zip(reversed(versions), problems, strict=True):
        if not problem:
            return version
    raise InvalidRequest(f"topic {topic!r}: {problems[0]}")


def _misfit(schema: StructType, version: TopicSchema, errors: str) -> str:
    """Returns what a query wants that a version does not have; empty if it has all."""
    known = {
        field.name: field.dataType.simpleString() for field in available(version.arrow, errors)
    }
    known.setdefault(GONE, DELETED.dataType.simpleString())
    for field in schema.fields:
        found = field.dataType.simpleString()
        if known.get(field.name) != found:
            told = ", ".join(f"{name} {kind}" for name, kind in known.items())
            return (
                f"column {field.name!r} of type {found} is not there; version {version.version}"
                f" has {told}"
            )
    return ""


def versions_now(log: Log | None, options: SourceOptions) -> tuple[TopicSchema, ...]:
    """Returns the versions of the schema that a query reads by, as they are now."""
    typing = options.typing
    if typing is None:
        return ()
    topic = only_topic(options.selection)
    if typing.format is not None:
        from lamina.formats.typed.schema_source import plain_schema

        return (plain_schema(typing.schema, typing.format),)
    assert log is not None, "a topic's own schema is in its log"
    if topic not in log.topics():
        raise UnknownTopic(f"there is no topic {topic!r}; there are {sorted(log.topics())}")
    return tuple(log.schemas(topic))


def projection_of(options: SourceOptions, schema: StructType, log: Log) -> TypedProjection:
    """Makes what turns records into rows of a query's columns; the log was looked at."""
    typing = options.typing
    assert typing is not None
    topic, versions = only_topic(options.selection), versions_now(log, options)
    chosen = chosen_version(schema, typing, topic, versions)
    keys = None if options.keys is None else pa.array(options.keys, pa.binary())
    burial = None
    if typing.errors == "dead_letter":
        from lamina.spark.commit.buried_rows import burial_of

        burial = burial_of(options.where, topic)
    return TypedProjection(schema, typing, chosen, versions, keys, burial)


@dataclass
class TypedProjection:
    """Turns batches of records into batches of exactly one Spark schema, by a topic's schema."""

    schema: StructType
    typing: Typing
    chosen: TopicSchema
    versions: tuple[TopicSchema, ...]
    keys: pa.Array | None = None
    burial: Burial | None = None
    """Where records go that the schema does not fit; None unless `errors` asks for it."""

    def __post_init__(self) -> None:
        self._arrow: pa.Schema = to_arrow_schema(self.schema, timezone="UTC")
        self._reader: TypedReader | None = None
        names = self.schema.fieldNames()
        self._tells = ERROR in names
        # A schema may have a column of this name: then it is that one.
        self._tells_gone = GONE in names and GONE not in self.chosen.arrow.names
        own = {*_PLACES, ERROR} | ({GONE} if self._tells_gone else set())
        self._typed = [name for name in names if name not in own]
        self._decodes = bool(self._typed) or self._tells or self.burial is not None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the programs behind: they are made where they run."""
        return self.__dict__ | {"_reader": None}

    @property
    def of_records(self) -> frozenset[str]:
        """The columns that must be gathered from the records."""
        if self.burial is not None:
            return _WHOLE
        needed = {"offset", "timestamp"}
        needed |= {"value"} if self._decodes or self._tells_gone else set()
        return frozenset(needed | ({"key"} if KEY in self.schema.fieldNames() else set()))

    @property
    def available(self) -> int:
        """How many columns the query could have asked for."""
        return len(available(self.chosen.arrow, self.typing.errors))

    def over(self, versions: tuple[TopicSchema, ...]) -> TypedProjection:
        """Returns the same for records that any of some versions wrote."""
        return replace(self, versions=versions) if versions else self

    def apply(self, batch: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        """Decodes a batch; raises SchemaError for a bad record, or leaves out what is buried."""
        rows = self._decoded(batch, origin) if self._decodes else _placed(batch, origin)
        if self._tells_gone:
            rows = rows.append_column(GONE, _is_gone(batch, rows.column(OFFSET)))
        columns = [
            conformed(rows.column(field.name), field.type)
            if field.name in rows.schema.names
            else pa.nulls(rows.num_rows, field.type)
            for field in self._arrow
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)

    def _decoded(self, batch: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
        from lamina.formats.typed.typed_scan import Place, judged

        if self._reader is None:
            self._reader = self._begun(origin.topic)
        reader = self._reader
        place = Place(origin.topic, origin.partition)
        errors = self.typing.errors
        bury = self.burial.bury if self.burial is not None else _bury_nowhere
        found = list(judged(reader, batch, place, errors, bury))
        return found[0] if found else pa.RecordBatch.from_pylist([], schema=reader.schema)

    def _begun(self, topic: str) -> TypedReader:
        from lamina.formats.typed.value_codec import TypedReader

        return TypedReader(
            topic,
            self.versions,
            version=self.chosen.version,
            # What is wrong with a record is said of all of it, not of some columns.
            columns=None if self._tells else self._typed,
            with_errors=self._tells,
        )


def _placed(batch: pa.RecordBatch, origin: Origin) -> pa.RecordBatch:
    """Where and when records are, without their values."""
    rows = batch.num_rows
    has_keys = "key" in batch.schema.names
    columns = [
        batch.column("offset"),
        pa.repeat(pa.scalar(origin.partition, pa.int32()), rows),
        batch.column("timestamp"),
        batch.column("key") if has_keys else pa.nulls(rows, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, _PLACES)


def _is_gone(batch: pa.RecordBatch, offsets: pa.Array) -> pa.Array:
    """Returns of each row whether its record has a null value; some records may have no row."""
    places = np.searchsorted(np.asarray(batch.column("offset")), np.asarray(offsets))
    return batch.column("value").is_null().take(pa.array(places))


def _bury_nowhere(topic: str, partition: int, batch: pa.RecordBatch, reasons: list[str]) -> None:
    raise SchemaError(f"{topic}/{partition}: {reasons[0]}")  # no policy but deadletter asks for it
