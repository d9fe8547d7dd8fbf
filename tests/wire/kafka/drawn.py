"""Messages drawn by hypothesis from our tables, for every API, version and direction."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from lamina.wire.kafka.apis import APIS
from lamina.wire.kafka.codec import Direction
from lamina.wire.kafka.message_schema import Api, Field

MESSAGES: list[tuple[Api, int, Direction]] = [
    (api, version, direction)
    for api in APIS.values()
    for version in range(api.first, api.last + 1)
    for direction in ("request", "response")  # type: ignore[misc]
]
INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TIMES_MS = st.integers(0, 253_402_000_000_000)  # what a datetime of Python can hold
ERRORS = st.sampled_from([0, 1, 3, 7, 16, 25, 27, 87, 100])
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8) | st.just("x" * 200)


def name_of(message: tuple[Api, int, Direction]) -> str:
    api, version, direction = message
    return f"{api.name}-{direction}-{version}"


def fields_of(api: Api, direction: Direction) -> tuple[Field, ...]:
    return api.request if direction == "request" else api.response


def messages(api: Api, version: int, direction: Direction) -> st.SearchStrategy[dict[str, Any]]:
    """Whole messages, with what the version does not have at its default."""
    return _struct(fields_of(api, direction), version)


def _struct(fields: tuple[Field, ...], version: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            field.name: _value(field, version) if field.is_in(version) else st.just(field.default)
            for field in fields
        }
    )


def _value(field: Field, version: int) -> st.SearchStrategy[Any]:
    one = _struct(field.inside, version) if field.kind == "{}" else _scalar(field)
    drawn = st.lists(one, max_size=2) if field.is_list else one
    return st.none() | drawn if field.is_nullable(version) else drawn


def _scalar(field: Field) -> st.SearchStrategy[Any]:
    if field.name.endswith("error_code"):
        return ERRORS
    if field.kind == "int64" and ("time" in field.name):
        return TIMES_MS
    if field.kind in INTEGERS:
        bits = INTEGERS[field.kind] - 1
        return st.integers(-(1 << bits), (1 << bits) - 1)
    return {
        "bool": st.booleans(),
        "uuid": st.binary(min_size=16, max_size=16),
        "string": TEXT,
        "bytes": st.binary(max_size=8) | st.just(b"y" * 300),
        "records": st.lists(st.binary(min_size=1, max_size=8), max_size=2),
    }[field.kind]


def joined(value: Any) -> Any:
    """A message in which records are bytes, as both sides see them after parsing."""
    if isinstance(value, dict):
        return {name: _joined(name, inner) for name, inner in value.items()}
    return [joined(inner) for inner in value] if isinstance(value, list) else value


def _joined(name: str, value: Any) -> Any:
    if name == "records" and value is not None:
        return bytes(value) if isinstance(value, memoryview) else b"".join(value)
    return joined(value)
