"""Whatever a user has as a schema, as one: Arrow, a class, or text in one of three languages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lamina.errors import InvalidRequest, SchemaError
from lamina.formats.typed import avro_text, json_schema
from lamina.formats.typed.arrow_types import from_schema
from lamina.formats.typed.declared_classes import from_class, is_declared
from lamina.formats.typed.schema_model import (
    Kind,
    Type,
    children,
    joined,
    refuse_columnless,
    refuse_names,
    require_record,
)

AVRO, JSON, PROTOBUF = "avro", "json", "protobuf"
ENCODINGS = (AVRO, JSON)


def schema_of(given: Any, encoding: str) -> Type:
    """Makes a topic's schema of what a user has; raises SchemaError for what has no columns."""
    if encoding not in ENCODINGS:
        raise InvalidRequest(f"encoding is one of {', '.join(ENCODINGS)}, not {encoding!r}")
    made = require_record(_any(given), "the schema")
    refuse_columnless(made)
    if encoding == JSON:
        _refuse_bytes(made)
    else:
        refuse_names(made, encoding)
        _refuse_unsigned(made)
    return made


def _any(given: Any) -> Type:
    if isinstance(given, Type):
        return given
    if isinstance(given, pa.Schema):
        return from_schema(given)
    if is_declared(given):
        return from_class(given)
    if isinstance(given, dict):
        raise SchemaError("a schema of text is JSON text, not a dict: use json.dumps")
    if not isinstance(given, str):
        raise SchemaError(
            "a schema is an Arrow schema, a dataclass, a Pydantic model, or Avro or JSON Schema "
            f"text, not a {type(given).__name__}"
        )
    return from_text(given, language_of(given))


def language_of(text: str) -> str:
    """Returns the language of a schema's text, by its first words."""
    if not text.lstrip().startswith(("{", "[", '"')):
        return PROTOBUF
    document = avro_text.loads(text)
    if isinstance(document, dict) and document.get("type") not in ("object", None):
        return AVRO
    return JSON if isinstance(document, dict) else AVRO


def from_text(text: str, language: str) -> Type:
    """Reads a schema's text of a known language."""
    if language == AVRO:
        return avro_text.parse(text)
    if language == JSON:
        return json_schema.parse(text)
    raise SchemaError(f"schemas in {language} are not understood; use avro or json")


def _refuse_bytes(kind: Type, path: str = "") -> None:
    """JSON has no word for bytes, and text that means them would be a guess."""
    if kind.stored in (Kind.BYTES, Kind.FIXED) and kind.kind != Kind.DECIMAL:
        raise SchemaError(f"{path}: JSON has no bytes; use text, or encoding avro", field=path)
    for step, inner in children(kind):
        _refuse_bytes(inner, joined(path, step))


def _refuse_unsigned(kind: Type) -> None:
    for field in kind.fields:
        if field.type.kind == Kind.ULONG:
            raise SchemaError(
                f"{field.name}: avro has no unsigned number of 64 bits; use int64 or decimal",
                field=field.name,
            )
