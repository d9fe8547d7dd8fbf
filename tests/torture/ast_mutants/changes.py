"""What can be changed in a syntax tree: one comparison, constant, operator or statement at a time.

Only what runs is changed: function bodies, without docstrings, annotations, assertions and the text
of messages. Numba's kernels and what generates their machine code are left out: they are compiled
with everything that they inline, which takes longer than a whole run may (the matrix has mutants of
their checksums, by hand). So is what changes no outcome: sizes by shifts, whether NumPy and Arrow
may copy, `strict`, which asserts that two things are equally long, and the end of a function that
closes a file of its own, which closes itself when the function returns.
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
_COMPILED = frozenset({"kernel", "kernel_at_once", "inlined", "instruction"})
_NO_OUTCOME = frozenset({"copy", "zero_copy_only", "strict"})
_SHOWS = "_shown"
"""How the functions are called that cut a value short for a message."""
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
    end_line: int
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
            elif isinstance(child, _FUNCTIONS) and not _is_left_out(child):
                yield f"{prefix}{child.name}", child

    yield from walk(tree, "")


def _is_left_out(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    inner = [each for each in ast.walk(node) if isinstance(each, _FUNCTIONS)]
    decorators = [each for function in inner for each in function.decorator_list]
    named = [each.func if isinstance(each, ast.Call) else each for each in decorators]
    is_compiled = any(isinstance(each, ast.Name) and each.id in _COMPILED for each in named)
    return is_compiled or node.name == _SHOWS


def first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Where a code object says that its function begins: at its first decorator."""
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def changes_of(function: ast.AST) -> Iterator[tuple[str, tuple[int, int], str, Change]]:
    """Every change of a function: its kind, lines, words, and what carries it out on a copy."""
    for place, (node, around) in enumerate(_nodes(function)):
        here = [(*each, around) for each in _of_node(node)]
        for kind, what, act, changed in [*here, *_of_statements(node)]:

            def change(tree: ast.AST, place: int = place, act: Change = act) -> None:
                act(_nodes(tree)[place][0])

            yield kind, _lines(changed), what, change


def _lines(statement: ast.stmt) -> tuple[int, int]:
    """The first and last line of a statement, without those below it in a body of its own."""
    body = getattr(statement, "body", None)
    if isinstance(body, list):
        return statement.lineno, max(statement.lineno, body[0].lineno - 1)
    return statement.lineno, statement.end_lineno or statement.lineno


def _nodes(function: ast.AST) -> list[tuple[ast.AST, ast.stmt]]:
    """What may be changed with the statement around it, in an order that a copy has, too."""
    found: list[tuple[ast.AST, ast.stmt]] = []

    def walk(node: ast.AST, around: ast.stmt) -> None:
        found.append((node, around))
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.ImportFrom | ast.Import):
            return
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
            return
        if isinstance(node, ast.keyword) and node.arg in _NO_OUTCOME:
            return
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "args") and isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign | ast.arg
            ):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    walk(child, child if isinstance(child, ast.stmt) else around)

    walk(function, function)  # type: ignore[arg-type]
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


def _of_statements(node: ast.AST) -> Iterator[tuple[str, str, Change, ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        body = getattr(node, name, None)
        if not isinstance(body, list):
            continue
        for at, each in enumerate(body):
            if isinstance(each, ast.Raise):
                yield "raise", "a raise is dropped", lambda n, k=name, i=at: _drop(n, k, i), each
            if _is_dropped_call(each) and not (name == "finalbody" and _closes_local(each)):
                words = f"{ast.unparse(each)[:50]} is dropped"
                yield "call", words, lambda n, k=name, i=at: _drop(n, k, i), each
            following = body[at + 1] if at + 1 < len(body) else None
            if _may_matter(each, following):
                words = "two statements are swapped"
                yield "order", words, lambda n, k=name, i=at: _swap(n, k, i), each
        if isinstance(node, ast.FunctionDef) and name == "body" and len(body) > 2:
            middle = len(body) // 2
            yield "return", "returns early", lambda n, i=middle: _return_early(n, i), body[middle]


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


def _closes_local(node: ast.stmt) -> bool:
    """Whether a local variable is closed: a file closes itself as soon as nothing holds it."""
    called = ast.unparse(node)
    return called.endswith(".close()") and called.count(".") == 1


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
        for kind, lines, what, _ in changes_of(node):
            number = numbers[kind] = numbers.get(kind, -1) + 1
            found.append(Mutation(path, name, first_line(node), *lines, kind, number, what))
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
