"""The protocol as a model in Quint: what must hold, and what each thing in it is there for.

`model/cluster.qnt` has clocks of different speed and every delay, which the tests of the code have
only in part. Its checker comes from npm (`make model`); without it, these tests are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).resolve().parents[2] / "model"
QUINT = MODEL / "node_modules" / ".bin" / "quint"
MUTANTS = 9
WAYS = 10
TIMEOUT_S = 240

pytestmark = pytest.mark.skipif(
    not QUINT.exists() or shutil.which("node") is None,
    reason="needs node, and Quint in model/node_modules: `make model` installs it",
)


def quint(*arguments: str, timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
    done = subprocess.run(
        [str(QUINT), *arguments, "--backend=typescript"],
        cwd=MODEL, capture_output=True, text=True, timeout=timeout_s, check=False,
        env=os.environ | {"NO_COLOR": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_every_mutant_is_caught_and_the_whole_is_not() -> None:
    code, said = quint("test", "cluster.qnt", "--main=ways", "--max-samples=1", "--seed=1")
    assert code == 0, said
    found = set(re.findall(r"ok ways::(\w+)::(\w+Test) passed", said))
    assert len(found) == (1 + MUTANTS) * WAYS, said
    assert len({mutant for mutant, _ in found}) == 1 + MUTANTS


def by_chance(samples: int, timeout_s: float) -> None:
    code, said = quint(
        "run", "cluster.qnt", "--main=whole", "--invariant=safe", "--max-steps=70",
        f"--max-samples={samples}", "--seed=23", "--verbosity=1",
        "--witnesses", "someTakeover", "someCollected",
        timeout_s=timeout_s,
    )  # fmt: skip
    assert code == 0, said
    for witness in ("someTakeover", "someCollected"):
        seen = re.search(rf"{witness} was witnessed in (\d+) trace", said)
        assert seen is not None, said
        assert int(seen[1]), f"no run reached {witness}: it proved nothing"


def test_what_must_hold_holds_by_chance() -> None:
    by_chance(30, TIMEOUT_S)


@pytest.mark.long
def test_what_must_hold_holds_in_thousands_of_histories() -> None:
    by_chance(5_000, 3_600)
