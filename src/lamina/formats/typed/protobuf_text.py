"""The language of `.proto` files, read into a `ProtoFile`; names of types stay as they are written.

Understood: proto2 and proto3, messages and enums in each other, oneof, map, every label and scalar,
`default`, `packed`, reserved, package, import. Passed over, as they say nothing about bytes:
options, services, extensions. Refused with the line: groups, editions, and what is no such text.
Text comes from outside: its size, its depth and what it declares are bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from lamina.errors import SchemaError
from lamina.formats.typed.protobuf_file import (
    NUMBER_MAX,
    PROTO2,
    PROTO3,
    RESERVED_BY_PROTOBUF,
    SCALARS,
    ProtoEnum,
    ProtoField,
    ProtoFile,
    ProtoMessage,
)
from lamina.formats.typed.schema_model import DEPTH_MAX, TEXT_MAX

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<word>\.?[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)
    |(?P<number>0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<sign>[{}\[\]()<>=;,:+\-/])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_PLAIN = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYS = set(SCALARS) - {"double", "float", "bytes"}
_LABELS = ("optional", "required", "repeated")


def parse(text: str) -> ProtoFile:
    """Reads a file's text; raises SchemaError with the line where it is not one."""
    if len(text) > TEXT_MAX:
        raise SchemaError(f"a schema's text has at most {TEXT_MAX} characters, not {len(text)}")
    return _Parser(text).file()


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Body:
    """What is declared in one message, so far."""

    def __init__(self) -> None:
        self.fields: list[ProtoField] = []
        self.messages: list[ProtoMessage] = []
        self.enums: list[ProtoEnum] = []
        self.reserved: list[tuple[int, int]] = []
        self.names: list[str] = []

    def made(self, name: str) -> ProtoMessage:
        return ProtoMessage(
            *(name, tuple(self.fields), tuple(self.messages), tuple(self.enums)),
            *(tuple(self.reserved), tuple(self.names)),
        )


