"""JSON documents into columns: a kernel for plain ones, Arrow's own reader for all others.

`json_scan` reads documents as programs write them. What it leaves, and schemas that it does not
know, go through Arrow's reader over the joined values, columns by schema.

There a kernel looks at every value first: it must be one object in UTF-8, not too deep, and with
nothing behind it. So a value is one line, and lines and rows cannot come apart; the reader's own
recursion is bounded, too. Where the reader stops at a line it is given halves, until the line is
alone: that row is bad, and all others are read. No record is a Python object on the way, except in
schemas with maps, which the reader does not know: there every document is rewritten by Python's own
JSON.

A field that is missing or null takes its default, or is null; where the schema has neither, the
row is bad. Fields that the schema does not name are ignored. Former names (aliases) count as well.
"""

from __future__ import annotations

import functools
import json
import math
import re
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as reader
from numpy.typing import NDArray

from lamina.errors import SchemaError
from lamina.formats.envelope import is_utf8
from lamina.formats.kernels.arrow import empty_bytes
from lamina.formats.kernels.binary import address_of, peek_u8, poke_u8
from lamina.formats.kernels.declare import kernel
from lamina.formats.typed import json_leaves, json_misfit, json_program, json_scan
from lamina.formats.typed.arrow_types import to_arrow
from lamina.formats.typed.clock_texts import times_of_day
from lamina.formats.typed.given_columns import default_scalar
from lamina.formats.typed.json_program import Program
from lamina.formats.typed.row_faults import (
    BAD_DOCUMENT,
    BAD_TEXT,
    FINE,
    MISSING_FIELD,
    NO_VALUE,
    Decoded,
    Values,
)
from lamina.formats.typed.schema_model import Field, Kind, Type, children

DEPTH_MAX = 64
_COLUMN = re.compile(r"Column\(/([^)]*)\)")
_QUOTE, _BACKSLASH, _NEWLINE, _RETURN, _SPACE, _TAB = 0x22, 0x5C, 0x0A, 0x0D, 0x20, 0x09
_OPEN, _CLOSE, _LEFT, _RIGHT = 0x7B, 0x7D, 0x5B, 0x5D
_TIMES_OF_DAY = {Kind.TIME_MILLIS, Kind.TIME_MICROS}
_AS_TEXT = {Kind.UUID, Kind.ENUM, Kind.DATE, *_TIMES_OF_DAY}


class _Lines(NamedTuple):
    """Values as lines: where each begins, and the row that it belongs to."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    rows: NDArray[np.int64]


class _Part(NamedTuple):
    """Rows that were read together, and which of them lack a field, by its place."""

    rows: NDArray[np.int64]
    columns: list[pa.Array]
    lacking: NDArray[np.int32]


def decode(schema: Type, values: Values) -> Decoded:
    """Decodes a batch of values; never raises for what they hold."""
    program = _program(schema)
    if program is None:
        return by_reader(schema, values)
    plain = json_scan.decode(program, values)
    rest = np.flatnonzero(plain.codes == json_leaves.NOT_PLAIN)
    if not len(rest):
        return plain
    return _merged(plain, by_reader(schema, values.chosen(rest)), rest)


@functools.lru_cache(maxsize=256)
def _program(schema: Type) -> Program | None:
    return json_program.compiled(schema)


def _merged(plain: Decoded, others: Decoded, rest: NDArray[np.intp]) -> Decoded:
    """Puts rows that Arrow's reader has read into their places among the plain ones."""
    places = np.arange(len(plain.codes))
    places[rest] = len(places) + np.arange(len(rest))
    taken = pa.array(places)
    columns = [
        pa.concat_arrays(pair).take(taken)
        for pair in zip(plain.columns, others.columns, strict=True)
    ]
    plain.codes[rest], plain.fields[rest] = others.codes, others.fields
    return Decoded(columns, plain.codes, plain.fields, others.paths, others.kinds)


