"""How much memory a log costs to write, recover and scan: a constant, whatever its size.

Measured in a process of its own, as anonymous memory (`RssAnon`) beyond what it had after the
imports; the mapped pages of the files are the kernel's to take back.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20
SMALL_BYTES = 256 * MIB
SMALL_BOUND = 150 * MIB
LARGE_BYTES = 4096 * MIB
LARGE_BOUND = 300 * MIB
FORMATS = ["keratin", "frame"]
VALUE_BYTES = 40

SCRIPT = """
import json, os, sys, threading, time
import numpy as np
import pyarrow as pa
import lamina
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store

def anonymous():
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

class Peak:
    def __init__(self):
        self.base = self.highest = anonymous()
        threading.Thread(target=self.watch, daemon=True).start()
    def watch(self):
        while True:
            self.look()
            time.sleep(0.002)
    def look(self):
        self.highest = max(self.highest, anonymous())

work, directory, told = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
peak = Peak()
records = 0
if work == "write":
    rows = told["batch_rows"]
    data = np.random.default_rng(1).bytes(rows * told["value_bytes"])
    ends = np.arange(rows + 1, dtype=np.int32) * told["value_bytes"]
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    values = pa.Array.from_buffers(pa.binary(), rows, buffers)
    batch = pa.RecordBatch.from_arrays([values], names=["value"])
    with Store(directory) as store:
        config = {"segment.bytes": told["segment_bytes"]}
        store.create_topic("t", format=told["format"], config=config)
        while store.describe_topic("t").partitions[0].size_bytes < told["size_bytes"]:
            records += store.append("t", batch, acks=1).count
elif work == "recover":
    with Store(directory) as store:
        records = store.latest_offset("t")
elif work == "scan":
    with (ReadOnlyStore if told["read_only"] else Store)(directory) as store:
        for batch in store.scan("t"):
            records += batch.num_rows
            peak.look()
peak.look()
print(json.dumps({"records": records, "anonymous": peak.highest - peak.base}))
"""


def measured(work: str, directory: Path, **told: Any) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, work, str(directory), json.dumps(told)],
        check=False,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    print(f"{work}: {found['records']} records, {found['anonymous'] / MIB:.0f} MiB anonymous")
    return found


def forget_derived(directory: Path) -> None:
    """Removes everything that recovery can rebuild, so that it must look at every record."""
    (directory / "meta" / "checkpoint.json").unlink(missing_ok=True)
    for path in directory.glob("topics/t/0/**/*"):
        if path.suffix in (".idx", ".timeidx", ".tidx", ".bin"):
            path.unlink()


def check(directory: Path, format_name: str, *, size: int, segment: int, bound: int) -> None:
    written = measured(
        "write",
        directory,
        format=format_name,
        size_bytes=size,
        segment_bytes=segment,
        batch_rows=40_000,
        value_bytes=VALUE_BYTES,
    )
    assert written["records"] * VALUE_BYTES > size // 4
    try:
        for work, read_only in (("scan", True), ("recover", False), ("scan", False)):
            if work == "recover" or read_only:
                forget_derived(directory)
            found = measured(work, directory, read_only=read_only)
            assert found["records"] == written["records"]
            assert found["anonymous"] < bound, work
        assert written["anonymous"] < bound
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("segment", [16 * MIB, 512 * MIB], ids=["segments", "one segment"])
def test_a_log_costs_little_memory(tmp_path: Path, format_name: str, segment: int) -> None:
    check(tmp_path / "data", format_name, size=SMALL_BYTES, segment=segment, bound=SMALL_BOUND)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("segment", [64 * MIB, 1024 * MIB], ids=["segments", "large segments"])
def test_a_large_log_costs_little_memory(tmp_path: Path, format_name: str, segment: int) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    if free < 2 * LARGE_BYTES:
        pytest.skip("not enough space on the disk")
    check(tmp_path / "data", format_name, size=LARGE_BYTES, segment=segment, bound=LARGE_BOUND)
