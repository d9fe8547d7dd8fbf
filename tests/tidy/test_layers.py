"""Imports flow one way: edges, engine, formats and storage, then records, config and errors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.house_map import module_cycles, modules, package_cycles, repeated_names

SOURCE = Path(__file__).parents[2] / "src"
NAMES_REPEATED_MAX = 8
KNOT = [
    f"lamina.wal.{name}"
    for name in (
        *("archived", "deletes", "eviction", "expiry", "reader", "routed", "routers"),
        *("shard_log", "topic", "wal_partition"),
    )
]
"""Modules that know each other's types, if not each other's code: the one knot left to untie."""

# What each layer may import of lamina, itself included. The package's face is `lamina` itself.
BASE = ("errors", "config", "records", "received", "arguments", "api")
ENGINE = ("log", "wal", "groups", "archive", "inspect", "store")
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "config": {"errors"},
    "received": {"errors"},
    "records": {"errors", "config", "received"},
    "arguments": {"errors"},
    "api": {"errors", "config", "records", "received", "arguments"},
    "formats": {"errors", "config", "records", "api"},
    "storage": {"errors", "config", "records", "api"},
    "log": {*BASE, "formats", "storage"},
    "wal": {*BASE, "formats", "storage", "log"},
    "groups": {*BASE, "formats", "storage", "log"},
    "archive": {*BASE, "formats", "storage", "log"},
    "inspect": {*BASE, "formats", "storage", "log"},
    "store": {*BASE, "formats", "storage", "log", "wal", "groups", "archive", "inspect"},
    "wire": {*BASE},
    "client": {*BASE, "wire"},
    "server": {*BASE, "storage", "log", "groups", "inspect", "store", "wire"},
    "spark": {*BASE, *ENGINE, "formats", "storage"},
    "lamina_torture": {*BASE, *ENGINE, "formats", "storage", "wire", "server", "client", "spark"},
    "cli": {*BASE, *ENGINE, "formats", "storage", "wire", "server", "client", "spark"},
}
# `lamina` itself re-exports what users need; only edges may import that.
MAY_IMPORT_FACE = {"server", "client", "spark", "lamina_torture", "cli", "__main__"}
FORBIDDEN_IN_FORMATS = {"os", "pathlib", "io", "time", "logging", "random"}
LAZY_LAYERS = {"cli", "lamina"}  # so that `lamina --help` and `import lamina` are instant
LAZY_MODULES = {  # so that a Python worker of Spark, and a store, load what they need
    "lamina.spark",
    *(f"lamina.spark.{name}" for name in ("access", "batch", "pieces.piece", "source")),
    *(f"lamina.store.{name}" for name in ("appends", "diff", "layers", "store")),
    *(f"lamina.{name}" for name in ("log.appending", "log.commit", "groups.dead_letters")),
    "lamina_torture.command",
    "lamina.client.key_split",
}
LENT = {("lamina.client.key_split", "formats")}
"""What a module may import beyond its layer, inside a function: the kernel that splits keys."""


def layer_of(module: str) -> str | None:
    """The part of lamina that a module belongs to: `lamina.formats.scan` to formats."""
    parts = module.split(".")
    if parts[0] == "pyspark_lamina":  # the name that Spark looks for; a door into the spark layer
        return "spark"
    if parts[0] == "lamina_torture":
        return "lamina_torture"
    if parts[0] != "lamina":
        return None
    return parts[1] if len(parts) > 1 else "lamina"


def imports_of(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[str, ast.AST, bool]]:
    """Each import as (absolute name, node, whether it is inside a function)."""
    inside = {
        id(child)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node, id(node) in inside
        elif isinstance(node, ast.ImportFrom):
            origin = _absolute(node, module, is_package)
            for alias in node.names:
                # `from lamina import records` imports a layer; `from lamina.x import y` names it.
                name = f"{origin}.{alias.name}" if origin == "lamina" else origin
                yield name, node, id(node) in inside


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*kept, *([node.module] if node.module else [])])


def problems(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What breaks the rules in one module's source."""
    own = layer_of(module)
    found = []
    for name, node, in_function in imports_of(ast.parse(source), module, is_package):
        where = f"{module}:{getattr(node, 'lineno', 0)}: imports {name}"
        if in_function and own not in LAZY_LAYERS and module not in LAZY_MODULES:
            found.append(f"{where} inside a function")
        if own == "formats" and name.split(".")[0] in FORBIDDEN_IN_FORMATS:
            found.append(f"{where}: formats do no input or output and know no time")
        target = layer_of(name)
        if target is None or own in (target, "lamina"):
            continue
        if own not in ALLOWED and own not in MAY_IMPORT_FACE:
            found.append(f"{where}: {own} is no known layer")
        elif target not in ALLOWED:
            if own not in MAY_IMPORT_FACE:
                found.append(f"{where}: only edges import the package's face")
        elif in_function and (module, target) in LENT:
            continue
        elif own in ALLOWED and target not in ALLOWED[own]:
            found.append(f"{where}: {own} may not import {target}")
    return found


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", sources(), ids=module_name)
def test_a_module_imports_only_what_is_below_it(path: Path) -> None:
    is_package = path.name == "__init__.py"
    assert problems(path.read_text(), module_name(path), is_package=is_package) == []


