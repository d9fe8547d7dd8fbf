"""What a store is asked of typed topics: schemas, and values as columns.

A part of `StoreApi`, like `MembershipApi`, which it stands on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from lamina.api.membership_api import MembershipApi
from lamina.api.record_reads import BATCH_BYTES, BATCH_RECORDS
from lamina.api.topic_schema import TopicSchema


class TypedApi(MembershipApi):
    """The part of a store that knows what the values of a topic are."""

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
        """Gives a topic a schema, or the next version of it; its records stay as they are.

        `schema` is an Arrow schema, a dataclass, a Pydantic model, a class that protoc made, or
        text: Avro's, JSON Schema, a `.proto` file. `encoding` is avro, json or protobuf, and stays
        what it is once it is set. What is not given stays as it was; at first it is avro, no key,
        BACKWARD, and framing "registry", "plain" for json. A schema that says the same as the last
        version adds none. Raises SchemaIncompatible, naming the field, before anything is stored.
        """
        raise self._cannot("set_schema")

    def schema(self, topic: str, version: int | None = None) -> TopicSchema:
        """Returns a version of a topic's schema, the newest by default; raises UnknownSchema."""
        raise self._cannot("schema")

    def schemas(self, topic: str) -> list[TopicSchema]:
        """Returns every version of a topic's schema, oldest first; none for an untyped topic."""
        raise self._cannot("schemas")

    def read(  # noqa: PLR0913 - what to read, by keyword
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
        """Streams records of a typed topic as columns, under a version of its schema (the newest).

        What is returned is an iterator of batches, with a `schema`; DuckDB, Polars and pandas take
        it as it is, and `read_all()` makes a table. In front of the columns are `_offset`,
        `_partition`, `_timestamp` and `_key`. `columns` chooses among those of the schema. Without
        a partition, all of them are read, one after the other; `start` and `end` belong to one. A
        null value is a row of nulls.

        A record that is not what the schema says is never lost and never changed. With `errors`
        "raise" the rows in front of it are given, then SchemaError names its offset and field: go
        on behind it. With "null" its columns are null and `_error` says why. With "dead_letter" it
        is copied to `<topic>.dlq`, durably, and left out; a second read copies it again.
        """
        raise self._cannot("read")
