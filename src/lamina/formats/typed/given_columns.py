"""A user's table as columns that encoding kernels read in place.

The table is given the exact types of the schema first, so that a kernel sees one layout for each
type. Nulls are left to the kernel, which knows the row. Whoever calls has checked the table's
buffers (`received.refuse_broken`): kernels trust offsets.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lamina.errors import SchemaError
from lamina.formats.typed.arrow_types import to_arrow
from lamina.formats.typed.clock_texts import times_of_day
from lamina.formats.typed.column_rooms import TABLE_WIDTH, ColumnPlan, Node, Storage
from lamina.formats.typed.schema_model import STORED_AS, Field, Kind, Type, joined


class TableColumns:
    """The arrays of a table, and the addresses at which a kernel finds them.

    For each node: values or offsets, bits of what is there (0 for "everything"), the first bit, and
    the bytes of text. Addresses are valid as long as this object is.
    """

    def __init__(self, plan: ColumnPlan, columns: list[pa.Array], rows: int) -> None:
        self.rows = rows
        self.size_bytes = 0
        self.addresses: NDArray[np.int64] = np.zeros(plan.nodes * TABLE_WIDTH, dtype=np.int64)
        self._kept: list[pa.Array] = []
        fields = plan.root.type.fields
        for node, field, column in zip(plan.root.children, fields, columns, strict=True):
            self._place(node, column, field.name)

    def _place(self, node: Node, array: pa.Array, path: str) -> None:
        if node.storage == Storage.NOTHING:
            return
        if node.type.kind == Kind.ENUM:
            array = refuse_no_symbol(array, node.type, path)
        elif node.storage == Storage.BOOLEAN:
            array = array.cast(pa.uint8())
        self._kept.append(array)
        cell = node.number * TABLE_WIDTH
        buffers = array.buffers()
        if array.null_count:
            self.addresses[cell + 1 : cell + 3] = buffers[0].address, array.offset
        if node.storage == Storage.STRUCT:
            for number, child in enumerate(node.children):
                inner = array.field(number)
                self._place(child, inner, f"{path}.{node.type.fields[number].name}")
            return
        width = 4 if node.storage in (Storage.TEXT, Storage.LIST) else (node.width or 1)
        self.addresses[cell] = _address(buffers[1]) + array.offset * width
        self.size_bytes += len(array) * (width + 1)
        if node.storage == Storage.TEXT:
            self.addresses[cell + 3] = _address(buffers[2])
            self.size_bytes += _address_size(array)
        elif node.storage == Storage.LIST:
            is_map = node.type.kind == Kind.MAP
            inside = [array.keys, array.items] if is_map else [array.values]
            for child, values in zip(node.children, inside, strict=True):
                self._place(child, values, f"{path}[]")


def exact_columns(schema: Type, table: pa.Table | pa.RecordBatch) -> list[pa.Array]:
    """Returns a table's columns in the schema's order, of its types; text in place of enums."""
    refuse_doubled(table.schema.names)
    _refuse_unknown(schema, table.schema.names)
    return [_column(field, table) for field in schema.fields]


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.address)


def _address_size(array: pa.Array) -> int:
    if len(array) == 0:
        return 0
    edges = np.frombuffer(array.buffers()[1], dtype=np.int32, count=array.offset + len(array) + 1)
    return int(edges[-1] - edges[array.offset])


def _refuse_unknown(schema: Type, names: list[str]) -> None:
    known = {field.name for field in schema.fields}
    for name in names:
        if name not in known:
            told = ", ".join(field.name for field in schema.fields)
            raise SchemaError(f"the schema has no column {name!r}; it has {told}", field=name)


def refuse_doubled(names: list[str]) -> None:
    """Raises SchemaError for a name that two columns have: nobody knows which of them is meant."""
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise SchemaError(f"column {double!r} is given {names.count(double)} times", field=double)


def _column(field: Field, table: pa.Table | pa.RecordBatch) -> pa.Array:
    """The values of a field as one array of the exact type; a missing one as its default."""
    kind = plain_type(field.type)
    at = table.schema.get_field_index(field.name)
    if at < 0:
        return _default(field, kind, table.num_rows)
    column = table.column(at)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.type == kind:
        return column
    _refuse_left_out(column.type, kind, field.name)
    try:
        return column.cast(_or_null(kind))
    except (pa.ArrowException, NotImplementedError) as error:
        raise SchemaError(
            f"column {field.name!r} must be {kind}, not {column.type}: {error}", field=field.name
        ) from error


def _refuse_left_out(given: pa.DataType, kind: pa.DataType, path: str) -> None:
    """Raises SchemaError for fields inside a column that Arrow would leave out without a word."""
    if pa.types.is_struct(given) and pa.types.is_struct(kind):
        names = [given.field(number).name for number in range(given.num_fields)]
        known = {
            kind.field(number).name: kind.field(number).type for number in range(kind.num_fields)
        }
        for number, name in enumerate(names):
            here = joined(path, name)
            if name not in known:
                raise SchemaError(f"{here}: the schema has no such field", field=here)
            if names.count(name) > 1:
                raise SchemaError(f"{here} is given {names.count(name)} times", field=here)
            _refuse_left_out(given.field(number).type, known[name], here)
    elif pa.types.is_map(given) and pa.types.is_map(kind):
        _refuse_left_out(given.item_type, kind.item_type, joined(path, "{}"))
    elif _is_list(given) and _is_list(kind):
        _refuse_left_out(given.value_type, kind.value_type, joined(path, "[]"))


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _default(field: Field, kind: pa.DataType, rows: int) -> pa.Array:
    if field.type.is_nullable and field.default in (None, "null"):
        return pa.nulls(rows, kind)
    if field.default is None:
        raise SchemaError(f"column {field.name!r} is missing and has no default", field=field.name)
    return pa.repeat(default_scalar(field, kind), rows)


def plain_type(kind: Type) -> pa.DataType:
    """Returns the Arrow type that a table's column is given: text in place of enums."""
    return _plain(to_arrow(kind))


