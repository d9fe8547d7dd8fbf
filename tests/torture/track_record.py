"""Every defect that was ever found: put back, and caught by a named test or row.

    python -m tests.torture.track_record            puts each back; all must be caught
    python -m tests.torture.track_record name …     only these

`make track-record` writes down, in `track_record.json`, at which commit each was last seen to be
caught; `docs/track-record.md` is made of both. A defect is put back by the few lines that mended it
(`pieces`: a file, what stands there, what stood there): in a forked child in which the functions
that hold them get the code of before, or, where what catches it starts processes of its own (a
server, Spark), in a copy of the source. What cannot be put back says why.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from tests.torture.ast_mutants.drawing import SOURCE
from tests.torture.ast_mutants.processes import kill_group
from tests.torture.catching import ROW_FAILED, TEST_FAILED, run_catcher
from tests.torture.defects import DEFECTS, Defect

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_suffix(".json")
PAGE = ROOT / "docs" / "track-record.md"
CAUGHT_S = 180
_CAUGHT, _LIVED, _BROKEN = 3, 0, 9


@dataclass(frozen=True)
class Seen:
    """How it ended: with the defect put back, and without."""

    defect: Defect
    caught: bool
    sound: bool


class Putting:
    """A pytest plugin: collects what catches, then puts each defect back in a child."""

    def __init__(self, defects: Sequence[Defect]) -> None:
        self.defects = defects
        self.seen: list[Seen] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("what catches could not be collected")
        for defect in self.defects:
            for path in defect.sources(SOURCE):  # some are only imported when they are needed
                importlib.import_module(f"lamina.{path.removesuffix('.py').replace('/', '.')}")
        functions = loaded_functions()
        room = str(session.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
        for defect in self.defects:
            items = [item for item in session.items if _names(defect, item.nodeid)]
            caught = _in_child(defect, items, functions, put_back=True)
            _unmount_below(room)
            sound = not _in_child(defect, items, functions, put_back=False)
            self.seen.append(_said(Seen(defect, caught, sound)))
        return True


def _unmount_below(folder: str) -> None:
    """Unmounts what a child has left behind that died of its defect."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for each in reversed([point for point in mounts if point.startswith(f"{folder}/")]):
        subprocess.run(["umount", "-l", each], check=False)


def _said(seen: Seen) -> Seen:
    words = "is caught" if seen.caught else "IS NOT CAUGHT"
    words += "" if seen.sound else ", and WITHOUT IT FAILS AS WELL"
    print(f"{seen.defect.name}: {words} by {seen.defect.caught_by}", flush=True)
    return seen


def _apart(defect: Defect) -> Seen:
    """Puts a defect back in a copy of the source; what catches it is run on both."""
    failed = ROW_FAILED if defect.is_row else TEST_FAILED
    with tempfile.TemporaryDirectory(prefix="lamina-defect-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE.parent, copy)
        for path, text in defect.sources(SOURCE).items():
            (copy / SOURCE.name / path).write_text(text)
        ended, told = run_catcher(defect.caught_by, copy)
    if ended not in (0, failed, None):
        raise RuntimeError(f"{defect.name}: {defect.caught_by} ends with {ended}: {told[-400:]}")
    sound, told = run_catcher(defect.caught_by, SOURCE.parent)
    if sound != 0:
        print(told[-2000:])
    return _said(Seen(defect, ended != 0, sound == 0))


def _names(defect: Defect, test: str) -> bool:
    return test == defect.caught_by or test.startswith(f"{defect.caught_by}[")


def loaded_functions() -> dict[tuple[str, str], list[types.FunctionType]]:
    """Every function of Lamina that is loaded, by file and qualified name."""
    found: dict[tuple[str, str], list[types.FunctionType]] = {}
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType):
            code = each.__code__
            if code.co_filename.startswith(str(SOURCE)):
                path = os.path.relpath(code.co_filename, SOURCE)
                found.setdefault((path, code.co_qualname), []).append(each)
    return found


def _in_child(
    defect: Defect,
    items: Sequence[pytest.Item],
    functions: dict[tuple[str, str], list[types.FunctionType]],
    *,
    put_back: bool,
) -> bool:
    """Tells whether what catches a defect fails, or never ends, in a child."""
    child = os.fork()
    if child == 0:
        code = _BROKEN
        try:
            os.setpgid(0, 0)
            told = os.dup(2)
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            if put_back:
                change(defect, functions)
            code = _CAUGHT if _fails(defect, items) else _LIVED
        except BaseException:
            os.write(told, traceback.format_exc().encode())
        finally:
            os._exit(code)
    until = time.monotonic() + CAUGHT_S
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            kill_group(child)  # a server that it started
            if os.WIFSIGNALED(status):
                return True
            if os.WEXITSTATUS(status) == _BROKEN:
                raise RuntimeError(f"{defect.name}: what catches it could not be run")
            return os.WEXITSTATUS(status) == _CAUGHT
        time.sleep(0.02)
    kill_group(child)
    os.waitpid(child, 0)
    return True