def by_reader(schema: Type, values: Values) -> Decoded:
    """Decodes a batch of values by Arrow's reader; never raises for what they hold."""
    count = len(values.starts)
    codes = np.zeros(count, dtype=np.int32)
    fields = np.full(count, -1, dtype=np.int32)
    lines = _joined(values, codes)
    is_object = codes == FINE
    paths = [field.name for field in schema.fields]
    if has_map(schema):
        lines = _rewritten(lines, schema, codes)
    parts: list[_Part] = []
    _read(schema, lines, (codes, fields, paths), parts)
    order = np.full(count, -1, dtype=np.int64)
    used = 0
    for part in parts:
        order[part.rows] = np.arange(used, used + len(part.rows))
        used += len(part.rows)
        lacking = part.rows[part.lacking >= 0]
        codes[lacking] = MISSING_FIELD
        fields[lacking] = part.lacking[part.lacking >= 0]
    order[codes != FINE] = -1
    taken = pa.array(order, mask=order < 0)
    columns = [
        pa.concat_arrays([part.columns[at] for part in parts]).take(taken)
        if parts
        else pa.nulls(count, to_arrow(field.type))
        for at, field in enumerate(schema.fields)
    ]
    return Decoded(
        columns, codes, fields, *_located(schema, values, (codes, fields, paths, is_object))
    )


def _located(
    schema: Type, values: Values, findings: Any
) -> tuple[tuple[str, ...], tuple[Type | None, ...]]:
    """Names the field at fault in each bad object, if it can be found: all paths, and types."""
    codes, fields, paths, is_object = findings
    kinds: list[Type | None] = [field.type for field in schema.fields]
    kinds += [None] * (len(paths) - len(kinds))
    known: dict[str, int] = {}
    for row in np.flatnonzero((codes != FINE) & is_object):
        text = values.data[values.starts[row] : values.ends[row]].tobytes()
        found = json_misfit.misfit(schema, text)
        if found is None:
            continue
        if found.path not in known:
            known[found.path] = len(paths)
            paths.append(found.path)
            kinds.append(found.kind)
        codes[row], fields[row] = found.code, known[found.path]
    return tuple(paths), tuple(kinds)


def has_map(kind: Type) -> bool:
    """Whether a type has a map anywhere."""
    return kind.kind == Kind.MAP or any(has_map(inner) for _, inner in children(kind))


# ---------------------------------------------------------------------- lines


def _joined(values: Values, codes: NDArray[np.int32]) -> _Lines:
    """Joins the values that are one object each; gives the others their code."""
    count = len(values.starts)
    data = empty_bytes(values.size_bytes() + count + 1)
    starts = np.zeros(count + 1, dtype=np.int64)
    rows = np.zeros(count, dtype=np.int64)
    found = _join(values, data, (starts, rows, codes))
    return _Lines(data, starts[: found + 1], rows[:found])


@kernel
def _join(  # noqa: PLR0912  # a branch for each kind of byte
    values: Any, out: Any, found: Any
) -> Any:
    """Writes each value that is one object as a line; returns how many there are."""
    data, begins, ends = values
    starts, rows, codes = found
    origin, target = address_of(data), address_of(out)
    used, lines = 0, 0
    for row in range(len(begins)):
        if begins[row] < 0:
            codes[row] = NO_VALUE
            continue
        first, length = origin + begins[row], ends[row] - begins[row]
        if length < 0 or not is_utf8(first, length):
            codes[row] = BAD_TEXT
            continue
        depth, objects, in_text, is_sound, at = 0, 0, False, True, 0
        while at < length:
            byte = peek_u8(first + at)
            is_space = byte in (_SPACE, _TAB, _NEWLINE, _RETURN)
            if in_text:
                if byte == _BACKSLASH and at + 1 < length:
                    poke_u8(target + used + at, byte)
                    at += 1
                    byte = peek_u8(first + at)
                elif byte == _QUOTE:
                    in_text = False
                if byte in (_NEWLINE, _RETURN):
                    is_sound = False  # no text has one: a space in its place would hide that
            elif byte == _QUOTE:
                in_text = True
                is_sound = is_sound and depth > 0
            elif byte in (_OPEN, _LEFT):
                objects += depth == 0
                is_sound = is_sound and (depth > 0 or byte == _OPEN)
                depth += 1
            elif byte in (_CLOSE, _RIGHT):
                depth -= 1
            elif depth <= 0 and not is_space:
                is_sound = False
            is_sound = is_sound and 0 <= depth <= DEPTH_MAX and objects <= 1
            poke_u8(target + used + at, _SPACE if is_space else byte)
            at += 1
        if not is_sound or depth != 0 or in_text or objects != 1:
            codes[row] = BAD_DOCUMENT
            continue
        poke_u8(target + used + length, _NEWLINE)
        starts[lines] = used
        rows[lines] = row
        used += length + 1
        lines += 1
    starts[lines] = used
    return lines


