"""Records as the console shows them: cut to a bounded size, bytes told apart from text.

Rule: a value is cut while it is still in Arrow; nothing larger than what is shown becomes Python.
"""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

KEY_BYTES, VALUE_BYTES = 80, 240
WHOLE_BYTES = 64 << 10
"""So much of a single record's value is sent; the page says how much there is."""


def previews(batch: pa.RecordBatch, partition: int) -> list[dict[str, Any]]:
    """Returns a row for each record of a small batch, with the beginnings of key and value."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    rows: list[dict[str, Any]] = pa.table(
        {
            "offset": columns["offset"],
            "timestamp_ms": columns["timestamp"].cast(pa.int64()),
            **_beginning(columns, "key", KEY_BYTES),
            **_beginning(columns, "value", VALUE_BYTES),
            **_beginning(columns, "tag", KEY_BYTES),
        }
    ).to_pylist()
    for row in rows:
        row["partition"] = partition
        for name in ("key", "value", "tag"):
            if name in row:
                row[name] = _told(row[name], row.pop(f"{name}_bytes"))
    return rows


def _beginning(columns: dict[str, pa.Array], name: str, limit: int) -> dict[str, pa.Array]:
    if name not in columns:
        return {}
    return {
        name: pc.binary_slice(columns[name], 0, limit),
        f"{name}_bytes": pc.binary_length(columns[name]),
    }


def _told(beginning: bytes | None, size: int | None) -> dict[str, Any] | None:
    if beginning is None or size is None:
        return None
    cut = size > len(beginning)
    for missing in range(4 if cut else 1):  # a cut may fall inside a character
        whole = beginning[: len(beginning) - missing]
        try:
            return {"text": whole.decode(), "size": size, "cut": cut}
        except UnicodeDecodeError:
            continue
    return {"hex": beginning[:48].hex(), "size": size, "cut": size > 48}


def whole(batch: pa.RecordBatch) -> dict[str, Any]:
    """Returns the one record of a batch with all of its fields, up to `WHOLE_BYTES` of each."""
    row: dict[str, Any] = {
        "offset": batch.column("offset")[0].as_py(),
        "timestamp_ms": batch.column("timestamp").cast(pa.int64())[0].as_py(),
    }
    for name in ("key", "value", "tag", "node"):
        if name in batch.schema.names:
            row[name] = as_sent(batch.column(name)[0].as_py())
    if "headers" in batch.schema.names:
        headers = batch.column("headers")[0].as_py()
        row["headers"] = [
            {"key": item["key"], "value": as_sent(item["value"])} for item in headers or ()
        ]
    return row


def as_sent(data: bytes | None) -> dict[str, Any] | None:
    """Makes bytes fit for JSON, with their size; a null stays one."""
    if data is None:
        return None
    sent = base64.b64encode(data[:WHOLE_BYTES]).decode("ascii")
    return {"base64": sent, "size": len(data), "cut": len(data) > WHOLE_BYTES}
