"""Scans as typed batches: what happens to a record that is not what the schema says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from lamina.api import BatchStream
from lamina.errors import InvalidRequest, SchemaError
from lamina.formats.typed.row_faults import FINE, Decoded
from lamina.formats.typed.value_codec import TypedReader

POLICIES = ("raise", "null", "dead_letter")
Bury: TypeAlias = Callable[[str, int, pa.RecordBatch, list[str]], None]
"""Copies records of a partition to the dead letters of its topic, each with what is wrong."""


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


def typed_batches(
    reader: TypedReader,
    topic: str,
    scans: Iterable[tuple[int, BatchStream]],
    errors: str,
    bury: Bury,
) -> pa.RecordBatchReader:
    """Gives the batches of partitions as columns; bad rows as `errors` asks for."""
    if errors not in POLICIES:
        raise InvalidRequest(f"errors is one of {', '.join(POLICIES)}, not {errors!r}")
    if errors == "dead_letter":
        bury(topic, 0, pa.RecordBatch.from_pylist([]), [])  # refuses where nothing can be written
    batches = _batches(reader, topic, scans, errors, bury)
    return pa.RecordBatchReader.from_batches(reader.schema, batches)


def _batches(
    reader: TypedReader,
    topic: str,
    scans: Iterable[tuple[int, BatchStream]],
    errors: str,
    bury: Bury,
) -> Iterator[pa.RecordBatch]:
    for partition, batches in scans:
        with contextlib.closing(batches):  # a reader that is dropped ends the scan at once
            for batch in batches:
                for first in range(0, max(1, batch.num_rows), reader.rows_at_once):
                    piece = batch.slice(first, reader.rows_at_once)
                    yield from judged(reader, piece, Place(topic, partition), errors, bury)


def judged(
    reader: TypedReader, batch: pa.RecordBatch, place: Place, errors: str, bury: Bury
) -> Iterator[pa.RecordBatch]:
    """Gives a batch of one partition as columns; bad rows as `errors` asks for."""
    rows, decoded = reader.rows(batch, place.partition)
    bad = np.flatnonzero(decoded.codes > FINE)
    if not len(bad) or errors == "null":
        yield rows
    elif errors == "raise":
        first = int(bad[0])
        if first:
            yield rows.slice(0, first)
        raise _problem(place, rows, decoded, first)
    else:
        reasons = [decoded.fault(int(row)) for row in bad]
        bury(place.topic, place.partition, batch.take(pa.array(bad)), reasons)
        good = np.flatnonzero(decoded.codes <= FINE)
        if len(good):
            yield rows.take(pa.array(good))


def _problem(place: Place, rows: pa.RecordBatch, decoded: Decoded, row: int) -> SchemaError:
    offset = rows.column(0)[row].as_py()
    path = decoded.paths[decoded.fields[row]] if decoded.fields[row] >= 0 else ""
    return SchemaError(
        f"{place.topic}/{place.partition}, offset {offset}: {decoded.fault(row)}; the record stays"
        f" as it is: read on from {offset + 1}, or with errors='null'",
        field=path,
    )