def _rewritten(lines: _Lines, schema: Type, codes: NDArray[np.int32]) -> _Lines:
    """Makes lists of keys and values of all maps, document by document: the slow way."""
    made: list[bytes] = []
    rows: list[int] = []
    for at, row in enumerate(lines.rows):
        text = lines.data[lines.starts[at] : lines.starts[at + 1]].tobytes()
        try:
            document = json.loads(text, object_pairs_hook=_once, parse_float=_Written)
            made.append(json.dumps(_listed(schema, document)).encode() + b"\n")
            rows.append(int(row))
        except (ValueError, RecursionError):
            codes[row] = BAD_DOCUMENT
    starts = np.cumsum([0, *map(len, made)], dtype=np.int64)
    return _Lines(
        np.frombuffer(b"".join(made) or b"\n", dtype=np.uint8), starts, np.array(rows, np.int64)
    )


class _Written(str):
    """A number with a point or an exponent, as it is written: a float would lose digits."""

    __slots__ = ()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all different; Arrow's reader refuses others, too."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return made


def _finite(number: str) -> float:
    if not math.isfinite(float(number)):
        raise ValueError("a number that no float holds")
    return float(number)


def _listed(kind: Type, value: Any) -> Any:
    if kind.kind == Kind.RECORD and isinstance(value, dict):
        known = {name: field.type for field in kind.fields for name in field.names}
        return {n: _listed(known[n], each) for n, each in value.items() if n in known}
    if isinstance(value, _Written):
        return str(value) if kind.kind == Kind.DECIMAL else _finite(value)
    if kind.items is None or value is None:
        return value
    if kind.kind == Kind.MAP:
        if not isinstance(value, dict):
            raise ValueError("a map is an object")
        return [{"key": n, "value": _listed(kind.items, each)} for n, each in value.items()]
    return [_listed(kind.items, each) for each in value] if isinstance(value, list) else value


# ---------------------------------------------------------------------- Arrow's reader


def _read(schema: Type, lines: _Lines, findings: Any, parts: list[_Part]) -> None:
    """Reads lines; where that fails, halves of them, until a line that fails is alone."""
    count = len(lines.rows)
    if count == 0:
        return
    try:
        parts.append(_read_all(schema, lines))
    except (pa.ArrowException, UnicodeDecodeError) as error:
        if count > 1:
            half = count // 2
            first = _Lines(lines.data, lines.starts[: half + 1], lines.rows[:half])
            _read(schema, first, findings, parts)
            rest = _Lines(lines.data, lines.starts[half:], lines.rows[half:])
            _read(schema, rest, findings, parts)
            return
        codes, fields, paths = findings
        codes[lines.rows] = BAD_DOCUMENT
        named = _COLUMN.search(str(error))
        if named is not None:
            paths.append(named[1].replace("/", "."))
            fields[lines.rows] = len(paths) - 1


def _read_all(schema: Type, lines: _Lines) -> _Part:
    count = len(lines.rows)
    data = lines.data[lines.starts[0] : lines.starts[-1]]
    wanted = pa.schema(_fields(schema))
    table = reader.read_json(
        pa.BufferReader(pa.py_buffer(data)),
        read_options=reader.ReadOptions(block_size=max(len(data), 1 << 16), use_threads=False),
        parse_options=reader.ParseOptions(
            explicit_schema=wanted, unexpected_field_behavior="ignore"
        ),
    )
    if table.num_rows != count:
        raise pa.ArrowInvalid(f"{count} lines gave {table.num_rows} rows")
    lacking = np.full(count, -1, dtype=np.int32)
    columns = []
    found = {name: table.column(name) for name in table.schema.names}
    for place, field in enumerate(schema.fields):
        arrays = [_whole(found[name], count, name, wanted) for name in field.names]
        made, bad = _field(field, arrays)
        lacking[bad & (lacking < 0)] = place
        columns.append(made)
    return _Part(lines.rows, columns, lacking)


def _whole(column: pa.ChunkedArray, count: int, name: str, wanted: pa.Schema) -> pa.Array:
    if column.num_chunks == 0:
        return pa.nulls(count, wanted.field(name).type)
    return pa.concat_arrays(column.chunks)


def _fields(kind: Type) -> list[pa.Field]:
    """The fields that Arrow's reader looks for: each name, and each former one."""
    return [pa.field(name, _readable(field.type)) for field in kind.fields for name in field.names]


