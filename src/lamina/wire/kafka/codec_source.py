"""Writes the Python source of a function that parses, or writes, one version of one message.

Straight code: what has a fixed size and stands side by side is one `struct` call, everything else
a few lines in place. No function is called per field, and nothing asks for a version at run time.

The names in `lamina.wire.kafka.codec.RUNTIME` are what such a function may use beside its own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from lamina.wire.kafka.message_schema import FIXED, SIZES, Field


class Source:
    """Lines of a function in the making, with the constants that they refer to."""

    def __init__(self, head: str, version: int, *, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.constants: dict[str, Any] = {}
        self._lines = [head]
        self._depth = 1
        self._count = 0

    def add(self, *lines: str) -> None:
        """Adds lines at the present depth."""
        self._lines += ["    " * self._depth + line for line in lines]

    def block(self, head: str) -> Source:
        """Begins a block; use it as a context."""
        self.add(head)
        return self

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1

    def fresh(self, prefix: str = "v") -> str:
        """Returns a name that was not used before."""
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, value: Any) -> str:
        """Returns the name of a constant."""
        name = self.fresh("C")
        self.constants[name] = value
        return name

    def text(self) -> str:
        """Returns the source."""
        return "\n".join(self._lines) + "\n"

    def split(self, fields: Sequence[Field]) -> tuple[list[Field], list[Field]]:
        """Returns the fields of this version: those in their place, and those with a tag."""
        there = [field for field in fields if field.is_in(self.version)]
        plain = [field for field in there if field.tag is None]
        tagged = [field for field in there if field.tag is not None]
        return plain, sorted(tagged, key=lambda field: field.tag or 0)

    def runs(self, fields: Sequence[Field]) -> list[list[Field]]:
        """Cuts fields into runs: of fixed sizes side by side, or one of another kind."""
        found: list[list[Field]] = []
        for field in fields:
            if _is_fixed(field) and found and _is_fixed(found[-1][0]):
                found[-1].append(field)
            else:
                found.append([field])
        return found

    def size_min(self, fields: Sequence[Field]) -> int:
        """Returns how many bytes a structure takes at least: an empty list holds none."""
        plain, _ = self.split(fields)
        return sum(map(self._size_min, plain)) + self.flexible

    def _size_min(self, field: Field) -> int:
        if field.is_list or field.kind in ("bytes", "records"):
            return 1 if self.flexible else 4
        if field.kind == "string":
            return 1 if self.flexible else 2
        if field.kind == "{}":
            nullable = field.is_nullable(self.version)
            return 1 if nullable else self.size_min(field.inside)
        return SIZES[field.kind]


def _is_fixed(field: Field) -> bool:
    return field.kind in FIXED and not field.is_list


def _letters(run: Sequence[Field]) -> str:
    return ">" + "".join(FIXED[field.kind] for field in run)


# ---------------------------------------------------------------- parsing


def parser_of(fields: Sequence[Field], version: int, *, flexible: bool) -> Source:
    """Writes `parse(buf, pos) -> (value, pos)`; `buf` is a view that ends where the frame does."""
    source = Source("def parse(buf, pos):", version, flexible=flexible)
    source.add("end = len(buf)", "left = ITEMS_MAX")
    value = _parse_struct(source, fields)
    source.add(f"return {value}, pos")
    return source


def _parse_struct(source: Source, fields: Sequence[Field]) -> str:
    """Adds lines that parse a structure; returns the expression that makes it."""
    plain, tagged = source.split(fields)
    names: dict[str, str] = {}
    for run in source.runs(plain):
        if _is_fixed(run[0]):
            names |= _parse_fixed(source, run)
        else:
            names[run[0].name] = _parse_field(source, run[0])
    if source.flexible:
        names |= _parse_tags(source, tagged)
    made = (f"{field.name!r}: {names.get(field.name) or repr(field.default)}" for field in fields)
    return "{" + ", ".join(made) + "}"


def _parse_fixed(source: Source, run: Sequence[Field]) -> dict[str, str]:
    letters = _letters(run)
    names = {field.name: source.fresh() for field in run}
    unpack = source.constant(struct.Struct(letters).unpack_from)
    source.add(f"{', '.join(names.values())}, = {unpack}(buf, pos)")
    source.add(f"pos += {struct.calcsize(letters)}")
    return names


def _parse_length(source: Source, kind: str) -> str:
    """Adds lines that read a length or a count, below 0 for null."""
    size = source.fresh("n")
    if source.flexible:
        source.add(f"{size} = buf[pos]", "pos += 1")
        with source.block(f"if {size} > 127:"):
            source.add(f"{size}, pos = uvarint(buf, pos - 1)")
        source.add(f"{size} -= 1")
    elif kind == "string":
        source.add(f"{size}, = int16(buf, pos)", "pos += 2")
    else:
        source.add(f"{size}, = int32(buf, pos)", "pos += 4")
    return size


def _parse_field(source: Source, field: Field) -> str:
    """Adds lines that read one field that is not of a fixed size; returns its name."""
    value = source.fresh()
    if field.kind == "{}" and not field.is_list:
        _parse_one(source, field, value)
        return value
    kind = "array" if field.is_list else field.kind
    size = _parse_length(source, kind)
    with source.block(f"if {size} < 0:"):
        if field.is_nullable(source.version):
            source.add(f"{value} = None")
        else:
            source.add(f"malformed({field.name!r}, 'is null')")
    with source.block("else:"):
        if field.is_list:
            _parse_list(source, field, size, value)
        else:
            _parse_text(source, field.kind, field.name, (size, value))
    return value


def _parse_one(source: Source, field: Field, value: str) -> None:
    if not field.is_nullable(source.version):
        source.add(f"{value} = {_parse_struct(source, field.inside)}")
        return
    source.add(f"{value} = None", "there, = int8(buf, pos)", "pos += 1")
    with source.block("if there >= 0:"):
        source.add(f"{value} = {_parse_struct(source, field.inside)}")


def _parse_text(source: Source, kind: str, name: str, names: tuple[str, str]) -> None:
    """Adds lines that read bytes whose length is known."""
    size, value = names
    with source.block(f"if {size} > end - pos:"):
        source.add(f"malformed({name!r}, 'is longer than the message')")
    part = f"buf[pos:pos + {size}]"
    made = {"string": f"str({part}, 'utf-8')", "bytes": f"bytes({part})", "records": part}[kind]
    source.add(f"{value} = {made}", f"pos += {size}")


def _parse_list(source: Source, field: Field, count: str, value: str) -> None:
    """Adds lines that read the items of a list whose count is known."""
    least = SIZES.get(field.kind) or (
        source.size_min(field.inside) if field.kind == "{}" else 1 if source.flexible else 2
    )
    source.add(f"left -= {count}")
    with source.block(f"if {count} * {max(1, least)} > end - pos or left < 0:"):
        source.add(f"malformed({field.name!r}, 'has more items than the message has room for')")
    if field.kind in FIXED:
        source.add(f"{value} = list(unpack_from('>%d{FIXED[field.kind]}' % {count}, buf, pos))")
        source.add(f"pos += {SIZES[field.kind]} * {count}")
        return
    source.add(f"{value} = []")
    with source.block(f"for _ in range({count}):"):
        if field.kind == "{}":
            source.add(f"{value}.append({_parse_struct(source, field.inside)})")
        else:
            size, item = _parse_length(source, field.kind), source.fresh()
            with source.block(f"if {size} < 0:"):
                source.add(f"malformed({field.name!r}, 'has a null item')")
            _parse_text(source, field.kind, field.name, (size, item))
            source.add(f"{value}.append({item})")


def _parse_tags(source: Source, tagged: Sequence[Field]) -> dict[str, str]:
    """Adds lines that read tagged fields; those that nobody knows are skipped."""
    if not tagged:
        with source.block("if buf[pos] == 0:"):
            source.add("pos += 1")
        with source.block("else:"):
            source.add("pos = skip_tags(buf, pos, end)")
        return {}
    names = {field.name: source.fresh() for field in tagged}
    for field in tagged:
        source.add(f"{names[field.name]} = {field.default!r}")
    source.add("tags, pos = uvarint(buf, pos)")
    with source.block("for _ in range(tags):"):
        stop, tag = source.fresh("stop"), source.fresh("tag")
        source.add(f"{tag}, pos = uvarint(buf, pos)", f"{stop}, pos = uvarint(buf, pos)")
        source.add(f"{stop} += pos")
        with source.block(f"if {stop} > end:"):
            source.add("malformed('a tagged field', 'is longer than the message')")
        for number, field in enumerate(tagged):
            with source.block(f"{'el' if number else ''}if {tag} == {field.tag}:"):
                if _is_fixed(field):
                    found = next(iter(_parse_fixed(source, [field]).values()))
                else:
                    found = _parse_field(source, field)
                source.add(f"{names[field.name]} = {found}")
        with source.block("else:"):
            source.add(f"pos = {stop}")
        with source.block(f"if pos != {stop}:"):
            source.add("malformed('a tagged field', 'is not as long as it says')")
    return names


# ---------------------------------------------------------------- writing


def writer_of(fields: Sequence[Field], version: int, *, flexible: bool) -> Source:
    """Writes `write(value, out, pieces)`, which ends with all of the message in `pieces`."""
    source = Source("def write(value, out, pieces):", version, flexible=flexible)
    _write_struct(source, fields, "value")
    source.add("pieces.append(out)")
    return source


def _write_struct(source: Source, fields: Sequence[Field], value: str) -> None:
    plain, tagged = source.split(fields)
    for run in source.runs(plain):
        if _is_fixed(run[0]):
            pack = source.constant(struct.Struct(_letters(run)).pack)
            given = ", ".join(_given(field, value) for field in run)
            source.add(f"out += {pack}({given})")
        else:
            item = source.fresh()
            source.add(f"{item} = {_given(run[0], value)}")
            _write_field(source, run[0], item)
    if source.flexible:
        _write_tags(source, tagged, value)


def _given(field: Field, value: str) -> str:
    return f"{value}.get({field.name!r}, {field.default!r})"


def _write_field(source: Source, field: Field, item: str) -> None:
    nullable = field.is_nullable(source.version)
    if field.kind == "{}" and not field.is_list and not nullable:
        _write_struct(source, field.inside, item)
        return
    with source.block(f"if {item} is None:"):
        if not nullable:
            source.add(f"raise TypeError({f'{field.name} is null'!r})")
        elif field.kind == "{}" and not field.is_list:
            source.add("out += b'\\xff'")
        else:
            source.add(f"out += {_null(source, field)!r}")
    with source.block("else:"):
        if field.is_list:
            _write_list(source, field, item)
        elif field.kind == "{}":
            source.add("out += b'\\x01'")
            _write_struct(source, field.inside, item)
        else:
            _write_text(source, field.kind, item)


def _null(source: Source, field: Field) -> bytes:
    if source.flexible:
        return b"\0"
    return b"\xff" * (2 if field.kind == "string" and not field.is_list else 4)


def _length(source: Source, kind: str, size: str) -> str:
    if source.flexible:
        return f"out += uvarint_of({size} + 1)"
    return f"out += {'pack_int16' if kind == 'string' else 'pack_int32'}({size})"


def _write_text(source: Source, kind: str, item: str) -> None:
    if kind == "string":
        source.add(f"{item} = {item}.encode()")
    if kind == "records":  # a list of buffers, which become pieces of their own
        source.add(_length(source, kind, f"sum(map(len, {item}))"))
        source.add("pieces.append(out)", f"pieces += {item}", "out = bytearray()")
    else:
        source.add(_length(source, kind, f"len({item})"), f"out += {item}")


def _write_list(source: Source, field: Field, items: str) -> None:
    source.add(_length(source, "array", f"len({items})"))
    if field.kind in FIXED:
        source.add(f"out += pack('>%d{FIXED[field.kind]}' % len({items}), *{items})")
        return
    item = source.fresh()
    with source.block(f"for {item} in {items}:"):
        if field.kind == "{}":
            _write_struct(source, field.inside, item)
        else:
            _write_text(source, field.kind, item)


def _write_tags(source: Source, tagged: Sequence[Field], value: str) -> None:
    """Adds lines that write tagged fields which differ from their default."""
    if not tagged:
        source.add("out += b'\\0'")
        return
    outer, count = source.fresh("outer"), source.fresh("count")
    source.add(f"{outer}, {count}, out = out, 0, bytearray()")
    for field in tagged:
        item, parts = source.fresh(), source.fresh("parts")
        source.add(f"{item} = {_given(field, value)}")
        with source.block(f"if {item} != {field.default!r}:"):
            source.add(f"{count} += 1", f"{parts}, out = out, bytearray()")
            if _is_fixed(field):
                source.add(f"out += pack({_letters([field])!r}, {item})")
            else:
                _write_field(source, field, item)
            source.add(f"{parts} += uvarint_of({field.tag}) + uvarint_of(len(out)) + out")
            source.add(f"out = {parts}")
    source.add(f"{outer} += uvarint_of({count}) + out", f"out = {outer}")
