"""What a request writes: the entries that carry it out, or a refusal. Nothing is written here.

Rules.
1. The same schema has the same id under every subject, and registering it again changes nothing.
2. A version that others refer to is not deleted, and only a soft-deleted one is deleted for good.
3. A schema may refer only to subjects that its sender may see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lamina.errors import SchemaError
from lamina.formats.typed import avro_text
from lamina.subjects import languages
from lamina.subjects import refusal_codes as codes
from lamina.subjects.book import MODE, MODES, Book, May, anything
from lamina.subjects.entries import (
    AVRO,
    BESIDE,
    LANGUAGES,
    NUMBER_MAX,
    Entry,
    Gone,
    LevelSet,
    ModeSet,
    Registered,
    Schema,
    SubjectDeleted,
    beside_of,
    is_number,
    is_subject,
    references_of,
)
from lamina.subjects.languages import Meaning
from lamina.subjects.refusal_codes import Refused, no_subject, no_version

READWRITE, IMPORT = MODE, "IMPORT"
_KNOWN = ("schema", "schemaType", "references", "metadata", "ruleSet", "id", "version", "subject")
_UNUSED = ("guid", "schemaTags", "deleted", "propagateSchemaTags", "schemaTagsToAdd")
LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Asked:
    """A schema that a client sent, with the id and the version that it asks for, if any."""

    schema: Schema
    id: int | None = None
    version: int | None = None


# ---------------------------------------------------------------------- what clients send


def asked(body: Mapping[str, Any]) -> Asked:
    """Parses the body of a request that holds a schema; raises Refused for a bad one."""
    strange = [name for name in body if name not in _KNOWN and body[name] and name not in _UNUSED]
    if strange:
        raise _invalid(f"{strange[0][:80]!r} is not kept here")
    text, language = body.get("schema"), body.get("schemaType") or AVRO
    if not isinstance(text, str) or not text.strip():
        raise _invalid("a schema is a text, and not empty")
    if language not in LANGUAGES:
        raise _invalid(f"schemaType is one of {', '.join(LANGUAGES)}, not {str(language)[:80]!r}")
    references = references_of(body.get("references"))
    if references is None:
        raise _invalid("references are a list of objects with a name, a subject and a version")
    wanted = []
    for name in ("id", "version"):
        number = body.get(name)
        if number not in (None, -1, 0) and not is_number(number):
            raise _invalid(f"{name} is a number of 31 bits")
        wanted.append(number if is_number(number) else None)
    beside = _checked_beside(body)
    _refuse_unwritable([text, beside, *(each.name for each in references)])
    return Asked(Schema(text, language, references, beside), *wanted)


def _checked_beside(body: Mapping[str, Any]) -> str:
    """Returns what is kept beside a schema; its limits are those of the schema's text."""
    for name in BESIDE:
        if not isinstance(body.get(name) or {}, dict):
            raise _invalid(f"{name} is an object")
    beside = beside_of(dict(body))
    try:
        avro_text.loads(beside or "{}")
    except SchemaError as error:
        raise _invalid(f"of {' or '.join(BESIDE)}, {error}") from error
    return beside


def _refuse_unwritable(texts: list[str]) -> None:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise _invalid(f"a text holds half a character ({error.reason})") from error


def _invalid(why: str) -> Refused:
    return Refused(codes.INVALID_SCHEMA, f"Invalid schema: {why}")


def checked_subject(subject: str) -> str:
    """Returns a subject's name without the default context; raises Refused for a bad name."""
    name = subject.removeprefix(":.:")
    if not is_subject(name):
        told = "there is one context" if name.startswith(":.") else "it is no name"
        raise Refused(
            codes.INVALID_SUBJECT,
            f"The specified subject '{subject[:200]}' is not a valid subject: {told}",
        )
    return name


def checked_version(text: str) -> int | None:
    """Parses a version: its number, or None for the latest; raises Refused otherwise."""
    if text in (LATEST, "-1"):
        return None
    if text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) <= NUMBER_MAX:
        return int(text)
    raise Refused(
        codes.INVALID_VERSION,
        f"The specified version '{text[:80]}' is not a valid version id. Allowed values are between"
        ' [1, 2^31-1] and the string "latest"',
    )


# ---------------------------------------------------------------------- finding


def found(book: Book, subject: str, version: int | None, *, deleted: bool = False) -> Registered:
    """Returns a version of a subject (None is the latest); raises Refused if it is not there."""
    known = book.versions(subject, deleted=deleted)
    if not known:
        raise no_subject(subject)
    for each in reversed(known):
        if version in (None, each.version):
            return each
    raise no_version(version or LATEST)


