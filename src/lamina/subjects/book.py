"""The state of a registry: subjects, versions, schemas by id, levels and modes.

Derived: rebuilt from the records of `_schemas` whenever a store is opened.

Rules.
1. An id belongs to one schema for good. A record that gives it to another schema is ignored.
2. Ids count up, and none is ever reused, whatever has been deleted since.
3. A new version's number is above all others of its subject, deleted ones included.
4. The values of the dictionaries are replaced, never changed, so that a copy is cheap (`copy`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from lamina.errors import SchemaError
from lamina.subjects import languages
from lamina.subjects.entries import (
    NUMBER_MAX,
    Entry,
    Gone,
    LevelSet,
    ModeSet,
    Registered,
    Schema,
    SubjectDeleted,
)
from lamina.subjects.refusal_codes import INVALID_SCHEMA, Refused

May: TypeAlias = Callable[[str], bool]
"""Returns whether the caller may see a subject."""
TEXTS_MAX = 1 << 22
"""How many characters the texts that a schema refers to may have in total."""
LEVEL, MODE = "BACKWARD", "READWRITE"


def anything(subject: str) -> bool:
    """Allows every subject."""
    del subject
    return True


@dataclass
class Book:
    """The state of a registry."""

    subjects: dict[str, dict[int, Registered]] = field(default_factory=dict)
    """The versions of each subject, deleted ones included, in order."""
    levels: dict[str, str] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    _places: dict[int, dict[tuple[str, int], None]] = field(default_factory=dict)
    """The subjects and versions of each schema, by its id."""
    _identities: dict[int, str] = field(default_factory=dict)
    _ids: dict[str, int] = field(default_factory=dict)
    _highest_id: int = 0

    # ------------------------------------------------------------------ what a record says

    def copy(self) -> Book:
        """Returns a copy that can change while others read this one."""
        return Book(
            **{name: dict(known) for name, known in self._dicts()}, _highest_id=self._highest_id
        )

    def _dicts(self) -> Iterator[tuple[str, dict[Any, Any]]]:
        return ((name, known) for name, known in vars(self).items() if isinstance(known, dict))

    def apply(self, entry: Entry) -> None:
        """Applies the next record; nobody else may be reading the book."""
        if isinstance(entry, Registered):
            self._register(entry)
        elif isinstance(entry, Gone):
            self._remove(entry.subject, entry.version)
        elif isinstance(entry, SubjectDeleted):
            versions = self.subjects.get(entry.subject)
            if versions is not None:
                self.subjects[entry.subject] = {
                    number: replace(each, is_deleted=each.is_deleted or number <= entry.version)
                    for number, each in versions.items()
                }
        else:
            self._set(entry)

    def _set(self, entry: LevelSet | ModeSet) -> None:
        if isinstance(entry, LevelSet):
            known, word, is_word = self.levels, entry.level, entry.level in languages.LEVELS
        else:
            known, word, is_word = self.modes, entry.mode, entry.mode in MODES
        if not word:
            known.pop(entry.subject, None)
        elif is_word:
            known[entry.subject] = word

    def _register(self, entry: Registered) -> None:
        identity = self._identity(entry.schema)
        if self._identities.get(entry.id, identity) != identity:
            return
        self._remove(entry.subject, entry.version)
        self._highest_id = max(self._highest_id, entry.id)
        self._identities[entry.id] = identity
        self._ids.setdefault(identity, entry.id)
        place = entry.subject, entry.version
        self._places[entry.id] = {**self._places.get(entry.id, {}), place: None}
        versions = {**self.subjects.get(entry.subject, {}), entry.version: entry}
        if entry.version < max(versions):
            versions = dict(sorted(versions.items()))
        self.subjects[entry.subject] = versions

    def _remove(self, subject: str, version: int) -> None:
        versions = dict(self.subjects.get(subject, {}))
        known = versions.pop(version, None)
        if known is None:
            return
        self.subjects[subject] = versions
        if not versions:
            del self.subjects[subject]
        places = dict(self._places[known.id])
        del places[subject, version]
        self._places[known.id] = places
        if not places:
            del self._places[known.id]
            identity = self._identities[known.id]
            if self._ids.get(identity) == known.id:
                del self._ids[identity]

    def _identity(self, schema: Schema) -> str:
        try:
            return languages.read(schema, self.texts(schema)).identity
        except (SchemaError, Refused):  # written by others, which may know more languages
            return languages.identity_of(schema, schema.text)

    # ------------------------------------------------------------------ schemas

    @property
    def next_id(self) -> int:
        """The id that the next new schema gets."""
        return self._highest_id + 1

    def id_of(self, identity: str) -> int | None:
        """Returns the id of a schema by its identity; None for a schema that is not there."""
        return self._ids.get(identity)

    def was_given(self, schema_id: int) -> bool:
        """Returns whether an id was ever given."""
        return schema_id in self._identities

    def identity(self, schema_id: int) -> str:
        """Returns the identity of a schema by its id."""
        return self._identities[schema_id]

    def places(self, schema_id: int, may: May = anything) -> list[Registered]:
        """Returns the versions that have a schema, of the subjects that the caller may see."""
        found = self._places.get(schema_id, {})
        return [self.subjects[name][number] for name, number in found if may(name)]

    def texts(self, schema: Schema, may: May = anything) -> dict[str, str]:
        """Returns the texts that a schema refers to, by name; each after those that it refers to.

        Raises Refused for a reference to what is not there, or may not be seen.
        """
        found: dict[str, str] = {}
        self._collect(schema, may, found, ())
        return found

    def _collect(
        self, schema: Schema, may: May, found: dict[str, str], above: tuple[str, ...]
    ) -> None:
        for each in schema.references:
            known = self.subjects.get(each.subject, {}).get(each.version)
            if known is None or not may(each.subject):
                raise Refused(
                    INVALID_SCHEMA,
                    f"the reference {each.name!r} is to subject {each.subject!r}, version"
                    f" {each.version}, which is not there",
                )
            if each.name in above or len(above) > 32:
                raise Refused(INVALID_SCHEMA, f"the reference {each.name!r} leads to itself")
            if each.name in found:
                continue
            self._collect(known.schema, may, found, (*above, each.name))
            found[each.name] = known.schema.text
            if sum(len(text) for text in found.values()) > TEXTS_MAX:
                raise Refused(INVALID_SCHEMA, "the schemas that are referred to are too long")

    # ------------------------------------------------------------------ subjects

    def versions(self, subject: str, *, deleted: bool = False) -> list[Registered]:
        """Returns the versions of a subject, oldest first."""
        known = self.subjects.get(subject, {})
        return [each for each in known.values() if deleted or not each.is_deleted]

    def next_version(self, subject: str) -> int:
        """Returns the number of a subject's next version."""
        return min(max(self.subjects.get(subject, {0: None})) + 1, NUMBER_MAX)

    def referring(self, subject: str, version: int) -> Iterator[Registered]:
        """Gives the versions that refer to one, deleted ones left out."""
        for versions in self.subjects.values():
            for each in versions.values():
                named = ((known.subject, known.version) for known in each.schema.references)
                if not each.is_deleted and (subject, version) in named:
                    yield each

    def level(self, subject: str) -> str:
        """Returns the compatibility that holds for a subject."""
        return self.levels.get(subject) or self.levels.get("", LEVEL)

    def mode(self, subject: str) -> str:
        """Returns the mode that holds for a subject."""
        override = self.modes.get("", MODE)
        return override if override == OVERRIDE else self.modes.get(subject) or override


OVERRIDE = "READONLY_OVERRIDE"
MODES = ("READWRITE", "READONLY", OVERRIDE, "IMPORT")
