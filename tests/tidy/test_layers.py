"""Imports flow one way: edges, engine, formats and storage, then records, config and errors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.tidy.house_map import module_cycles, modules, package_cycles, repeated_names

SOURCE = Path(__file__).parents[2] / "src"
NAMES_REPEATED_MAX = 8

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
    "subjects": {"errors", "formats"},
    "log": {*BASE, "formats", "storage"},
    "wal": {*BASE, "formats", "storage", "log"},
    "groups": {*BASE, "formats", "storage", "log"},
    "archive": {*BASE, "formats", "storage", "log"},
    "cluster": {*BASE, "formats", "storage"},
    "inspect": {*BASE, "formats", "storage", "log"},
    "store": {
        *(*BASE, "formats", "storage", "log", "wal", "groups", "archive", "cluster", "inspect"),
        "subjects",
    },
    "wire": {*BASE},
    "aio": {*BASE},
    "pytest_plugin": {*BASE, "client", "server", "store"},
    "client": {*BASE, "wire"},
    "server": {*BASE, "storage", "log", "groups", "inspect", "subjects", "store", "wire"},
    "spark": {*BASE, *ENGINE, "formats", "storage", "engines"},
    "engines": {*BASE, "log"},
    "polars": {"engines"},
    "lamina_torture": {*BASE, *ENGINE, "formats", "storage", "wire", "server", "client", "spark"},
    "cli": {
        *(*BASE, *ENGINE, "cluster", "formats", "storage"),
        *("wire", "server", "client", "spark", "engines"),
    },
}
# `lamina` itself re-exports what users need; only edges may import that.
MAY_IMPORT_FACE = {
    "aio",
    "pytest_plugin",
    "server",
    "client",
    "spark",
    "engines",
    "lamina_torture",
    "cli",
    "__main__",
}
FORBIDDEN_IN_FORMATS = {"os", "pathlib", "io", "time", "logging", "random"}
LAZY_LAYERS = {"cli", "lamina"}  # so that `lamina --help` and `import lamina` are instant
LAZY_MODULES = {
    "lamina.pytest_plugin": "every run of pytest imports it, whatever it tests",
    "lamina.spark": "every Python worker of Spark imports it",
    "lamina.spark.access": "a worker that reads files loads no archive",
    "lamina.spark.batch": "executors unpickle it; only the driver opens logs",
    "lamina.spark.pieces.piece": "only pieces of wal topics need a store",
    "lamina.spark.typed_projection": "kernels are loaded where values are decoded",
    "lamina.spark.source": "a query loads its own half: reader or writer, batch or stream",
    "lamina.store.store": "most stores have no archive",
    "lamina.store.write_ahead": "most stores have no wal topic",
    "lamina.store.appends": "asyncio: whoever awaits has it already",
    "lamina.log.commit": "asyncio: whoever awaits has it already",
    "lamina.log.appending": "pyarrow.compute costs a tenth of a second; a small record needs none",
    "lamina.store.decided_appends": "Kafka's batches: few openings have a transaction to store",
    "lamina.store.read_only": "who reads a directory seldom asks for its registry",
    "lamina.store.reads": "pyarrow.compute, for `exclude_node` alone",
    "lamina.store.typed_topics": "most stores have no typed topic; pyarrow.compute, and kernels",
    "lamina.groups.dead_letters": "pyarrow.compute, when the first record is given up",
    "lamina.formats.documents.ledger": "numpy; commands that look into small files load none",
    "lamina.client.typed_values": "a client without typed topics loads no kernel",
    "lamina.client.key_split": "a client without keyed appends loads no kernel",
    "lamina_torture.command": "`lamina --help` lists the command without loading the harness",
}
"""Modules that import inside functions, and what they save by it."""
SYSTEM_LAYERS = {"storage", "cli", "lamina_torture"}
"""Where `os`, `shutil` and `open` are at home; the harness breaks machines on purpose."""
SYSTEM_MODULES = {"os", "shutil", "tempfile", "glob", "mmap", "fcntl"}
OWN_SYSTEM = {
    "lamina.client.remote_store": "LAMINA_API_KEY; a client imports no storage",
}
FILE_CALLS = {"read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "rglob"}
"""Methods of `pathlib` that read directories and files, or write them."""
READS_FILES = {
    "lamina.client.trust": "certificates that a user names; a client imports no storage",
    "lamina.formats.kernels.compile": "its own sources, which are part of the package",
    "lamina.server.console.pages": "the console's pages, which are part of the package",
}
MAKES_FILES = {
    "lamina.store.archive_store": "an archive has no directory; its partitions read no local file",
    "lamina.store.mend": "runs on an executor, which has no store",
    "lamina.store.rewrite": "runs on an executor, which has no store",
    "lamina.archive.open_archive": "an archive that is a directory, opened without a store",
    "lamina.inspect.findings": "reads any file of the machine, with no data directory around it",
    "lamina.inspect.segment_check": "reads any file of the machine",
    "lamina.server.service": "the store's own, as many as a setting says",
    "lamina.server.certificates": "the certificate, which is no part of a store",
    "lamina.server.auth": "the file of keys, which is no part of a store",
    "lamina.server.settings": "the file of settings, before there is a store",
    "lamina.spark": "a worker has no store: it opens files where it runs",
}
"""Modules and packages that make `LocalFiles` themselves; everybody else is given files."""
_SUFFIX = r"\.(json|bin|log|idx|tidx|timeidx|snap|delta|tomb|seg|data|tail|part|done|taken|tmp)"
FILE_NAME = re.compile(rf"([a-z][a-z_-]*)?{_SUFFIX}")
FILE_NAME_END = re.compile(rf"{_SUFFIX}$")
"""The same as the last piece of an f-string."""
NAMES_FILES = {
    "lamina.server.console": "what a page of the console is made of",
    "lamina.spark.jobs.lakes": "an export, which is no data directory",
    "lamina.spark.jobs.tables": "a table, which is no data directory",
}
"""Packages that name files beside a store's."""
LENT = {("lamina.client.key_split", "formats"), ("lamina.client.typed_values", "formats")}
"""What a module may import beyond its layer, inside a function: kernels that split and decode."""
KEPT = {
    ("lamina.formats.kernels.compile", "lamina.storage.kernel_cache"),
    ("lamina.formats.kernels.declare", "lamina.storage.background_work"),
}
"""Machine code is the compiler's: it is kept in files, which is no input or output of a format."""
SPOKEN = {"lamina.server.kafka.": "lamina.formats.kafka."}
"""Which door speaks a format of its own: Kafka's record batches are nobody else's business."""


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
        is_lent = in_function and (module, target) in LENT
        if target is None or own in (target, "lamina"):
            continue
        if own not in ALLOWED and own not in MAY_IMPORT_FACE:
            found.append(f"{where}: {own} is no known layer")
        elif target not in ALLOWED:
            if own not in MAY_IMPORT_FACE:
                found.append(f"{where}: only edges import the package's face")
        elif is_lent or is_spoken(module, name) or (module, name) in KEPT:
            continue
        elif own in ALLOWED and target not in ALLOWED[own]:
            found.append(f"{where}: {own} may not import {target}")
    return found


