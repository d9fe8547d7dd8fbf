"""Runs the tests that call a changed function, in forked children of one warm process.

The process imports pytest, collects the tests and loads Lamina once. One child runs every test and
notes which functions each calls and how long it takes. Then each mutant gets a child of its own: it
puts the changed code into the function and runs the tests that call it, the quickest first, until
one fails. A child that does not end in time has been caught, too: something hangs.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.torture.ast_mutants.changes import Mutation, mutated
from tests.torture.ast_mutants.drawing import SOURCE

SLOW_S = 20.0
"""A test that takes longer is left to the suites themselves."""
BUDGET_S = 35.0
"""So many seconds of tests a mutant must survive, and as many of rows of the matrix."""
PATIENCE = 6.0
"""How many times as long as on sound code the tests of a mutant may take."""
LEAST_S = 45.0
MOST_S = 240.0
_KEPT_EACH = 50
Choose = Callable[[Container[str]], Sequence[Mutation]]
_CAUGHT, _LIVED, _BROKEN = 3, 0, 9


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: the test that failed, `hangs`, or nothing."""

    mutation: Mutation
    caught_by: str
    tests: int
    seconds: float

    @property
    def is_caught(self) -> bool:
        return bool(self.caught_by)


Heard = Callable[[Verdict], None]


class Warm:
    """A pytest plugin that runs mutants instead of a plain session."""

    def __init__(self, choose: Choose, jobs: int, known: Path, on_verdict: Heard) -> None:
        self.choose = choose
        self.on_verdict = on_verdict
        self.mutations: Sequence[Mutation] = ()
        self.jobs = jobs
        self.known = known
        self.verdicts: list[Verdict] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("tests could not be collected")
        by_id = {item.nodeid: item for item in session.items}
        calls = self._calls(session.items)
        called = {name for seconds, names in calls.values() if seconds >= 0 for name in names}
        self.mutations = self.choose(called)
        _warm(session.items, calls)
        for verdict in self._all(by_id, calls):
            self.verdicts.append(verdict)
            self.on_verdict(verdict)
        return True

    # ------------------------------------------------------------------ who calls what

    def _calls(self, items: Sequence[pytest.Item]) -> dict[str, tuple[float, list[str]]]:
        """For each test, its seconds and the functions that it calls; kept in a file."""
        found = json.loads(self.known.read_text()) if self.known.exists() else {}
        missing = [item for item in items if item.nodeid not in found]
        if missing:
            child = os.fork()
            if child == 0:
                with _quiet():
                    for part in range(0, len(missing), _KEPT_EACH):
                        found |= _note_calls(missing[part : part + _KEPT_EACH])
                        self.known.write_text(json.dumps(found))
                os._exit(0)
            os.waitpid(child, 0)
            found = json.loads(self.known.read_text())
        return {item.nodeid: found[item.nodeid] for item in items if item.nodeid in found}

    # ------------------------------------------------------------------ mutants

    def _all(
        self, items: dict[str, pytest.Item], calls: dict[str, tuple[float, list[str]]]
    ) -> Iterator[Verdict]:
        by_function: dict[str, list[str]] = {}
        for test, (seconds, functions) in calls.items():
            if 0 <= seconds <= SLOW_S:
                for function in functions:
                    by_function.setdefault(function, []).append(test)
        for path in {mutation.path for mutation in self.mutations}:
            importlib.import_module(f"lamina.{path.removesuffix('.py').replace('/', '.')}")
        functions = _functions()
        waiting = list(self.mutations)
        running: dict[int, tuple[Mutation, list[str], float, float, int]] = {}
        while waiting or running:
            while waiting and len(running) < self.jobs:
                mutation = waiting.pop(0)
                where = f"{mutation.path}:{mutation.function}"
                callers = by_function.get(where, [])
                rows = [test for test in callers if "test_matrix" in test]
                others = [test for test in callers if "test_matrix" not in test]
                tests = _within(BUDGET_S, others, calls) + _within(BUDGET_S, rows, calls)
                limit_s = PATIENCE * sum(calls[test][0] for test in tests) + LEAST_S
                reading, writing = os.pipe()
                child = os.fork()
                if child == 0:
                    os.close(reading)
                    _be(mutation, [items[test] for test in tests], functions, writing)
                os.close(writing)
                limit_s = min(limit_s, MOST_S)
                running[child] = (mutation, tests, time.monotonic(), limit_s, reading)
            yield from _ended(running)

    @staticmethod
    def pytest_report_teststatus() -> None:
        return None


def _within(
    budget_s: float, tests: Sequence[str], calls: dict[str, tuple[float, list[str]]]
) -> list[str]:
    """The quickest tests of some, as many as there is time for."""
    chosen: list[str] = []
    for test in sorted(tests, key=lambda each: calls[each][0]):
        budget_s -= calls[test][0]
        if budget_s < 0:
            break
        chosen.append(test)
    return chosen