def test_no_module_and_no_package_imports_itself_by_way_of_others() -> None:
    assert module_cycles(modules()) == [KNOT]
    assert package_cycles(modules()) == []


def test_a_module_name_stands_for_one_module_except_in_formats() -> None:
    repeated = repeated_names(modules())
    assert len(repeated) <= NAMES_REPEATED_MAX
    assert {name for name, each in repeated.items() if not _in_formats(each)} == set()


def _in_formats(names: list[str]) -> bool:
    """All but one of the modules belong to formats, each of which may have its own `log`."""
    return sum(not name.startswith("lamina.formats.") for name in names) <= 1


def test_the_package_is_found() -> None:
    assert "lamina.formats.frame.log" in {module_name(path) for path in sources()}


# ---------------------------------------------------------------- the check can fail


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("lamina.errors", "from lamina.records import prepare"),
        ("lamina.records", "import lamina.formats.scan"),
        ("lamina.formats.scan", "from lamina.storage import files"),
        ("lamina.formats.scan", "from lamina import storage"),
        ("lamina.formats.scan", "from ..storage import files"),
        ("lamina.formats.scan", "from .. import storage"),
        ("lamina.formats.scan", "from lamina.store.store import Store"),
        ("lamina.formats.scan", "import os"),
        ("lamina.formats.scan", "import os.path as p"),
        ("lamina.formats.scan", "from pathlib import Path"),
        ("lamina.formats.scan", "import io, json"),
        ("lamina.formats.scan", "from time import time_ns"),
        ("lamina.formats.scan", "import logging"),
        ("lamina.formats.scan", "if True:\n    import random"),
        ("lamina.formats.scan", "def f():\n    from lamina.errors import Closed"),
        ("lamina.formats.scan", "from lamina import open"),
        ("lamina.storage.files", "from lamina.formats import scan"),
        ("lamina.store.store", "from lamina.server import http"),
        ("lamina.store.store", "from lamina.spark.source import Source"),
        ("lamina.log.partition", "class A:\n    def f(self):\n        import json"),
        ("lamina.server.http", "from lamina.formats.frame import log"),
        ("lamina.server.http", "from lamina.cli import main"),
        ("lamina.server.http", "from lamina.client.remote_store import RemoteStore"),
        ("lamina.client.remote_store", "from lamina.server.broker import Broker"),
        ("lamina.client.remote_store", "from lamina.storage.files import LocalFiles"),
        ("lamina.client.key_split", "from lamina.formats import partitioning"),
        ("lamina.client.key_split", "def f():\n    from lamina.log import commit"),
        ("lamina.client.producer", "def f():\n    from lamina.formats import partitioning"),
        ("lamina.client.consumer", "from lamina.store.reads import StoreReader"),
        ("lamina.wire.operations", "from lamina.groups.group import Group"),
        ("lamina.api.answers", "from lamina.formats.documents.ledger import Ledger"),
        ("lamina.api.store_api", "from lamina.store.store import Store"),
        ("lamina.arguments", "from lamina.log.directory import Place"),
        ("lamina.wire.messages", "from lamina.server.auth import Key"),
        ("lamina.store.store", "from lamina.wire import failures"),
        ("lamina.spark.source", "from lamina.server import flight"),
        ("lamina.spark.sink", "def read():\n    import pyarrow"),
        ("lamina.drawer", "from lamina.errors import Closed"),
    ],
)
def test_a_forbidden_import_is_caught(module: str, source: str) -> None:
    assert problems(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("lamina.formats.scan", "import re\nfrom lamina.errors import Closed\nfrom . import crc"),
        (
            "lamina.formats.scan",
            "from lamina.formats.kernels.crc import crc32\nfrom lamina import records",
        ),
        ("lamina.store.store", "import os\nfrom lamina.storage import files\nimport time"),
        ("lamina.spark.source", "from lamina.formats.frame import log\nimport lamina"),
        ("lamina.cli.main", "def serve():\n    from lamina.server import http"),
        ("lamina.client.key_split", "def f():\n    from lamina.formats import partitioning"),
        ("lamina.formats.documents.ledger", "from lamina.api import Gap"),
        ("lamina.client.remote_store", "from lamina.api import StoreApi"),
        ("lamina", "from lamina.store.store import Store"),
    ],
)
def test_an_allowed_import_passes(module: str, source: str) -> None:
    assert problems(source, module) == []
