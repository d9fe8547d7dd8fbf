"""The other place where a client uses kernels: values of typed topics as columns and back.

What a served store sends are bytes, as it keeps them; the client decodes them itself, so that a
server has no more to do for a typed reader than for any other. As in `key_split`, what decodes is
loaded inside the functions: a client without typed topics loads none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from lamina.api import BatchStream, TopicSchema
from lamina.errors import InvalidRequest


def schema_text(schema: Any, encoding: str | None) -> str:
    """Returns the text of a schema, whatever it is: the wire carries no classes."""
    from lamina.formats.typed.avro_text import text_of
    from lamina.formats.typed.schema_source import schema_of

    return text_of(schema_of(schema, encoding or "avro"))


def encoded(schema: TopicSchema, table: pa.Table | pa.RecordBatch) -> pa.Table:
    """Returns the records of a table with typed columns."""
    from lamina.formats.typed import value_codec

    return value_codec.encoded(schema, table)


def typed_batches(
    topic: str,
    versions: Sequence[TopicSchema],
    scans: Iterable[tuple[int, Callable[[], BatchStream]]],
    *,
    later: Callable[[], Sequence[TopicSchema]],
    version: int | None,
    columns: Iterable[str] | None,
    errors: str,
) -> pa.RecordBatchReader:
    """Decodes what scans of partitions give; `later` returns the versions that came since."""
    from lamina.formats.typed import typed_scan, value_codec

    reader = value_codec.TypedReader(
        topic,
        versions,
        version=version,
        columns=None if columns is None else list(columns),
        with_errors=errors == "null",
        later=later,
    )
    begun = ((partition, begin()) for partition, begin in scans)
    return typed_scan.typed_batches(reader, topic, begun, errors, _bury)


def newest(topic: str, versions: Sequence[TopicSchema]) -> TopicSchema:
    """Returns the last version; raises UnknownSchema where there is none."""
    from lamina.formats.typed import value_codec

    return value_codec.newest(topic, versions)


def _bury(topic: str, partition: int, batch: pa.RecordBatch, reasons: list[str]) -> None:
    raise InvalidRequest(
        'errors="dead_letter" is not served; use "null" or "raise", or read where the store is'
    )
