"""Kernels are compiled once a machine, and whoever waits for it is told why, once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from lamina.formats.kernels.compile_notice import when_compiling
when_compiling(lambda: print("compiling"))
from lamina.formats.kernels.declare import kernel

@kernel
def double(number):
    return 2 * number

@kernel
def triple(number):
    return 3 * number

print(double(21), triple(14))
"""


def run(folder: Path) -> list[str]:
    script = folder / "kernels.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_the_first_compilation_is_told_once_and_later_ones_come_from_the_cache(
    tmp_path: Path,
) -> None:
    assert run(tmp_path) == ["compiling", "42", "42"]
    assert run(tmp_path) == ["42", "42"]
