"""`make map`: the packages of the house, what they import of each other, and what is not in order.

Everything is read from the sources, imports under TYPE_CHECKING and inside of functions included,
so that a cycle cannot hide; `test_layers` holds the tree to the rules with the same graph.
"""

from __future__ import annotations

import ast
import functools
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
FACES = frozenset({"lamina", "lamina.__main__", "lamina.spark", "pyspark_lamina"})
"""Modules that hand on the names of others: what they import is no dependency between packages."""


@dataclass(frozen=True, slots=True)
class Module:
    """A source file: its dotted name, its lines, and the modules of ours that it imports."""

    name: str
    path: Path
    lines: int
    imports: frozenset[str]

    @property
    def package(self) -> str:
        """The room it is in: `log` for `lamina.log.commit`, its own name at the top."""
        parts = self.name.split(".")
        if parts[0] != "lamina" or len(parts) == 1:
            return parts[0]
        return parts[1]


def name_of(path: Path) -> str:
    """The dotted name of a source file."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache  # reading all of src takes seconds, and several tests ask
def modules() -> Mapping[str, Module]:
    """Every module below src, by name."""
    paths = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}
    return {name: _module(name, path, paths) for name, path in paths.items()}


def _module(name: str, path: Path, known: Mapping[str, Path]) -> Module:
    text = path.read_text(encoding="utf-8")
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(node, name, path.name == "__init__.py")
            for alias in node.names:
                whole = f"{origin}.{alias.name}"
                found.add(whole if whole in known else origin)
    return Module(name, path, text.count("\n"), frozenset((found & set(known)) - {name}))


def _origin(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + is_package]
    return ".".join([*kept, *([node.module] if node.module else [])])


def between_packages(found: Mapping[str, Module]) -> dict[str, Counter[str]]:
    """How many imports lead from each package to each other one; faces are left out."""
    edges: dict[str, Counter[str]] = defaultdict(Counter)
    for module in found.values():
        for target in module.imports:
            if not {module.name, target} & FACES and found[target].package != module.package:
                edges[module.package][found[target].package] += 1
    return edges


def cycles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The groups of nodes that reach each other, by Tarjan's algorithm; a lone node is no cycle."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    pile: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        pile.append(node)
        for target in edges.get(node, ()):
            if target not in order:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in pile:
                low[node] = min(low[node], order[target])
        if low[node] == order[node]:
            at = pile.index(node)
            if len(pile) - at > 1:
                found.append(sorted(pile[at:]))
            del pile[at:]

    for node in list(edges):
        if node not in order:
            visit(node)
    return found


def module_cycles(found: Mapping[str, Module]) -> list[list[str]]:
    """Modules that import each other, directly or not."""
    return cycles({name: each.imports - FACES for name, each in found.items() if name not in FACES})


def package_cycles(found: Mapping[str, Module]) -> list[list[str]]:
    """Packages that import each other, directly or not."""
    return cycles({name: list(targets) for name, targets in between_packages(found).items()})


def repeated_names(found: Mapping[str, Module]) -> dict[str, list[str]]:
    """Module names that stand for more than one module of `lamina`."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for module in found.values():
        if module.package != "lamina_torture" and module.path.name != "__init__.py":
            by_name[module.name.rsplit(".", 1)[-1]].append(module.name)
    return {name: sorted(each) for name, each in sorted(by_name.items()) if len(each) > 1}


def single_importers(found: Mapping[str, Module]) -> list[str]:
    """Modules that only one other module imports."""
    importers = Counter(target for module in found.values() for target in module.imports)
    return sorted(
        name
        for name, module in found.items()
        if importers[name] == 1 and module.path.name != "__init__.py"
    )


def crossed_by_an_append() -> list[str]:
    """The modules whose code runs when an open store appends one durable record to a warm topic."""
    import lamina
    from lamina.formats.kernels.first_use import compiled_first

    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.split(".")[0] == "lamina":
            seen.add(module)

    with tempfile.TemporaryDirectory() as folder, lamina.open(folder) as store:
        store.create_topic("orders")
        for _ in range(3):  # the first ones compile, and make what later ones find
            with compiled_first():
                store.append("orders", b"value", partition=0)
        sys.setprofile(note)
        try:
            store.append("orders", b"value", partition=0)
        finally:
            sys.setprofile(None)
    return sorted(seen)


def lines_of_map() -> list[str]:
    """The map as text."""
    found = modules()
    rooms: dict[str, list[Module]] = defaultdict(list)
    for module in found.values():
        rooms[module.package].append(module)
    edges = between_packages(found)
    shown = [f"{'package':16}{'modules':>8}{'lines':>8}  imports"]
    for room in sorted(rooms, key=lambda each: (len(edges[each]), each)):
        lines = sum(module.lines for module in rooms[room])
        targets = " ".join(f"{name}:{count}" for name, count in sorted(edges[room].items()))
        shown.append(f"{room:16}{len(rooms[room]):8}{lines:8}  {targets}")
    own = sum(each.lines for each in found.values() if each.package != "lamina_torture")
    crossed = crossed_by_an_append()
    repeated = repeated_names(found)
    shown += [
        "",
        f"lines without the harness: {own}",
        f"cycles between modules: {module_cycles(found) or 0}",
        f"cycles between packages: {package_cycles(found) or 0}",
        f"module names used more than once: {len(repeated)} ({', '.join(repeated)})",
        f"modules with one importer: {len(single_importers(found))}",
        f"modules that an append crosses: {len(crossed)} ({', '.join(crossed)})",
    ]
    return shown


if __name__ == "__main__":
    print("\n".join(lines_of_map()))
