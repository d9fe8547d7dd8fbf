"""Where decoding kernels put values: one room for each column of a schema, nested ones too.

A *node* is an Arrow array of the result. Nodes whose arrays have the same length share a *domain*:
0 is the rows, and each list or map begins one for its items. A kernel counts the items of each
domain, so that a record which turns out bad is taken back by resetting a few counts, and a room
that is full is made larger between two records.

Nullness and booleans take a byte each while a kernel runs, and become bits at the end.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.formats.typed.arrow_types import to_arrow
from lamina.formats.typed.schema_model import Kind, Type

ITEMS_MAX = (1 << 31) - 1
"""What Arrow's 32-bit offsets can count: the bytes of a column's text, the items of its lists."""
TABLE_WIDTH = 4
"""The table that a kernel is given, for each node: values or offsets, nullness, data, its room."""


class Storage(enum.IntEnum):
    """How the values of a node lie in memory."""

    FIXED = 0
    BOOLEAN = 1
    TEXT = 2
    LIST = 3
    STRUCT = 4
    NOTHING = 5


_WIDTHS = {Kind.INT: 4, Kind.FLOAT: 4, Kind.ENUM: 4, Kind.LONG: 8, Kind.DOUBLE: 8}


@dataclass(frozen=True)
class Node:
    """One Arrow array of the result; `inner` is the domain of a list's items."""

    number: int
    type: Type
    storage: Storage
    width: int
    domain: int
    inner: int
    children: tuple[Node, ...]

    def walk(self) -> Iterator[Node]:
        """Gives the node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


class _Numbering:
    def __init__(self) -> None:
        self.nodes = 0
        self.domains = 1

    def node(self, kind: Type, domain: int) -> Node:
        number = self.nodes
        self.nodes += 1
        stored, width, inner = kind.stored, 0, 0
        children: tuple[Node, ...] = ()
        if stored == Kind.RECORD:
            storage = Storage.STRUCT
            children = tuple(self.node(field.type, domain) for field in kind.fields)
        elif kind.items is not None:
            storage, inner = Storage.LIST, self.domains
            self.domains += 1
            keys = kind.keys or Type(Kind.STRING)
            key = (self.node(keys, inner),) if kind.kind == Kind.MAP else ()
            children = (*key, self.node(kind.items, inner))
        elif kind.kind == Kind.DECIMAL or stored == Kind.FIXED:
            storage, width = Storage.FIXED, 16 if kind.kind == Kind.DECIMAL else kind.size
        elif stored in (Kind.BYTES, Kind.STRING):
            storage = Storage.TEXT
        elif stored in (Kind.NULL, Kind.BOOLEAN):
            storage = Storage.NOTHING if stored == Kind.NULL else Storage.BOOLEAN
        else:
            storage, width = Storage.FIXED, _WIDTHS[stored]
        return Node(number, kind, storage, width, domain, inner, children)


@dataclass(frozen=True)
class ColumnPlan:
    """The nodes of a schema's columns; made once per schema."""

    root: Node
    nodes: int
    domains: int

    @classmethod
    def of(cls, schema: Type) -> ColumnPlan:
        """Numbers the nodes of a record that has columns."""
        numbering = _Numbering()
        root = numbering.node(schema, 0)
        return cls(root, numbering.nodes, numbering.domains)


