"""Small JSON files read strictly: what is not exactly as documented is damage, never a guess.

Files that are truth (topic, ledger) carry a seal, so that a changed digit is damage and not another
number: `"crc32"`, the checksum of all other fields as JSON with sorted keys and no spaces, in 8 hex
digits.

Rules.
1. A field twice, an unknown field, a missing one or one of another type is CorruptData.
2. The seal is judged first, then the version: a higher one under a seal that fits is NewerFormat,
   without it damage. In a file without a seal, a version that is one flipped bit away is damage.
3. Integers are counts, offsets or times: 0 to 2^63 - 1.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents.flips import is_one_flip

if TYPE_CHECKING:
    from typing_extensions import Buffer

SEAL = "crc32"
_INTEGER_END = 1 << 63


def parse(buffer: Buffer) -> dict[str, Any]:
    """Reads one JSON object; raises CorruptData at the byte where the text is not JSON."""
    raw = bytes(buffer)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptData("the file is not UTF-8", position=error.start) from error
    try:
        document = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse_constant)
        if "\\u" in text:  # half a pair of surrogates is no text, and nothing could write it again
            json.dumps(document, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        position = len(text[: error.pos].encode())
        raise CorruptData(f"the file is not JSON: {error.msg}", position=position) from error
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"the file is not JSON: {error}") from error
    return as_object(document, "the file")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def seal(fields: Mapping[str, Any]) -> str:
    """Returns the checksum that a file carries over its other fields."""
    plain = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{zlib.crc32(plain.encode()):08x}"


def check_seal(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields without their seal; raises CorruptData if it does not fit them."""
    fields = dict(document)
    found = fields.pop(SEAL, None)
    try:
        expected = seal(fields)
    except (ValueError, RecursionError) as error:  # 1e999 is read as infinity
        raise CorruptData(f"the file holds what it cannot have been given: {error}") from error
    if found != expected:
        raise CorruptData("the checksum does not fit", expected=expected, found=_shown(found))
    return fields


def check_sealed(document: dict[str, Any], known: int) -> dict[str, Any]:
    """Returns the fields without their seal, which must fit; then the version must be the known.

    A file of a newer version may be sealed in another way: without our seal the version decides.
    """
    if SEAL not in document:
        check_version(document, known)
    fields = check_seal(document)
    check_version(fields, known, is_sealed=True)
    return fields


def as_object(value: object, where: str) -> dict[str, Any]:
    """Takes a JSON value that must be an object."""
    if not isinstance(value, dict):
        raise CorruptData(
            f"{where} is not a JSON object", expected="an object", found=_shown(value)
        )
    return value


def check_version(document: Mapping[str, Any], known: int, *, is_sealed: bool = False) -> None:
    """Refuses any version but the known one; a higher one as NewerFormat.

    No checksum guards a version without a seal: one that a single flipped bit makes of the known
    one is taken for that, because a file of the next version differs in two bits.
    """
    version = document.get("version")
    is_newer = type(version) is int and version > known
    if is_newer and (is_sealed or not is_one_flip(str(version).encode(), str(known).encode())):
        raise NewerFormat(
            "the file was written by a newer version", expected=str(known), found=str(version)
        )
    if type(version) is not int or version != known:
        raise CorruptData("the version is unknown", expected=str(known), found=_shown(version))


def check_fields(
    document: Mapping[str, Any],
    where: str,
    required: Mapping[str, type],
    optional: Mapping[str, type] | None = None,
) -> None:
    """Refuses a missing or unknown field and one of another type; `where` names the object."""
    kinds = {**required, **(optional or {})}
    for name in required:
        if name not in document:
            raise CorruptData(f"{where} has no {name!r}", expected=name, found="nothing")
    for name, value in document.items():
        if name not in kinds:
            raise CorruptData(
                f"{where} has an unknown field", expected=", ".join(kinds), found=_shown(name)
            )
        kind = kinds[name]
        if type(value) is not kind or (isinstance(value, int) and not 0 <= value < _INTEGER_END):
            raise CorruptData(
                f"{name!r} of {where} has a wrong value", expected=_NAMES[kind], found=_shown(value)
            )


_NAMES: dict[type, str] = {
    int: "an integer from 0",
    str: "a text",
    list: "a list",
    dict: "an object",
    bool: "true or false",
}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
