"""After warming up nothing is left to be compiled, whatever a program does with a store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import lamina
from lamina.formats.kernels import compile_notice, compile
from lamina.store import warming

assert warming.is_warm()

def refuse(self, signature, result):
    raise AssertionError(f"{self._function} was compiled for {signature}")

compile._Kept.save_overload = refuse
for log in ("keratin", "frame", "wal"):
    with lamina.open(f"{log}-data", archive=f"{log}-cold") as store:
        store.create_topic("t", format=log, config={"remote.storage.enable": True})
        store.append("t", [b"value"])
        store.append("t", [{"value": b"v", "timestamp": n} for n in range(1_000)])
        store.flush()
        assert sum(each.num_rows for each in store.scan("t")) == 1_001
        store.offset_for_time("t", 0, 500)
        group = store.group("t", "g")
        held = group.poll(10)
        group.ack(held)
        store.archive()
    with lamina.open(f"{log}-data", read_only=True) as store:
        assert sum(each.num_rows for each in store.scan("t")) == 1_001
print("nothing")
"""


def test_after_warming_nothing_is_compiled(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    warm = [sys.executable, "-m", "lamina", "warm", "--json"]
    done = subprocess.run(warm, env=environment, cwd=tmp_path, capture_output=True, check=True)
    assert b'"kernels"' in done.stdout
    (tmp_path / "program.py").write_text(PROGRAM)
    program = [sys.executable, "program.py"]
    ran = subprocess.run(program, env=environment, cwd=tmp_path, capture_output=True, check=False)
    assert ran.stdout == b"nothing\n", ran.stderr.decode()
