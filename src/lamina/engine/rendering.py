"""Turns values of any format into plain rows for people and JSON: bytes as text if they are text.

For dumps and small listings only: every record becomes a Python object here.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Row: TypeAlias = dict[str, Any]


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
    if isinstance(value, np.ndarray):
        return [render_value(item) for item in value.tolist()]
    if isinstance(value, list | tuple):
        return [render_value(item) for item in value]
    return value if isinstance(value, int | float | str | bool | None) else str(value)


def render_batch(batch: pa.RecordBatch) -> Iterator[Row]:
    """Yields the records of a batch as rows; the time in milliseconds, headers as pairs."""
    index = batch.schema.get_field_index("timestamp")
    milliseconds = batch.column(index).cast(pa.int64())
    for row in batch.set_column(index, "timestamp_ms", milliseconds).to_pylist():
        if row.get("headers") is not None:
            row["headers"] = [[item["key"], item["value"]] for item in row["headers"]]
        yield render_value(row)
