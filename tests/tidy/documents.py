"""Reads the format pages: byte tables, the layouts they name, and dumps of golden files."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from lamina.formats.kernels.binary import Layout

LAYOUT = re.compile(r"<!-- layout: ([\w.]+) -->")
DUMP = re.compile(r"<!-- dump: golden=([\w./-]+) -->")
HEX_LINE = re.compile(r"([0-9a-f]{8})  ((?:[0-9a-f]{2} ?)+)(?:\s*;.*)?")
SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i16": 2, "i32": 4, "i64": 8}


class Rotten(AssertionError):
    """A page or docstring that does not say what the code does."""


@dataclass(frozen=True)
class Field:
    """A row of a byte table; None where the page gives no fixed number, or no type."""

    at: int | None
    size: int | None
    name: str
    kind: str | None


def cells(line: str) -> list[str]:
    return [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]


def table_at(lines: list[str], number: int) -> list[Field]:
    """The byte table whose header row is at a line; the columns may have any order."""
    names = [name.lower() for name in cells(lines[number])]
    if number + 1 >= len(lines) or not re.fullmatch(r"\s*\|[-:| ]+\|\s*", lines[number + 1]):
        raise Rotten(f"line {number + 1}: no table follows")
    found = []
    for line in lines[number + 2 :]:
        if not line.strip().startswith("|"):
            break
        row = dict(zip(names, cells(line), strict=True))
        at, size = (int(row[name]) if row[name].isdigit() else None for name in ("at", "size"))
        found.append(Field(at, size, row["field"], row.get("type")))
    return found


def size_of(kind: str) -> int:
    raw = re.fullmatch(r"bytes\[(\d+)]", kind)
    if raw:
        return int(raw[1])
    if kind not in SIZES:
        raise Rotten(f"unknown type {kind!r}")
    return SIZES[kind]


def check_consistent(table: list[Field]) -> None:
    """Positions must follow from the sizes, and sizes from the types.

    Behind a field without a fixed size nothing has a fixed position.
    """
    position: int | None = 0
    for field in table:
        if field.at != position:
            raise Rotten(f"{field.name} is at {field.at}, but the fields before end at {position}")
        if field.size is None:
            position = None
            continue
        if field.kind not in (None, "bytes") and field.size != size_of(field.kind or ""):
            raise Rotten(f"{field.name} has size {field.size}, but {field.kind} does not")
        position = None if position is None else position + field.size


def fields_of(layout: object) -> list[Field]:
    """What a `Layout` or a numpy record type says, as a table says it."""
    if isinstance(layout, Layout):
        return [
            Field(layout.at(name), size_of(kind), name, kind)
            for name, kind in layout.fields.items()
        ]
    if isinstance(layout, np.dtype) and layout.fields is not None:
        return [_numpy_field(name, *layout.fields[name][:2]) for name in layout.names or ()]
    raise Rotten(f"{layout!r} is neither a Layout nor a numpy record type")


def _numpy_field(name: str, kind: np.dtype[np.generic], at: int) -> Field:
    if kind.kind in "iu":
        return Field(at, kind.itemsize, name, f"{kind.kind}{8 * kind.itemsize}")
    return Field(at, kind.itemsize, name, f"bytes[{kind.itemsize}]")


def resolve(path: str) -> object:
    module, _, attribute = path.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def check_tables(page: str) -> list[str]:
    """Compares each table under a layout comment with the layout; returns the layouts named."""
    lines = page.splitlines()
    named = []
    for number, line in enumerate(lines):
        comment = LAYOUT.fullmatch(line.strip())
        if comment is None:
            continue
        if number + 1 == len(lines) or not lines[number + 1].strip().startswith("|"):
            raise Rotten(f"no table directly under {line.strip()}")
        table = table_at(lines, number + 1)
        if not table:
            raise Rotten(f"an empty table under {line.strip()}")
        check_consistent(table)
        expected = fields_of(resolve(comment[1]))
        if table != expected:
            raise Rotten(f"{comment[1]} is {expected}, the page says {table}")
        named.append(comment[1])
    return named


def dumps_of(page: str) -> dict[str, bytes]:
    """The golden files that a page shows, with the bytes it shows of each."""
    lines = page.splitlines()
    found: dict[str, bytes] = {}
    for number, line in enumerate(lines):
        comment = DUMP.fullmatch(line.strip())
        if comment is None:
            continue
        fence = lines[number + 1] if number + 1 < len(lines) else ""
        if fence not in ("```hexdump", "```json"):
            raise Rotten(f"no hexdump or json block directly under {line.strip()}")
        end = lines.index("```", number + 2)
        block = lines[number + 2 : end]
        found[comment[1]] = (
            read_hexdump(block) if fence == "```hexdump" else ("\n".join(block) + "\n").encode()
        )
    return found


def read_hexdump(block: list[str]) -> bytes:
    data = b""
    for line in block:
        match = HEX_LINE.fullmatch(line)
        if match is None:
            raise Rotten(f"no dump line: {line!r}")
        if int(match[1], 16) != len(data):
            raise Rotten(f"{line!r} follows {len(data):#x} bytes")
        data += bytes.fromhex(match[2])
    return data


def docstring_tables(docstring: str) -> list[list[Field]]:
    """The byte tables of a docstring: those whose header row begins with at, size, field."""
    lines = docstring.splitlines()
    return [
        table_at(lines, number)
        for number, line in enumerate(lines)
        if cells(line)[:3] == ["at", "size", "field"]
    ]


def check_docstring(
    docstring: str, layouts: list[object], *, exempt: frozenset[str] = frozenset()
) -> int:
    """Checks that each of a module's tables is one of its layouts; returns how many there are.

    `exempt` names the first field of each table that describes no layout of the module. It must be
    needed: an exemption that no table uses is stale.
    """
    tables = docstring_tables(docstring)
    described = [fields_of(layout) for layout in layouts]
    unused = set(exempt)
    for table in tables:
        check_consistent(table)
        fixed = [field for field in table if field.at is not None and field.size is not None]
        if fixed in described:
            continue
        same_names = [layout for layout in described if names_of(layout) == names_of(fixed)]
        if same_names or table[0].name not in exempt:
            raise Rotten(f"no layout is {fixed}; the nearest are {same_names or described}")
        unused.discard(table[0].name)
    if unused:
        raise Rotten(f"no table needs the exemption of {sorted(unused)}")
    return len(tables)


def names_of(table: list[Field]) -> set[str]:
    return {field.name for field in table}


def layouts_in(module: ModuleType) -> dict[str, object]:
    """The layouts that a module has under a public name."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (isinstance(value, Layout) or (isinstance(value, np.dtype) and value.names))
    }
