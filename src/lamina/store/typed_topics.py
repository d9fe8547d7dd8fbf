"""Typed topics of a store: their schemas, kept beside them, and reads as columns.

The same for every kind of store: each brings a way to read the file of a topic (`schema_files`).
What the calls promise is written in `TypedApi`.

Rules.
1. A schema is checked, and held against the versions before it, before anything is stored.
2. The id of a schema is the registry's: the same one under whatever topic (`schema_registry`).
3. What decodes is loaded by the first typed call: Numba takes longer than everything else.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from lamina.api import BATCH_BYTES, BATCH_RECORDS, TopicSchema
from lamina.errors import (
    InvalidRequest,
    LaminaError,
    SchemaError,
    SchemaIncompatible,
    TopicExists,
    typed_errors,
)
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.documents.topic_schemas import Entry, TopicSchemas
from lamina.records import KEPT_COLUMNS, refuse_untyped
from lamina.store.lookup import Lookup
from lamina.store.reads import Reads
from lamina.store.schema_files import SchemaFiles
from lamina.subjects.entries import VALUE

if TYPE_CHECKING:
    from lamina.formats.typed.schema_model import Type
    from lamina.formats.typed.typed_scan import Bury
    from lamina.store.schema_registry import Home, SchemaRegistry
    from lamina.subjects.book import Book
    from lamina.subjects.entries import Registered

USUAL_LEVEL = "BACKWARD"
Kept: TypeAlias = Callable[[TopicFile], TopicSchemas | None]
"""Returns what is written of a topic's schemas, None where nothing is."""


class TypedReads:
    """Schemas and typed reads of a store that may not write."""

    def __init__(self, lookup: Lookup[Any], reads: Reads, kept: Kept, bury: Bury) -> None:
        self._lookup = lookup
        self._reads = reads
        self._kept = kept
        self._bury = bury

    @typed_errors("reading a schema")
    def schemas(self, topic: str) -> list[TopicSchema]:
        """Returns every version, oldest first."""
        return versions_of(self._kept(self._lookup.topic(topic)))

    def schema(self, topic: str, version: int | None = None) -> TopicSchema:
        """Returns one version, the newest by default."""
        from lamina.formats.typed.value_codec import newest

        return newest(topic, self.schemas(topic), version)

    def read(  # noqa: PLR0913 - as in TypedApi
        self,
        topic: str,
        partition: int | None = None,
        start: int | None = None,
        *,
        end: int | None = None,
        columns: Iterable[str] | None = None,
        errors: str = "raise",
        version: int | None = None,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
    ) -> pa.RecordBatchReader:
        """Streams typed columns; see `TypedApi`."""
        from lamina.formats.typed.typed_scan import typed_batches
        from lamina.formats.typed.value_codec import TypedReader

        if partition is None and (start is not None or end is not None):
            raise InvalidRequest("start and end are offsets of one partition: name it")
        reader = TypedReader(
            topic,
            self.schemas(topic),
            version=version,
            columns=None if columns is None else list(columns),
            with_errors=errors == "null",
            later=functools.partial(self.schemas, topic),
        )
        numbers = range(self._lookup.topic(topic).partitions) if partition is None else [partition]
        scan = functools.partial(self._reads.scan, topic, max_records=max_records)
        scans = ((each, scan(each, start, end=end, max_bytes=max_bytes)) for each in numbers)
        return typed_batches(reader, topic, scans, errors, self._bury)


