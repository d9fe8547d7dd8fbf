"""A `.proto` file as values, whichever way it came: its text, or a serialized descriptor.

Names of messages and enums are full ones with a dot in front (`.shop.Order.Line`), as descriptors
have them; `Names` finds what a name in a text means. A map is what it is on the wire: a repeated
message of key and value, `is_entry`. What says nothing about bytes (services, options, comments,
extensions) is left out.

`text_of` is the canonical text: the same for files that say the same in other layout.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from lamina.errors import SchemaError
from lamina.formats.typed.schema_model import Kind

PROTO2, PROTO3 = "proto2", "proto3"
SCALARS: dict[str, Kind] = {
    "double": Kind.DOUBLE,
    "float": Kind.FLOAT,
    "int32": Kind.INT,
    "int64": Kind.LONG,
    "uint32": Kind.LONG,
    "uint64": Kind.ULONG,
    "sint32": Kind.INT,
    "sint64": Kind.LONG,
    "fixed32": Kind.LONG,
    "fixed64": Kind.ULONG,
    "sfixed32": Kind.INT,
    "sfixed64": Kind.LONG,
    "bool": Kind.BOOLEAN,
    "string": Kind.STRING,
    "bytes": Kind.BYTES,
}
"""The scalars, and the kind of column that holds each: 32 bits without sign need 64 with one."""
NUMBER_MAX = (1 << 29) - 1
RESERVED_BY_PROTOBUF = range(19_000, 20_000)


@dataclass(frozen=True)
class ProtoField:
    """A field: `type` is a scalar's word or the full name of a message or an enum."""

    name: str
    number: int
    type: str
    label: str = ""
    """`optional`, `required`, `repeated`, or nothing."""
    oneof: str = ""
    default: str | None = None
    """As JSON text; the name of an enum's symbol, bytes as characters up to 255."""
    packed: bool | None = None


@dataclass(frozen=True)
class ProtoEnum:
    """An enum: its symbols, each with a number."""

    name: str
    symbols: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class ProtoMessage:
    """A message, with what is declared inside it."""

    name: str
    fields: tuple[ProtoField, ...] = ()
    messages: tuple[ProtoMessage, ...] = ()
    enums: tuple[ProtoEnum, ...] = ()
    reserved: tuple[tuple[int, int], ...] = ()
    """Numbers that no field may have: first and last."""
    reserved_names: tuple[str, ...] = ()
    is_entry: bool = False


@dataclass(frozen=True)
class ProtoFile:
    """A file; `imports` are the paths that it names."""

    syntax: str = PROTO3
    package: str = ""
    imports: tuple[str, ...] = ()
    messages: tuple[ProtoMessage, ...] = ()
    enums: tuple[ProtoEnum, ...] = ()

    @property
    def scope(self) -> str:
        """What stands in front of the names of its messages."""
        return f".{self.package}" if self.package else ""


