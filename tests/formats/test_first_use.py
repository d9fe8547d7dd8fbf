"""The first calls on a machine that has compiled nothing: answered at once, compiled behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, sys
import lamina
from lamina.formats.frame import log as frame
from lamina.formats.keratin import log as keratin
from lamina.formats.kernels import declare
from lamina.formats.wal import log as wal

log = {"frame": frame, "keratin": keratin, "wal": wal}[sys.argv[1]]
told = {}

def compiled():
    return len(log._encode.overloads)


with lamina.open(sys.argv[2]) as store:
    store.create_topic("t", format=sys.argv[1])
    ack = store.append("t", [b"first", b"second"])
    told["at the ack"] = "numba" in sys.modules
    (read,) = store.scan("t", start=ack.base_offset)
    told["read"] = [each.decode() for each in read.column("value").to_pylist()]
    declare.load()
    from lamina.formats.kernels import first_use
    store.append("t", [b"then"])
    told["waits"] = compiled(), isinstance(log._encode, first_use.Pending)
    with first_use.compiled_first():
        store.append("t", [b"third"])
    told["afterwards"] = compiled(), isinstance(log._encode, first_use.Pending)
with lamina.open(sys.argv[2]) as store:
    values = [each for batch in store.scan("t") for each in batch.column("value").to_pylist()]
    told["all"] = [each.decode() for each in values]
print(json.dumps(told))
"""


def on_a_new_machine(folder: Path, program: str, *arguments: str) -> str:
    """Runs a program where no kernel was ever compiled; returns what it printed."""
    folder.mkdir()
    nowhere = {
        name: str(folder)
        for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR", "LAMINA_KERNEL_CACHE", "NUMBA_CACHE_DIR")
    }
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | nowhere,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("log", ["keratin", "frame", "wal"])
def test_the_first_record_is_durable_before_anything_is_compiled(log: str, tmp_path: Path) -> None:
    out = on_a_new_machine(tmp_path / "new", PROGRAM, log, str(tmp_path / "data"))
    told: dict[str, Any] = json.loads(out)
    assert told == {
        "at the ack": False,
        "read": ["first", "second"],
        "waits": [0, True],
        "afterwards": [1, False],
        "all": ["first", "second", "then", "third"],
    }


BEHIND = """
from lamina.formats.kernels import crc, declare
declare.COMPILER._delay_s = 0
assert crc.crc32c_of(b"123456789") == 0xE3069283
while type(crc._crc32c_of).__name__ != "CPUDispatcher":
    assert crc.crc32c_of(b"123456789") == 0xE3069283
assert crc.crc32c_of(b"123456789") == 0xE3069283
print(len(crc._crc32c_of.overloads))
"""


def test_the_compiler_takes_over_in_the_background(tmp_path: Path) -> None:
    assert on_a_new_machine(tmp_path / "new", BEHIND) == "1\n"


LARGE = """
from lamina.formats.kernels import call_size, crc, first_use
crc.crc32c_of(bytes(call_size.SMALL_CALL_BYTES + 1))
print(isinstance(crc._crc32c_of, first_use.Pending))
"""


def test_a_large_call_waits_for_machine_code(tmp_path: Path) -> None:
    assert on_a_new_machine(tmp_path / "new", LARGE) == "False\n"
