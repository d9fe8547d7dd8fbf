"""Frame tombstone (`<base_offset>.tomb`): the segment of this name is being deleted.

Truth: that the file exists is what counts; it is created before the first file of the segment goes
and deleted after the last. Its content is for people.

    {"version": 1, "base_offset": 4096, "reason": "retention", "created_ms": 1700000000000}

`reason` is one of retention (too old or too much), trim (asked to drop records up to an offset),
archived (it is in the object store, and read from there) and delete (the topic goes).

Awkward cases. The document defines no content, and a crash can leave the file empty: an empty file
is a whole tombstone without content, and decodes to fields of None. Anything else is strict.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, cast, get_args

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1
Reason: TypeAlias = Literal["retention", "trim", "archived", "delete"]
REASONS: tuple[Reason, ...] = get_args(Reason)

_FIELDS = {"version": int, "base_offset": int, "reason": str, "created_ms": int}


@dataclass(frozen=True, slots=True)
class Tomb:
    """Which segment goes, why and since when; all None if the file is empty."""

    base_offset: int | None = None
    reason: Reason | None = None
    created_ms: int | None = None


EMPTY = Tomb()


def encode(tomb: Tomb) -> bytes:
    """Encodes a tombstone as one line of JSON; `EMPTY` as no bytes."""
    if tomb == EMPTY:
        return b""
    if None in (tomb.base_offset, tomb.reason, tomb.created_ms):
        raise ValueError(f"a tombstone says all or nothing, got {tomb}")
    return (json.dumps({"version": VERSION, **asdict(tomb)}) + "\n").encode()


def decode(buffer: Buffer) -> Tomb:
    """Decodes a tombstone; raises CorruptData or NewerFormat for what is not exactly one."""
    if memoryview(buffer).nbytes == 0:
        return EMPTY
    document = strict_json.parse(buffer)
    strict_json.check_version(document, VERSION)
    strict_json.check_fields(document, "the tombstone", _FIELDS)
    if document["reason"] not in REASONS:
        raise CorruptData(
            "the reason is unknown", expected=" or ".join(REASONS), found=repr(document["reason"])
        )
    return Tomb(document["base_offset"], cast("Reason", document["reason"]), document["created_ms"])
