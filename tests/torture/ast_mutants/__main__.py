"""Judges a draw of mutants, prints what lived and a table; exit code 1 if one may not live."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.torture.ast_mutants.catching import BUDGET_S, How, run
from tests.torture.ast_mutants.drawing import draw, named
from tests.torture.ast_mutants.judged import note, row_of, rows_of, table
from tests.torture.ast_mutants.published import MAY_LIVE, SECOND_MAY_LIVE

TESTS = (
    *("tests/formats", "tests/storage", "tests/log", "tests/wal", "tests/groups", "tests/archive"),
    *("tests/store", "tests/api", "tests/cli", "tests/server", "tests/client", "tests/fuzz"),
    *("tests/torture/test_found.py", "tests/torture/test_matrix.py"),
    *("tests/test_config.py", "tests/test_records.py", "tests/test_errors.py"),
)
LEFT_OUT = (
    "--ignore=tests/formats/test_compile.py",
    "--ignore=tests/store/test_memory.py",
    "--ignore=tests/store/test_first_ack.py",
    "--ignore=tests/wal/test_costs.py",
    "--ignore=tests/server/console",
    "--ignore=tests/server/test_memory.py",
    "--ignore=tests/server/test_kill.py",
    *("-k", "not strace and not interrupt and not F15 and not processes and not F18 and not kill"),
)
"""What starts processes, compiles, or measures memory and costs of the whole process."""
ARGUED = MAY_LIVE | SECOND_MAY_LIVE
KEPT = Path("build/ast-mutants")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=330)
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for each mutant")
    parser.add_argument("--only", nargs="*", default=[], help="draw from modules that begin so")
    parser.add_argument("--piece", nargs="*", default=[""], help="of the draw, judge modules so")
    parser.add_argument("--named", nargs="*", default=[], help="these mutants instead of a draw")
    parser.add_argument("--tests", nargs="*", default=TESTS)
    parser.add_argument("--report", action="store_true", help="judge nothing: what is known so far")
    parser.add_argument("--kept", type=Path, default=KEPT / "reached")
    parser.add_argument("--log", type=Path, default=KEPT / "verdicts.jsonl")
    given = parser.parse_args()
    given.log.parent.mkdir(parents=True, exist_ok=True)
    drawn = named(given.named) if given.named else draw(given.count, given.seed, given.only)
    drawn = [each for each in drawn if each.path.startswith(tuple(given.piece))]
    known = rows_of(given.log, drawn)
    waiting = [each for each in drawn if not (each.name in known and known[each.name].caught_by)]
    if waiting and not given.report:
        run(
            waiting,
            [*given.tests, *LEFT_OUT],
            how=How(given.jobs, given.budget),
            kept=given.kept,
            heard=lambda verdict: note(given.log, row_of(verdict)),
        )
    known = rows_of(given.log, drawn)
    lived = [each for each in drawn if each.name in known and not known[each.name].caught_by]
    for each in lived:
        why = ARGUED.get(each.name, f"not argued; {known[each.name].tests} tests run it")
        print(f"lives: {each.name} ({each.path}:{each.line}: {each.what}): {why}")
    print("\n".join(table(drawn, known)))
    is_whole = len(known) == len(drawn)
    return int(not is_whole or any(each.name not in ARGUED for each in lived))


if __name__ == "__main__":
    sys.exit(main())
