"""The arguments of a call: what JSON gives, as a method takes it, and the size of records."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lamina.errors import InvalidRequest
from lamina.records import Rows
from lamina.wire import values
from lamina.wire.operations import Operation


def bind(operation: Operation, given: dict[str, Any]) -> dict[str, Any]:
    """Makes a method's arguments from JSON; raises InvalidRequest naming what does not fit."""
    known = operation.signature.parameters
    for name in given:
        if name not in known:
            raise InvalidRequest(
                f"{operation.name} takes no {name[:80]!r}; only {', '.join(known)}"
            )
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in given:
            raise InvalidRequest(f"{operation.name} needs {name!r}")
    return {
        name: value
        if isinstance(value, bytes)
        else values.from_plain(operation.hints[name], value, name)
        for name, value in given.items()
    }


def size_of(records: pa.RecordBatch | pa.Table | Rows | pa.Buffer) -> int:
    """Returns how many bytes the records of an append take, about."""
    if isinstance(records, pa.Buffer):
        return int(records.size)
    if isinstance(records, pa.RecordBatch | pa.Table):
        return int(records.get_total_buffer_size())
    if all(type(row) is bytes for row in records):
        return sum(map(len, records))
    parts = (row.values() if isinstance(row, dict) else (row,) for row in records)
    return sum(len(part) for row in parts for part in row if isinstance(part, bytes))
