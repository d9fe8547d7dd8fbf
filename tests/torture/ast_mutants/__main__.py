"""Judges a draw of mutants, prints what lived and a table; exit code 1 if one may not live."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.torture.ast_mutants.catching import BUDGET_S, How, Verdict, run
from tests.torture.ast_mutants.drawing import draw, named
from tests.torture.ast_mutants.published import MAY_LIVE

TESTS = (
    *("tests/formats", "tests/storage", "tests/faults", "tests/engine", "tests/tier", "tests/cli"),
    *("tests/server", "tests/crash", "tests/fuzz", "tests/torture/test_found.py"),
    *("tests/torture/test_matrix.py", "tests/test_config.py", "tests/test_records.py"),
    "--ignore=tests/formats/test_compile.py",
    "--ignore=tests/store/test_memory.py",
    "--ignore=tests/store/test_first_ack.py",
    "--ignore=tests/wal/test_costs.py",
    "--ignore=tests/server/test_memory.py",
    "--ignore=tests/server/test_kill.py",
    *("-k", "not strace and not interrupt and not F15 and not processes and not F18 and not kill"),
)
"""Without what starts processes, compiles, or measures memory and costs of the whole process."""
KEPT = Path("build/ast-mutants")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=330)
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for each mutant")
    parser.add_argument("--only", nargs="*", default=[], help="modules, by how their paths begin")
    parser.add_argument("--named", nargs="*", default=[], help="these mutants instead of a draw")
    parser.add_argument("--tests", nargs="*", default=TESTS)
    parser.add_argument("--kept", type=Path, default=KEPT / "reached")
    parser.add_argument("--log", type=Path, default=KEPT / "verdicts.jsonl")
    given = parser.parse_args()
    given.log.parent.mkdir(parents=True, exist_ok=True)
    drawn = named(given.named) if given.named else draw(given.count, given.seed, given.only)
    with given.log.open("w") as log:

        def note(verdict: Verdict) -> None:
            log.write(json.dumps(_row(verdict)) + "\n")
            log.flush()

        done = run(
            drawn, given.tests, how=How(given.jobs, given.budget), kept=given.kept, heard=note
        )
    lived = [each for each in done.verdicts if not each.is_caught]
    for each in lived:
        where = f"{each.mutation.path}:{each.mutation.line}"
        print(f"lives: {each.mutation.name} ({where}: {each.mutation.what}; {each.tests} tests)")
    print("\n".join(_table(done.verdicts)))
    return int(any(each.mutation.name not in MAY_LIVE for each in lived))


def _row(verdict: Verdict) -> dict[str, object]:
    return {
        "name": verdict.mutation.name,
        "line": verdict.mutation.line,
        "what": verdict.mutation.what,
        "caught_by": verdict.caught_by,
        "tests": verdict.tests,
        "seconds": round(verdict.seconds, 1),
    }


def _table(verdicts: Sequence[Verdict]) -> list[str]:
    """How many were caught of each package, as a table of the page."""
    counts: dict[str, list[int]] = {"all": [0, 0]}
    for each in verdicts:
        for name in (each.mutation.path.rpartition("/")[0], "all"):
            counts.setdefault(name, [0, 0])[not each.is_caught] += 1
    rows = sorted(counts.items(), key=lambda row: (row[0] == "all", row[0]))
    head = ["| package | judged | caught | lived |", "|---|---|---|---|"]
    return head + [
        f"| {name if name == 'all' else f'`{name}`'} | {caught + lived} | {caught} | {lived} |"
        for name, (caught, lived) in rows
    ]


if __name__ == "__main__":
    sys.exit(main())
