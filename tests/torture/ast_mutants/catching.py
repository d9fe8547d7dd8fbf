"""Runs the tests that run a changed line, in forked children of one warm process.

The process imports pytest, collects the tests and loads Lamina once. Each mutant gets a child of
its own: it puts the changed code into the function and runs the tests until one fails. A test that
does not end in time has caught the mutant, too: something hangs. Whatever catches a mutant is then
run on sound code, by a child like that one: a test that fails there as well proves nothing.
"""

from __future__ import annotations

import ast
import gc
import importlib
import os
import resource
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from tests.torture.ast_mutants.changes import Mutation, mutated
from tests.torture.ast_mutants.drawing import SOURCE
from tests.torture.ast_mutants.processes import end_of, forked, quiet, said
from tests.torture.ast_mutants.reaching import Reached, reached_by

SLOW_S = 60.0
"""A test that costs more is left to the suites themselves."""
BUDGET_S = 30.0
"""Tests of this cost a mutant must survive, and rows of the matrix of half of it."""
PATIENCE = 6.0
"""How many times as long as on sound code a test may take on a mutant,"""
LEAST_S = 45.0
"""and this much more."""
_MEMORY = 12 << 30
_FILE = 4 << 30


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: the test that failed or never ended, or nothing."""

    mutation: Mutation
    caught_by: str
    tests: int
    seconds: float

    @property
    def is_caught(self) -> bool:
        return bool(self.caught_by)


class How(NamedTuple):
    """How many children at a time, and how many seconds of tests for each."""

    jobs: int
    budget_s: float = BUDGET_S


@dataclass(frozen=True)
class Running:
    """A child that is a mutant: which of its tests it runs, and since when."""

    mutation: Mutation
    tests: Sequence[str]
    reading: int
    started: float
    at: int = 0
    since: float = 0.0
    failed: bool = False


class Warm:
    """A pytest plugin that runs mutants instead of a plain session."""

    def __init__(
        self, mutations: Sequence[Mutation], how: How, kept: Path, heard: Callable[[Verdict], None]
    ) -> None:
        self.mutations = mutations
        self.jobs = how.jobs
        self.budget_s = how.budget_s
        self.kept = kept
        self.heard = heard
        self.verdicts: list[Verdict] = []
        self.items: dict[str, pytest.Item] = {}
        self.reached = Reached()
        self.sound: dict[str, bool] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("tests could not be collected")
        self.items = {item.nodeid: item for item in session.items}
        for path in {mutation.path for mutation in self.mutations}:
            importlib.import_module(f"lamina.{path.removesuffix('.py').replace('/', '.')}")
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        _load_kernels(session.items)
        gc.freeze()
        self.reached = reached_by(session.items, self.kept, self.jobs)
        for verdict in self._all():
            self.verdicts.append(verdict)
            self.heard(verdict)
        return True

    def _all(self) -> Iterator[Verdict]:
        functions = _functions()
        waiting = list(self.mutations)
        running: dict[int, Running] = {}
        while waiting or running:
            while waiting and len(running) < self.jobs:
                mutation = waiting.pop(0)
                tests = self._chosen(mutation)
                reading, writing = os.pipe()
                act = _being(mutation, [self.items[each] for each in tests], functions, writing)
                now = time.monotonic()
                running[forked(act)] = Running(mutation, tests, reading, now, since=now)
                os.close(writing)
            time.sleep(0.02)
            for child, each in list(running.items()):
                now_at = running[child] = _heard(each)
                ended = end_of(child, now_at.since + self._limit_s(now_at))
                if ended is not None:
                    now_at = _heard(now_at)
                    os.close(now_at.reading)
                    del running[child]
                    if (verdict := self._verdict(now_at, ended)) is None:
                        waiting.insert(0, now_at.mutation)
                    else:
                        yield verdict

    def _limit_s(self, running: Running) -> float:
        seconds = self.reached.seconds[running.tests[running.at]] if running.tests else 0.0
        return PATIENCE * seconds + LEAST_S

    def _verdict(self, running: Running, ended: str) -> Verdict | None:
        """What a child has shown; None where its test does not hold on sound code either."""
        seconds = time.monotonic() - running.started
        if not ended and not running.failed:
            return Verdict(running.mutation, "", len(running.tests), seconds)
        if not running.tests:
            raise RuntimeError(f"{running.mutation.name}: {ended}")
        test = running.tests[running.at]
        if self._is_sound(test):
            how = f" ({ended})" if ended else ""
            return Verdict(running.mutation, f"{test}{how}", len(running.tests), seconds)
        print(f"not sound: {test}", flush=True)
        return None

    def _is_sound(self, test: str) -> bool:
        """Whether a test passes on sound code; by a run of its own, once."""
        if test not in self.sound:
            reading, writing = os.pipe()
            child = forked(_being(None, [self.items[test]], {}, writing))
            os.close(writing)
            deadline = time.monotonic() + PATIENCE * self.reached.seconds[test] + LEAST_S
            while (ended := end_of(child, deadline)) is None:
                time.sleep(0.02)
            self.sound[test] = not ended and not any(
                line.startswith("failed") for line in said(reading)
            )
            os.close(reading)
        return self.sound[test]

    def _chosen(self, mutation: Mutation) -> list[str]:
        """The tests that run the changed lines, as many as there is time for."""
        usable = [
            test
            for test in self.reached.tests_of(mutation)
            if self.reached.cost[test] <= SLOW_S and self.sound.get(test, True)
        ]
        rows = [test for test in usable if "test_matrix" in test]
        others = [test for test in usable if "test_matrix" not in test]
        return self._within(self.budget_s, others) + self._within(self.budget_s / 2, rows)

    def _within(self, budget_s: float, tests: Sequence[str]) -> list[str]:
        """By turns the quickest and the one that reaches least: it is likely about that line."""
        quickest = sorted(tests, key=lambda each: self.reached.cost[each])
        narrowest = sorted(tests, key=lambda each: self.reached.width[each])
        chosen: dict[str, None] = {}
        for each in (test for pair in zip(narrowest, quickest, strict=True) for test in pair):
            if each not in chosen and budget_s > 0:
                chosen[each] = None
                budget_s -= self.reached.cost[each]
        return list(chosen)

    @staticmethod
    def pytest_report_teststatus() -> None:
        return None


def _heard(running: Running) -> Running:
    """What a child has said since: which test it begins, or that one failed."""
    for line in said(running.reading):
        word, _, at = line.partition(" ")
        if word == "failed":
            running = replace(running, failed=True)
        else:
            running = replace(running, at=int(at), since=time.monotonic())
    return running


def _functions() -> dict[tuple[str, str, int], list[types.FunctionType]]:
    """Every function of Lamina that is loaded, by file, name and first line."""
    found: dict[tuple[str, str, int], list[types.FunctionType]] = {}
    gc.unfreeze()
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType):
            code = each.__code__
            if code.co_filename.startswith(str(SOURCE)):
                path = os.path.relpath(code.co_filename, SOURCE)
                key = path, code.co_qualname, code.co_firstlineno
                found.setdefault(key, []).append(each)
    gc.freeze()
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


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of the functions in it: what a decorator made has that one."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType) and each.co_name != "<lambda>":  # a line may have two
            yield from _with_inner(each)


def _being(
    mutation: Mutation | None,
    tests: Sequence[pytest.Item],
    functions: dict[tuple[str, str, int], list[types.FunctionType]],
    writing: int,
) -> Callable[[], None]:
    """Becomes a mutant (or none), runs its tests in turn and says so."""

    def act() -> None:
        quiet()
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))
        if mutation is not None:
            path = str(SOURCE / mutation.path)
            new = _code(mutated(Path(path).read_text(), mutation), path, mutation)
            for code in _with_inner(new):
                key = mutation.path, code.co_qualname, code.co_firstlineno
                for function in functions.get(key, []):
                    function.__code__ = code
        for at, item in enumerate(tests):
            os.write(writing, b"begins %d\n" % at)
            reports = runtestprotocol(item, log=False, nextitem=None)
            if any(report.failed for report in reports):
                os.write(writing, b"failed %d\n" % at)
                return

    return act


def _load_kernels(items: Sequence[pytest.Item]) -> None:
    """Loads machine code once, before any child is made: by the first test of each format's file.

    They start no threads: what is forked after them is one thread, as it must be.
    """
    done: set[Path] = set()
    for item in items:
        if item.path not in done and item.path.parent.name == "formats":
            done.add(item.path)
            runtestprotocol(item, log=False, nextitem=None)


def run(
    mutations: Sequence[Mutation],
    tests: Sequence[str],
    *,
    how: How,
    kept: Path,
    heard: Callable[[Verdict], None],
) -> Warm:
    """Judges mutations by those of some tests that run what they change."""
    plugin = Warm(mutations, how, kept, heard)
    os.environ["LAMINA_TEST_EXAMPLES"] = "few"
    options = ["-q", "-p", "no:cacheprovider", "--timeout=0", "-p", "no:xdist"]
    options += ["-o", "tmp_path_retention_policy=none"]
    options += ["--capture=no", "--no-header", "--no-summary"]
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as room:
        pytest.main([*options, f"--basetemp={room}/tests", *tests], [plugin])
    return plugin