def read(book: Book, schema: Schema, may: May = anything) -> Meaning:
    """Parses a schema with what it refers to; raises Refused for an invalid one."""
    try:
        return languages.read(schema, book.texts(schema, may))
    except SchemaError as error:
        raise _invalid(str(error)) from error


def looked_up(
    book: Book, subject: str, schema: Schema, may: May, *, deleted: bool = False
) -> Registered:
    """Returns the version of a subject that has a schema; raises Refused if none has it."""
    known = book.versions(subject, deleted=deleted)
    if not known:
        raise no_subject(subject)
    schema_id = book.id_of(read(book, schema, may).identity)
    for each in reversed(known):
        if each.id == schema_id:
            return each
    raise Refused(codes.SCHEMA_UNKNOWN, "Schema not found")


# ---------------------------------------------------------------------- registering


def registering(book: Book, subject: str, given: Asked, may: May) -> tuple[list[Entry], Registered]:
    """Returns the entries that register a schema under a subject, and the version it gets."""
    meaning = read(book, given.schema, may)
    mode = book.mode(subject)
    known = book.id_of(meaning.identity)
    for each in book.versions(subject):
        if each.id == known and given.version in (None, each.version):
            return [], each
    if mode not in (READWRITE, IMPORT):
        raise Refused(codes.NOT_PERMITTED, f"Subject {subject} is in read-only mode")
    if mode == IMPORT:
        return _importing(book, subject, given, known)
    if given.id not in (None, known) or given.version not in (None, book.next_version(subject)):
        raise Refused(codes.NOT_PERMITTED, f"Subject {subject} is not in import mode")
    try:
        languages.refuse_unfit_defaults(meaning)
    except SchemaError as error:
        raise _invalid(str(error)) from error
    level = book.level(subject)
    problems = compared(book, meaning, book.versions(subject), level)
    if problems:
        raise Refused(
            codes.INCOMPATIBLE,
            "Schema being registered is incompatible with an earlier schema for subject"
            f' "{subject}", details: {problems}, compatibility: {level}',
        )
    schema_id = book.next_id if known is None else known
    return _entered(book, subject, book.next_version(subject), schema_id, given.schema)


def _importing(
    book: Book, subject: str, given: Asked, known: int | None
) -> tuple[list[Entry], Registered]:
    """Registers a schema with the client's id and version, unless another schema has them."""
    schema_id = given.id or known or book.next_id
    if schema_id != known and book.was_given(schema_id):
        why = f"Overwrite new schema with id {schema_id} is not permitted."
        raise Refused(codes.NOT_PERMITTED, why)
    version = given.version or book.next_version(subject)
    there = book.subjects.get(subject, {}).get(version)
    if there is not None and there.id != schema_id:
        why = f"Overwrite new schema with version {version} is not permitted."
        raise Refused(codes.NOT_PERMITTED, why)
    return _entered(book, subject, version, schema_id, given.schema)


def _entered(
    book: Book, subject: str, version: int, schema_id: int, schema: Schema
) -> tuple[list[Entry], Registered]:
    if schema_id > NUMBER_MAX or version > NUMBER_MAX:
        raise Refused(codes.NOT_PERMITTED, "there are no numbers left for schemas")
    places = book.places(schema_id)
    made = Registered(subject, version, schema_id, places[0].schema if places else schema)
    return [made], made


def adopting(
    book: Book, subject: str, schema: Schema, wanted_id: int | None = None
) -> tuple[list[Entry], Registered] | None:
    """Returns the entries that register a typed topic's schema, which the topic has accepted.

    `wanted_id` is one that values carry already; None is returned if another schema has it here.
    """
    try:
        identity = languages.read(schema, book.texts(schema)).identity
    except SchemaError:  # a name that is valid in a topic's schema, and not in the registry
        identity = languages.identity_of(schema, schema.text)
    known = book.id_of(identity) if wanted_id is None else wanted_id
    if wanted_id is not None and book.was_given(wanted_id) and book.identity(wanted_id) != identity:
        return None
    for each in book.versions(subject):
        if each.id == known:
            return [], each
    schema_id = book.next_id if known is None else known
    return _entered(book, subject, book.next_version(subject), schema_id, schema)


def compared(book: Book, new: Meaning, former: list[Registered], level: str) -> list[str]:
    """Returns why a schema may not follow versions of a subject, which are given oldest first."""
    chosen = former if level.endswith("TRANSITIVE") else former[-1:]
    old = [] if level == languages.NONE else [read(book, each.schema) for each in chosen]
    try:
        return languages.problems(new, old, level)
    except SchemaError as error:
        return [str(error)]


