"""The schemas of a typed topic (`schemas.json`): every version, beside `topic.json`.

    {"version": 1, "topic": "orders", "created_ms": …, "encoding": "avro", "framing": "registry",
     "key": "id", "compatibility": "BACKWARD",
     "schemas": [{"version": 1, "id": 1, "text": "…"}], "crc32": "…"}

Truth: records do not say what they are, but for the id in front of a value, which is one of these.
`created_ms` is that of the topic: a file that an older topic of the same name left says nothing.
`text` is the canonical text of a schema (`formats/typed/avro_text.py`). If the file is lost, the
records are still there, as bytes; `set_schema` gives them a schema again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json
from lamina.formats.documents.topic_file import TopicFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1
ID_MAX = (1 << 31) - 1
_FIELDS = {
    "version": int,
    "topic": str,
    "created_ms": int,
    "encoding": str,
    "framing": str,
    "key": str,
    "compatibility": str,
    "schemas": list,
}
_ENTRY = {"version": int, "id": int, "text": str}


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of a schema."""

    version: int
    id: int
    text: str


@dataclass(frozen=True, slots=True)
class TopicSchemas:
    """What is written about the values of a topic."""

    topic: str
    created_ms: int
    encoding: str
    framing: str
    key: str
    compatibility: str
    schemas: tuple[Entry, ...]

    def is_of(self, about: TopicFile) -> bool:
        """Returns whether this is about a topic, and not an older one of the same name."""
        return (self.topic, self.created_ms) == (about.name, about.created_ms)


def encode(schemas: TopicSchemas) -> bytes:
    """Encodes the file."""
    fields: dict[str, Any] = {"version": VERSION, **asdict(schemas)}
    fields["schemas"] = list(fields["schemas"])
    return (json.dumps(fields | {strict_json.SEAL: strict_json.seal(fields)}) + "\n").encode()


def decode(buffer: Buffer) -> TopicSchemas:
    """Decodes the file; raises CorruptData or NewerFormat for what is not exactly one."""
    document = strict_json.parse(buffer)
    strict_json.check_version(document, VERSION)
    fields = strict_json.check_seal(document)
    strict_json.check_fields(fields, "the topic's schemas", _FIELDS)
    del fields["version"]
    entries = []
    for number, given in enumerate(fields["schemas"], start=1):
        if not isinstance(given, dict):
            raise CorruptData(
                "a schema is not an object", expected="an object", found=repr(given)[:80]
            )
        strict_json.check_fields(given, "a schema", _ENTRY)
        if given["version"] != number or not 0 < given["id"] <= ID_MAX:
            raise CorruptData(
                "versions do not count up from 1, or an id is out of range",
                expected=f"version {number}",
                found=f"version {given['version']}, id {given['id']}",
            )
        entries.append(Entry(**given))
    return TopicSchemas(**{**fields, "schemas": tuple(entries)})
