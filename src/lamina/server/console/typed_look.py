"""A typed topic as the console shows it: its schema, how versions differ, records as columns.

Rules.
1. A topic without a schema is no error: the page says how to give it one.
2. Records come in small pages, of a bounded number of bytes, columns and characters per cell.
3. A record that is not what the schema says is a row with its reason, not the end of the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from lamina.api import TopicSchema
from lamina.errors import RecordsMissing
from lamina.log.gap_walk import scan_over
from lamina.server.console import asked
from lamina.server.console.looks import View

VERSIONS_MAX, FIELDS_MAX, TEXT_MAX = 100, 200, 64 << 10
ROWS, COLUMNS_MAX, CELL_MAX = 50, 40, 160
PAGE_BYTES, BATCH_BYTES = 4 << 20, 1 << 20
GAPS_MAX = 100
"""How many holes a page of records looks behind."""


def schema(view: View) -> dict[str, Any]:
    """Returns the versions of a topic's schema, newest first, each with what it changed."""
    found = view.store.schemas(view.topic())
    newest = found[-1] if found else None
    pairs = list(zip([None, *found], found, strict=False))
    return {
        "encoding": newest.encoding if newest else None,
        "framing": newest.framing if newest else None,
        "key": newest.key if newest else None,
        "compatibility": newest.compatibility if newest else None,
        "versions": [_version(former, each) for former, each in reversed(pairs[-VERSIONS_MAX:])],
        "total": len(found),
    }


def _version(former: TopicSchema | None, version: TopicSchema) -> dict[str, Any]:
    fields = _fields(version)
    shown = [{"name": name, **about} for name, about in fields.items()]
    return {
        "version": version.version,
        "id": version.id,
        "text": _indented(version.text)[:TEXT_MAX],
        "fields": shown[:FIELDS_MAX],
        "total": len(fields),
        "changes": None if former is None else _changes(_fields(former), fields)[:FIELDS_MAX],
    }


def _fields(version: TopicSchema) -> dict[str, dict[str, Any]]:
    return {
        field.name: {"type": str(field.type)[:CELL_MAX], "nullable": field.nullable}
        for field in version.arrow
    }


def _changes(former: dict[str, Any], fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what a version added, dropped and changed; a renamed column is one of each."""
    added = [{"kind": "added", "name": name, "to": fields[name]} for name in fields.keys() - former]
    dropped = [
        {"kind": "dropped", "name": name, "from": former[name]} for name in former.keys() - fields
    ]
    changed = [
        {"kind": "changed", "name": name, "from": former[name], "to": fields[name]}
        for name in fields.keys() & former.keys()
        if fields[name] != former[name]
    ]
    return sorted(added + dropped + changed, key=lambda each: (each["kind"], each["name"]))


def _indented(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:  # not every language of schemas is JSON
        return text


# ---------------------------------------------------------------- records


def columns(view: View) -> dict[str, Any]:
    """Returns a page of records as columns under the newest version, or the one asked for."""
    topic, partition = view.topic(), asked.number(view.given, "partition", 0)
    version = view.store.schema(topic, asked.optional_number(view.given, "version"))
    earliest = view.store.earliest_offset(topic, partition)
    end = view.store.latest_offset(topic, partition)
    start = asked.optional_number(view.given, "start")
    start = max(earliest, min(end - ROWS if start is None else start, end))
    names = [field.name for field in version.arrow][:COLUMNS_MAX]
    rows = list(_rows(view, (topic, partition), version.version, (start, end, names)))
    return {
        "version": version.version,
        "columns": names,
        "hidden": len(version.arrow) - len(names),
        "rows": rows,
        "start": start,
        "next": rows[-1]["offset"] + 1 if rows else end,
        "earliest": earliest,
        "end": end,
    }


def _rows(
    view: View, place: tuple[str, int], version: int, asked_for: tuple[int, int, list[str]]
) -> Iterator[dict[str, Any]]:
    """Yields rows from an offset on, over holes, until a page is full."""
    start, end, names = asked_for
    left, left_bytes, left_gaps = ROWS, PAGE_BYTES, GAPS_MAX
    read = partial(
        view.store.read,
        *place,
        end=end,
        columns=names,
        errors="null",
        version=version,
        max_records=ROWS,
        max_bytes=BATCH_BYTES,
    )
    for step in scan_over(read, start, end, reached=_after):
        if isinstance(step, RecordsMissing):
            left_gaps -= 1
        else:
            shown = step.slice(0, left)
            yield from _cells(shown, names)
            left -= shown.num_rows
            left_bytes -= step.get_total_buffer_size()
        if left <= 0 or left_bytes <= 0 or left_gaps <= 0:
            return


def _after(batch: pa.RecordBatch) -> int:
    last: int = batch["_offset"][-1].as_py()
    return last + 1


def _cells(batch: pa.RecordBatch, names: list[str]) -> Iterator[dict[str, Any]]:
    for row in batch.to_pylist():
        stamp = row["_timestamp"]
        yield {
            "offset": row["_offset"],
            "timestamp_ms": None if stamp is None else round(stamp.timestamp() * 1000),
            "cells": [_told(row[name]) for name in names],
            "error": row["_error"] and str(row["_error"])[:CELL_MAX],
        }


def _told(value: Any) -> str | None:
    """Makes a cell: text as it is, everything else as JSON where that can be, cut to a size."""
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value[:CELL_MAX].hex()
    elif not isinstance(value, str):
        value = json.dumps(value, default=str, ensure_ascii=False)
    return value if len(value) <= CELL_MAX else f"{value[:CELL_MAX]}…"


TYPED = {"schema": schema, "columns": columns}
"""Every feed of a typed topic by its name in the path."""
