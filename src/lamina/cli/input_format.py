r"""How records are written in what is piped in: kcat's `-K`, or rpk's `-f '%k %v\n'`.

| token | what it is                          |
|-------|-------------------------------------|
| `%k`  | the key                             |
| `%v`  | the value                           |
| `%d`  | the time, in milliseconds           |
| `%%`  | a percent sign                      |

The text between two tokens separates them, and the text after the last one ends a record: by
default a new line. Escapes are `\n \r \t \0 \\ \xNN`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lamina.errors import InvalidRequest

_FIELDS = {"k": "key", "v": "value", "d": "timestamp"}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_MEANT = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_TIME = re.compile(rb"[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of a record in order, and what stands after each but the last.

    `is_strict`: a record without a separator is refused; otherwise it is all value, as in kcat.
    """

    fields: tuple[str, ...] = ("value",)
    separators: tuple[bytes, ...] = ()
    delimiter: bytes = b"\n"
    is_strict: bool = True

    def record(self, piece: bytes) -> dict[str, Any]:
        """Splits one piece of input into its fields."""
        found: dict[str, Any] = {}
        rest = piece
        for name, separator in zip(self.fields, self.separators, strict=False):
            text, there, after = rest.partition(separator)
            if not there:
                if not self.is_strict:
                    return {"value": piece}
                shown = rest[:60].decode(errors="backslashreplace")
                mark = separator.decode(errors="backslashreplace")
                raise InvalidRequest(f"there is no {mark!r} after the {name} in {shown!r}")
            found[name], rest = text, after
        found[self.fields[-1]] = rest
        if "timestamp" in found:
            found["timestamp"] = _time_ms(found["timestamp"])
        return found


def keyed(delimiter: str, ends: bytes = b"\n") -> Layout:
    """The layout of kcat's `-K`: a key if the delimiter is there, and the value."""
    separator = unescaped(delimiter)
    if not separator:
        raise InvalidRequest("the key delimiter is empty; give it a character, -K :")
    return Layout(("key", "value"), (separator,), ends, is_strict=False)


def parsed(text: str) -> Layout:
    """Parses a format of rpk; raises InvalidRequest if input cannot be split by it."""
    split = re.split(r"%(.)", text)
    names, between = [], [split[0]]
    for letter, after in zip(split[1::2], split[2::2], strict=True):
        if letter == "%":
            between[-1] += f"%{after}"
            continue
        if letter not in _FIELDS or _FIELDS[letter] in names:
            raise InvalidRequest(f"%{letter}: a format of input has each of %k, %v and %d once")
        names.append(_FIELDS[letter])
        between.append(after)
    if between[0] or "value" not in names:
        raise InvalidRequest(f"a format of input starts with %k, %v or %d and has %v, not {text!r}")
    separators = [unescaped(each) for each in between[1:]]
    if not all(separators[:-1]):
        raise InvalidRequest(f"nothing separates two fields in {text!r}")
    return Layout(tuple(names), tuple(separators[:-1]), separators[-1] or b"\n")


def unescaped(text: str) -> bytes:
    r"""Replaces the escapes of a delimiter, as in `\t`, `\x1f`."""
    found, position = b"", 0
    for match in _ESCAPE.finditer(text):
        found += text[position : match.start()].encode(errors="surrogateescape")
        found += bytes.fromhex(match[1]) if match[1] else _MEANT.get(match[2], match[2].encode())
        position = match.end()
    return found + text[position:].encode(errors="surrogateescape")


def _time_ms(text: bytes) -> int:
    if not _TIME.fullmatch(text):
        raise InvalidRequest(
            f"%d is a time in milliseconds, not {text[:60].decode(errors='replace')!r}"
        )
    return int(text)