# ---------------------------------------------------------------------- deleting


def deleting_subject(book: Book, subject: str, *, permanent: bool) -> tuple[list[Entry], list[int]]:
    """Returns the entries that delete a subject, and the versions that are deleted with it."""
    every = book.versions(subject, deleted=True)
    if not every:
        raise no_subject(subject)
    there = book.versions(subject)
    if permanent and there:
        raise Refused(
            codes.SUBJECT_NOT_DELETED,
            f"Subject '{subject}' was not deleted first before being permanently deleted",
        )
    if not permanent and not there:
        raise Refused(
            codes.SUBJECT_DELETED,
            f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently",
        )
    _refuse_read_only(book, subject)
    for each in every if permanent else there:
        _refuse_referenced(book, subject, each.version)
    if permanent:
        return [Gone(subject, each.version) for each in every], [each.version for each in every]
    entries: list[Entry] = [SubjectDeleted(subject, there[-1].version)]
    entries += [LevelSet(subject)] if subject in book.levels else []
    entries += [ModeSet(subject)] if subject in book.modes else []
    return entries, [each.version for each in there]


def deleting_version(
    book: Book, subject: str, version: int | None, *, permanent: bool
) -> tuple[list[Entry], int]:
    """Returns the entries that delete a version, and its number."""
    known = found(book, subject, version, deleted=version is not None)
    told = f"Subject '{subject}' Version {known.version} was"
    _refuse_read_only(book, subject)
    if permanent and not known.is_deleted:
        why = f"{told} not deleted first before being permanently deleted"
        raise Refused(codes.VERSION_NOT_DELETED, why)
    if known.is_deleted and not permanent:
        why = f"{told} soft deleted.Set permanent=true to delete permanently"
        raise Refused(codes.VERSION_DELETED, why)
    _refuse_referenced(book, subject, known.version)
    if permanent:
        return [Gone(subject, known.version)], known.version
    made = Registered(subject, known.version, known.id, known.schema, is_deleted=True)
    return [made], known.version


def _refuse_read_only(book: Book, subject: str) -> None:
    if book.mode(subject) not in (READWRITE, IMPORT):
        raise Refused(codes.NOT_PERMITTED, f"Subject {subject} is in read-only mode")


def _refuse_referenced(book: Book, subject: str, version: int) -> None:
    if next(book.referring(subject, version), None) is not None:
        raise Refused(
            codes.IS_REFERENCED,
            "One or more references exist to the schema"
            f" {{magic=1,keytype=SCHEMA,subject={subject},version={version}}}.",
        )


# ---------------------------------------------------------------------- levels and modes


def checked_level(given: Any) -> str:
    """Returns a compatibility level in capitals; raises Refused for an unknown one."""
    word = given.upper() if isinstance(given, str) else ""
    if word not in languages.LEVELS:
        known = ", ".join(each.lower() for each in languages.LEVELS)
        why = f"Invalid compatibility level. Valid values are {known}"
        raise Refused(codes.INVALID_LEVEL, why)
    return word


def checked_mode(given: Any) -> str:
    """Returns a mode in capitals; raises Refused for an unknown one."""
    word = given.upper() if isinstance(given, str) else ""
    if word not in MODES:
        why = f"Invalid mode. Valid values are {', '.join(MODES)}"
        raise Refused(codes.INVALID_MODE, why)
    return word


def setting_mode(book: Book, subject: str, mode: str, *, force: bool) -> list[Entry]:
    """Returns the entries that set a mode. IMPORT needs `force` where there are schemas already."""
    if mode == IMPORT and book.mode(subject) != IMPORT and not force:
        has = bool(book.versions(subject)) if subject else any(map(book.versions, book.subjects))
        if has:
            why = "Cannot import since found existing subjects"
            raise Refused(codes.NOT_PERMITTED, why)
    return [ModeSet(subject, mode)]


def taking_back(book: Book, subject: str, *, is_level: bool) -> tuple[list[Entry], str]:
    """Returns the entries that unset a level or a mode, and what it was."""
    known = book.levels if is_level else book.modes
    if subject and subject not in known:
        what = "compatibility" if is_level else "mode"
        code = codes.NO_LEVEL if is_level else codes.NO_MODE
        why = f"Subject '{subject}' does not have subject-level {what} configured"
        raise Refused(code, why)
    was = book.level(subject) if is_level else book.mode(subject)
    return [LevelSet(subject) if is_level else ModeSet(subject)], was
