r"""Output formats: rpk's percent table for `topic consume -f`, kcat's for `cat -f`.

| token | rpk                 | kcat               |
|-------|---------------------|--------------------|
| `%v`  | value               | -                  |
| `%s`  | -                   | value              |
| `%V` `%S` | value length    | value length       |
| `%R`  | -                   | value length, 4 bytes big-endian |
| `%k` `%K` | key, key length | key, key length    |
| `%d`  | time, ms            | -                  |
| `%T`  | topic length        | time, ms           |
| `%h` `%H` | headers, their number | headers, -     |
| `%t` `%p` `%o` | topic, partition, offset | the same |
| `%e` `%i` | epoch (0), records so far | -          |
| `%{` `%}` `%%` | the character itself | `%%`        |

Modifiers stand in braces: `%v{hex}`, `%v{base64}`, `%o{big32}`, `%d{strftime[%F]}`. Escapes are
`\n \r \t \\ \xNN`. What records hold is written as it is: bytes for pipes, not for eyes.
"""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from lamina.errors import InvalidRequest

Row: TypeAlias = dict[str, Any]
"""A record with topic, partition and number, as `record_printing` yields it."""
_TOKEN = re.compile(
    r"%(?P<token>.)(?:\{(?P<modifier>strftime\[[^\]]*\]|[a-z0-9]+)\})?"
    r"|\\(?:x(?P<hex>[0-9a-fA-F]{2})|(?P<escape>.))|(?P<text>[^%\\]+)",
    re.DOTALL,
)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}


def _headers(row: Row) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in row["headers"] or ())


def _length(name: str) -> Callable[[Row], int]:
    return lambda row: -1 if row[name] is None else len(row[name])


_BOTH: dict[str, Callable[[Row], bytes | int | None]] = {
    "k": lambda row: row["key"],
    "K": _length("key"),
    "t": lambda row: row["topic"].encode(),
    "p": lambda row: row["partition"],
    "o": lambda row: row["offset"],
    "h": _headers,
    "%": lambda row: b"%",
}
RPK: dict[str, Callable[[Row], bytes | int | None]] = _BOTH | {
    "v": lambda row: row["value"],
    "V": _length("value"),
    "T": lambda row: len(row["topic"]),
    "d": lambda row: row["timestamp_ms"],
    "H": lambda row: len(row["headers"] or ()),
    "e": lambda row: 0,
    "i": lambda row: row["number"],
    "{": lambda row: b"{",
    "}": lambda row: b"}",
}
KCAT: dict[str, Callable[[Row], bytes | int | None]] = _BOTH | {
    "s": lambda row: row["value"],
    "S": _length("value"),
    "R": lambda row: _length("value")(row).to_bytes(4, "big", signed=True),
    "T": lambda row: row["timestamp_ms"],
}


@dataclass(frozen=True, slots=True)
class Format:
    """A compiled format; `null` stands for a key or value that is null."""

    parts: tuple[bytes | Callable[[Row], bytes | int | None], ...]
    modifiers: tuple[str | None, ...]
    null: bytes = b""

    def render(self, row: Row) -> bytes:
        """Renders one record."""
        found = []
        for part, modifier in zip(self.parts, self.modifiers, strict=True):
            value = part if isinstance(part, bytes) else part(row)
            found.append(self.null if value is None else _modified(value, modifier))
        return b"".join(found)


def compile_format(text: str, table: dict[str, Callable[[Row], Any]], null: bytes = b"") -> Format:
    """Compiles a format; raises InvalidRequest for a token that is not in the table."""
    parts: list[Any] = []
    modifiers: list[str | None] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise InvalidRequest(f"the format ends in the middle of a token: {text[position:]!r}")
        position = match.end()
        modifiers.append(match["modifier"])
        if match["token"] is not None:
            if match["token"] not in table:
                known = " ".join(f"%{token}" for token in sorted(table))
                raise InvalidRequest(f"there is no %{match['token']}; there are {known}")
            parts.append(table[match["token"]])
        elif match["hex"] is not None:
            parts.append(bytes.fromhex(match["hex"]))
        elif match["escape"] is not None:
            parts.append(_ESCAPES.get(match["escape"], match["escape"].encode()))
        else:
            parts.append(match["text"].encode())
    made = Format(tuple(parts), tuple(modifiers), null)
    made.render(_SAMPLE)  # a modifier that does not fit is found now
    return made


_SAMPLE: Row = {
    **{"topic": "t", "partition": 0, "offset": 0, "timestamp_ms": 0, "key": b"", "value": b""},
    **{"headers": [], "number": 0},
}


def _modified(value: bytes | int, modifier: str | None) -> bytes:
    if modifier is None:
        return value if isinstance(value, bytes) else str(value).encode()
    if isinstance(value, bytes):
        if modifier == "hex":
            return value.hex().encode()
        if modifier == "base64":
            return base64.b64encode(value)
    elif modifier.startswith("strftime["):
        try:
            at = datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
        except (OverflowError, ValueError, OSError):  # no calendar has it: as its number
            return str(value).encode()
        return at.strftime(modifier.removeprefix("strftime[").removesuffix("]")).encode()
    elif (match := re.fullmatch(r"(big|little)(8|16|32|64)", modifier)) is not None:
        bits = int(match[2])
        order = "big" if match[1] == "big" else "little"
        return (value & ((1 << bits) - 1)).to_bytes(bits // 8, order)  # type: ignore[arg-type]
    elif modifier == "hex":
        return f"{value:x}".encode()
    raise InvalidRequest(f"the modifier {{{modifier}}} does not fit there")