def _fails(defect: Defect, items: Sequence[pytest.Item]) -> bool:
    if defect.is_row:
        from lamina_torture.rows import rows
        from lamina_torture.running import run_row

        key, format_name, rounds = defect.caught_by.split(":")
        (row,) = rows(key)
        return bool(run_row(row, format_name, 1, int(rounds), failures_max=1).failures)
    if not items:
        raise LookupError(defect.caught_by)
    for item in items:
        reports = runtestprotocol(item, log=False, nextitem=None)
        if any(report.failed for report in reports):
            return True
    return False


def change(
    defect: Defect, functions: dict[tuple[str, str], list[types.FunctionType]]
) -> list[tuple[str, str]]:
    """Puts a defect back into the functions that are loaded; returns which were changed."""
    changed = []
    for path, text in defect.sources(SOURCE).items():
        before = _codes(compile((SOURCE / path).read_text(), path, "exec", dont_inherit=True))
        for name, code in _codes(
            compile(text, str(SOURCE / path), "exec", dont_inherit=True)
        ).items():
            old = before.get(name)
            if old is not None and _essence(old) == _essence(code):
                continue
            for function in functions.get((path, name), []):
                function.__code__ = code
                changed.append((path, name))
    if not changed:
        raise LookupError(f"{defect.name}: no function was changed")
    return changed


def _essence(code: types.CodeType) -> tuple[object, ...]:
    """What a function does, wherever it stands."""
    inner = tuple(
        _essence(each) if isinstance(each, types.CodeType) else each for each in code.co_consts
    )
    return code.co_code, inner, code.co_names, code.co_varnames


def _codes(module: types.CodeType) -> dict[str, types.CodeType]:
    """The functions of a module, by qualified name; those in others, too: decorators keep them."""
    found: dict[str, types.CodeType] = {}
    waiting = [module]
    while waiting:
        code = waiting.pop()
        for each in code.co_consts:
            if isinstance(each, types.CodeType):
                found[each.co_qualname] = each
                waiting.append(each)
    return found


def page() -> str:
    """The page of the track record, from the defects and what was seen."""
    record = json.loads(RECORD.read_text())
    put_back = [each for each in DEFECTS if each.pieces]
    lines = [
        "# Track record",
        "",
        "Every defect that was ever found in Lamina, by its own harness, by fuzzing, by review or",
        "by people who attacked it from outside. Each is kept as data (`tests/torture/found`) with",
        "the lines that put it back and the test or row that must catch it then.",
        "`make track-record` puts each back, runs what catches it with and without it, and writes",
        "down the last commit to the source when that was seen; this page is made of that.",
        "",
        f"{len(DEFECTS)} defects; {len(put_back)} of them can be put back, and are caught.",
    ]
    for chapter in dict.fromkeys(each.chapter for each in DEFECTS):
        lines += ["", f"## {chapter}", "", *_table(chapter, record)]
    return "\n".join(lines) + "\n"


def _table(chapter: str, record: dict[str, str]) -> Iterator[str]:
    yield "| defect | what happened | caught by | last seen caught at |"
    yield "|---|---|---|---|"
    for each in DEFECTS:
        if each.chapter == chapter:
            seen = f"not put back: {each.not_put_back}"
            if each.pieces:
                seen = record.get(each.name, "not yet")
            held = f"`{each.caught_by}`" if each.caught_by else "–"
            yield f"| `{each.name}` | {each.what} | {held} | {seen} |"


def run(defects: Sequence[Defect]) -> list[Seen]:
    """Puts defects back, one after the other."""
    here = [each for each in defects if not each.apart]
    plugin = Putting(here)
    if here:
        files = {each.caught_by.partition("::")[0] for each in here if not each.is_row}
        files = files or {"tests/torture/test_mutants.py"}
        options = ["-q", "-p", "no:cacheprovider", "--timeout=0", "-p", "no:xdist", "--capture=no"]
        pytest.main([*options, "--no-header", "--no-summary", *sorted(files)], [plugin])
        if len(plugin.seen) < len(here):
            raise RuntimeError("not every defect was put back")
    return plugin.seen + [_apart(each) for each in defects if each.apart]


def main() -> int:
    """Returns 1 when a defect that was put back is not caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    chosen = [each for each in DEFECTS if each.pieces and each.name in (given.names or [each.name])]
    seen = [] if given.page else run(chosen)
    commit = subprocess.run(
        ["git", "log", "-1", "--abbrev=10", "--format=%h", "--", "src"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record = {name: at for name, at in record.items() if name in {each.name for each in DEFECTS}}
    record |= {each.defect.name: commit for each in seen if each.caught and each.sound}
    if not given.check:
        RECORD.write_text(json.dumps(dict(sorted(record.items())), indent=1) + "\n")
        PAGE.write_text(page())
    missed = [each.defect.name for each in seen if not each.caught or not each.sound]
    print(f"{len(seen) - len(missed)} of {len(seen)} defects are caught", *missed, sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
