"""The records of `_schemas`: keys and values in JSON, as Confluent's registry writes its own.

    key                                                             value
    {"keytype":"SCHEMA","subject":"s","version":1,"magic":1}        {"subject":"s","version":1,
                                                                     "id":1,"schema":"…",
                                                                     "deleted":false}
    the same, for good                                              none
    {"keytype":"DELETE_SUBJECT","subject":"s","magic":0}            {"subject":"s","version":3}
    {"keytype":"CONFIG","subject":"s","magic":0}                    {"compatibilityLevel":"FULL"}
    {"keytype":"MODE","subject":"s","magic":0}                      {"mode":"READONLY"}

`schemaType` (AVRO is left out), `references`, `metadata` and `ruleSet` stand beside `schema`. A
subject of null is the whole registry; no value takes a level or a mode back.

Rules.
1. Only the last record of a key counts: the topic may be compacted.
2. `decode` never raises: for a record that it does not understand it returns None.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

TOPIC = "_schemas"
VALUE, KEY = "-value", "-key"
"""What the subjects of a topic's values and keys append to its name."""
NUMBER_MAX = (1 << 31) - 1
SUBJECT_MAX = 1024
"""How many characters a subject's name may have."""
AVRO, JSON, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
LANGUAGES = (JSON, PROTOBUF, AVRO)
BESIDE = ("metadata", "ruleSet")
"""What clients keep beside a schema: stored and returned as it is, never interpreted."""
REFERENCES_MAX = 256


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to another schema: a name, and the version of a subject that it stands for."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as it was sent; `beside` is JSON text of what clients keep with it, or empty."""

    text: str
    language: str = AVRO
    references: tuple[Reference, ...] = ()
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Registered:
    """A version of a subject, which may be soft-deleted."""

    subject: str
    version: int
    id: int
    schema: Schema
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Gone:
    """A version of a subject is deleted permanently."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SubjectDeleted:
    """A subject is soft-deleted up to a version."""

    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class LevelSet:
    """The compatibility of a subject, or of the whole registry (""); no level takes it back."""

    subject: str
    level: str = ""


@dataclass(frozen=True, slots=True)
class ModeSet:
    """The mode of a subject, or of the whole registry (""); no mode takes it back."""

    subject: str
    mode: str = ""


Entry: TypeAlias = Registered | Gone | SubjectDeleted | LevelSet | ModeSet


def described(schema: Schema) -> dict[str, Any]:
    """Returns a schema as JSON has it, in records and in answers."""
    found: dict[str, Any] = {}
    if schema.language != AVRO:
        found["schemaType"] = schema.language
    if schema.references:
        found["references"] = [
            {"name": each.name, "subject": each.subject, "version": each.version}
            for each in schema.references
        ]
    found |= json.loads(schema.beside) if schema.beside else {}
    return found | {"schema": schema.text}


def encode(entry: Entry) -> tuple[bytes, bytes | None]:
    """Returns the key and the value of a record."""
    key: dict[str, Any]
    value: dict[str, Any] | None
    if isinstance(entry, Registered):
        key = _version_key(entry.subject, entry.version)
        value = {"subject": entry.subject, "version": entry.version, "id": entry.id}
        value |= described(entry.schema) | {"deleted": entry.is_deleted}
    elif isinstance(entry, Gone):
        key, value = _version_key(entry.subject, entry.version), None
    elif isinstance(entry, SubjectDeleted):
        key = {"keytype": "DELETE_SUBJECT", "subject": entry.subject, "magic": 0}
        value = {"subject": entry.subject, "version": entry.version}
    elif isinstance(entry, LevelSet):
        key = {"keytype": "CONFIG", "subject": entry.subject or None, "magic": 0}
        value = {"compatibilityLevel": entry.level} if entry.level else None
    else:
        key = {"keytype": "MODE", "subject": entry.subject or None, "magic": 0}
        value = {"mode": entry.mode} if entry.mode else None
    return _bytes(key), None if value is None else _bytes(value)


def _version_key(subject: str, version: int) -> dict[str, Any]:
    return {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}


def _bytes(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def decode(key: bytes | None, value: bytes | None) -> Entry | None:
    """Returns what a record says; None for one that says nothing to a registry."""
    named, said = _document(key), _document(value)
    if named is None or (said is None and value is not None):
        return None
    kind, subject = named.get("keytype"), named.get("subject")
    if kind in ("CONFIG", "MODE"):
        return _setting(str(kind), subject, said)
    if not is_subject(subject):
        return None
    if kind == "SCHEMA":
        version = named.get("version")
        if not is_number(version):
            return None
        return Gone(subject, version) if said is None else _registered(subject, version, said)
    if kind == "DELETE_SUBJECT" and said is not None and is_number(said.get("version")):
        return SubjectDeleted(subject, said["version"])
    return None


def is_number(given: Any) -> TypeGuard[int]:
    """Returns whether something can be an id or a version."""
    return type(given) is int and 0 < given <= NUMBER_MAX


def is_subject(given: Any) -> TypeGuard[str]:
    """Returns whether something can be the name of a subject."""
    if not isinstance(given, str) or not 0 < len(given) <= SUBJECT_MAX:
        return False
    return given.isprintable() and not given.startswith(":.")


def topic_of(subject: str) -> str:
    """Returns the topic whose values or keys a subject describes, or else the subject itself."""
    for suffix in (VALUE, KEY):
        if subject.endswith(suffix):
            return subject.removesuffix(suffix)
    return subject


def references_of(given: Any) -> tuple[Reference, ...] | None:
    """Reads a list of references; None for what is none."""
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > REFERENCES_MAX:
        return None
    found = []
    for each in given:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            return None
        if not is_subject(each.get("subject")) or not is_number(each.get("version")):
            return None
        found.append(Reference(each["name"], each["subject"], each["version"]))
    return tuple(found)


def beside_of(given: dict[str, Any]) -> str:
    """Returns what is to be kept beside a schema, as JSON text in one spelling."""
    kept = {name: given[name] for name in BESIDE if given.get(name) is not None}
    return json.dumps(kept, sort_keys=True, separators=(",", ":")) if kept else ""


def _registered(subject: str, version: int, said: dict[str, Any]) -> Registered | None:
    language, references = said.get("schemaType", AVRO), references_of(said.get("references"))
    text, identity = said.get("schema"), said.get("id")
    is_known = language in LANGUAGES and isinstance(text, str) and is_number(identity)
    if not is_known or references is None or not isinstance(identity, int):
        return None
    schema = Schema(str(text), str(language), references, beside_of(said))
    return Registered(subject, version, identity, schema, said.get("deleted") is True)


def _setting(kind: str, subject: Any, said: dict[str, Any] | None) -> Entry | None:
    if subject is not None and not is_subject(subject):
        return None
    word = "" if said is None else said.get("compatibilityLevel" if kind == "CONFIG" else "mode")
    if not isinstance(word, str):
        return None
    return LevelSet(subject or "", word) if kind == "CONFIG" else ModeSet(subject or "", word)


def _document(data: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(data) if data else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
