"""Builds a mutant, and runs what must catch it: a row of the matrix, or a test.

A copy of the source is changed in one place, and what catches is run on that copy, in a process of
its own. What ends with a violation or a failed test has seen something; every other end is no
verdict: not run, no such test, no end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.torture.placing import put

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
CAUGHT_S = 600
ROW_FAILED, TEST_FAILED = 3, 1
_ROW = """
import sys
from lamina_torture.rows import rows
from lamina_torture.running import run_row
key, format_name, rounds = sys.argv[1:]
(row,) = rows(key)
outcome = run_row(row, format_name, 1, int(rounds), failures_max=1)
print(outcome.not_run or f"{dict(outcome.counts)} seen:", *outcome.failures, sep="\\n")
sys.exit(77 if outcome.not_run else 3 if outcome.failures else 0)
"""


@dataclass(frozen=True)
class Mutant:
    """One safety step that is not taken."""

    name: str
    step: str
    path: str
    old: str
    new: str
    caught_by: tuple[str, ...]

    def applied(self) -> dict[str, str]:
        """The file without the step, by its path; the step must be there, once."""
        try:
            return put(SOURCE / "lamina", {}, self.path, self.old, self.new)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error


def run_catcher(catcher: str, source: Path) -> tuple[int | None, str]:
    """Runs a row or a test on a copy of the source; None when it never ends."""
    if catcher.startswith("F"):
        words = ["-c", _ROW, *catcher.split(":")]
    else:
        words = ["-m", "pytest", "-x", "-p", "no:cacheprovider", catcher]
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=CAUGHT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, "it never ends"
    return ended.returncode, (ended.stdout + ended.stderr).strip()


def catch(mutant: Mutant) -> tuple[str, str] | None:
    """Returns what catches a mutant first, and what that saw; None if it survives."""
    with tempfile.TemporaryDirectory(prefix="lamina-mutant-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy)
        for path, text in mutant.applied().items():
            (copy / "lamina" / path).write_text(text)
        for catcher in mutant.caught_by:
            code, told = run_catcher(catcher, copy)
            is_row = catcher.startswith("F")
            if code == (ROW_FAILED if is_row else TEST_FAILED):
                lines = told.splitlines()
                seen = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
                return catcher, lines[1] if is_row else (seen or lines)[-1]
            if code != 0:
                print(f"{mutant.name}: {catcher} ends with {code}: {told[-400:]}", flush=True)
    return None
