"""`lamina group`, `lamina tier` and the layers of an archived topic, on both doors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lamina as library
from lamina.wire.kafka.consumer_protocol import encode_assignment
from tests.cli.test_topic import ok
from tests.server.rig import joined, served


@pytest.fixture(params=["data", "server"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """How a command is told where to work: a store with groups of two topics."""
    data = tmp_path / "data"
    with library.open(str(data)) as store:
        for topic in ("a", "b"):
            store.create_topic(topic, partitions=2)
            rows = [{"value": b"%d" % n, "timestamp": 1_700_000_000_000 + n} for n in range(10)]
            store.append(topic, rows, partition=0)
        store.group("a", "g").commit(4)
        store.group("b", "g").poll(3, 3_600_000)
        store.group("b", "other").commit(7)
    if request.param == "data":
        yield ["--data", str(data)]
    else:
        with served(data) as service:
            yield ["--server", service.flight_url]


def places(lamina: Any, where: list[str], group: str) -> dict[tuple[str, int], int]:
    rows = ok(lamina("group", "describe", group, "--json", *where)).rows
    return {(row["topic"], row["partition"]): row["current_offset"] for row in rows}


def test_groups_are_listed_and_described(lamina: Any, where: list[str]) -> None:
    assert ok(lamina("group", "list", "--json", *where)).rows == [
        {"group": "g", "topic": "a", "lag": 6, "inflight": 0},
        {"group": "g", "topic": "b", "lag": 10, "inflight": 3},
        {"group": "other", "topic": "b", "lag": 3, "inflight": 0},
    ]
    assert len(ok(lamina("group", "list", "--topics", "a", "--json", *where)).rows) == 1
    rows = ok(lamina("group", "describe", "g", "--topics", "a", "--json", *where)).rows
    assert [(row["partition"], row["current_offset"], row["log_end_offset"]) for row in rows] == [
        (0, 4, 10),
        (1, 0, 0),
    ]
    assert rows[0]["lag"] == 6
    assert rows[0]["lag_seconds"] > 1_000_000
    heading = ok(lamina("group", "describe", "g", *where)).out.splitlines()[0].split()
    assert heading[:6] == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]


def test_members_are_described_with_what_they_read(lamina: Any, tmp_path: Path) -> None:
    with served(tmp_path / "data") as service:
        store = service.broker.store
        store.create_topic("a", partitions=4)
        share = encode_assignment({"a": [2, 3], "b": [0]})
        who = joined(store, "readers", share)
        asked = ("group", "describe", "readers", "--members", "--server", service.flight_url)
        (row,) = ok(lamina(*asked, "--json")).rows
        assert row == {
            "group": "readers",
            "consumer_id": who.member_id,
            "instance_id": None,
            "host": "/10.0.0.7",
            "client_id": "till",
            "partitions": 3,
            "assignment": {"a": [2, 3], "b": [0]},
            "assignor": "range",
            "state": "Stable",
        }
        (row,) = ok(lamina(*asked, "--topics", "a", "--json")).rows
        assert row["assignment"] == {"a": [2, 3]}
        heading, line = ok(lamina(*asked)).out.splitlines()
        assert heading.split()[:3] == ["GROUP", "CONSUMER-ID", "INSTANCE-ID"]
        assert "a(2,3) b(0)" in line
        joined(store, "connectors", share, kind="connect")
        asked = ("group", "describe", "connectors", "--members", "--server", service.flight_url)
        (row,) = ok(lamina(*asked, "--json")).rows
        assert (row["partitions"], row["assignment"]) == (None, None)
        unknown = lamina("group", "describe", "no", "--members", "--server", service.flight_url)
        assert unknown.code != 0
        assert "no classic group 'no'" in unknown.err
    refused = lamina("group", "describe", "readers", "--members", "--data", tmp_path / "data")
    assert refused.code != 0
    assert "--server" in refused.err


@pytest.mark.parametrize(
    ("to", "found"),
    [("start", 0), ("end", 10), ("3", 3), ("99", 10), ("+2", 2), ("-1", 9), ("@1700000000005", 5)],
)
def test_a_group_is_moved_only_with_yes(lamina: Any, where: list[str], to: str, found: int) -> None:
    before = places(lamina, where, "g")
    command = ("group", "seek", "g", "--to", to, "--topics", "a", "--json")
    dry = ok(lamina(*command, *where)).rows
    assert [row["status"] for row in dry] == ["would be moved (--yes)"] * 2
    assert places(lamina, where, "g") == before
    done = ok(lamina(*command, "--yes", *where)).rows
    assert [row | {"status": ""} for row in done] == [row | {"status": ""} for row in dry]
    assert places(lamina, where, "g") == before | {("a", 0): found}


def test_a_group_goes_where_another_is_or_a_file_says(
    lamina: Any, where: list[str], tmp_path: Path
) -> None:
    ok(lamina("group", "seek", "g", "--to-group", "other", "--yes", *where))
    assert places(lamina, where, "g")["b", 0] == 7
    assert places(lamina, where, "g")["a", 0] == 4, "the other group is not there"
    file = tmp_path / "places"
    file.write_text("a 0 1\n\nb 0 2\n")
    ok(lamina("group", "seek", "g", "--to-file", file, "--yes", *where))
    assert places(lamina, where, "g") == {("a", 0): 1, ("a", 1): 0, ("b", 0): 2, ("b", 1): 0}
    ok(lamina("group", "seek", "other", "--to-file", file, "--yes", *where))
    assert set(places(lamina, where, "other")) == {("b", 0), ("b", 1)}
    ok(lamina("group", "seek", "other", "--to-file", file, "--allow-new-topics", "--yes", *where))
    assert places(lamina, where, "other")["a", 0] == 1
    file.write_text("a zero 1\n")
    assert lamina("group", "seek", "g", "--to-file", file, *where).code == 2


def test_a_group_is_deleted_only_with_yes(lamina: Any, where: list[str]) -> None:
    dry = ok(lamina("group", "delete", "g", "other", "--topics", "b", "--json", *where)).rows
    assert [(row["group"], row["topic"], row["status"]) for row in dry] == [
        ("g", "b", "would be deleted (--yes)"),
        ("other", "b", "would be deleted (--yes)"),
    ]
    assert len(ok(lamina("group", "list", "--json", *where)).rows) == 3
    ok(lamina("group", "delete", "g", "other", "--topics", "b", "--yes", *where))
    left = ok(lamina("group", "list", "--json", *where)).rows
    assert [(row["group"], row["topic"]) for row in left] == [("g", "a")]


def test_a_wrong_call_ends_with_the_code_of_its_family(lamina: Any, where: list[str]) -> None:
    for command in (
        ("describe", "none"),
        ("describe", "other", "--topics", "a"),
        ("delete", "none", "--yes"),
        ("seek", "g"),
        ("seek", "g", "--to", "1", "--to-group", "other"),
        ("seek", "g", "--to", "1:5"),
        ("seek", "g", "--to", "never"),
        ("seek", "g", "--to-group", "none"),
        ("seek", "none", "--to", "start", "--yes"),
    ):
        ran = lamina("group", *command, *where)
        assert (ran.code, ran.out) == (2, ""), command
        assert ran.err.startswith("lamina: ")


# ---------------------------------------------------------------- the archive


@pytest.fixture(params=["data", "server"])
def archived(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[list[str], Path]]:
    """A topic of which two segments are sealed, and an archive that has nothing yet."""
    data, shelf = tmp_path / "data", tmp_path / "archive"
    settings = {"segment.bytes": 1024, "remote.storage.enable": True, "local.retention.bytes": 1}
    shelf.mkdir()
    with library.open(str(data), archive=str(shelf)) as store:
        store.create_topic("t", config=settings)
        for number in range(7):
            store.append("t", [b"%d" % number * 300])
    if request.param == "data":
        yield ["--data", str(data), "--archive", str(shelf)], shelf
    else:
        with served(data, archive=str(shelf)) as service:
            yield ["--server", service.flight_url], shelf


def test_an_archive_is_filled_and_its_layers_are_drawn(
    lamina: Any, archived: tuple[list[str], Path]
) -> None:
    where, _ = archived
    (done,) = ok(lamina("tier", "archive", "--json", *where)).rows
    assert done["archived_offset"] > 0
    assert done["last_error"] == ""
    (told,) = ok(lamina("tier", "status", "--json", *where)).rows
    assert told["archived_offset"] == done["archived_offset"]
    assert told["records_behind"] == 7 - told["archived_offset"]
    assert told["objects"] == done["objects"] > 0
    assert told["bytes_behind"] == 0
    drawn = ok(lamina("topic", "describe", "t", "--segments", *where)).out.splitlines()
    layers = [line.split() for line in drawn if " … " in line]
    states = [words[1] for words in layers]
    assert states == ["cold"] * told["objects"] + ["active"]
    assert all("░" in words[0] for words in layers[:-1])
    assert int(layers[0][2]) == 0
    assert layers[0][-2].startswith("20"), "when its newest record was made"
    described = ok(lamina("topic", "describe", "t", "--segments", "--json", *where)).rows[0]
    assert described["partitions"][0]["layers"][0]["cold"] is True


def test_an_archive_that_fails_is_told_with_its_code(
    lamina: Any, archived: tuple[list[str], Path]
) -> None:
    where, shelf = archived
    for path in shelf.rglob("*"):
        if path.is_file():
            path.unlink()
    import shutil

    shutil.rmtree(shelf)
    shelf.write_text("not a directory")
    ran = lamina("tier", "archive", "--json", *where)
    assert ran.code in (2, 3)
    assert where[0] == "--data" or ran.rows[0]["last_error"]


def test_a_directory_needs_its_archive_named(lamina: Any, tmp_path: Path) -> None:
    with library.open(str(tmp_path / "data")):
        pass
    for verb in ("status", "archive"):
        ran = lamina("tier", verb, "--data", tmp_path / "data")
        assert (ran.code, "--archive" in ran.err) == (2, True)
