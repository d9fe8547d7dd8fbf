"""What a filter of Spark's says about where records are: an Arrow expression, keys, and columns.

Spark itself parses, resolves and folds the filter: `now() - interval 10 minutes` is a literal in
the optimized plan, and `'2026-01-01'` a time. What is left is a tree of a few kinds of nodes, of
which those about a record's offset, partition and time become an Arrow expression for
`engines.bounds`, and those about its key a set of keys.

Rules.
1. A part of a filter that is not understood may be true: it is taken as such, and under a NOT as
   false. So what is made of a filter is true wherever the filter is.
2. Nothing here reads a row or decides about one; whoever prunes applies the whole filter again.
3. A session without a JVM in reach (Spark Connect) shows no plan: then nothing is pruned.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from lamina.engines.bounds import Expression
from lamina.engines.table_columns import KEY, OFFSET, PARTITION, TIME, TIMESTAMP

Node: TypeAlias = Any
"""A node of Spark's plan or of an expression in it, in the JVM."""
SCHEMA = pa.schema([(OFFSET, pa.int64()), (PARTITION, pa.int32()), (TIMESTAMP, TIME)])
"""The columns that bound what is read."""
TYPES = {OFFSET: "bigint", PARTITION: "int", TIMESTAMP: "timestamp"}
TYPED_NAMES = {name: name for name in (OFFSET, PARTITION, TIMESTAMP, KEY)}
RECORD_NAMES = {"offset": OFFSET, "partition": PARTITION, "timestamp": TIMESTAMP, "key": KEY}
"""What an untyped frame calls the same columns."""
REPLACED = "\ufffd"
"""What Spark makes of bytes that are no text: a text with it may come from other bytes."""

_COMPARED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "EqualTo": (operator.eq, operator.eq),
    "EqualNullSafe": (operator.eq, operator.eq),
    "LessThan": (operator.lt, operator.gt),
    "LessThanOrEqual": (operator.le, operator.ge),
    "GreaterThan": (operator.gt, operator.lt),
    "GreaterThanOrEqual": (operator.ge, operator.le),
}
"""By class: the comparison with the column on the left, and with the column on the right."""


@dataclass(frozen=True, slots=True)
class Understood:
    """What a filter says: an expression over `SCHEMA`, keys, and the columns that it names.

    `expression` and `keys` are None where it says nothing; `columns` where nobody can tell.
    """

    expression: Expression | None = None
    keys: frozenset[bytes] | None = None
    columns: frozenset[str] | None = None


def understood(filtered: DataFrame, names: Mapping[str, str]) -> Understood:
    """Reads the filter of a frame that is one filter over a source; plans it, and runs nothing."""
    execution = _execution(filtered)
    if execution is None:
        return Understood()
    given = list(_each(execution.analyzed().children()))
    columns = frozenset(
        str(each.name())
        for plan in (execution.analyzed(), *given)
        if _kind(plan) == "Filter"
        for each in _each(plan.references().toSeq())
    )
    conditions = _conditions(execution.optimizedPlan())
    if conditions is None:
        return Understood(columns=columns)
    expression: Expression | None = None
    keys: frozenset[bytes] | None = None
    for each in conditions:
        made = pc.scalar(False) if each is None else _expression(each, names, unknown=True)
        expression = made if expression is None else expression & made
        found = None if each is None else _keys(each, names)
        keys = found if keys is None else keys if found is None else keys & found
    return Understood(expression, keys, columns)


def _execution(frame: DataFrame) -> Node | None:
    plain = getattr(frame, "_jdf", None) if "connect" not in type(frame).__module__ else None
    return None if plain is None else plain.queryExecution()


def _conditions(plan: Node) -> list[Node | None] | None:
    """Returns the conditions between a frame and its source; None in it for one that never holds.

    Returns None for a plan that is more than filters over a source.
    """
    found: list[Node | None] = []
    while True:
        kind, children = _kind(plan), list(_each(plan.children()))
        if kind == "Filter":
            found.append(plan.condition())
        elif kind == "LocalRelation":
            return [*found, None]
        elif not children:
            return found
        elif kind != "Project":
            return None
        if len(children) != 1:
            return None
        plan = children[0]


