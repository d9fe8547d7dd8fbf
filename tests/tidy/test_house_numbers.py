"""The habits of the house: short functions and files, few parameters, documented names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

SOURCE = Path(__file__).parents[2] / "src"

FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 500
POSITIONAL_MAX = 6
DRAWERS = {"utils", "util", "common", "helpers", "helper", "core", "misc"}

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def long_files(source: str) -> list[str]:
    lines = len(source.splitlines())
    return [f"the file has {lines} lines"] if lines > FILE_LINES_MAX else []


def long_functions(source: str) -> list[str]:
    return [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in functions_of(source)
        if node.end_lineno is not None and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    ]


def wide_functions(source: str) -> list[str]:
    found = []
    for node in functions_of(source):
        names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        count = len([name for name in names if name not in ("self", "cls")])
        if count > POSITIONAL_MAX:
            found.append(f"{node.name}: {count} positional parameters")
    return found


def prints(source: str) -> list[str]:
    return [
        f"line {node.lineno}: print"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name) and node.id == "print"
    ]


def undocumented(source: str) -> list[str]:
    return [
        f"{node.name}: no docstring"
        for node in public_definitions(ast.parse(source))
        if not ast.get_docstring(node)
    ]


def unannotated(source: str) -> list[str]:
    found = []
    for node in public_definitions(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            continue
        given = node.args
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        arguments += [extra for extra in (given.vararg, given.kwarg) if extra is not None]
        bare = [
            argument.arg
            for argument in arguments
            if argument.annotation is None and argument.arg not in ("self", "cls")
        ]
        if bare or node.returns is None:
            found.append(f"{node.name}: {', '.join(bare) or 'its result'} without annotation")
    return found


def drawers(path: Path) -> list[str]:
    return [f"{part} says nothing" for part in path.with_suffix("").parts if part in DRAWERS]


def functions_of(source: str) -> list[Function]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, FUNCTIONS)]


def public_definitions(scope: ast.Module | ast.ClassDef) -> Iterator[Function | ast.ClassDef]:
    """The functions, classes and methods that others may use; overloads and overrides aside."""
    for node in scope.body:
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)) or node.name.startswith("_"):
            continue
        decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
        if decorators & {"override", "overload", "typing.override"}:
            continue
        if any(name.endswith((".setter", ".deleter")) for name in decorators):
            continue
        yield node
        if isinstance(node, ast.ClassDef):
            yield from public_definitions(node)


CHECKS = (long_files, long_functions, wide_functions, prints, undocumented, unannotated)


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_source_file_keeps_the_house_numbers(path: Path) -> None:
    source = path.read_text()
    in_cli = path.relative_to(SOURCE).parts[1] == "cli"
    found = [
        problem for check in CHECKS if not (check is prints and in_cli) for problem in check(source)
    ]
    assert found + drawers(path.relative_to(SOURCE)) == []


# ---------------------------------------------------------------- each check can fail


def body(lines: int) -> str:
    return "\n".join(["def f() -> None:", '    """Does."""', *["    x = 1"] * (lines - 2)])


def test_a_long_function_is_caught() -> None:
    assert long_functions(body(FUNCTION_LINES_MAX)) == []
    assert long_functions(body(FUNCTION_LINES_MAX + 1)) == ["f: 61 lines"]


def test_a_long_method_is_caught() -> None:
    method = "\n".join(f"    {line}" for line in body(FUNCTION_LINES_MAX + 1).splitlines())
    assert long_functions(f"class A:\n{method}") == ["f: 61 lines"]


def test_a_long_file_is_caught() -> None:
    assert long_files("x = 1\n" * FILE_LINES_MAX) == []
    assert long_files("x = 1\n" * (FILE_LINES_MAX + 1)) == ["the file has 501 lines"]


def test_a_function_with_many_parameters_is_caught() -> None:
    assert wide_functions("class A:\n    def f(self, a, b, c, d, e, g, *, h, i): ...") == []
    assert wide_functions("def f(a, b, c, /, d, e, g, h): ...") == ["f: 7 positional parameters"]


def test_a_print_is_caught() -> None:
    assert prints("def f():\n    print('x')") == ["line 2: print"]
    assert prints("emit = print") == ["line 1: print"]
    assert prints("self.print('x')\nconsole.print('y')") == []


def test_a_drawer_is_caught() -> None:
    assert drawers(Path("lamina/engine/utils.py"))
    assert drawers(Path("lamina/core/store.py"))
    assert drawers(Path("lamina/helpers/__init__.py"))
    assert drawers(Path("lamina/store/store.py")) == []


def test_a_public_name_without_docstring_is_caught() -> None:
    assert undocumented("def f() -> None: ...") == ["f: no docstring"]
    assert undocumented("class A:\n    x = 1") == ["A: no docstring"]
    assert undocumented('class A:\n    """A."""\n    def f(self): ...') == ["f: no docstring"]
    assert undocumented("def _f(): ...\nclass _A:\n    def f(self): ...") == []


def test_a_public_function_without_annotations_is_caught() -> None:
    assert unannotated("def f(a: int, b) -> None: ...") == ["f: b without annotation"]
    assert unannotated("def f(a: int): ...") == ["f: its result without annotation"]
    assert unannotated("def f(*a, **b) -> None: ...") == ["f: a, b without annotation"]
    assert unannotated("class A:\n    def f(self, *, k) -> None: ...") == [
        "f: k without annotation"
    ]
    assert unannotated("class A:\n    def f(self, k: int) -> None: ...") == []