def side_doors(source: str, module: str) -> list[str]:
    """What reaches the operating system, or names a file, past storage."""
    if layer_of(module) in SYSTEM_LAYERS:
        return []
    tree, found = ast.parse(source), []
    for name, node, _ in imports_of(tree, module, is_package=False):
        if name.split(".")[0] in SYSTEM_MODULES and module not in OWN_SYSTEM:
            found.append(f"{module}:{getattr(node, 'lineno', 0)}: imports {name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "open":
                found.append(f"{module}:{node.lineno}: opens a file")
            if node.func.id == "LocalFiles" and not _is_listed(module, MAKES_FILES):
                found.append(f"{module}:{node.lineno}: makes LocalFiles")
        is_call = isinstance(node, ast.Attribute) and node.attr in FILE_CALLS
        if is_call and module not in READS_FILES:
            found.append(f"{module}:{getattr(node, 'lineno', 0)}: calls {ast.unparse(node)}")
        if _names_file(node) and not _is_listed(module, NAMES_FILES):
            found.append(f"{module}:{getattr(node, 'lineno', 0)}: names a file")
    return found


def _names_file(node: ast.AST) -> bool:
    """Whether a text is the name of a file, or its suffix, or is made into one."""
    if isinstance(node, ast.Constant):
        return FILE_NAME.fullmatch(str(node.value)) is not None
    last = node.values[-1] if isinstance(node, ast.JoinedStr) and node.values else None
    return isinstance(last, ast.Constant) and FILE_NAME_END.search(str(last.value)) is not None


def _is_listed(module: str, listed: Mapping[str, str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in listed)


def is_spoken(module: str, name: str) -> bool:
    """Whether a door imports the format that it speaks."""
    return any(module.startswith(a) and f"{name}.".startswith(b) for a, b in SPOKEN.items())


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", sources(), ids=module_name)
def test_a_module_imports_only_what_is_below_it(path: Path) -> None:
    is_package = path.name == "__init__.py"
    assert problems(path.read_text(), module_name(path), is_package=is_package) == []


@pytest.mark.parametrize("path", sources(), ids=module_name)
def test_only_storage_and_the_command_line_touch_the_system(path: Path) -> None:
    assert side_doors(path.read_text(), module_name(path)) == []


def test_an_exception_is_needed() -> None:
    texts = {module_name(path): path.read_text() for path in sources()}
    for module in OWN_SYSTEM:
        assert re.search(r"^import (os|shutil)$", texts[module], re.MULTILINE), module
    for module in READS_FILES:
        assert any(f".{name}(" in texts[module] for name in FILE_CALLS), module
    for name in MAKES_FILES:
        assert any("LocalFiles(" in texts[each] for each in texts if _is_listed(each, {name: ""}))
    for module in LAZY_MODULES:
        imports = imports_of(ast.parse(texts[module]), module, is_package=False)
        assert any(in_function for _, _, in_function in imports), module


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("lamina.log.partition", "import os"),
        ("lamina.log.partition", "from os import path"),
        ("lamina.server.http", "import shutil"),
        ("lamina.spark.plan", "import os.path"),
        ("lamina.wal.engine", "data = open('x').read()"),
        ("lamina.wal.engine", "data = Path('x').read_bytes()"),
        ("lamina.subjects.book", "import tempfile"),
        ("lamina.cluster.member", "name = f'{number:020}.tail'"),
        ("lamina.engines.dataset", "is_log = name.endswith('.log')"),
        ("lamina.groups.group", "files = LocalFiles()"),
        ("lamina.groups.group", "name = 'checkpoint.json'"),
    ],
)
def test_a_side_door_is_seen(module: str, source: str) -> None:
    assert side_doors(source, module)


def test_no_module_and_no_package_imports_itself_by_way_of_others() -> None:
    assert module_cycles(modules()) == []
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
        ("lamina.server.http", "from lamina.formats.kafka import batch"),
        ("lamina.server.kafka.fetching", "from lamina.formats.frame import log"),
        ("lamina.server.http", "from lamina.cli import main"),
        ("lamina.server.http", "from lamina.client.remote_store import RemoteStore"),
        ("lamina.client.remote_store", "from lamina.server.broker import Broker"),
        ("lamina.client.remote_store", "from lamina.storage.files import LocalFiles"),
        ("lamina.client.key_split", "from lamina.formats import partitioning"),
        ("lamina.client.key_split", "def f():\n    from lamina.log import commit"),
        ("lamina.client.producer", "def f():\n    from lamina.formats import partitioning"),
        ("lamina.client.consumer", "from lamina.store.reads import Reads"),
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
        ("lamina.store.store", "import json\nfrom lamina.storage import files\nimport time"),
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
