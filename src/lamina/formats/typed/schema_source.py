"""Whatever a user has as a schema, as one: Arrow, a class, or text in one of three languages.

Two steps: `schema_of` reads what is given, `next_version` gives it what it takes from the versions
before it, which only the store knows: the field numbers of Protobuf.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lamina.api import TopicSchema
from lamina.errors import InvalidRequest, SchemaError
from lamina.formats.typed import (
    avro_text,
    evolution,
    json_schema,
    protobuf_numbers,
    protobuf_program,
    protobuf_rules,
    protobuf_schema,
)
from lamina.formats.typed.arrow_types import arrow_schema, from_schema
from lamina.formats.typed.declared_classes import from_class, is_declared
from lamina.formats.typed.schema_defaults import refuse_unfit_defaults, refuse_unwritable
from lamina.formats.typed.schema_model import (
    Kind,
    Type,
    children,
    joined,
    named_apart,
    refuse_columnless,
    refuse_names,
    require_record,
)

AVRO, JSON, PROTOBUF = "avro", "json", "protobuf"
ENCODINGS = (AVRO, JSON, PROTOBUF)
_RAW = (Kind.BYTES, Kind.FIXED)
_DURATIONS = (Kind.DURATION_MILLIS, Kind.DURATION_MICROS, Kind.DURATION_NANOS)


def schema_of(given: Any, encoding: str) -> Type:
    """Makes a topic's schema of what a user has; raises SchemaError for what has no columns."""
    if encoding not in ENCODINGS:
        raise InvalidRequest(f"encoding is one of {', '.join(ENCODINGS)}, not {encoding!r}")
    made = require_record(_any(given), "the schema")
    refuse_columnless(made)
    made = named_apart(made)
    if encoding != JSON:
        refuse_names(made, encoding)
    if encoding == PROTOBUF:
        # Both refuse what has no place in a message: numbers, then words of other types.
        protobuf_program.compiled(protobuf_numbers.numbered(made, ()))
    else:
        _refuse_protobuf_only(made, encoding)
    refuse_unwritable(made)
    refuse_unfit_defaults(made, is_json=encoding == JSON)
    return made


def next_version(new: Type, encoding: str, former: Sequence[Type]) -> Type:
    """Returns a schema as the version that follows others, oldest first.

    It is kept as text: one that could not be read again would shut the topic's columns for good.
    """
    made = protobuf_numbers.numbered(new, former) if encoding == PROTOBUF else new
    text = avro_text.text_of(made)
    if avro_text.text_of(avro_text.parse(text)) != text:
        raise SchemaError("two types go by one name where one of them is referred to: rename one")
    return made


def problems(new: Type, former: Sequence[Type], level: str, encoding: str) -> list[str]:
    """Returns what keeps a schema from following others, by the rules of its encoding."""
    if encoding == PROTOBUF:
        return protobuf_rules.problems(new, former, level)
    return evolution.problems(new, former, level)


def plain_schema(given: Any, encoding: str) -> TopicSchema:
    """Makes a version that no topic keeps: of a reader's own, for values with nothing in front."""
    made = next_version(schema_of(given, encoding), encoding, ())
    columns = arrow_schema(made).serialize().to_pybytes()
    return TopicSchema("", 1, 0, encoding, "plain", "", "NONE", avro_text.text_of(made), columns)


def _any(given: Any) -> Type:
    if isinstance(given, Type):
        return given
    if isinstance(given, bytes):
        return protobuf_schema.parse(base64.b64encode(given).decode())
    if (descriptor := getattr(given, "DESCRIPTOR", None)) is not None:
        return _of_generated(descriptor)
    if isinstance(given, pa.Schema):
        return from_schema(given)
    if is_declared(given):
        return from_class(given)
    if isinstance(given, dict):
        raise SchemaError("a schema of text is JSON text, not a dict: use json.dumps")
    if not isinstance(given, str):
        raise SchemaError(
            "a schema is an Arrow schema, a dataclass, a Pydantic model, or text of Avro, JSON "
            f"Schema or Protobuf, not a {type(given).__name__}"
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
    if language == PROTOBUF:
        return protobuf_schema.parse(text)
    raise SchemaError(f"schemas in {language} are not understood; use avro, json or protobuf")


def _of_generated(descriptor: Any) -> Type:
    """The message of a class that protoc made; its library is not imported here."""
    try:
        raw, name = bytes(descriptor.file.serialized_pb), str(descriptor.full_name)
    except AttributeError as error:
        raise SchemaError(f"DESCRIPTOR is none of a message: {error}") from error
    return protobuf_schema.parse(base64.b64encode(raw).decode(), name)


def _refuse_protobuf_only(kind: Type, encoding: str, path: str = "") -> None:
    """Refuses what an encoding has no word for; text that means it would be a guess."""
    told = ""
    if kind.keys is not None:
        told = f"a map has keys of text, not {kind.keys.kind.value}"
    elif encoding == AVRO and kind.kind == Kind.ULONG:
        told = "avro has no unsigned number of 64 bits; use int64 or decimal"
    elif encoding == JSON and kind.kind in _DURATIONS:
        told = "JSON has no durations; use a number, or encoding avro"
    elif encoding == JSON and kind.kind != Kind.DECIMAL and kind.stored in _RAW:
        told = "JSON has no bytes; use text, or encoding avro"
    if told:
        raise SchemaError(f"{path}: {told}", field=path)
    for step, inner in children(kind):
        _refuse_protobuf_only(inner, encoding, joined(path, step))
