"""Where there is nothing: people are told so and what to do, programs get no row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lamina as library
from lamina.server import auth
from tests.cli.test_topic import ok, where
from tests.server.rig import joined, served

__all__ = ["where"]


@pytest.mark.parametrize(
    ("noun", "said"),
    [
        ("topic", "no topics; `lamina topic create NAME` makes one\n"),
        ("group", "no groups; `lamina topic consume TOPIC -g NAME` makes one\n"),
        ("router", "no routers; `lamina router create NAME SOURCE TARGET` makes one\n"),
    ],
)
def test_an_empty_list_says_how_to_begin(
    lamina: Any, where: list[str], noun: str, said: str
) -> None:
    if where[0] == "--data":
        library.open(where[1]).close()
    assert ok(lamina(noun, "list", *where)).out == said
    assert ok(lamina(noun, "list", "--json", *where)).out == ""


def test_a_server_without_archived_topics_or_members_says_so(lamina: Any, tmp_path: Path) -> None:
    with served(tmp_path / "data") as service:
        where = ("--server", service.flight_url)
        store = service.broker.store
        store.create_topic("t")
        who = joined(store, "readers", b"")
        store.leave_group("readers", who.member_id)
        said = ok(lamina("tier", "status", *where)).out
        assert said.startswith("no topic is archived; ")
        assert "remote.storage.enable=true" in said
        asked = ("group", "describe", "readers", "--members", *where)
        assert ok(lamina(*asked)).out == "group 'readers' has no members now\n"
        for words in (("tier", "status", *where), asked):
            assert ok(lamina(*words, "--json")).out == ""


def test_an_empty_list_of_keys_says_how_to_begin(lamina: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key, _ = auth.create(str(file), scope="read")
    ok(lamina("key", "delete", key.id, "--yes", "--file", file))
    assert json.loads(file.read_text())["keys"] == []
    said = "no keys; `lamina key create --scope read` makes one\n"
    assert ok(lamina("key", "list", "--file", file)).out == said
    assert ok(lamina("key", "list", "--json", "--file", file)).out == ""


@pytest.mark.parametrize("words", ["show A", "orphans A", "rebuild A t", "restore A data"])
def test_an_archive_that_is_not_there_is_refused_and_not_made(
    lamina: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = lamina("tier", *words.replace("A", "missing").split())
    said = "missing is neither a directory nor a URL like s3://bucket/prefix"
    assert ran[:] == (2, "", f"lamina: {said}\n")
    assert list(tmp_path.iterdir()) == []
