"""What the shortest program loads before its first acknowledged record: no more than it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SHORTEST = """
import sys
import lamina
with lamina.open(sys.argv[1]) as store:
    store.create_topic("first", format=sys.argv[2])
    store.append("first", b"first")
print(*sys.modules)
"""
COMPILER = "numba.np.linalg"
"""One of the many modules that Numba loads to compile, and machine code does not need."""
SELDOM = {"asyncio", "pyarrow.compute", "lamina.archive.tier", "lamina.inspect.logs"}


def loaded(path: Path, format_name: str) -> set[str]:
    command = [sys.executable, "-c", SHORTEST, str(path), format_name]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(said.stdout.split())


@pytest.mark.parametrize(
    ("format_name", "unneeded"),
    [("keratin", {"lamina.wal.engine"}), ("frame", {"lamina.wal.engine"})],
)
def test_a_first_record_needs_no_compiler(
    tmp_path: Path, format_name: str, unneeded: set[str]
) -> None:
    loaded(tmp_path / "compiles", format_name)
    found = loaded(tmp_path / "does not", format_name)
    assert found & (SELDOM | unneeded | {COMPILER}) == set()
    assert "lamina.log.commit" in found, "it is what was loaded to append"
