"""A schema's text in one of three languages: its meaning, and what others cannot read of it.

The texts that a schema refers to are parsed together with it: records that an Avro schema does not
define itself, files that a `.proto` file imports, documents that a `$ref` leads to.

`identity` does not depend on a text's layout. Two schemas are the same if their identities,
their references and what clients keep beside them are equal.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lamina.formats.typed import (
    avro_text,
    evolution,
    json_schema,
    protobuf_descriptor,
    protobuf_file,
    protobuf_numbers,
    protobuf_rules,
    protobuf_schema,
    schema_defaults,
)
from lamina.formats.typed.schema_model import Type
from lamina.subjects import json_changes
from lamina.subjects.avro_names import in_full
from lamina.subjects.entries import AVRO, JSON, PROTOBUF, Schema

NONE = "NONE"
LEVELS = evolution.LEVELS


@dataclass(frozen=True)
class Meaning:
    """A parsed text: its identity, and the model by which it is compared."""

    language: str
    identity: str
    model: Any


def read(schema: Schema, others: Mapping[str, str]) -> Meaning:
    """Parses a schema with the texts that it refers to; raises SchemaError if one is invalid."""
    canonical: str
    model: Any
    if schema.language == PROTOBUF:
        canonical, model = _protobuf(schema.text, others)
    elif schema.language == JSON:
        canonical, model = _json(schema.text, others)
    else:
        canonical, model = _avro(schema.text, others)
    return Meaning(schema.language, identity_of(schema, canonical), model)


def refuse_unfit_defaults(meaning: Meaning) -> None:
    """Raises SchemaError for a default of Avro's that its field cannot have."""
    if meaning.language == AVRO:
        schema_defaults.refuse_unfit_defaults(meaning.model, is_json=False)


def identity_of(schema: Schema, canonical: str) -> str:
    """Returns the identity of a schema: a digest of its canonical text, references and so on."""
    named = [[each.name, each.subject, each.version] for each in schema.references]
    whole = json.dumps([schema.language, canonical, named, schema.beside])
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


def problems(new: Meaning, old: Sequence[Meaning], level: str) -> list[str]:
    """Returns why a schema may not follow others (oldest first); nothing if it may."""
    if level == NONE:
        return []
    former = old if level.endswith("TRANSITIVE") else old[-1:]
    found: list[str] = []
    for other in former:
        if other.language != new.language:
            found.append(f"the former schema is {other.language}, this one is {new.language}")
        elif new.language == PROTOBUF:
            found += protobuf_rules.file_problems(new.model, [other.model], level)
        else:
            found += _both_ways(new, other, level)
    return found[: evolution.PROBLEMS_MAX]


def _both_ways(new: Meaning, other: Meaning, level: str) -> list[str]:
    found: list[str] = []
    if level.startswith(("BACKWARD", "FULL")):
        found += _unreadable(new, other)
    if level.startswith(("FORWARD", "FULL")):
        back = _unreadable(other, new)
        found += [f"{each} (as the former schema reads it)" for each in back]
    return found


def _unreadable(reader: Meaning, writer: Meaning) -> list[str]:
    if reader.language == JSON:
        return json_changes.unreadable(reader.model, writer.model)
    return evolution.unreadable(reader.model, writer.model, by_names=True)


# ---------------------------------------------------------------------- the three languages


def _avro(text: str, others: Mapping[str, str]) -> tuple[str, Type]:
    document = avro_text.loads(text)
    model = avro_text.parse(text, _once(others))
    return json.dumps(in_full(document), sort_keys=True), model


def _once(others: Mapping[str, str]) -> list[str]:
    """Returns each text once: what several names refer to must not be defined twice."""
    return list(dict.fromkeys(others.values()))


def _json(text: str, others: Mapping[str, str]) -> tuple[str, json_changes.Document]:
    root = avro_text.loads(text)
    named = {name: avro_text.loads(each) for name, each in others.items()}
    document = json_changes.Document(root, named)
    json_changes.check(document)
    return json.dumps(root, sort_keys=True), document


def _protobuf(text: str, others: Mapping[str, str]) -> tuple[str, dict[str, Type]]:
    file = protobuf_schema.parse_file(text, others)
    imported = protobuf_schema.imported(file, others)
    model = protobuf_schema.messages(file, others)
    return protobuf_file.text_of(file, imported), model


def shown(schema: Schema, others: Callable[[], Mapping[str, str]], form: str) -> str:
    """Returns a schema's text as a client asks for it: Protobuf as text, or as a descriptor.

    `others` gives the texts that it names, which only another form needs: what was sent can be
    given back, whatever became of them.
    """
    if schema.language != PROTOBUF:
        return schema.text
    is_text = not protobuf_schema.is_descriptor(schema.text)
    if is_text == (form != "serialized"):
        return schema.text
    texts = others()
    file = protobuf_schema.parse_file(schema.text, texts)
    imported = protobuf_schema.imported(file, texts)
    if not is_text:
        return protobuf_file.text_of(file, imported)
    raw = protobuf_descriptor.descriptor_of(file, "default.proto", imported)
    return base64.b64encode(raw).decode()


# ---------------------------------------------------------------------- topics


_ENCODINGS = {AVRO: "avro", JSON: "json", PROTOBUF: "protobuf"}
_LANGUAGES = {encoding: language for language, encoding in _ENCODINGS.items()}


def encoding_of(language: str) -> str:
    """Returns the encoding of a topic whose values are written in a language."""
    return _ENCODINGS[language]


def record_of(schema: Schema, others: Mapping[str, str], former: str = "") -> Type:
    """Returns a schema as the columns of a topic; raises SchemaError where it has none.

    Of a file with several messages it is the one that the topic had before, by its full name, or
    else the first that no other message is made of.
    """
    if schema.language == PROTOBUF:
        file = protobuf_schema.parse_file(schema.text, others)
        return protobuf_schema.parse(schema.text, _chosen(file, former), others)
    if schema.language == JSON:
        return json_schema.parse(schema.text)
    return avro_text.parse(schema.text, _once(others))


def schema_of(kind: Type, encoding: str) -> Schema:
    """Returns a topic's schema as it is registered: in the language of the topic's values."""
    return Schema(_text_of(kind, encoding), _LANGUAGES[encoding])


def _chosen(file: protobuf_file.ProtoFile, former: str) -> str:
    """Returns the full name of the message that values are likely to be; "" for the first."""
    prefix = f"{file.scope}."
    names = [f"{prefix}{each.name}" for each in file.messages]
    if f".{former}" in names:
        return former
    used = {kind for each in file.messages for kind in _types_in(each)}
    return next((name[1:] for name in names if name not in used), "")


def _types_in(message: protobuf_file.ProtoMessage) -> Iterator[str]:
    yield from (field.type for field in message.fields)
    for inner in message.messages:
        yield from _types_in(inner)


def _text_of(kind: Type, encoding: str) -> str:
    if encoding == _ENCODINGS[PROTOBUF]:
        file = protobuf_numbers.file_of(kind)
        return protobuf_file.text_of(file, protobuf_schema.imported(file, {}))
    if encoding == _ENCODINGS[JSON]:
        return json_schema.text_of(kind)
    return avro_text.text_of(kind)
