"""Turns values of any format into plain rows for people and JSON: bytes as text if they are text.

For dumps and small listings only: every record becomes a Python object here, a bounded number of
them at a time. Imports neither NumPy nor Arrow: what has their types brings them along.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from lamina.inspect.findings import Row

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 1000


def render_value(value: Any) -> Any:
    """Makes a value that JSON can hold: text where bytes are UTF-8, else {"base64": …}."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Enum):
        return value.name
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: render_value(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): render_value(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return render_value(value.tolist())
    if isinstance(value, list | tuple):
        return [render_value(item) for item in value]
    return value if isinstance(value, int | float | str | bool | None) else str(value)


def render_batch(batch: pa.RecordBatch) -> Iterator[Row]:
    """Yields the records of a batch as rows that JSON can hold."""
    return (render_value(row) for row in plain_rows(batch))


def plain_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """Yields the records of a batch as rows; the time in milliseconds, headers as pairs."""
    index = batch.schema.get_field_index("timestamp")
    milliseconds = batch.column(index).cast("int64")
    numbered = batch.set_column(index, "timestamp_ms", milliseconds)
    for start in range(0, numbered.num_rows, _ROWS_AT_ONCE):
        for row in numbered.slice(start, _ROWS_AT_ONCE).to_pylist():
            if row.get("headers") is not None:
                row["headers"] = [[item["key"], item["value"]] for item in row["headers"]]
            yield row


def content_bytes(row: Row) -> int:
    """Counts the bytes of the key, value and headers of one of `plain_rows`."""
    parts = [row.get("key"), row.get("value")]
    for name, value in row.get("headers") or ():
        parts += [name.encode(), value]
    return sum(len(part) for part in parts if part is not None)
