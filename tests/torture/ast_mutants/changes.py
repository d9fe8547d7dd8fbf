"""What can be changed in a syntax tree: one comparison, constant, operator or statement at a time.

Only what runs is changed: function bodies, without docstrings, annotations, assertions and the text
of messages. Numba's kernels are left out: they are compiled with everything that they inline, which
takes longer than a whole run may (the matrix has mutants of their checksums, by hand).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_DROPPED = frozenset(
    {
        *("sync", "sync_directory", "flush", "close", "remove", "rename", "replace", "poison"),
        *("truncate", "write_at", "release", "set_aside", "add", "append", "enter_gap", "clear"),
        *("remove_directory", "make_directory", "write_ledger", "notify_all", "update", "pop"),
    }
)
_COMPILED = frozenset({"kernel", "inlined", "instruction"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)

Change = Callable[[ast.AST], None]


@dataclass(frozen=True)
class Mutation:
    """One change: in which function, where, and what becomes of what."""

    path: str
    function: str
    first_line: int
    line: int
    kind: str
    number: int
    what: str

    @property
    def name(self) -> str:
        """How it is called: stable while the function itself is not edited."""
        return f"{self.path}:{self.function}:{self.kind}:{self.number}"


def functions_of(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function that is no kernel and in no other function, by its qualified name."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, _FUNCTIONS) and not _is_compiled(child):
                yield f"{prefix}{child.name}", child

    yield from walk(tree, "")


def _is_compiled(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id in _COMPILED for each in node.decorator_list)


def first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Where a code object says that its function begins: at its first decorator."""
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def changes_of(function: ast.AST) -> Iterator[tuple[str, int, str, Change]]:
    """Every change of a function: its kind, line, words, and what carries it out on a copy."""
    numbers: dict[str, int] = {}
    for place, node in enumerate(_nodes(function)):
        for kind, what, act in _of_node(node):
            numbers[kind] = numbers.get(kind, -1) + 1

            def change(tree: ast.AST, place: int = place, act: Change = act) -> None:
                act(_nodes(tree)[place])

            yield kind, getattr(node, "lineno", 0), what, change


def _nodes(function: ast.AST) -> list[ast.AST]:
    """What may be changed, in an order that a copy of the tree has, too."""
    found: list[ast.AST] = []

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.ImportFrom | ast.Import):
            found.append(node)
            return
        found.append(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
            return
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "args") and isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign | ast.arg
            ):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    walk(child)

    walk(function)
    return found


def _of_node(node: ast.AST) -> Iterator[tuple[str, str, Change]]:  # noqa: PLR0912 - one a kind
    if isinstance(node, ast.Compare):
        for at, each in enumerate(node.ops):
            new = _COMPARISONS[type(each)]

            def compare(copy_: ast.AST, at: int = at, new: type[ast.cmpop] = new) -> None:
                copy_.ops[at] = new()  # type: ignore[attr-defined]

            yield "comparison", f"{type(each).__name__} becomes {new.__name__}", compare
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
        return  # a size: which one, is a matter of speed
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        more = node.value + 1
        yield "constant", f"{node.value} becomes {more}", lambda each: _set(each, value=more)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        other = not node.value
        yield "constant", f"{node.value} becomes {other}", lambda each: _set(each, value=other)
    elif isinstance(node, ast.BoolOp):
        new_op: ast.boolop = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "boolean", "and and or are exchanged", lambda each: _set(each, op=new_op)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", "not is removed", _without_not
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        sign: ast.operator = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield "arithmetic", "+ and - are exchanged", lambda each: _set(each, op=sign)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("min", "max"):
            other_name = "max" if node.func.id == "min" else "min"
            yield "extreme", f"becomes {other_name}", lambda each: _set(each.func, id=other_name)
    elif isinstance(node, ast.Slice):
        for bound in ("lower", "upper"):
            if getattr(node, bound) is not None:
                yield "slice", f"{bound} + 1", lambda each, bound=bound: _add_one(each, bound)
    yield from _of_statements(node)


def _of_statements(node: ast.AST) -> Iterator[tuple[str, str, Change]]:
    for name in ("body", "orelse", "finalbody"):
        body = getattr(node, name, None)
        if not isinstance(body, list):
            continue
        for at, each in enumerate(body):
            if isinstance(each, ast.Raise):
                yield "raise", "a raise is dropped", lambda n, k=name, i=at: _drop(n, k, i)
            if _is_dropped_call(each):
                words = f"{ast.unparse(each)[:50]} is dropped"
                yield "call", words, lambda n, k=name, i=at: _drop(n, k, i)
            following = body[at + 1] if at + 1 < len(body) else None
            if _may_matter(each, following):
                yield "order", "two statements are swapped", lambda n, k=name, i=at: _swap(n, k, i)
        if isinstance(node, ast.FunctionDef) and name == "body" and len(body) > 2:
            middle = len(body) // 2
            yield "return", "returns early", lambda n, i=middle: _return_early(n, i)


def _may_matter(each: ast.stmt, following: ast.stmt | None) -> bool:
    """Whether the order of two statements can matter: both call, one of them for what it does."""
    if not isinstance(each, _SIMPLE) or not isinstance(following, _SIMPLE) or _is_text(each):
        return False
    both = (each, following)
    if not all(any(isinstance(part, ast.Call) for part in ast.walk(side)) for side in both):
        return False
    return any(_is_dropped_call(side) for side in both)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_dropped_call(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    function = node.value.func
    return isinstance(function, ast.Attribute) and function.attr in _DROPPED


def _set(node: ast.AST, **values: object) -> None:
    for name, value in values.items():
        setattr(node, name, value)


def _without_not(node: ast.AST) -> None:
    """`not x` becomes `x`, as `bool(x)` so that nothing else changes."""
    node.op = ast.Not()  # type: ignore[attr-defined]
    node.operand = ast.UnaryOp(ast.Not(), node.operand)  # type: ignore[attr-defined]


def _add_one(node: ast.AST, bound: str) -> None:
    setattr(node, bound, ast.BinOp(getattr(node, bound), ast.Add(), ast.Constant(1)))


def _drop(node: ast.AST, name: str, at: int) -> None:
    getattr(node, name)[at] = ast.Pass()


def _swap(node: ast.AST, name: str, at: int) -> None:
    body = getattr(node, name)
    body[at], body[at + 1] = body[at + 1], body[at]


def _return_early(node: ast.AST, at: int) -> None:
    node.body.insert(at, ast.Return(None))  # type: ignore[attr-defined]


def mutations_of(path: str, source: str) -> list[Mutation]:
    """Every mutation of a file."""
    found = []
    for name, node in functions_of(ast.parse(source)):
        numbers: dict[str, int] = {}
        for kind, line, what, _ in changes_of(node):
            number = numbers[kind] = numbers.get(kind, -1) + 1
            found.append(
                Mutation(path, name, first_line(node), line or node.lineno, kind, number, what)
            )
    return found


def mutated(source: str, mutation: Mutation) -> ast.Module:
    """The tree of a file with one mutation in it."""
    tree = copy.deepcopy(ast.parse(source))
    for name, node in functions_of(tree):
        if (name, first_line(node)) == (mutation.function, mutation.first_line):
            number = -1
            for kind, _, _, change in changes_of(node):
                number += kind == mutation.kind
                if kind == mutation.kind and number == mutation.number:
                    change(node)
                    return ast.fix_missing_locations(tree)
    raise LookupError(mutation.name)
