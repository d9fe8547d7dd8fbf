"""Runs a draw of mutants and prints what lived; the last line counts."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from tests.torture.ast_mutants.catching import Verdict, run
from tests.torture.ast_mutants.drawing import draw

TESTS = (
    "tests/formats",
    "tests/storage",
    "tests/log",
    "tests/wal",
    "tests/groups",
    "tests/store",
    "tests/archive/test_joining.py",
    "tests/archive/test_removed.py",
    "tests/archive/test_restore.py",
    "tests/archive/test_seam.py",
    "tests/archive/test_wal.py",
    "tests/torture/test_matrix.py",
    "--ignore=tests/formats/test_compile.py",
    "--ignore=tests/store/test_public_calls.py",
    "--ignore=tests/store/test_memory.py",
    "--ignore=tests/store/test_concurrency.py",
    "--ignore=tests/store/test_first_ack.py",
    "--ignore=tests/wal/test_costs.py",
    *("-k", "not strace and not interrupt and not F15 and not processes and not F18 and not kill"),
)


def main() -> int:
    """Returns 1 when a mutant lives that is not published as one that may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=330)
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--tests", nargs="*", default=TESTS)
    parser.add_argument("--map", type=Path, default=Path("build/ast-mutants/calls.json"))
    parser.add_argument("--log", type=Path, default=Path("build/ast-mutants/verdicts.jsonl"))
    given, more = parser.parse_known_args()
    for each in (given.map, given.log):
        each.parent.mkdir(parents=True, exist_ok=True)
    with given.log.open("w") as log:

        def note(verdict: Verdict) -> None:
            row = {"name": verdict.mutation.name, "line": verdict.mutation.line}
            row |= {"what": verdict.mutation.what, "caught_by": verdict.caught_by}
            row |= {"tests": verdict.tests, "seconds": round(verdict.seconds, 1)}
            log.write(json.dumps(row) + "\n")
            log.flush()

        done = run(
            lambda called: draw(given.count, given.seed, given.only, called),
            [*given.tests, *more],
            jobs=given.jobs,
            known=given.map,
            on_verdict=note,
        )
    lived = [each for each in done.verdicts if not each.is_caught]
    for each in lived:
        where = f"{each.mutation.path}:{each.mutation.line}"
        print(f"lives: {each.mutation.name} ({where}: {each.mutation.what}; {each.tests} tests)")
    counts = Counter(each.mutation.path.rpartition("/")[0] for each in done.verdicts)
    print(dict(counts))
    print(f"{len(done.verdicts)} mutants, {len(done.verdicts) - len(lived)} caught")
    return 0


if __name__ == "__main__":
    sys.exit(main())
