"""A directory that cannot be written is read by what only reads, and one line for what writes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lamina as library
from tests.cli.test_topic import typed
from tests.cli.test_tracebacks import TARGETED, call, one_line

__all__ = ["typed"]
WRITING = {
    *("topic create", "topic alter", "topic add-partitions", "topic delete", "topic produce"),
    *("router create", "router alter", "tier archive", "bench", "schema set"),
    "topic retention",  # its plan is the writer's
}
YES = ["topic trim", "topic delete-records", "topic retention", "group seek", "group delete"]


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[Path]:
    """A store on a medium that takes no write, from root neither."""
    data = tmp_path / "data"
    with library.open(str(data)) as store:
        store.create_topic("t", partitions=2)
        store.append("t", [b"1", b"2"])
        store.group("t", "g")
        for name in ("v", "w"):
            store.create_topic(name, format="wal")
        store.create_topic("typed", schema=pa.schema({"id": pa.int64()}))
        store.create_router("r", "v", "w", tag=b"x")
    if os.geteuid() == 0:
        yield from _mounted(data)
    else:
        yield from _forbidden(data)


def _mounted(data: Path) -> Iterator[Path]:
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        pytest.skip("there is no mount, and root writes whatever the permissions say")
    bound = subprocess.run([mount, "--bind", data, data], check=False, capture_output=True)
    if bound.returncode:
        pytest.skip("nothing may be mounted here, and root writes whatever the permissions say")
    try:
        read_only = [mount, "-o", "remount,ro,bind", data]
        if subprocess.run(read_only, check=False, capture_output=True).returncode:
            pytest.skip("nothing may be mounted read-only here")
        yield data
    finally:
        subprocess.run([umount, "--lazy", data], check=True)


def _forbidden(data: Path) -> Iterator[Path]:
    places = [data, *data.rglob("*")]
    modes = {path: path.stat().st_mode for path in places}
    try:
        for path in reversed(places):
            path.chmod(modes[path] & ~0o222)
        yield data
    finally:
        for path in places:
            path.chmod(modes[path])


def test_what_reads_works_and_what_writes_is_one_line(
    lamina: Any, sealed: Path, typed: Any
) -> None:
    before = {path: path.stat().st_mtime_ns for path in sealed.rglob("*")}
    calls = {command: (call(command), command in WRITING) for command in TARGETED}
    calls |= {f"{command} --yes": ([*call(command), "--yes"], True) for command in YES}
    calls["consume -g"] = (["topic", "consume", "t", "-g", "g", "-o", ":end"], True)
    archive = sealed.parent / "archive"
    archive.mkdir()
    for command, (words, writes) in calls.items():
        typed(b"line\n")
        more = ["--archive", archive] if command.startswith("tier ") else []
        ran = lamina(*words, "--data", sealed, *more)
        if command == "doctor":
            one_line(ran, 1)  # it finds what the matter is
        elif writes:
            one_line(ran, 3)
            assert ran.out == "", command
            assert "Read-only file system" in ran.err or "Permission denied" in ran.err, command
        else:
            assert (ran.code, ran.err) == (0, ""), command
    assert {path: path.stat().st_mtime_ns for path in sealed.rglob("*")} == before