def _readable(kind: Type) -> pa.DataType:
    """The type that Arrow's reader reads a value as; some are made of text afterwards."""
    if kind.kind in _AS_TEXT:
        return pa.string()
    if kind.kind == Kind.RECORD:
        return pa.struct(_fields(kind))
    if kind.kind == Kind.MAP:
        assert kind.items is not None
        return pa.list_(pa.struct([("key", pa.string()), ("value", _readable(kind.items))]))
    if kind.items is not None:
        return pa.list_(_readable(kind.items))
    return to_arrow(kind)


# ---------------------------------------------------------------------- exact types


def _field(field: Field, arrays: list[pa.Array]) -> tuple[pa.Array, NDArray[np.bool_]]:
    """A field's values, by its names, with its default: (of the exact type, which rows are bad)."""
    given = arrays[0] if len(arrays) == 1 else _first_of(arrays)
    made, bad = _exact(field.type, given)
    if field.type.is_nullable or field.type.kind == Kind.NULL or not made.null_count:
        return made, bad
    filled = _default(field, made.type)
    if filled is None:
        return made, bad | np.asarray(made.is_null())
    absent = made.is_null()
    many = pa.repeat(filled, len(made))
    return pc.if_else(absent, many, made).cast(made.type), bad


def _default(field: Field, kind: pa.DataType) -> pa.Scalar | None:
    """A field's default; None for one that was kept before defaults were held against types."""
    if field.default is None:
        return None
    try:
        return default_scalar(field, kind)
    except SchemaError:
        return None


def _first_of(arrays: list[pa.Array]) -> pa.Array:
    """The first of some arrays that has a value, row by row."""
    joined = pa.concat_arrays(arrays)
    count = len(arrays[0])
    chosen = np.arange(count)
    for number, array in enumerate(arrays):
        there = np.asarray(array.is_valid())
        fresh = there & (chosen < count) & np.asarray(joined.take(pa.array(chosen)).is_null())
        chosen[fresh] = np.flatnonzero(fresh) + number * count
    return joined.take(pa.array(chosen))


def _exact(kind: Type, array: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Values of the exact type, and which of them are bad inside; raises where text is none."""
    good = np.zeros(len(array), dtype=np.bool_)
    target = to_arrow(kind)
    if kind.kind == Kind.ENUM:
        symbols = pa.array(list(kind.symbols), pa.string())
        found = pc.index_in(array, value_set=symbols)
        bad = np.asarray(pc.and_(found.is_null(), array.is_valid()))
        return pa.DictionaryArray.from_arrays(found, symbols), bad
    if kind.kind == Kind.RECORD:
        return _exact_record(kind, array, target)
    if kind.items is not None:
        return _exact_list(kind, array, target)
    if kind.kind in _TIMES_OF_DAY:
        return times_of_day(array, target), good
    if kind.kind == Kind.DECIMAL:
        array.validate(full=True)  # Arrow's reader takes numbers of more digits than there are
    return (array if array.type == target else array.cast(target)), good


def _exact_record(
    kind: Type, array: pa.Array, target: pa.DataType
) -> tuple[pa.Array, NDArray[np.bool_]]:
    bad = np.zeros(len(array), dtype=np.bool_)
    there = np.asarray(array.is_valid())
    columns = []
    for field in kind.fields:
        made, wrong = _field(field, [array.field(name) for name in field.names])
        bad |= wrong & there
        columns.append(made)
    fields = [target.field(at).with_nullable(True) for at in range(target.num_fields)]
    loose = pa.StructArray.from_arrays(columns, fields=fields, mask=array.is_null())
    return pa.Array.from_buffers(target, len(loose), loose.buffers()[:1], children=columns), bad


def _exact_list(
    kind: Type, array: pa.Array, target: pa.DataType
) -> tuple[pa.Array, NDArray[np.bool_]]:
    assert kind.items is not None
    values = array.values
    offsets = np.asarray(array.offsets).astype(np.int64)
    inside = values if kind.kind == Kind.ARRAY else values.field("value")
    made, wrong = _exact(kind.items, inside)
    if not kind.items.is_nullable and kind.items.kind != Kind.NULL:
        wrong = wrong | np.asarray(made.is_null())
    sums = np.concatenate(([0], np.cumsum(wrong)))
    bad = sums[offsets[1:]] > sums[offsets[:-1]]
    inner = [made]
    if kind.kind == Kind.MAP:
        entries = pa.StructArray.from_arrays(
            [values.field("key"), made], fields=[target.key_field, target.item_field]
        )
        inner = [entries]
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(target, len(array), buffers, children=inner), bad