def _ended(running: dict[int, Any]) -> Iterator[Verdict]:
    """Waits a moment; gives the verdict on each child that has ended, or takes too long."""
    time.sleep(0.02)
    for child, (mutation, tests, started, limit_s, reading) in list(running.items()):
        seconds = time.monotonic() - started
        done, status = os.waitpid(child, os.WNOHANG)
        if not done and seconds < limit_s:
            continue
        caught_by = ""
        if not done:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            caught_by = "hangs"
        elif os.WIFSIGNALED(status):
            caught_by = f"dies of signal {os.WTERMSIG(status)}"
        elif os.WEXITSTATUS(status) == _CAUGHT:
            caught_by = os.read(reading, 4096).decode()
        elif os.WEXITSTATUS(status) != _LIVED:
            caught_by = ""
            print(f"no verdict on {mutation.name}: exit {os.WEXITSTATUS(status)}", flush=True)
        os.close(reading)
        del running[child]
        yield Verdict(mutation, caught_by, len(tests), seconds)


def _functions() -> dict[tuple[str, str, int], list[types.FunctionType]]:
    """Every function of Lamina that is loaded, by file, name and first line."""
    found: dict[tuple[str, str, int], list[types.FunctionType]] = {}
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType):
            code = each.__code__
            if code.co_filename.startswith(str(SOURCE)):
                path = os.path.relpath(code.co_filename, SOURCE)
                key = path, code.co_qualname, code.co_firstlineno
                found.setdefault(key, []).append(each)
    return found


def _code(tree: ast.Module, path: str, mutation: Mutation) -> types.CodeType:
    """The code of the changed function, out of the code of its whole file."""
    waiting = [compile(tree, path, "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        if (code.co_qualname, code.co_firstlineno) == (mutation.function, mutation.first_line):
            return code
        waiting += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    raise LookupError(mutation.name)


def _be(
    mutation: Mutation,
    tests: list[pytest.Item],
    functions: dict[tuple[str, str, int], list[types.FunctionType]],
    writing: int,
) -> None:
    """Becomes the mutant and runs its tests; ends the process."""
    code = _BROKEN
    try:
        os.setpgid(0, 0)
        with _quiet():
            path = str(SOURCE / mutation.path)
            tree = mutated(Path(path).read_text(), mutation)
            new = _code(tree, path, mutation)
            key = mutation.path, mutation.function, mutation.first_line
            for function in functions.get(key, []):
                function.__code__ = new
            failed = _first_failure(tests)
        if failed:
            os.write(writing, failed.encode()[:4000])
        code = _CAUGHT if failed else _LIVED
    finally:
        os._exit(code)


def _first_failure(tests: Sequence[pytest.Item]) -> str:
    for item in tests:
        reports = runtestprotocol(item, log=False, nextitem=None)
        if any(report.failed for report in reports):
            return item.nodeid
    return ""


def _warm(items: Sequence[pytest.Item], calls: dict[str, tuple[float, list[str]]]) -> None:
    """Loads machine code once, before any child is made: by a quick test of each format's file.

    They start no threads: what is forked after them is one thread, as it must be.
    """
    done: set[Path] = set()
    for item in items:
        quick = 0 <= calls.get(item.nodeid, (-1.0, []))[0] < 1
        if quick and item.path not in done and item.path.parent.name == "formats":
            done.add(item.path)
            runtestprotocol(item, log=False, nextitem=None)


def _note_calls(items: Sequence[pytest.Item]) -> dict[str, tuple[float, list[str]]]:
    """Runs every test once, with a tracer that sees calls only."""
    found: dict[str, tuple[float, list[str]]] = {}
    seen: set[types.CodeType] = set()
    root = str(SOURCE)

    def note(frame: types.FrameType, event: str, argument: object) -> None:
        seen.add(frame.f_code)

    for item in items:
        seen.clear()
        started = time.perf_counter()
        threading.settrace(note)
        sys.settrace(note)
        try:
            reports = runtestprotocol(item, log=False, nextitem=None)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
        seconds = time.perf_counter() - started
        passed = not any(report.failed for report in reports)
        ours = [code for code in list(seen) if code.co_filename.startswith(root)]
        names = {
            f"{os.path.relpath(code.co_filename, root)}:{code.co_qualname.split('.<locals>')[0]}"
            for code in ours
        }
        found[item.nodeid] = (seconds if passed else -1.0, sorted(names))
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A child prints nothing: its words would be taken for those of the run."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    yield


def run(choose: Choose, tests: Sequence[str], *, jobs: int, known: Path, on_verdict: Heard) -> Warm:
    """Judges by tests the mutations that are chosen of the functions which these tests call."""
    plugin = Warm(choose, jobs, known, on_verdict)
    os.environ["LAMINA_TEST_EXAMPLES"] = "few"
    options = ["-q", "-p", "no:cacheprovider", "--timeout=0", "-p", "no:xdist"]
    pytest.main([*options, "--capture=no", "--no-header", "--no-summary", *tests], [plugin])
    return plugin
