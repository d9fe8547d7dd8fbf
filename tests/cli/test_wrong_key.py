"""A key that is wrong, missing or too weak: one line and the exit code of a wrong call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import lamina as library
from lamina.server import auth
from tests.cli.test_topic import typed
from tests.cli.test_tracebacks import TARGETED, call, one_line
from tests.server.rig import served

__all__ = ["typed"]
WRITING = ["topic create", "topic alter", "topic delete", "topic produce", "router create"]
WRITING += ["schema set"]


class Guarded(NamedTuple):
    url: str
    http_url: str
    reader: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    place = tmp_path_factory.mktemp("guarded")
    with library.open(str(place / "data")) as store:
        store.create_topic("t", partitions=2)
        store.group("t", "g")
    _, reader = auth.create(str(place / "keys.json"), scope="read")
    with served(place / "data", keys_file=str(place / "keys.json")) as service:
        yield Guarded(service.flight_url, service.http_url, reader)


@pytest.mark.parametrize("key", [None, "nonsense", "lamina_0123456789abcdef_guessed"])
@pytest.mark.parametrize("command", TARGETED)
def test_a_wrong_key_is_one_line(
    lamina: Any,
    guarded: Guarded,
    typed: Any,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    key: str | None,
) -> None:
    monkeypatch.delenv("LAMINA_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("LAMINA_API_KEY", key)
    typed(b"line\n")
    ran = lamina(*call(command), "--server", guarded.url)
    one_line(ran, 1 if command == "doctor" else 2)
    assert "key" in (ran.out if command == "doctor" else ran.err)
    if command != "doctor":
        assert (ran.out, ran.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("command", WRITING)
def test_a_key_that_only_reads_writes_nothing(
    lamina: Any, guarded: Guarded, typed: Any, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("LAMINA_API_KEY", guarded.reader)
    typed(b"line\n")
    ran = lamina(*call(command), "--server", guarded.url)
    one_line(ran, 2)
    assert (ran.out, ran.err.count("\n")) == ("", 1)
    with library.connect(guarded.url, api_key=guarded.reader) as store:
        assert store.topics() == ["t"]
        assert [part.durable_offset for part in store.describe_topic("t").partitions] == [0, 0]


def test_the_http_door_refuses_a_wrong_key_in_one_line(
    lamina: Any, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMINA_API_KEY", "nonsense")
    ran = lamina("server", "reload", "--url", guarded.http_url)
    one_line(ran, 2)
    assert (ran.out, ran.err.count("\n")) == ("", 1)