class Rooms:
    """The memory of one decoding: made for a number of rows and of input bytes."""

    def __init__(self, plan: ColumnPlan, rows: int, input_bytes: int) -> None:
        self._plan = plan
        self._nodes = sorted(plan.root.walk(), key=lambda node: node.number)
        self.table: NDArray[np.int64] = np.zeros(plan.nodes * TABLE_WIDTH, dtype=np.int64)
        self.counts: NDArray[np.int64] = np.zeros(plan.domains + plan.nodes, dtype=np.int64)
        """Items of each domain, then bytes of each node's data."""
        self.capacities: NDArray[np.int64] = np.full(plan.domains, rows + 1, dtype=np.int64)
        self.capacities[1:] = min(4 * rows, input_bytes) + 8
        self._memory: dict[tuple[int, int], NDArray[np.uint8]] = {}
        for node in self._nodes:
            self._fit(node, min(input_bytes, ITEMS_MAX) + 32)

    def _fit(self, node: Node, data_bytes: int) -> None:
        items = int(self.capacities[node.domain])
        if node.storage in (Storage.TEXT, Storage.LIST):
            self._place(node, 0, 4 * (items + 1))
        elif node.storage in (Storage.FIXED, Storage.BOOLEAN):
            self._place(node, 0, items * (node.width or 1) + 16)
        if node.type.is_nullable:
            self._place(node, 1, items)
        if node.storage == Storage.TEXT:
            self._place(node, 2, data_bytes)
            self.table[node.number * TABLE_WIDTH + 3] = data_bytes

    def _place(self, node: Node, slot: int, size: int) -> None:
        """Gives a node memory of a size, with what was in the smaller one before."""
        old = self._memory.get((node.number, slot))
        if old is not None and len(old) >= size:
            return
        fresh = np.empty(size, dtype=np.uint8)
        if old is None:
            fresh[:8] = 0  # the first offset
        else:
            fresh[: len(old)] = old
        self._memory[node.number, slot] = fresh
        self.table[node.number * TABLE_WIDTH + slot] = fresh.ctypes.data

    def grow(self, place: int) -> bool:
        """Doubles a domain (its number) or a node's data (-1 - its number); False at the limit."""
        if place < 0:
            node = self._nodes[-1 - place]
            size = int(self.table[node.number * TABLE_WIDTH + 3])
            if size >= ITEMS_MAX:
                return False
            self._fit(node, min(2 * size, ITEMS_MAX))
            return True
        if self.capacities[place] >= ITEMS_MAX - 1:
            return False
        self.capacities[place] = min(2 * int(self.capacities[place]), ITEMS_MAX - 1)
        for node in self._nodes:
            if node.domain == place:
                self._fit(node, int(self.table[node.number * TABLE_WIDTH + 3]))
        return True

    def columns(self, rows: int, good: NDArray[np.bool_] | None) -> list[pa.Array]:
        """Returns the columns of the record; rows that are not good are null in each of them."""
        self.counts[0] = rows
        return [self._array(child, good) for child in self._plan.root.children]

    def _array(self, node: Node, good: NDArray[np.bool_] | None = None) -> pa.Array:
        count = int(self.counts[node.domain])
        kind = to_arrow(node.type)
        if node.storage == Storage.NOTHING:
            return pa.nulls(count)
        validity = self._validity(node, count, good)
        if node.storage == Storage.STRUCT:
            inner = [self._array(child) for child in node.children]
            return pa.Array.from_buffers(kind, count, [validity], children=inner)
        first = self._memory[node.number, 0]
        if node.storage == Storage.BOOLEAN:
            bits = pa.py_buffer(np.packbits(first[:count], bitorder="little"))
            return pa.Array.from_buffers(kind, count, [validity, bits])
        if node.storage == Storage.FIXED:
            values = pa.py_buffer(first[: count * node.width])
            return _fixed(node.type, kind, count, [validity, values])
        offsets = pa.py_buffer(first[: 4 * (count + 1)])
        if node.storage == Storage.TEXT:
            size = int(self.counts[self._plan.domains + node.number])
            data = pa.py_buffer(self._memory[node.number, 2][:size])
            return pa.Array.from_buffers(kind, count, [validity, offsets, data])
        inner = [self._array(child) for child in node.children]
        if node.type.kind == Kind.MAP:
            entries = pa.StructArray.from_arrays(inner, fields=[kind.key_field, kind.item_field])
            inner = [entries]
        return pa.Array.from_buffers(kind, count, [validity, offsets], children=inner)

    def _validity(self, node: Node, count: int, good: NDArray[np.bool_] | None) -> pa.Buffer | None:
        present: NDArray[np.bool_] | None = None
        if node.type.is_nullable:
            present = self._memory[node.number, 1][:count].view(np.bool_)
        if good is not None:
            present = good if present is None else present & good
        if present is None or bool(present.all()):
            return None
        return pa.py_buffer(np.packbits(present, bitorder="little"))


def _fixed(kind: Type, arrow: pa.DataType, count: int, buffers: list[pa.Buffer | None]) -> pa.Array:
    if kind.kind != Kind.ENUM:
        return pa.Array.from_buffers(arrow, count, buffers)
    indices = pa.Array.from_buffers(pa.int32(), count, buffers)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(kind.symbols), pa.string()))
