"""Records in JSON, as small clients write them and as `fetch` gives them back.

{"value": "text" | {"base64": "…"} | null, "key": …, "headers": [["name", "value"], …],
 "timestamp_ms": 1700000000000, "tag": …, "node": …}
"""

from __future__ import annotations

from typing import Any

from lamina.errors import InvalidRequest
from lamina.wire.values import bytes_of

_BYTES = ("key", "value", "tag", "node")


def parse(rows: Any) -> list[dict[str, Any]]:
    """Makes rows that a store takes; raises InvalidRequest naming the record that is none."""
    if not isinstance(rows, list) or not rows:
        raise InvalidRequest("records must be a list of at least one record")
    return [_parse_row(row, f"record {number}") for number, row in enumerate(rows)]


def _parse_row(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict) or "value" not in row:
        raise InvalidRequest(f"{where} must be an object with a value")
    made: dict[str, Any] = {}
    for name, given in row.items():
        if name in _BYTES:
            made[name] = _bytes(given, f"{where}: {name}")
        elif name == "timestamp_ms":
            if given is not None and (type(given) is not int or not 0 <= given < 1 << 63):
                raise InvalidRequest(f"{where}: timestamp_ms must be milliseconds since 1970")
            made["timestamp"] = given
        elif name == "headers":
            made[name] = None if given is None else _headers(given, where)
        else:
            raise InvalidRequest(f"{where} has an unknown field {name[:80]!r}")
    return made


def _headers(given: Any, where: str) -> list[dict[str, Any]]:
    problem = f"{where}: headers are pairs of a name and a value"
    if not isinstance(given, list):
        raise InvalidRequest(problem)
    made = []
    for pair in given:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidRequest(problem)
        bytes_of(pair[0], where)
        made.append({"key": pair[0], "value": _bytes(pair[1], where)})
    return made


def _bytes(given: Any, where: str) -> bytes | None:
    return None if given is None else bytes_of(given, where)
