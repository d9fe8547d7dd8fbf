"""docs/operate.md: its commands run as printed, and what it quotes is what the program says."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import lamina
from lamina import errors
from lamina.config import TopicSettings
from lamina.server.setting_table import ServerSettings
from lamina.storage.descriptors import OWN_FILES, share_of_door
from tests.deploy import parsed
from tests.deploy.parsed import DEPLOY, ROOT
from tests.server.rig import served

PAGE = (ROOT / "docs" / "operate.md").read_text()
TROUBLE = PAGE.split("## Troubleshooting")[1]


# ---------------------------------------------------------------- what is run as printed


def block(name: str) -> str:
    """The commands under a mark of the page."""
    return PAGE.split(f"<!-- run: {name} -->\n```sh\n")[1].split("```")[0]


def run(name: str, folder: Path) -> str:
    """Runs a block in a directory, with the program of this environment; any failure ends it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-eu", "-c", block(name)],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fill(store: lamina.Store) -> list[bytes]:
    values = [b"%d" % number * 50 for number in range(60)]
    for value in values:
        store.append("orders", value)
    group = store.group("orders", "billing")
    group.ack(group.poll(7))
    return values


def test_a_stopped_server_is_copied_and_restored_as_the_page_says(tmp_path: Path) -> None:
    with served(tmp_path / "data") as service:
        service.broker.store.create_topic("orders", config={"segment.bytes": 1024})
        values = fill(service.broker.store)
    run("copy", tmp_path)
    run("restore", tmp_path)
    with served(tmp_path / "restored") as service, lamina.connect(service.flight_url) as store:
        found = [value for batch in store.scan("orders", 0, 0) for value in batch["value"]]
        assert [value.as_py() for value in found] == values
        assert store.describe_group("orders", "billing").partitions[0].committed == 7
        assert store.append("orders", b"goes on").base_offset == len(values)


def test_a_lost_machine_is_restored_from_its_archive_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    with lamina.open(str(tmp_path / "data"), archive=str(tmp_path / "archive")) as store:
        config = {"segment.bytes": 1024, "remote.storage.enable": "true"}
        store.create_topic("orders", config=config)
        values = fill(store)
        store.roll("orders")
    assert "orders" in run("archive", tmp_path)
    with lamina.open(str(tmp_path / "restored")) as store:
        found = [value for batch in store.scan("orders", 0, 0) for value in batch["value"]]
        assert [value.as_py() for value in found] == values


# ---------------------------------------------------------------- what is quoted


@cache
def sentences() -> str:
    """Every text of the program, with … for what is filled in, one per line."""
    found = []
    for path in (ROOT / "src" / "lamina").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    str(each.value) if isinstance(each, ast.Constant) else "…"
                    for each in node.values
                ]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[sdr]", "…", node.value))
    return "\n".join(each.replace("\n", " ") for each in found)


def symptoms() -> list[str]:
    rows = [line.split("|")[1].strip() for line in TROUBLE.splitlines() if line.startswith("| `")]
    return [row.strip("`") for row in rows]


@pytest.mark.parametrize("symptom", symptoms())
def test_a_message_of_the_page_is_one_of_the_program(symptom: str) -> None:
    assert symptom.removeprefix("… ") in sentences()


def test_a_message_that_nobody_says_is_noticed() -> None:
    assert len(symptoms()) > 20
    assert "the disk has become full: …" not in sentences()


def quoted(pattern: str) -> set[str]:
    return set(re.findall(rf"`({pattern})`", PAGE))


def test_errors_settings_files_and_routes_of_the_page_exist() -> None:
    for name in quoted(r"[A-Z][a-z]+[A-Z][a-zA-Z]+") | {"Busy", "Locked", "Poisoned"}:
        assert hasattr(errors, name), name
    known = {row["key"] for row in (*ServerSettings.explained(), *TopicSettings.explained())}
    named = quoted(r"[a-z]+(?:\.[a-z]+)+(?:=\w+)?")
    files = {each for each in named if each.endswith((".json", ".toml"))}
    strange = {each.partition("=")[0] for each in named - files} - known - {"lamina.connect"}
    assert not strange
    for name in quoted(r"deploy/[\w./]+"):
        assert (ROOT / name).exists(), name
    assert {f"deploy/{each.name}" for each in DEPLOY.glob("*.*") if each.name[0] != "D"} <= quoted(
        r"deploy/[\w./]+"
    )


def test_metrics_of_the_page_exist(tmp_path: Path) -> None:
    there = parsed.exposed(tmp_path)
    named = quoted(r"(?:lamina|process)_[a-z_]+")
    assert named <= there.samples | there.families
    assert len(named) > 8


def test_commands_of_the_page_exist() -> None:
    texts = re.findall(r"`(lamina [a-z][^`…]*)`", PAGE)
    texts += [line for name in ("copy", "restore", "archive") for line in block(name).splitlines()]
    texts += re.findall(r"(?m)^(?:/\S+/)?(lamina (?:key|serve|warm).*)$", PAGE)
    found = [text for text in texts if text.startswith("lamina ")]
    for text in found:
        parsed.refuse_unknown_command(shlex.split(text))
    assert len(found) > 15


def test_the_number_of_connections_that_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    default = ServerSettings()
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 1024))
    share = share_of_door(default.connections, default.open_files)
    assert f"a door has about {share} connections" in PAGE
    assert f"{OWN_FILES} are kept for the process" in PAGE
