"""The calls of the schema registry, as Confluent defines them: one row of a table for each.

Rules.
1. A row says what scope a key needs; the topic of a subject in the path must have the key's prefix.
2. A caller that may not see a subject learns nothing of it: neither its name nor its schema by id.
3. A row never writes by itself: it decides, and `SchemaRegistry.change` makes that durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from starlette.datastructures import QueryParams

from lamina.errors import InvalidRequest
from lamina.server.auth import Caller
from lamina.server.kafka.cluster_metadata import cluster_id
from lamina.store.store import Store
from lamina.subjects import changes, languages
from lamina.subjects import refusal_codes as codes
from lamina.subjects.book import Book
from lamina.subjects.changes import asked, checked_subject, checked_version
from lamina.subjects.entries import (
    LANGUAGES,
    NUMBER_MAX,
    Entry,
    LevelSet,
    Registered,
    described,
    topic_of,
)
from lamina.subjects.refusal_codes import Refused, no_subject
from lamina.wire.operations import Scope

_Made = TypeVar("_Made")
_ANY_CONTEXT = ":*:"
_UNKEPT = "is not kept here"


@dataclass(frozen=True)
class Call:
    """One request: who asks, of which store, and what its path, query and body say."""

    caller: Caller
    store: Store
    path: Mapping[str, str]
    query: QueryParams
    body: Mapping[str, Any]

    @property
    def book(self) -> Book:
        """What is registered now."""
        return self.store.schema_registry().book()

    @property
    def subject(self) -> str:
        """The subject that the path names; "" where it names none."""
        named = self.path.get("subject")
        return "" if named is None else checked_subject(named)

    @property
    def version(self) -> int | None:
        """The version that the path names; None for the latest."""
        return checked_version(self.path["version"])

    @property
    def id(self) -> int:
        """The id that the path names."""
        text = self.path["id"]
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= NUMBER_MAX):
            raise Refused(codes.SCHEMA_UNKNOWN, f"Schema {text[:40]} not found")
        return int(text)

    def may(self, subject: str) -> bool:
        """Returns whether the caller may see a subject."""
        return topic_of(subject).startswith(self.caller.prefix)

    def is_set(self, name: str) -> bool:
        """Returns whether a switch in the query is on."""
        return self.query.get(name, "").lower() == "true"

    def change(self, decide: Callable[[Book], tuple[list[Entry], _Made]]) -> _Made:
        """Makes a change durable."""
        return self.store.schema_registry().change(decide)

    def page(self, found: list[_Made]) -> list[_Made]:
        """Returns the part of a list that the query asks for."""
        first, count = (self._number(name) for name in ("offset", "limit"))
        return found[max(first, 0) :][: count if count > 0 else None]

    def _number(self, name: str) -> int:
        text = self.query.get(name, "-1")
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
            raise InvalidRequest(f"{name} must be a whole number, not {text[:80]!r}")
        return int(text)


Answer: TypeAlias = Callable[[Call], Any]


class Row(NamedTuple):
    """A call of the registry: verb, path, what a key needs for it, and what answers."""

    verb: str
    path: str
    scope: Scope
    answer: Answer
    is_text: bool = False
    lists: tuple[str, ...] = ()
    """Names that the query may give more than once."""


# ---------------------------------------------------------------------- schemas


def _types(call: Call) -> list[str]:
    del call
    return list(LANGUAGES)


def _places(call: Call) -> list[Registered]:
    found = call.book.places(call.id, call.may)
    if not found:
        raise Refused(codes.SCHEMA_UNKNOWN, f"Schema {call.id} not found")
    return found


def _there(call: Call) -> list[Registered]:
    deleted = call.is_set("deleted")
    return [each for each in _places(call) if deleted or not each.is_deleted]


def _shown(call: Call, version: Registered) -> dict[str, Any]:
    """A schema as JSON, its text in the form that is asked for."""
    schema, form = version.schema, call.query.get("format", "")
    text = languages.shown(schema, lambda: call.book.texts(schema), form)
    return described(schema) | {"schema": text}


def _by_id(call: Call) -> dict[str, Any]:
    found = _shown(call, _places(call)[0])
    more = {"maxId": call.book.next_id - 1} if call.is_set("fetchMaxId") else {}
    return found | more


def _text_by_id(call: Call) -> str:
    return str(_by_id(call)["schema"])


def _subjects_of_id(call: Call) -> list[str]:
    found = [each.subject for each in _there(call)]
    return call.page(sorted({name for name in found if call.query.get("subject", name) == name}))


def _versions_of_id(call: Call) -> list[dict[str, Any]]:
    found = [{"subject": each.subject, "version": each.version} for each in _there(call)]
    return call.page(sorted(found, key=lambda each: (str(each["subject"]), each["version"])))


def _schemas(call: Call) -> list[dict[str, Any]]:
    found = []
    for name in _names(call):
        versions = call.book.versions(name, deleted=call.is_set("deleted"))
        chosen = versions[-1:] if call.is_set("latestOnly") else versions
        found += [_version(call, each) for each in chosen]
    return call.page(found)


# ---------------------------------------------------------------------- subjects


def _names(call: Call) -> list[str]:
    prefix = call.query.get("subjectPrefix", "").removeprefix(_ANY_CONTEXT).removeprefix(":.:")
    only, deleted = call.is_set("deletedOnly"), call.is_set("deleted")
    book = call.book
    return [
        name
        for name in sorted(book.subjects)
        if call.may(name)
        and name.startswith(prefix)
        and (not only or not book.versions(name))
        and book.versions(name, deleted=deleted or only)
    ]


def _subjects(call: Call) -> list[str]:
    return call.page(_names(call))


def _lookup(call: Call) -> dict[str, Any]:
    given, deleted = asked(call.body), call.is_set("deleted")
    found = changes.looked_up(call.book, call.subject, given.schema, call.may, deleted=deleted)
    return _version(call, found)


def _version(call: Call, version: Registered) -> dict[str, Any]:
    placed = {"subject": version.subject, "version": version.version, "id": version.id}
    return placed | _shown(call, version)


def _delete_subject(call: Call) -> list[int]:
    permanent = call.is_set("permanent")
    return call.change(
        lambda book: changes.deleting_subject(book, call.subject, permanent=permanent)
    )


def _versions(call: Call) -> list[int]:
    only = call.is_set("deletedOnly")
    known = call.book.versions(call.subject, deleted=only or call.is_set("deleted"))
    if not known:
        raise no_subject(call.subject)
    return call.page([each.version for each in known if each.is_deleted or not only])


def _register(call: Call) -> dict[str, Any]:
    given = asked(call.body)
    made = call.change(lambda book: changes.registering(book, call.subject, given, call.may))
    return {"id": made.id, "version": made.version} | described(made.schema)


def _one_version(call: Call) -> dict[str, Any]:
    found = changes.found(call.book, call.subject, call.version, deleted=call.is_set("deleted"))
    return _version(call, found)


def _latest_with(call: Call) -> dict[str, Any]:
    """The latest version beside which all of some properties are kept."""
    keys, values = (call.query.getlist(name) for name in ("key", "value"))
    if len(keys) != len(values):
        raise InvalidRequest(f"each key has a value: {len(keys)} keys have {len(values)} values")
    known = call.book.versions(call.subject, deleted=call.is_set("deleted"))
    if not known:
        raise no_subject(call.subject)
    for each in reversed(known):
        metadata = described(each.schema).get("metadata") or {}
        found = metadata.get("properties") or {}
        if isinstance(found, dict) and all(map(_is_within(found), keys, values)):
            return _version(call, each)
    raise Refused(codes.SCHEMA_UNKNOWN, "Schema not found")


def _is_within(properties: Mapping[str, Any]) -> Callable[[str, str], bool]:
    return lambda key, value: properties.get(key) == value


def _text_of_version(call: Call) -> str:
    return str(_one_version(call)["schema"])


def _referring(call: Call) -> list[int]:
    found = changes.found(call.book, call.subject, call.version, deleted=True)
    named = call.book.referring(found.subject, found.version)
    return call.page(sorted({each.id for each in named if call.may(each.subject)}))


def _delete_version(call: Call) -> int:
    permanent = call.is_set("permanent")
    return call.change(
        lambda book: changes.deleting_version(book, call.subject, call.version, permanent=permanent)
    )


# ---------------------------------------------------------------------- compatibility


def _compatible(call: Call) -> dict[str, Any]:
    book, subject = call.book, call.subject
    meaning = changes.read(book, asked(call.body).schema, call.may)
    level = book.level(subject)
    former = book.versions(subject)
    if "version" in call.path:
        level = level.removesuffix("_TRANSITIVE")
        number = call.version
        former = [changes.found(book, subject, number)] if former or number else []
    problems = changes.compared(book, meaning, former, level)
    told = {"is_compatible": not problems}
    return told | ({"messages": problems} if call.is_set("verbose") else {})


# ---------------------------------------------------------------------- levels and modes


def _level(call: Call) -> dict[str, str]:
    subject = call.subject
    if subject and subject not in call.book.levels and not call.is_set("defaultToGlobal"):
        why = f"Subject '{subject}' does not have subject-level compatibility configured"
        raise Refused(codes.NO_LEVEL, why)
    return {"compatibilityLevel": call.book.level(subject)}


def _set_level(call: Call) -> dict[str, str]:
    for name, value in call.body.items():
        if name not in ("compatibility", "compatibilityLevel", "normalize") and value is not None:
            raise Refused(codes.NOT_PERMITTED, f"{name[:80]!r} {_UNKEPT}")
    given = call.body.get("compatibility") or call.body.get("compatibilityLevel")
    level = changes.checked_level(given)
    call.change(lambda book: ([LevelSet(call.subject, level)], None))
    return {"compatibility": level}


def _delete_level(call: Call) -> dict[str, str]:
    was = call.change(lambda book: changes.taking_back(book, call.subject, is_level=True))
    return {"compatibilityLevel": was}


def _mode(call: Call) -> dict[str, str]:
    subject = call.subject
    if subject and subject not in call.book.modes and not call.is_set("defaultToGlobal"):
        why = f"Subject '{subject}' does not have subject-level mode configured"
        raise Refused(codes.NO_MODE, why)
    return {"mode": call.book.mode(subject)}


def _set_mode(call: Call) -> dict[str, str]:
    mode, force = changes.checked_mode(call.body.get("mode")), call.is_set("force")
    call.change(lambda book: (changes.setting_mode(book, call.subject, mode, force=force), None))
    return {"mode": mode}


def _delete_mode(call: Call) -> dict[str, str]:
    was = call.change(lambda book: changes.taking_back(book, call.subject, is_level=False))
    return {"mode": was}


# ---------------------------------------------------------------------- the registry itself


def _contexts(call: Call) -> list[str]:
    return call.page(["."])


def _cluster(call: Call) -> dict[str, Any]:
    clusters = {"kafka-cluster": cluster_id(call.store), "schema-registry-cluster": "lamina"}
    return {"id": "", "scope": {"path": [], "clusters": clusters}}


def _settings(head: str, get: Answer, put: Answer, delete: Answer) -> Iterator[Row]:
    for path in (head, f"{head}/{{subject}}"):
        yield Row("GET", path, "read", get)
        yield Row("PUT", path, "admin", put)
        yield Row("DELETE", path, "admin", delete)


_SUBJECT, _VERSIONS = "subjects/{subject}", "subjects/{subject}/versions"
_VERSION, _COMPATIBLE = f"{_VERSIONS}/{{version}}", "compatibility/subjects/{subject}/versions"
ROWS: tuple[Row, ...] = (
    Row("GET", "v1/metadata/id", "read", _cluster),
    Row("GET", "contexts", "read", _contexts),
    Row("GET", "schemas", "read", _schemas),
    Row("GET", "schemas/types", "read", _types),
    Row("GET", "schemas/ids/{id}", "read", _by_id),
    Row("GET", "schemas/ids/{id}/schema", "read", _text_by_id, is_text=True),
    Row("GET", "schemas/ids/{id}/subjects", "read", _subjects_of_id),
    Row("GET", "schemas/ids/{id}/versions", "read", _versions_of_id),
    Row("GET", "subjects", "read", _subjects),
    Row("POST", _SUBJECT, "read", _lookup),
    Row("DELETE", _SUBJECT, "admin", _delete_subject),
    Row("GET", f"{_SUBJECT}/metadata", "read", _latest_with, lists=("key", "value")),
    Row("GET", _VERSIONS, "read", _versions),
    Row("POST", _VERSIONS, "write", _register),
    Row("GET", _VERSION, "read", _one_version),
    Row("DELETE", _VERSION, "admin", _delete_version),
    Row("GET", f"{_VERSION}/schema", "read", _text_of_version, is_text=True),
    Row("GET", f"{_VERSION}/referencedby", "read", _referring),
    Row("POST", _COMPATIBLE, "read", _compatible),
    Row("POST", f"{_COMPATIBLE}/{{version}}", "read", _compatible),
    *_settings("config", _level, _set_level, _delete_level),
    *_settings("mode", _mode, _set_mode, _delete_mode),
)
"""Every call; a path's names stand in braces."""