class TypedTopics(TypedReads):
    """The same of a store that writes: schemas are set, and tables become records."""

    def __init__(
        self, files: SchemaFiles, lookup: Lookup[Any], reads: Reads, bury: Bury, home: Home
    ) -> None:
        super().__init__(lookup, reads, files.document, bury)
        self._files = files
        self._changing = home.topic_changes.changing
        self._home = home

    @functools.cached_property
    def registry(self) -> SchemaRegistry:
        """The store's registry, made when it is needed."""
        from lamina.store.schema_registry import SchemaRegistry

        return SchemaRegistry(
            *(self._lookup, self._reads, self._kept),
            typed=self,
            home=self._home,
        )

    def schema_registry(self) -> SchemaRegistry:
        """Returns the schemas as Confluent's clients know them."""
        return self.registry

    def recover(self) -> None:
        """Mends the files of topics that are being opened."""
        for about in self._lookup.topics().values():
            self._files.recover(about)

    @typed_errors("setting a schema")
    def set_schema(
        self,
        topic: str,
        schema: Any,
        *,
        encoding: str | None = None,
        key: str | None = None,
        compatibility: str | None = None,
        framing: str | None = None,
    ) -> TopicSchema:
        """Adds a version to a topic's schemas, durably."""
        with self._changing:
            about = self._lookup.topic(topic)
            known = self._kept(about)
            asked = (encoding, key, compatibility, framing)
            made, new = self._next(about, known, schema, asked)
            if (made, new) != (known, None):
                made = self._registered(made, new, schema)
                self._files.replace(about, made)
            return versions_of(made)[-1]

    def refuse_different(self, about: TopicFile, schema: Any, encoding: str | None) -> None:
        """Raises TopicExists for a topic that has another schema."""
        from lamina.formats.typed import avro_text
        from lamina.formats.typed.schema_source import next_version, schema_of

        known = self._kept(about)
        kept = (known.encoding, known.schemas[-1].text) if known is not None else ("", "")
        wanted = encoding or kept[0] or "avro"
        former = [avro_text.parse(each.text) for each in known.schemas] if known is not None else []
        given = next_version(schema_of(schema, wanted), wanted, former)
        if kept != (wanted, avro_text.text_of(given)):
            raise TopicExists(
                f"topic {about.name!r} exists already, with another schema or none; set_schema"
                " gives it the next version",
                topic=about.name,
                difference="schema",
            )

    def begin(
        self, format_name: str, schema: Any, encoding: str | None, key: str | None
    ) -> Callable[[TopicFile], TopicFile]:
        """Returns what writes the schema of a topic that is being made, before it exists.

        The schema is checked now; it is written when the topic's directory is there.
        """
        if format_name not in KEPT_COLUMNS:
            return lambda about: about  # which creating it refuses
        draft = TopicFile("new", format_name, 1, 1, 0)
        self._next(draft, None, schema, (encoding, key, None, None))

        def write(about: TopicFile) -> TopicFile:
            made, new = self._next(about, None, schema, (encoding, key, None, None))
            self._files.replace(about, self._registered(made, new, schema))
            return about

        return write

    def follow(self, about: TopicFile, book: Book) -> None:
        """Adds versions of the topic's subject to its file, as far as they have columns here."""
        subject = f"{about.name}{VALUE}"
        made = known = self._kept(about)
        ids = {entry.id for entry in known.schemas} if known is not None else set()
        for version in book.versions(subject):
            if version.id not in ids:
                with contextlib.suppress(InvalidRequest):  # it has no columns, or not of this topic
                    made = self._followed(about, made, version, book)
                    ids.add(version.id)
        if made is not None:
            made = replace(made, compatibility=book.levels.get(subject, USUAL_LEVEL))
        if made is not None and made != known:
            self._files.replace(about, made)

    def _followed(
        self, about: TopicFile, known: TopicSchemas | None, version: Registered, book: Book
    ) -> TopicSchemas:
        """Returns a topic's schemas with a version of its subject as the next one."""
        from lamina.formats.typed import avro_text
        from lamina.formats.typed.schema_source import JSON, next_version, schema_of
        from lamina.formats.typed.value_codec import PLAIN, REGISTRY
        from lamina.subjects import languages

        encoding = languages.encoding_of(version.schema.language)
        if known is None:
            named = about.name, about.created_ms
            known = TopicSchemas(*named, encoding, REGISTRY, "", USUAL_LEVEL, ())
        if known.encoding != encoding or (known.framing == PLAIN and encoding != JSON):
            raise InvalidRequest(f"topic {about.name!r} is of encoding {known.encoding}")
        former = [avro_text.parse(each.text) for each in known.schemas]
        name = former[-1].name if former else ""
        given = languages.record_of(version.schema, book.texts(version.schema), name)
        new = next_version(schema_of(given, encoding), encoding, former)
        names = [field.name for field in new.fields]
        _refuse_own_names(names)
        _refuse_key(about, known.key, names)
        entry = Entry(len(known.schemas) + 1, version.id, avro_text.text_of(new))
        return replace(known, schemas=(*known.schemas, entry))

    def follow_registered(self, about: TopicFile) -> None:
        """Gives a topic that is new the schemas that were registered for it before it was there.

        The topic is there already: what keeps it from that is told by calls of the registry, and
        the next registration under its subject does it.
        """
        with contextlib.suppress(LaminaError):
            if self.registry.is_begun:
                self.follow(about, self.registry.book())

    def _next(
        self,
        about: TopicFile,
        known: TopicSchemas | None,
        schema: Any,
        asked: tuple[str | None, str | None, str | None, str | None],
    ) -> tuple[TopicSchemas, Type | None]:
        """Returns what is to be written, and the schema that is to be its next version, if any."""
        from lamina.formats.typed import avro_text, evolution
        from lamina.formats.typed.schema_source import JSON, next_version, problems, schema_of
        from lamina.formats.typed.value_codec import PLAIN, REGISTRY, checked_framing

        encoding, key, level, framing = asked
        if known is None:
            named = about.name, about.created_ms
            known = TopicSchemas(*named, encoding or "avro", "", "", self._first_level(about), ())
        if encoding not in (None, known.encoding):
            raise InvalidRequest(
                f"topic {about.name!r} is of encoding {known.encoding}; that cannot be changed"
            )
        level = evolution.checked_level(level if level is not None else known.compatibility)
        usual = PLAIN if known.encoding == JSON else REGISTRY
        framing = checked_framing(framing or known.framing or usual)
        former = [avro_text.parse(each.text) for each in known.schemas]
        new = next_version(schema_of(schema, known.encoding), known.encoding, former)
        _refuse_own_names([field.name for field in new.fields])
        key = key if key is not None else known.key
        _refuse_key(about, key, [field.name for field in new.fields])
        made = replace(known, compatibility=level, framing=framing, key=key)
        if known.schemas and known.schemas[-1].text == avro_text.text_of(new):
            return made, None
        found = problems(new, former, level, known.encoding)
        if found:
            raise SchemaIncompatible(
                f"topic {about.name!r}, {level}: {'; '.join(found)}",
                field=found[0].partition(":")[0],
            )
        return made, new

    def _first_level(self, about: TopicFile) -> str:
        registry = self.registry
        if not registry.is_begun:
            return USUAL_LEVEL
        return registry.book().levels.get(f"{about.name}{VALUE}", USUAL_LEVEL)

    def _registered(self, made: TopicSchemas, new: Type | None, given: Any) -> TopicSchemas:
        """Registers what a topic's schemas are to be; returns them with the new version's id."""
        from lamina.formats.typed import avro_text
        from lamina.formats.typed.schema_source import language_of
        from lamina.subjects import languages

        registry = self.registry
        if new is None:
            registry.adopt_level(made.topic, made.compatibility)
            return made
        schema = languages.schema_of(new, made.encoding)
        if registry.is_begun and isinstance(given, str) and language_of(given) == made.encoding:
            schema = replace(schema, text=given)
        schema_id = registry.adopt(made.topic, schema, made.compatibility)
        entry = Entry(len(made.schemas) + 1, schema_id, avro_text.text_of(new))
        return replace(made, schemas=(*made.schemas, entry))

    def encoded(self, topic: str, table: pa.Table | pa.RecordBatch) -> pa.Table:
        """Returns the records of a table with typed columns."""
        from lamina.formats.typed.value_codec import encoded, newest

        versions = self.schemas(topic)
        if not versions:
            refuse_untyped(topic, table.schema.names)
        return encoded(newest(topic, versions), table)


