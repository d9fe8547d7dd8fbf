"""`lamina.api` hands on every public name of its modules, and loads a module when it is asked."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import lamina.api

FOLDER = Path(inspect.getfile(lamina.api)).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
WITHOUT_ARROW = ("acks", "answers", "recovery_report", "writer_counts")
INNER = {"memberships": {"RULES"}, "store_api": {"RULES"}, "writer_counts": {"BUCKETS"}}
"""Names that only modules of the package itself use."""


def defined_in(name: str) -> set[str]:
    """The public names that a module defines: classes, functions, constants."""
    found: set[str] = set()
    for node in ast.parse((FOLDER / f"{name}.py").read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign):
            found.update(each.id for each in ast.walk(node) if isinstance(each, ast.Name)
                         and isinstance(each.ctx, ast.Store))  # fmt: skip
    return {each for each in found if not each.startswith("_")} - INNER.get(name, set())


def for_type_checkers() -> dict[str, str]:
    tree = ast.parse((FOLDER / "__init__.py").read_text())
    return {
        alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lamina.")
        for alias in node.names
    }


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_handed_on(name: str) -> None:
    module = importlib.import_module(f"lamina.api.{name}")
    for each in defined_in(name):
        assert getattr(lamina.api, each) is getattr(module, each)


def test_type_checkers_and_programs_see_the_same() -> None:
    names = {each: f"lamina.api.{module}" for module in MODULES for each in defined_in(module)}
    assert for_type_checkers() == names
    assert sorted(names) == sorted(lamina.api.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = lamina.api.no_such_name


def test_values_of_small_files_load_no_arrow() -> None:
    imports = ", ".join(f"lamina.api.{name}" for name in WITHOUT_ARROW)
    code = f"import sys, {imports}; print({{'pyarrow', 'numpy'}} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.strip() == "set()"
