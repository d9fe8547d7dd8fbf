"""Whether one JSON Schema accepts what another one allowed, keyword by keyword.

The rules are those of Confluent's registry: a new property is a problem if the former schema was
open (`additionalProperties` not false), because documents may already have a property of that name
with another meaning. A keyword that cannot be compared (`if`, `contains`, …) must not change.

Rules.
1. Documents may be hostile: references may form circles, so the work is bounded.
2. What is not understood counts as a problem, never as compatible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

from lamina.errors import SchemaError
from lamina.formats.typed.schema_model import joined

STEPS_MAX, DEPTH_MAX = 50_000, 64
"""How many pairs of schemas one comparison may look at, and how deep they may lie."""
_ANNOTATIONS = (
    *("$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated"),
    *("$defs", "definitions", "readOnly", "writeOnly"),
)
"""Keywords that do not affect which values are accepted."""
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_SUMS = ("anyOf", "oneOf")
_AS_IT_IS = (
    *("if", "then", "else", "not", "contains", "minContains", "maxContains", "propertyNames"),
    *("patternProperties", "dependencies", "dependentRequired", "dependentSchemas", "pattern"),
    *("unevaluatedProperties", "unevaluatedItems"),
)
"""Keywords that may be removed, but not added or changed."""
_AT_MOST = ("maxLength", "maximum", "exclusiveMaximum", "maxItems", "maxProperties")
_AT_LEAST = ("minLength", "minimum", "exclusiveMinimum", "minItems", "minProperties")
Node: TypeAlias = Any
"""A schema inside a document: an object, true or false."""


@dataclass(frozen=True)
class Document:
    """A parsed text, with those that it refers to by name."""

    root: Node
    others: Mapping[str, Node]

    def target(self, reference: str) -> Node:
        """Returns the schema that a `$ref` leads to; raises SchemaError if it leads nowhere."""
        base, _, inside = reference.partition("#")
        found = self.root
        if base and base != self._own:
            if base not in self.others:
                raise SchemaError(f"$ref {reference[:200]!r} is in no text that is referred to")
            found = self.others[base]
        for step in filter(None, unquote(inside).split("/")):
            word = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and word in found:
                found = found[word]
            elif isinstance(found, list) and word.isascii() and word.isdigit():
                at = int(word[:9])
                found = found[at] if at < len(found) else None
            else:
                raise SchemaError(f"there is no {reference[:200]}")
        return found

    @property
    def _own(self) -> Any:
        return self.root.get("$id") if isinstance(self.root, dict) else None


def check(document: Document) -> None:
    """Raises SchemaError for what is no JSON Schema, or refers to what is not there."""
    for given in _schemas(document.root):
        reference = given.get("$ref")
        if reference is not None:
            if not isinstance(reference, str):
                raise SchemaError("$ref is a text")
            if not reference.startswith("#") or "/" in reference:
                document.target(reference)
        kinds = given.get("type", [])
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if kind not in _TYPES:
                raise SchemaError(f"{str(kind)[:80]!r} is not a type of JSON")
        if not isinstance(given.get("required", []), list):
            raise SchemaError("required is a list of names")
        if not isinstance(given.get("properties", {}), dict):
            raise SchemaError("properties are an object")


def _schemas(given: Node) -> Iterator[dict[str, Any]]:
    """Gives every schema inside one; raises SchemaError for what is none."""
    if isinstance(given, bool):
        return
    if not isinstance(given, dict):
        raise SchemaError(f"{str(given)[:80]} is not a JSON schema")
    yield given
    for word in ("properties", "patternProperties", "$defs", "definitions"):
        inside = given.get(word)
        for each in inside.values() if isinstance(inside, dict) else ():
            yield from _schemas(each)
    for word in (*_SUMS, "allOf"):
        if word in given and not (isinstance(given[word], list) and given[word]):
            raise SchemaError(f"{word} is a list of schemas")
        for each in given.get(word, ()):
            yield from _schemas(each)
    for word in ("items", "additionalProperties", "not"):
        inside = given.get(word)
        if isinstance(inside, dict):
            yield from _schemas(inside)


def unreadable(reader: Document, writer: Document) -> list[str]:
    """Returns what a reader's schema refuses of what a writer's allowed, each with its path."""
    if reader == writer:
        return []
    return _Comparison(reader, writer).differences(reader.root, writer.root, "")


class _Comparison:
    """One comparison; pairs that are under way are taken as equal."""

    def __init__(self, reader: Document, writer: Document) -> None:
        self._reader = reader
        self._writer = writer
        self._open: set[tuple[int, int]] = set()
        self._left = STEPS_MAX

    def differences(self, reader: Node, writer: Node, path: str) -> list[str]:
        self._left -= 1
        if self._left < 0 or len(self._open) > DEPTH_MAX:
            raise SchemaError("the schemas are too large to be compared", field=path)
        reader, writer = _resolved(self._reader, reader), _resolved(self._writer, writer)
        if _takes_all(reader) or writer is False or reader is writer:
            return []
        if reader is False or _takes_all(writer):
            return [f"{path or 'the schema'}: something was allowed that is not any longer"]
        if not isinstance(reader, dict) or not isinstance(writer, dict):
            return [f"{path or 'the schema'}: this is no JSON schema"]
        pair = id(reader), id(writer)
        if pair in self._open:
            return []
        self._open.add(pair)
        try:
            return self._objects(reader, writer, path)
        finally:
            self._open.discard(pair)

    def _objects(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        combined = self._combined(reader, writer, path)
        if combined is not None:
            return combined
        found = _types(reader, writer, path) or _values(reader, writer, path)
        found += _limits(reader, writer, path)
        found += self._properties(reader, writer, path)
        found += self._items(reader, writer, path)
        return found

    def _combined(
        self, reader: dict[str, Any], writer: dict[str, Any], path: str
    ) -> list[str] | None:
        """Compares schemas of which one is made of others; None where neither is."""
        for word in _SUMS:
            if word in writer:
                rest = _without(writer, word)
                return [
                    problem
                    for each in _listed(writer, word)
                    for problem in self.differences(reader, _merged(rest, each), path)
                ]
        if "allOf" in reader:
            rest = _without(reader, "allOf")
            parts = [*_listed(reader, "allOf"), *([rest] if rest else [])]
            return [p for each in parts for p in self.differences(each, writer, path)]
        for word in _SUMS:
            if word in reader:
                rest = _without(reader, word)
                for each in _listed(reader, word):
                    if not self.differences(_merged(rest, each), writer, path):
                        return []
                return [f"{path or 'the schema'}: no schema of {word} accepts what was allowed"]
        if "allOf" in writer:
            rest = _without(writer, "allOf")
            for each in (*_listed(writer, "allOf"), *([rest] if rest else [])):
                if not self.differences(reader, each, path):
                    return []
            return [f"{path or 'the schema'}: allOf allowed what is not accepted any longer"]
        return None

    def _properties(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        ours, theirs = _properties(reader), _properties(writer)
        more, had = reader.get("additionalProperties", True), writer.get("additionalProperties")
        had = True if had is None else had
        found = []
        for name, each in theirs.items():
            here = joined(path, name)
            if name in ours:
                found += self.differences(ours[name], each, here)
            elif more is not True:
                found += self.differences(more, each, here)
        for name, each in ours.items():
            if name not in theirs and had is not False:
                problem = self.differences(each, had, joined(path, name))
                if problem and had is True:
                    told = "the property is new, and any other was allowed in its place"
                    problem = [f"{joined(path, name)}: {told}"]
                found += problem
        if _has_objects(writer):
            found += self.differences(more, had, joined(path, "*"))
        return found + _required(reader, writer, ours, path)

    def _items(self, reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
        here = joined(path, "[]")
        ours, theirs = _tuple(reader), _tuple(writer)
        more, had = _rest(reader), _rest(writer)
        found = []
        for at in range(max(len(ours), len(theirs))):
            one = ours[at] if at < len(ours) else more
            other = theirs[at] if at < len(theirs) else had
            found += self.differences(one, other, here)
        return found + (self.differences(more, had, here) if more != had else [])


def _resolved(document: Document, given: Node) -> Node:
    for _ in range(32):
        if not isinstance(given, dict) or "$ref" not in given:
            return given
        reference = given["$ref"]
        if not isinstance(reference, str):
            raise SchemaError("$ref is a text")
        given = document.target(reference)
    raise SchemaError("$ref leads to another one, and so on")


def _without(given: dict[str, Any], word: str) -> dict[str, Any]:
    """What a schema says of values, but for one keyword."""
    return {
        name: value for name, value in given.items() if name != word and name not in _ANNOTATIONS
    }


def _takes_all(given: Node) -> bool:
    if not isinstance(given, dict):
        return given is True
    rest = _without(given, "")
    if len(rest) == 1 and next(iter(rest)) in _SUMS:
        return any(_takes_all(each) for each in _listed(rest, next(iter(rest))))
    return not rest


def _merged(rest: dict[str, Any], branch: Node) -> Node:
    """A branch with what stands beside it; one or the other where they would be in each other."""
    if not rest:
        return branch
    return {**rest, **branch} if isinstance(branch, dict) and "$ref" not in branch else branch


def _listed(given: dict[str, Any], word: str) -> list[Node]:
    return given[word] if isinstance(given[word], list) else []


def _types(reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
    ours, theirs = _kinds(reader), _kinds(writer)
    if "number" in ours:
        ours = ours | {"integer"}
    lost = theirs - ours
    if not lost:
        return []
    if len(lost) == len(_TYPES) - len(ours & set(_TYPES)) and "type" not in writer:
        return [f"{path or 'the schema'}: any type was allowed"]
    return [f"{path or 'the schema'}: {', '.join(sorted(lost))} was allowed"]


def _kinds(given: dict[str, Any]) -> set[str]:
    kinds = given.get("type")
    if kinds is None:
        return set(_TYPES)
    return {str(each) for each in (kinds if isinstance(kinds, list) else [kinds])}


def _values(reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
    ours, theirs = _allowed(reader), _allowed(writer)
    if ours is None:
        return []
    if theirs is None:
        return [f"{path or 'the schema'}: other values were allowed than those listed"]
    lost = [each for each in theirs if each not in ours]
    told = ", ".join(str(each)[:40] for each in lost[:5])
    return [f"{path or 'the schema'}: {told} was allowed"] if lost else []


def _allowed(given: dict[str, Any]) -> list[Any] | None:
    if "const" in given:
        return [given["const"]]
    listed = given.get("enum")
    return listed if isinstance(listed, list) else None


def _limits(reader: dict[str, Any], writer: dict[str, Any], path: str) -> list[str]:
    here, found = path or "the schema", []
    for word in (*_AT_MOST, *_AT_LEAST):
        if word in reader and not _is_within(reader[word], writer.get(word), word in _AT_MOST):
            found.append(f"{here}: {word} is stricter")
    step, former = reader.get("multipleOf"), writer.get("multipleOf")
    if step is not None and not _is_multiple(former, step):
        found.append(f"{here}: multipleOf is stricter")
    if reader.get("uniqueItems") is True and writer.get("uniqueItems") is not True:
        found.append(f"{here}: items have to be unique now")
    for word in _AS_IT_IS:
        if word in reader and reader[word] != writer.get(word):
            found.append(f"{here}: {word} is new, or another one")
    return found


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _is_within(limit: Any, former: Any, is_upper: bool) -> bool:
    if limit == former:
        return True
    if not _is_number(limit) or not _is_number(former):
        return False
    return bool(limit >= former if is_upper else limit <= former)


def _is_multiple(former: Any, step: Any) -> bool:
    if former == step:
        return True
    if not _is_number(former) or not _is_number(step) or not step:
        return False
    try:
        return bool(former % step == 0)
    except (OverflowError, ArithmeticError):
        return False


def _properties(given: dict[str, Any]) -> dict[str, Any]:
    found = given.get("properties")
    return found if isinstance(found, dict) else {}


def _has_objects(given: dict[str, Any]) -> bool:
    return "object" in _kinds(given)


def _required(
    reader: dict[str, Any], writer: dict[str, Any], ours: dict[str, Any], path: str
) -> list[str]:
    asked, former = reader.get("required", []), writer.get("required", [])
    asked, former = (each if isinstance(each, list) else [] for each in (asked, former))
    found = []
    for name in asked:
        given = ours.get(name) if isinstance(name, str) else None
        has_default = isinstance(given, dict) and "default" in given
        if name not in former and not has_default:
            found.append(f"{joined(path, str(name)[:80])}: it is required now, without a default")
    return found


def _tuple(given: dict[str, Any]) -> list[Node]:
    for word in ("prefixItems", "items"):
        if isinstance(given.get(word), list):
            found: list[Node] = given[word]
            return found
    return []


def _rest(given: dict[str, Any]) -> Node:
    """What items behind those of a tuple, or all of them, have to be."""
    if isinstance(given.get("items"), list):
        return given.get("additionalItems", True)
    return given.get("items", True)
