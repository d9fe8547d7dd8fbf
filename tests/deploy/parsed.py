"""Reads what lies in `deploy/`: a Dockerfile, expressions of Prometheus, what a server shows."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import click
import httpx
import typer
from prometheus_client.parser import text_string_to_metric_families

import lamina
from lamina.cli.main import app
from lamina.server.setting_table import ServerSettings
from lamina.server.settings import variable_of
from tests.server.rig import joined, served

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OWN_VARIABLES = {"LAMINA_KERNEL_CACHE", "LAMINA_DATA", "LAMINA_CONFIG", "LAMINA_API_KEY"}
"""Variables that are read beside those of settings."""


@dataclass
class Stage:
    """A stage of a Dockerfile: its instructions in order, each with what follows it."""

    image: str
    name: str | None
    steps: list[tuple[str, str]] = field(default_factory=list)

    def of(self, word: str) -> list[str]:
        return [rest for found, rest in self.steps if found == word]

    @property
    def variables(self) -> dict[str, str]:
        pairs = [each.split("=", 1) for rest in self.of("ENV") for each in shlex.split(rest)]
        return {pair[0]: pair[1] for pair in pairs}


def stages_of(text: str) -> list[Stage]:
    joined_lines = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", text))
    found: list[Stage] = []
    for line in joined_lines.splitlines():
        if not line.strip():
            continue
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            found.append(Stage(image, name or None))
        else:
            found[-1].steps.append((word, rest.strip()))
    return found


def variables_that_are_read() -> set[str]:
    return OWN_VARIABLES | {variable_of(row["key"]) for row in ServerSettings.explained()}


def refuse_unknown_command(words: list[str]) -> None:
    """Fails for a `lamina` command that is none, or for an option that it does not have."""
    assert words[0].rpartition("/")[2] == "lamina", words
    command: click.Command = typer.main.get_command(app)
    rest = words[1:]
    while hasattr(command, "commands"):
        assert rest[0] in command.commands, f"lamina has no {rest[0]}"
        command, rest = command.commands[rest[0]], rest[1:]
    known = {name for each in command.params for name in [*each.opts, *each.secondary_opts]}
    strange = {word.partition("=")[0] for word in rest if word.startswith("-")} - known
    assert not strange, f"lamina {words[1]} has no {strange}"


# ---------------------------------------------------------------- Prometheus

_WORDS = {"and", "or", "unless", "by", "on", "without", "ignoring", "bool", "inf", "nan", "offset"}


def metrics_in(expression: str) -> set[str]:
    """The metrics that an expression reads."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", bare)
    bare = re.sub(r"\b(by|on|without|ignoring)\s*\([^)]*\)", "", bare)
    names = re.finditer(r"[a-zA-Z_:][\w:]*(?!\w)(?!\s*\()", bare)
    return {each[0] for each in names} - _WORDS


def labels_in(expression: str) -> set[str]:
    """The labels that an expression selects or groups by."""
    matched = re.findall(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)\s*\"", expression)
    grouped = re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression)
    return {*matched, *(name.strip() for each in grouped for name in each.split(","))}


def is_balanced(expression: str) -> bool:
    depth = 0
    for letter in re.sub(r'"[^"]*"', "", expression):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth < 0:
            return False
    return depth == 0


@dataclass(frozen=True)
class Exposed:
    """The names of samples and labels that a server shows."""

    samples: frozenset[str]
    families: frozenset[str]
    labels: frozenset[str]


def exposed(folder: Path) -> Exposed:
    """Asks a server that has something of everything."""
    with served(folder / "data", kafka_port=0, archive=str(folder / "archive")) as service:
        store = service.broker.store
        store.create_topic("t", config={"remote.storage.enable": "true"})
        store.append("t", b"v")
        store.group("t", "g")
        joined(store, "classic", b"", client_id="c")
        with lamina.connect(service.flight_url) as client:
            client.append("t", b"w")
            client.fetch("t", 0, 0)
        service.broker.metrics.count("append", "Busy")
        page = httpx.get(f"{service.http_url}/metrics").text
    samples, families, labels = set(), set(), {"instance", "job"}
    for family in text_string_to_metric_families(page):
        families.add(family.name)
        if not family.samples:  # of a kind that there is none of here
            samples.add(family.name)
        for each in family.samples:
            samples.add(each.name)
            labels |= set(each.labels)
    return Exposed(frozenset(samples | {"up"}), frozenset(families), frozenset(labels))