class _Parser:
    """One reading: the tokens, and how far they are read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[_Token] = []
        self._next = 0
        self._syntax = PROTO2
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._error(f"{text[at : at + 20]!r} is not part of a .proto file", at)
            if found.lastgroup != "space":
                self._tokens.append(_Token(str(found.lastgroup), found.group(), at))
            at = found.end()

    # ------------------------------------------------------------------ tokens

    def _error(self, told: str, at: int | None = None) -> SchemaError:
        if at is None:
            at = self._tokens[self._next].at if self._next < len(self._tokens) else len(self._text)
        return SchemaError(f"line {self._text.count(chr(10), 0, at) + 1}: {told}")

    def _peek(self) -> str:
        return self._tokens[self._next].text if self._next < len(self._tokens) else ""

    def _take(self, kind: str = "", what: str = "more") -> str:
        if self._next == len(self._tokens):
            raise self._error(f"the text ends where {what} should be")
        token = self._tokens[self._next]
        if kind and token.kind != kind:
            raise self._error(f"{token.text[:40]!r} stands where {what} should be")
        self._next += 1
        return token.text

    def _expect(self, text: str) -> None:
        if self._next == len(self._tokens):
            raise self._error(f"the text ends where {text!r} should be")
        if self._peek() != text:
            raise self._error(f"{self._peek()[:40]!r} stands where {text!r} should be")
        self._next += 1

    def _accept(self, text: str) -> bool:
        is_there = self._peek() == text
        self._next += is_there
        return is_there

    def _name(self, what: str) -> str:
        word = self._take("word", what)
        if not _NAME.fullmatch(word):
            self._next -= 1
            raise self._error(f"{word[:40]!r} is not the name of {what}")
        return word

    def _whole(self, what: str) -> int:
        sign = -1 if self._accept("-") else 1
        text = self._take("number", what)
        try:
            octal = len(text) > 1 and text.startswith("0") and text.isdigit()
            return sign * (int(text, 8) if octal else int(text, 0))
        except ValueError:
            self._next -= 1
            raise self._error(f"{text[:40]} is not a {what}") from None

    def _texts(self) -> bytes:
        """A text in quotes, or several of them, which are one."""
        made = _unquoted(self._take("text", "text in quotes"))
        while self._next < len(self._tokens) and self._tokens[self._next].kind == "text":
            made += _unquoted(self._take())
        return made

    def _skip_statement(self) -> None:
        """Passes over everything to the semicolon, with what is in brackets."""
        while not self._accept(";"):
            if self._peek() in ("{", "["):
                self._skip_block()
            else:
                self._take(what="';'")

    def _skip_extend(self) -> None:
        self._take("word", "a name")
        self._skip_block()

    def _skip_block(self) -> None:
        depth = 0
        while True:
            word = self._take(what="the end of a block")
            depth += (word in "{[") - (word in "}]")
            if depth <= 0:
                return

    # ------------------------------------------------------------------ the file

    def file(self) -> ProtoFile:
        """Reads everything."""
        package, imports, body = "", [], _Body()
        while self._next < len(self._tokens):
            word = self._take()
            if word == "syntax":
                self._read_syntax()
            elif word == "edition":
                raise self._error("editions are not understood; use syntax proto2 or proto3")
            elif word == "package":
                package = self._take("word", "the package").removeprefix(".")
                self._expect(";")
            elif word == "import":
                if self._peek() in ("public", "weak"):
                    self._take()
                imports.append(self._texts().decode("utf-8", "replace"))
                self._expect(";")
            elif word == "message":
                body.messages.append(self._message(0))
            elif word == "enum":
                body.enums.append(self._enum())
            elif word == "option":
                self._skip_statement()
            elif word in ("service", "extend"):
                self._skip_extend()
            elif word != ";":
                self._next -= 1
                raise self._error(f"{word[:40]!r} begins nothing that a .proto file has")
        made = (tuple(imports), tuple(body.messages), tuple(body.enums))
        return ProtoFile(self._syntax, package, *made)

    def _read_syntax(self) -> None:
        self._expect("=")
        self._syntax = self._texts().decode("utf-8", "replace")
        if self._syntax not in (PROTO2, PROTO3):
            raise self._error(f"syntax is proto2 or proto3, not {self._syntax[:40]!r}")
        self._expect(";")

    def _message(self, depth: int) -> ProtoMessage:
        if depth > DEPTH_MAX:
            raise self._error(f"messages lie more than {DEPTH_MAX} deep in each other")
        name, body = self._name("a message"), _Body()
        others: dict[str, Callable[[], Any]] = {
            "message": lambda: body.messages.append(self._message(depth + 1)),
            "enum": lambda: body.enums.append(self._enum()),
            "oneof": lambda: self._oneof(body),
            "option": self._skip_statement,
            "extensions": self._skip_statement,
            "extend": self._skip_extend,
            "reserved": lambda: self._reserved(body),
            ";": lambda: None,
        }
        self._expect("{")
        while not self._accept("}"):
            word = self._take(what="'}'")
            if word in others:
                others[word]()
            else:
                self._next -= 1
                self._field(body, "")
        return body.made(name)

    def _oneof(self, body: _Body) -> None:
        name = self._name("a oneof")
        self._expect("{")
        while not self._accept("}"):
            if self._accept("option"):
                self._skip_statement()
            elif not self._accept(";"):
                self._field(body, name)

    def _field(self, body: _Body, oneof: str) -> None:
        label = self._take() if self._peek() in _LABELS and not oneof else ""
        if self._peek() == "group":
            raise self._error("groups have no columns; use a message")
        if label == "required" and self._syntax == PROTO3:
            raise self._error("proto3 has no required fields")
        after = self._tokens[self._next + 1 : self._next + 2]
        if self._peek() == "map" and after and after[0].text == "<":
            self._map(body, label or oneof)
            return
        kind = self._take("word", "a type")
        name = self._name("a field")
        number, options = self._numbered()
        made = ProtoField(name, number, kind, label, oneof)
        body.fields.append(self._with_options(made, options))

    def _map(self, body: _Body, label: str) -> None:
        if label:
            raise self._error("a map has no label and is in no oneof")
        self._take()
        self._expect("<")
        key = self._take("word", "the type of a key")
        if key not in _KEYS:
            raise self._error(f"a map has no keys of {key[:40]}")
        self._expect(",")
        value = self._take("word", "the type of a value")
        self._expect(">")
        name = self._name("a field")
        number, _ = self._numbered()
        entry = entry_name(name)
        inside = (ProtoField("key", 1, key), ProtoField("value", 2, value))
        body.messages.append(ProtoMessage(entry, inside, is_entry=True))
        body.fields.append(ProtoField(name, number, entry, "repeated"))

    def _numbered(self) -> tuple[int, dict[str, Any]]:
        """The number of a field and the options behind it, to the semicolon."""
        self._expect("=")
        number = self._whole("a field's number")
        if not 1 <= number <= NUMBER_MAX or number in RESERVED_BY_PROTOBUF:
            raise self._error(f"{number} is not a field number")
        options = self._options() if self._accept("[") else {}
        self._expect(";")
        return number, options

    def _options(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while True:
            name = ""
            while not self._accept("="):
                name += self._take(what="'='")
            if self._peek() in ("{", "["):
                self._skip_block()
            else:
                found[name] = self._constant()
            if self._accept("]"):
                return found
            self._expect(",")

    def _constant(self) -> Any:
        """A number, bytes of a text, or a word."""
        token = self._tokens[self._next] if self._next < len(self._tokens) else None
        if token is not None and token.kind == "text":
            return self._texts()
        sign = "-" if self._accept("-") else ""
        self._accept("+")
        return sign + self._take(what="a value")

    def _with_options(self, made: ProtoField, options: dict[str, Any]) -> ProtoField:
        packed, default = options.get("packed"), options.get("default")
        if packed is not None:
            made = replace(made, packed=packed == "true")
        if default is None:
            return made
        if self._syntax == PROTO3:
            raise self._error(f"{made.name}: proto3 has no defaults")
        return replace(made, default=default_text(default, made.type, made.name))

    def _reserved(self, body: _Body) -> None:
        while True:
            if self._next < len(self._tokens) and self._tokens[self._next].kind == "text":
                body.names.append(self._texts().decode("utf-8", "replace"))
            else:
                first = last = self._whole("a number")
                if self._accept("to"):
                    last = NUMBER_MAX if self._accept("max") else self._whole("a number")
                body.reserved.append((first, last))
            if self._accept(";"):
                return
            self._expect(",")

    def _enum(self) -> ProtoEnum:
        name, symbols = self._name("an enum"), []
        self._expect("{")
        while not self._accept("}"):
            word = self._take("" if self._peek() == ";" else "word", "a symbol")
            if word in ("option", "reserved") and self._peek() != "=":
                self._skip_statement()
            elif word != ";":
                self._expect("=")
                symbols.append((word, self._whole("a symbol's number")))
                if self._accept("["):
                    self._options()
                self._expect(";")
        return ProtoEnum(name, tuple(symbols))


def entry_name(field: str) -> str:
    """Returns the name of the message that a map's entries are, as protoc makes it."""
    return "".join(part[:1].upper() + part[1:] for part in field.split("_")) + "Entry"