def default_scalar(field: Field, kind: pa.DataType, path: str = "") -> pa.Scalar:
    """Returns a field's default as a value of Arrow's type; raises SchemaError if it is none."""
    try:
        return _scalar(field, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        path = path or field.name
        raise SchemaError(
            f"{path}: the default {(field.default or '')[:80]} is not of type"
            f" {field.type.kind.value}: {error}",
            field=path,
        ) from error


def _scalar(field: Field, kind: pa.DataType) -> pa.Scalar:
    value = json.loads(field.default or "null")
    if isinstance(value, str) and field.type.stored in (Kind.BYTES, Kind.FIXED):
        raw = value.encode("latin-1")
        if field.type.kind == Kind.DECIMAL:
            unscaled = int.from_bytes(raw, "big", signed=True)
            whole = pa.scalar(unscaled, pa.decimal128(38, 0)).as_py()
            return pa.scalar(whole.scaleb(-field.type.scale), kind)
        return pa.scalar(raw, kind)
    if isinstance(value, dict) and field.type.kind == Kind.MAP:
        return pa.scalar(list(value.items()), kind)
    if isinstance(value, str) and pa.types.is_time(kind):
        return times_of_day(pa.array([value]), kind)[0]
    if isinstance(value, str) and field.type.kind in STORED_AS:
        return pa.scalar(value).cast(kind)  # a date or a time as JSON writes it
    if value is None or isinstance(value, bool) != pa.types.is_boolean(kind):
        raise ValueError("another type")  # Arrow takes True for a number, and null for anything
    return pa.scalar(value, kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Arrow's type with text in place of dictionaries: symbols are looked up one by one level."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([each.with_type(_plain(each.type)) for each in fields])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_plain(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    return kind


def _or_null(kind: pa.DataType) -> pa.DataType:
    """Arrow's type with null allowed inside: below a null nothing is there, whatever the schema.

    A null where the schema has none is found when its row is written, and refused there.
    """
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([pa.field(each.name, _or_null(each.type)) for each in fields])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, pa.field("value", _or_null(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _or_null(kind.value_type)))
    return kind


def refuse_no_symbol(array: pa.Array, kind: Type, path: str) -> pa.Array:
    """Returns the number of each symbol; raises SchemaError for text that is no symbol."""
    found = pc.index_in(array, value_set=pa.array(list(kind.symbols), pa.string()))
    if found.null_count > array.null_count:
        row = int(np.flatnonzero(np.asarray(pc.and_(found.is_null(), array.is_valid())))[0])
        told = ", ".join(kind.symbols[:10])
        raise SchemaError(
            f"{path}: {array[row].as_py()!r} in row {row} is none of {told}", field=path
        )
    return found
