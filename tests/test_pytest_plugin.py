"""The fixtures that users' tests ask for, and what the plugin costs those that do not."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
USING = """
import socket
import lamina

def test_a_store(lamina_store, tmp_path):
    lamina_store.create_topic("orders")
    assert lamina_store.append("orders", b"value").base_offset == 0
    assert lamina_store.path.startswith(str(tmp_path))

def test_every_test_has_its_own(lamina_store):
    assert lamina_store.topics() == []

def test_a_server(lamina_server):
    with lamina_server.connect() as store:
        store.create_topic("orders")
        assert store.append("orders", b"value").base_offset == 0
    host, _, port = lamina_server.kafka.rpartition(":")
    socket.create_connection((host, int(port)), 10).close()
    assert lamina_server.http_url in repr(lamina_server)

def test_both_at_once(lamina_store, lamina_server):
    lamina_store.create_topic("orders")
    with lamina_server.connect(timeout_s=20) as store:
        assert store.topics() == []
"""
WITHOUT = """
import sys

def test_nothing_of_the_engine_is_loaded():
    loaded = [name for name in sys.modules if name.partition(".")[0] in ("numba", "pyarrow")]
    assert loaded == []
    assert not [name for name in sys.modules if name.startswith("lamina.s")]
"""


def run(folder: Path, program: str) -> str:
    (folder / "test_program.py").write_text(program)
    asked = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "lamina.pytest_plugin"]
    variables = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [*asked, "-p", "no:cacheprovider", "--rootdir", str(folder), "test_program.py"],
        cwd=folder,
        env=variables | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_fixtures_give_a_store_and_a_server(tmp_path: Path) -> None:
    assert "4 passed" in run(tmp_path, USING)


def test_a_run_that_asks_for_neither_loads_nothing(tmp_path: Path) -> None:
    assert "1 passed" in run(tmp_path, WITHOUT)


def test_pytest_finds_the_plugin_by_itself() -> None:
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert about["project"]["entry-points"]["pytest11"] == {"lamina": "lamina.pytest_plugin"}
