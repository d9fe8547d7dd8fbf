"""What a type checker tells a user's program: mypy reads one, and says what each call returns."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RIGHT = """
from pathlib import Path
import lamina
from lamina import aio

def program(is_reader: bool, archive: Path) -> None:
    reveal_type(lamina.open("data"))  # lamina.store.store.Store
    reveal_type(lamina.open(Path("data"), archive=archive))  # lamina.store.store.Store
    reveal_type(lamina.open("data", read_only=False))  # lamina.store.store.Store
    reveal_type(lamina.open("data", read_only=True))  # ReadOnlyStore | ArchiveStore
    reveal_type(lamina.open("data", read_only=is_reader))  # Store | ReadOnlyStore | ArchiveStore
    reveal_type(lamina.connect("grpc://localhost:9300"))  # lamina.client.remote_store.RemoteStore
    reveal_type(lamina.__version__)  # builtins.str
    store = lamina.open("data")
    reveal_type(store.append("t", b"value", acks=1))  # lamina.api.acks.Appended
    reveal_type(store.append("t", [b"value"], acks="all").base_offset)  # builtins.int
    reveal_type(store.topics())  # list[str]
    reveal_type(store.describe_topic("t").partitions)  # tuple[PartitionInfo, ...]
    reveal_type(store.group("t", "g").lag())  # list[PartitionLag]

async def loop() -> None:
    async with aio.open("data") as store:
        reveal_type(store)  # lamina.aio.AsyncStore
        reveal_type(await store.append("t", b"value", acks=1))  # lamina.api.acks.Appended
        reveal_type(await store.describe_topic("t"))  # lamina.api.answers.TopicInfo
        group = await store.group("t", "g")
        reveal_type(await group.ack([1, 2]))  # builtins.int
"""
WRONG = """
import lamina
from lamina import aio

store = lamina.open("data")
store.append("t", b"value", acks="most")  # arg-type
store.append("t", b"value", acks=2)  # arg-type
store.group("t", "g").ack([1], acks=0)  # arg-type
store.fetch("t", 0, 0, isolation="read committed")  # arg-type
store.scan("t", "first")  # arg-type
lamina.open(7)  # call-overload

async def loop() -> None:
    async with aio.open("data") as store:
        await store.describe_topic(7)  # arg-type
        await store.append("t", b"value", acks="most")  # arg-type
"""


def checked(folder: Path, program: str) -> dict[int, str]:
    """What mypy says of each line of a program, with what it knows of the installed package."""
    pytest.importorskip("mypy")
    (folder / "program.py").write_text(program)
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = True\nmypy_path = {ROOT / 'src'}\n")
    asked = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--show-error-codes"]
    cache = [
        "--cache-dir",
        str(folder.parent / "mypy-cache"),
        "--config-file",
        "mypy.ini",
        "program.py",
    ]
    done = subprocess.run(asked + cache, cwd=folder, capture_output=True, text=True, check=False)
    said = re.findall(r"^program\.py:(\d+): (.*)$", done.stdout, re.MULTILINE)
    assert said, done.stdout + done.stderr
    return {int(number): text for number, text in reversed(said)}  # the first of each line


def expected(program: str) -> dict[int, str]:
    lines = enumerate(program.splitlines(), 1)
    return {number: line.rpartition("# ")[2] for number, line in lines if "  # " in line}


def names_only(text: str) -> str:
    return re.sub(r"[\w.]+\.(\w+)", r"\1", text)


def test_a_type_checker_knows_what_each_call_returns(tmp_path: Path) -> None:
    said = checked(tmp_path, RIGHT)
    for number, wanted in expected(RIGHT).items():
        assert names_only(f'"{wanted}"') in names_only(said[number]), said[number]
    assert len(said) == len(expected(RIGHT)), "and finds no fault with any of it"


def test_a_type_checker_refuses_what_a_store_would_refuse(tmp_path: Path) -> None:
    said = checked(tmp_path, WRONG)
    for number, code in expected(WRONG).items():
        assert f"[{code}]" in said.get(number, "nothing"), number
