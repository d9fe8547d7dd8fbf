"""Which tests run which lines: so that a mutant is judged by those that run what was changed.

Each test file runs once in a forked child that traces the lines of the modules in question. What
was seen is kept in a file per test file, and made again where the test file changed. Of a module
that changed since, every test counts that ran anything of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from tests.torture.ast_mutants.changes import Mutation
from tests.torture.ast_mutants.drawing import SOURCE, modules
from tests.torture.ast_mutants.processes import Task, quiet, run_all

FILE_S = 1800.0
"""So long all tests of one file may take."""
_ALL = -1
_KEPT_EACH = 20
_BUSY = 8
"""At least one of so many seconds of a test counts: it may wait for disks or other processes."""


@dataclass
class Reached:
    """For each test its seconds and cost, and of each module the lines that it runs, as bits."""

    seconds: dict[str, float] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    """Seconds of the processor: those of the clock are mostly others' on a busy machine."""
    lines: dict[str, dict[str, int]] = field(default_factory=dict)
    width: dict[str, int] = field(default_factory=dict)

    def tests_of(self, mutation: Mutation) -> list[str]:
        """The tests that run what a mutation changes."""
        wanted = sum(1 << line for line in range(mutation.line, mutation.end_line + 1))
        of_module = self.lines.get(mutation.path, {})
        return [test for test, lines in of_module.items() if lines & wanted]


def reached_by(items: Sequence[pytest.Item], kept: Path, jobs: int) -> Reached:
    """What every test reaches, by the files of earlier runs and a run of what is not in them."""
    kept.mkdir(parents=True, exist_ok=True)
    by_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.path, []).append(item)
    missing = [path for path in by_file if not _is_known(_note_of(kept, path), by_file[path])]
    digests = {path: _digest(SOURCE / path) for path in modules()}
    tasks = [
        Task(str(path), _noting(by_file[path], digests, _note_of(kept, path))) for path in missing
    ]
    for task, ended in run_all(tasks, jobs, FILE_S):
        print(f"{task}: {ended or 'its tests are traced'}", flush=True)
    notes = [_note_of(kept, path) for path in by_file]
    return _loaded(notes, digests, {each.nodeid for each in items})


def _note_of(kept: Path, path: Path) -> Path:
    return kept / f"{path.parent.name}-{path.stem}.json"


def _is_known(note: Path, items: Sequence[pytest.Item]) -> bool:
    if not note.exists():
        return False
    found = json.loads(note.read_text())
    is_whole = {item.nodeid for item in items} <= set(found["tests"])
    return is_whole and found["test_file"] == _digest(items[0].path)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _noting(
    items: Sequence[pytest.Item], digests: dict[str, str], note: Path
) -> Callable[[], None]:
    def act() -> None:
        quiet()
        tests = {item.nodeid: (-1.0, -1.0, dict[str, str]()) for item in items}
        digest = _digest(items[0].path)
        for at, item in enumerate(items):
            tests[item.nodeid] = _traced(item)
            if at % _KEPT_EACH == 0 or item is items[-1]:
                row = {"test_file": digest, "modules": digests, "tests": tests}
                note.write_text(json.dumps(row))

    return act


def _loaded(notes: Sequence[Path], digests: dict[str, str], wanted: set[str]) -> Reached:
    reached = Reached()
    for note in notes:
        if not note.exists():
            continue
        found = json.loads(note.read_text())
        for test, (seconds, cost, by_module) in found["tests"].items():
            if test not in wanted:
                continue
            if seconds < 0:
                print(f"left out, for it fails on sound code when it is traced: {test}", flush=True)
                continue
            reached.seconds[test], reached.cost[test] = seconds, cost
            reached.width[test] = len(by_module)
            for module, lines in by_module.items():
                is_same = found["modules"].get(module) == digests.get(module)
                of_module = reached.lines.setdefault(module, {})
                of_module[test] = int(lines, 16) if is_same else _ALL
    return reached


def _traced(item: pytest.Item) -> tuple[float, float, dict[str, str]]:
    """Runs a test: seconds (negative: it failed), cost, and the lines of each module, as hex."""
    ours = {str(SOURCE / path): path for path in modules()}
    seen: dict[types.CodeType, set[int]] = {}
    most: dict[types.CodeType, int] = {}

    def on_call(frame: types.FrameType, event: str, argument: object) -> object:
        code = frame.f_code
        if code.co_filename not in ours:
            return None
        if code not in seen:
            seen[code] = set()
            most[code] = len({line for _, _, line in code.co_lines() if line is not None})
        return None if len(seen[code]) >= most[code] else on_line

    def on_line(frame: types.FrameType, event: str, argument: object) -> object:
        seen[frame.f_code].add(frame.f_lineno)
        return on_line

    started, used = time.perf_counter(), time.process_time()
    threading.settrace(on_call)  # type: ignore[arg-type]
    sys.settrace(on_call)  # type: ignore[arg-type]
    try:
        reports = runtestprotocol(item, log=False, nextitem=None)
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    seconds, cost = time.perf_counter() - started, time.process_time() - used
    if any(report.failed for report in reports):
        seconds = -1.0
    bits: dict[str, int] = {}
    for code, lines in list(seen.items()):
        module = os.path.relpath(code.co_filename, SOURCE)
        for line in {code.co_firstlineno, *lines}:
            bits[module] = bits.get(module, 0) | 1 << line
    return seconds, max(cost, seconds / _BUSY), {module: hex(each) for module, each in bits.items()}