def _expression(node: Node, names: Mapping[str, str], *, unknown: bool) -> Expression:
    kind = _kind(node)
    if kind in ("And", "Or"):
        left, right = (_expression(each, names, unknown=unknown) for each in _each(node.children()))
        return left & right if kind == "And" else left | right
    if kind == "Not":
        return ~_expression(node.child(), names, unknown=not unknown)
    if kind in _COMPARED:
        left, right = node.left(), node.right()
        forth, back = _COMPARED[kind]
        for column, literal, compared in ((left, right, forth), (right, left, back)):
            name, value = _column(column, names), _value(literal)
            if name in TYPES and _is_of(literal, name) and value is not None:
                kind_of = SCHEMA.field(name).type
                return compared(pc.field(name), pa.scalar(value, kind_of))
    if kind in ("In", "InSet"):
        name, values = _column(_asked(node), names), _listed(node)
        if name in TYPES and values is not None and _is_of(_asked(node), name):
            return pc.field(name).isin(pa.array(values, SCHEMA.field(name).type))
    return pc.scalar(unknown)


def _keys(node: Node, names: Mapping[str, str]) -> frozenset[bytes] | None:
    """Returns the keys that a record must have one of; None if the filter does not say."""
    kind = _kind(node)
    if kind in ("And", "Or"):
        left, right = (_keys(each, names) for each in _each(node.children()))
        if left is None or right is None:
            return (left if right is None else right) if kind == "And" else None
        return left & right if kind == "And" else left | right
    if kind in ("EqualTo", "EqualNullSafe"):
        for column, literal in ((node.left(), node.right()), (node.right(), node.left())):
            if _is_key(column, names) and (key := _as_key(_value(literal))) is not None:
                return frozenset({key})
    if kind in ("In", "InSet") and _is_key(_asked(node), names):
        listed = _listed(node)
        made = None if listed is None else [_as_key(each) for each in listed]
        if made is not None and None not in made:
            return frozenset(each for each in made if each is not None)
    return None


def _is_key(node: Node, names: Mapping[str, str]) -> bool:
    """Returns whether a node is a record's key, or that as text."""
    if _kind(node) == "Cast" and node.dataType().simpleString() == "string":
        node = node.child()
    return _column(node, names) == KEY


def _as_key(value: object) -> bytes | None:
    if isinstance(value, str):
        return None if REPLACED in value else value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray) else None


def _column(node: Node, names: Mapping[str, str]) -> str:
    return names.get(str(node.name()), "") if _kind(node) == "AttributeReference" else ""


def _is_of(node: Node, name: str) -> bool:
    return bool(node.dataType().simpleString() == TYPES[name])


def _asked(node: Node) -> Node:
    """Returns what an IN is asked about."""
    return node.value() if _kind(node) == "In" else node.child()


def _listed(node: Node) -> list[Any] | None:
    """Returns the values of an IN; None unless all of them are known, and none is null."""
    if _kind(node) == "In":
        values = [_value(each) for each in _each(node.list())]
    else:
        values = [_plain(each) for each in _each(node.hset().toSeq())]
    return None if None in values else values


def _value(node: Node) -> Any:
    """Returns the value of a literal; None for null, and for what is no literal."""
    return _plain(node.value()) if _kind(node) == "Literal" else None


def _plain(value: Any) -> Any:
    """Returns what Py4J has turned into a value of Python's; text of Spark's own class as text."""
    if value is None or isinstance(value, bool | int | float | str | bytes | bytearray):
        return value
    return str(value.toString()) if _kind(value) == "UTF8String" else None


def _kind(node: Node) -> str:
    return str(node.getClass().getSimpleName())


def _each(sequence: Node) -> Iterator[Node]:
    for place in range(sequence.size()):
        yield sequence.apply(place)