@dataclass
class Names:
    """Every message and enum of some files, by its full name, with the file's syntax."""

    known: dict[str, tuple[ProtoMessage | ProtoEnum, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Iterable[ProtoFile]) -> Names:
        """Collects names; raises SchemaError for one that is defined twice."""
        made = cls()
        for file in files:
            made._add(file.scope, file.messages, file.enums, file.syntax)
        return made

    def _add(
        self,
        scope: str,
        messages: tuple[ProtoMessage, ...],
        enums: tuple[ProtoEnum, ...],
        syntax: str,
    ) -> None:
        declared: list[ProtoMessage | ProtoEnum] = [*messages, *enums]
        for each in declared:
            full = f"{scope}.{each.name}"
            if full in self.known:
                raise SchemaError(f"{full[1:]} is defined twice", field=each.name)
            self.known[full] = each, syntax
            if isinstance(each, ProtoMessage):
                self._add(full, each.messages, each.enums, syntax)

    def find(self, name: str, scope: str) -> str | None:
        """Returns the full name of what a name means in a scope, innermost first."""
        if name.startswith("."):
            return name if name in self.known else None
        while True:
            if f"{scope}.{name}" in self.known:
                return f"{scope}.{name}"
            if not scope:
                return None
            scope = scope.rpartition(".")[0]


def renamed(file: ProtoFile, rename: Callable[[str, str, str], str]) -> ProtoFile:
    """Returns the file with other names of types: `rename(type, scope, path of the field)`."""

    def inside(message: ProtoMessage, scope: str) -> ProtoMessage:
        scope = f"{scope}.{message.name}"
        fields = [
            each
            if each.type in SCALARS
            else replace(each, type=rename(each.type, scope, f"{message.name}.{each.name}"))
            for each in message.fields
        ]
        inner = tuple(inside(each, scope) for each in message.messages)
        return replace(message, fields=tuple(fields), messages=inner)

    return replace(file, messages=tuple(inside(each, file.scope) for each in file.messages))


# ---------------------------------------------------------------------- text


def text_of(file: ProtoFile, others: Iterable[ProtoFile] = ()) -> str:
    """Returns the canonical text of a file whose names are full ones."""
    names = Names.of((file, *others))
    lines = [f'syntax = "{file.syntax}";']
    if file.package:
        lines += ["", f"package {file.package};"]
    if file.imports:
        lines += ["", *(f'import "{each}";' for each in sorted(file.imports))]
    for message in file.messages:
        lines += ["", *_message(message, file.scope, names)]
    for enum in file.enums:
        lines += ["", *_enum(enum)]
    return "\n".join(lines) + "\n"


def _message(message: ProtoMessage, scope: str, names: Names) -> Iterator[str]:
    scope = f"{scope}.{message.name}"
    yield f"message {message.name} {{"
    done: set[str] = set()
    for each in message.fields:
        if not each.oneof:
            yield f"  {_field(each, scope, names)}"
        elif each.oneof not in done:
            done.add(each.oneof)
            yield f"  oneof {each.oneof} {{"
            members = [other for other in message.fields if other.oneof == each.oneof]
            yield from (f"    {_field(other, scope, names)}" for other in members)
            yield "  }"
    for inner in message.messages:
        if not inner.is_entry:
            yield from (f"  {line}" for line in _message(inner, scope, names))
    for enum in message.enums:
        yield from (f"  {line}" for line in _enum(enum))
    if message.reserved:
        told = [str(a) if a == b else f"{a} to {b}" for a, b in sorted(message.reserved)]
        yield f"  reserved {', '.join(told)};"
    if message.reserved_names:
        yield f"  reserved {', '.join(json.dumps(each) for each in message.reserved_names)};"
    yield "}"


def _field(given: ProtoField, scope: str, names: Names) -> str:
    kind, label = _shown(given.type, scope, names), f"{given.label} " if given.label else ""
    target = names.known.get(given.type, (None, ""))[0]
    if isinstance(target, ProtoMessage) and target.is_entry:
        key, value = (_shown(each.type, scope, names) for each in target.fields)
        kind, label = f"map<{key}, {value}>", ""
    options = []
    if given.default is not None:
        is_symbol = isinstance(target, ProtoEnum)
        options.append(f"default = {_literal(given.default, given.type, is_symbol)}")
    if given.packed is not None:
        options.append(f"packed = {str(given.packed).lower()}")
    told = f" [{', '.join(options)}]" if options else ""
    return f"{label}{kind} {given.name} = {given.number}{told};"


def _shown(kind: str, scope: str, names: Names) -> str:
    """The shortest name that means the same in a scope."""
    parts = kind.removeprefix(".").split(".")
    if kind not in names.known:
        return kind
    for count in range(1, len(parts) + 1):
        short = ".".join(parts[-count:])
        if short not in SCALARS and names.find(short, scope) == kind:
            return short
    return kind


def _literal(default: str, kind: str, is_symbol: bool) -> str:
    value = json.loads(default)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if not isinstance(value, str) or is_symbol:
        return str(value)
    raw = value.encode("latin-1") if kind == "bytes" else value.encode()
    return f'"{escaped(raw)}"'


def escaped(raw: bytes) -> str:
    """Returns bytes as a literal has them between quotes."""
    plain = {0x22: '\\"', 0x5C: "\\\\"}
    return "".join(
        plain.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in raw
    )


def _enum(enum: ProtoEnum) -> list[str]:
    alias = len({number for _, number in enum.symbols}) < len(enum.symbols)
    body = [f"  {name} = {number};" for name, number in enum.symbols]
    option = ["  option allow_alias = true;"] if alias else []
    return [f"enum {enum.name} {{", *option, *body, "}"]