def _refuse_own_names(names: list[str]) -> None:
    """Raises SchemaError for a column that typed reads give, or tables bring, besides the schema's.

    Engines do not tell capitals from small letters, so neither does this.
    """
    from lamina.formats.typed.value_codec import OWN_COLUMNS

    taken = [name for name in names if name.lower() in OWN_COLUMNS]
    if taken:
        raise SchemaError(
            f"column {taken[0]!r} has the name of one that every typed topic has"
            f" ({', '.join(OWN_COLUMNS)}): rename the field",
            field=taken[0],
        )


def _refuse_key(about: TopicFile, key: str, names: list[str]) -> None:
    if key and key not in names:
        raise SchemaError(f"the key is column {key!r}, which the schema lacks", field=key)
    if key and "key" not in KEPT_COLUMNS[about.format]:
        raise InvalidRequest(f"format {about.format} keeps no keys; leave `key` out")


def versions_of(document: TopicSchemas | None) -> list[TopicSchema]:
    """Returns the versions that a topic's file has, oldest first; none without a file."""
    from lamina.formats.typed import avro_text
    from lamina.formats.typed.arrow_types import arrow_schema

    if document is None:
        return []
    return [
        TopicSchema(
            *(document.topic, each.version, each.id, document.encoding, document.framing),
            *(document.key, document.compatibility, each.text),
            arrow_schema(avro_text.parse(each.text)).serialize().to_pybytes(),
        )
        for each in document.schemas
    ]


def bury_nowhere(topic: str, partition: int, batch: pa.RecordBatch, reasons: list[str]) -> None:
    """Refuses: a store that does not write has no place for dead letters."""
    raise InvalidRequest(
        'errors="dead_letter" writes; use "null" or "raise" on a store that only reads'
    )