def default_text(value: str | bytes, kind: str, path: str) -> str:
    """Returns a default as JSON text; raises SchemaError for one that is not of its type."""
    column = SCALARS.get(kind)
    try:
        if kind == "bytes":
            return json.dumps(_raw(value).decode("latin-1"))
        if kind == "string":
            return json.dumps(_raw(value).decode())
        if isinstance(value, bytes):
            raise ValueError("text")
        if kind == "bool":
            return json.dumps({"true": True, "false": False}[value])
        if kind in ("float", "double"):
            return json.dumps(float(value))
        if column is not None:
            return json.dumps(int(value, 0))
    except (ValueError, KeyError) as error:
        raise SchemaError(f"{path}: {value!r} is not of type {kind}", field=path) from error
    return json.dumps(value)


def _raw(value: str | bytes) -> bytes:
    if isinstance(value, str):
        raise ValueError("no text in quotes")
    return value


def _unquoted(literal: str) -> bytes:
    return unescaped(literal[1:-1].encode())


def unescaped(raw: bytes) -> bytes:
    """Returns the bytes that a literal means."""

    def one(found: re.Match[bytes]) -> bytes:
        octal, hexadecimal, code, other = found.groups()
        if octal is not None:
            return bytes([int(octal, 8) & 0xFF])
        if hexadecimal is not None:
            return bytes([int(hexadecimal, 16)])
        if code is not None:
            return chr(int(code, 16)).encode("utf-8", "replace")
        return _PLAIN.get(other, other)

    return _ESCAPE.sub(one, raw)
