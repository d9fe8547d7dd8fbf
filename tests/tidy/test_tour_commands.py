"""The commands of docs/start.md run as they are printed, and print what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lamina
from tests.server.rig import served

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "docs" / "start.md").read_text()


def block(name: str) -> str:
    """The commands under a mark of the page."""
    return TOUR.split(f"<!-- run: {name} -->\n```sh\n")[1].split("```")[0]


def run(commands: str, folder: Path) -> list[str]:
    """Runs commands in a directory, with the program of this environment; any failure ends it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-eu", "-c", commands],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_what_the_shell_is_told_works_on_what_the_tour_has_written(tmp_path: Path) -> None:
    with lamina.open(tmp_path / "data") as store:
        store.create_topic("orders")
        store.append("orders", [b"first", b"second"])
    printed = run(block("shell"), tmp_path)
    assert printed[:2] == ["0 first", "1 second"]
    assert any("active" in line and "0 … 2" in line for line in printed)
    assert any("value: second" in line for line in printed)
    assert printed[-1].endswith("; all sound")


def test_kafka_s_clients_print_what_the_tour_says(tmp_path: Path) -> None:
    """A group of kcat begins at the end where it is not told otherwise, and would wait for ever."""
    if shutil.which("kcat") is None:
        pytest.skip("there is no kcat: make test installs Debian's")
    with served(tmp_path / "data", kafka_port=0) as service:
        commands = block("kafka").replace("127.0.0.1:9092", service.kafka_address or "")
        printed = run(commands, tmp_path)
    assert printed == ["98", "99", "100", "1", "2", "3"]


def test_a_served_directory_is_not_served_twice_by_the_tour() -> None:
    assert len(re.findall(r"^lamina serve ", TOUR, re.MULTILINE)) == 1


def test_no_page_installs_lamina_from_an_index_where_it_is_not() -> None:
    """With an extra pip takes the Lamina that is there; without one it would fetch another's."""
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for line in page.read_text().splitlines():
            first = re.match(r"\s*(?:\S+/)?pip install (.*)", line)
            assert first is None or first[1].strip("'").startswith("."), f"{page.name}: {line}"
