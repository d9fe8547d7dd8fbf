"""`lamina topic`, `segment`, `cat`, `key`, `config`, `doctor` and `bench`, on both doors."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lamina as library
from tests.server.rig import served


@pytest.fixture(params=["data", "server"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """How a command is told where to work."""
    if request.param == "data":
        yield ["--data", str(tmp_path / "data")]
    else:
        with served(tmp_path / "data") as service:
            yield ["--server", service.flight_url]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Puts text on the standard input."""
    path = tmp_path / "stdin"
    with contextlib.ExitStack() as stack:

        def put(text: bytes) -> None:
            path.write_bytes(text)
            stream = stack.enter_context(io.TextIOWrapper(path.open("rb")))
            monkeypatch.setattr(sys, "stdin", stream)

        yield put


def ok(ran: Any) -> Any:
    assert (ran.code, ran.err) == (0, "")
    return ran


def test_a_topic_may_be_there_already(lamina: Any, where: list[str]) -> None:
    create = ("topic", "create", "orders", "-p", 2)
    ok(lamina(*create, *where))
    refused = lamina(*create, *where)
    assert (refused.code, "exists already" in refused.err) == (2, True)
    ok(lamina(*create, "--if-not-exists", *where))
    other = lamina("topic", "create", "orders", "--if-not-exists", *where)
    assert (other.code, "partitions 2, not 1" in other.err) == (2, True)


def test_a_topic_lives_from_create_to_delete(lamina: Any, where: list[str], typed: Any) -> None:
    ok(lamina("topic", "create", "orders", "-p", 2, "-c", "segment.bytes=1024", *where))
    typed(b"one\ntwo\n\nlast")
    produced = ok(lamina("topic", "produce", "orders", "-k", "k", "-H", "h:v", "-p", 1, *where))
    assert produced.out.startswith("Produced to partition 1 at offset 0 with timestamp ")
    rows = ok(lamina("topic", "consume", "orders", "-o", ":end", *where)).rows
    assert [row["value"] for row in rows] == ["one", "two", "", "last"]
    assert rows[0]["key"] == "k"
    assert rows[0]["headers"] == [["h", "v"]]
    assert (rows[3]["topic"], rows[3]["partition"], rows[3]["offset"]) == ("orders", 1, 3)
    listed = ok(lamina("topic", "list", "--json", *where)).rows
    assert [(row["topic"], row["partitions"], row["records"]) for row in listed] == [
        ("orders", 2, 4)
    ]
    ok(lamina("topic", "alter", "orders", "-c", "retention.ms=5", *where))
    described = ok(lamina("topic", "describe", "orders", "--json", "--segments", *where)).rows[0]
    assert described["settings"]["retention.ms"] == 5
    assert described["partitions"][1]["layers"][0]["next_offset"] == 4
    dry = ok(lamina("topic", "delete", "orders", "--json", *where)).rows
    assert dry == [{"topic": "orders", "records": 4, "status": "would be deleted (--yes)"}]
    assert len(ok(lamina("topic", "list", "--json", *where)).rows) == 1
    ok(lamina("topic", "delete", "orders", "--yes", *where))
    assert ok(lamina("topic", "list", "--json", *where)).rows == []


def fill(lamina: Any, where: list[str], typed: Any, segments: int = 4) -> None:
    ok(lamina("topic", "create", "t", "-c", "segment.bytes=1024", *where))
    typed(b"".join(b"%04d %s\n" % (number, b"x" * 200) for number in range(4 * segments)))
    ok(lamina("topic", "produce", "t", "--json", *where))


@pytest.mark.parametrize(
    ("offset", "found"),
    [
        ("3:6", [3, 4, 5]),
        (":3", [0, 1, 2]),
        ("14:end", [14, 15]),
        ("@-1h:end", list(range(16))),
        ("@:2001-01-01", []),
    ],
)
def test_ranges_are_consumed_to_their_end(
    lamina: Any, tmp_path: Path, typed: Any, offset: str, found: list[int]
) -> None:
    where = ["--data", str(tmp_path / "data")]
    fill(lamina, where, typed)
    ran = ok(lamina("topic", "consume", "t", "-o", offset, "-f", r"%o\n", *where))
    assert [int(line) for line in ran.out.split()] == found
    assert len(ok(lamina("topic", "consume", "t", "-o", "-5", "-n", 2, *where)).rows) == 2


def test_a_dry_trim_does_not_go_back_behind_what_was_deleted(
    lamina: Any, where: list[str], typed: Any
) -> None:
    fill(lamina, where, typed)
    ok(lamina("topic", "delete-records", "t", "--before", 3, "--yes", *where))
    dry = ok(lamina("topic", "trim", "t", "--before", 3, "--json", *where)).rows[0]
    done = ok(lamina("topic", "trim", "t", "--before", 3, "--json", "--yes", *where)).rows[0]
    assert dry["new_earliest"] == done["new_earliest"] == 3


def test_trim_and_retention_are_dry_runs_until_yes(
    lamina: Any, where: list[str], typed: Any
) -> None:
    fill(lamina, where, typed)
    dry = ok(lamina("topic", "trim", "t", "--before", 9, "--json", *where)).rows[0]
    assert dry["status"] == "would be trimmed (--yes)"
    done = ok(lamina("topic", "trim", "t", "--before", 9, "--json", "--yes", *where)).rows[0]
    assert done["status"] == "trimmed"
    assert dry["new_earliest"] == done["new_earliest"] > 0
    ok(lamina("topic", "alter", "t", "-c", "retention.bytes=1", *where))
    rows = ok(lamina("topic", "retention", "t", "--json", *where)).rows
    left = ok(lamina("segment", "list", "t", "--json", *where)).rows
    assert [row["base_offset"] for row in left][-1] == [row["segment"] for row in rows][-1]
    removed = ok(lamina("topic", "retention", "t", "--yes", *where))
    assert "segments removed: " in removed.out
    assert len(ok(lamina("segment", "list", "t", "--json", *where)).rows) == 1


def test_records_are_deleted_to_the_offset_only_with_yes(
    lamina: Any, where: list[str], typed: Any
) -> None:
    fill(lamina, where, typed)
    asked = ("topic", "delete-records", "t", "--before", 7, "--json")
    dry = ok(lamina(*asked, *where)).rows[0]
    assert (dry["status"], dry["earliest"]) == ("would be deleted (--yes)", 0)
    done = ok(lamina(*asked, "--yes", *where)).rows[0]
    assert (done["status"], done["earliest"], done["new_earliest"]) == ("deleted", 0, 7)
    assert dry["new_earliest"] == 7
    read = ok(lamina("topic", "consume", "t", "-o", "start", "-n", 1, *where)).rows
    assert read[0]["offset"] == 7
    for beyond in ((), ("--yes",)):
        ran = lamina("topic", "delete-records", "t", "--before", 10**6, *beyond, *where)
        assert ran.code != 0
    drawn = ok(lamina("topic", "describe", "t", "--segments", *where)).out
    assert "(trim)" in drawn
    if "--data" in where:
        path = where[where.index("--data") + 1]
        assert ok(lamina("verify", "--json", path)).rows == []
        ok(lamina("doctor", "--data", path))


def test_partitions_are_added(lamina: Any, where: list[str]) -> None:
    ok(lamina("topic", "create", "t", *where))
    row = ok(lamina("topic", "add-partitions", "t", "--total", 3, "--json", *where)).rows[0]
    assert row == {"topic": "t", "before": 1, "partitions": 3}
    refused = lamina("topic", "add-partitions", "t", "--total", 3, *where)
    assert refused.code != 0
    assert "only grow" in refused.err.replace("\n", " ")


def test_the_layers_of_a_partition_are_drawn(lamina: Any, where: list[str], typed: Any) -> None:
    fill(lamina, where, typed)
    ok(lamina("topic", "trim", "t", "--before", 5, "--yes", *where))
    drawn = ok(lamina("topic", "describe", "t", "--segments", *where)).out.splitlines()
    layers = [line for line in drawn if " … " in line]
    assert "gone" in layers[0]
    assert "(trim)" in layers[0]
    assert ["sealed" in line for line in layers[1:]] == [True] * (len(layers) - 2) + [False]
    assert "active" in layers[-1]
    assert "█" in layers[-1]
    bases = [int(line.split("…")[0].split()[-1]) for line in layers]
    assert bases == sorted(bases)


def test_cat_has_the_flags_of_kcat(lamina: Any, where: list[str], typed: Any) -> None:
    ok(lamina("topic", "create", "t", *where))
    typed(b"k1:v1;k2:;:v3")
    ok(lamina("cat", "-P", "-t", "t", "-K", ":", "-D", ";", "-Z", "-H", "a=b", *where))
    ran = ok(lamina("cat", "-C", "-t", "t", "-e", "-q", "-Z", "-f", r"%k=%s@%o\n", *where))
    assert ran.out.splitlines() == ["k1=v1@0", "k2=NULL@1", "NULL=v3@2"]
    envelope = ok(lamina("cat", "-C", "-t", "t", "-o", "-1", "-e", "-q", "-J", *where)).rows[0]
    assert (envelope["topic"], envelope["offset"], envelope["key"], envelope["payload"]) == (
        "t",
        2,
        None,
        "v3",
    )
    assert envelope["headers"] == ["a", "b"]
    assert ok(lamina("cat", "-C", "-t", "t", "-c", 1, *where)).out == "v1\n"
    assert 'topic "t" with 1 partition:' in ok(lamina("cat", "-L", *where)).out
    assert ok(lamina("cat", "-Q", "-t", "t:0:0", *where)).out == "t [0] offset 0\n"
    bounds = ok(lamina("cat", "-Q", "-t", "t:0:-1", "-t", "t:0:-2", *where)).out
    assert bounds == "t [0] offset 3\nt [0] offset 0\n"
    typed(b"piped")
    ok(lamina("cat", "-t", "t", *where))
    assert ok(lamina("cat", "-C", "-t", "t", "-o", 3, "-e", "-q", *where)).out == "piped\n"


def test_cat_consumes_with_a_group(lamina: Any, where: list[str], typed: Any) -> None:
    ok(lamina("topic", "create", "t", "u", *where))
    typed(b"1\n2\n3\n")
    ok(lamina("cat", "-P", "-t", "t", *where))
    typed(b"4\n")
    ok(lamina("cat", "-P", "-t", "u", *where))
    assert ok(lamina("cat", "-G", "g", "-c", 2, "t", *where)).out == "1\n2\n"
    rest = ok(lamina("cat", "-G", "g", "-e", "-q", "-f", "%t %o %s;", "t", "u", *where))
    assert rest.out == "t 2 3;u 0 4;"
    assert ok(lamina("cat", "-G", "g", "-e", "-q", "t", *where)).out == "", "all are acked"
    rows = ok(lamina("group", "describe", "g", "--json", *where)).rows
    assert [(row["topic"], row["current_offset"]) for row in rows] == [("t", 3), ("u", 1)]
    stored = ("cat", "-C", "-t", "t", "-o", "stored", "-e", "-q")
    assert ok(lamina(*stored, "-X", "group.id=g", *where)).out == ""
    ok(lamina("group", "seek", "g", "--to", 1, "--topics", "t", "--yes", *where))
    assert ok(lamina(*stored, "-X", "group.id=g", *where)).out == "2\n3\n"
    assert lamina(*stored, *where).code == 2
    assert lamina("cat", "-G", "g", *where).code == 2
    assert lamina("cat", "-G", "g", "-C", "t", *where).code == 2


def test_cat_produces_files_and_tells(
    lamina: Any, where: list[str], tmp_path: Path, typed: Any
) -> None:
    ok(lamina("topic", "create", "t", *where))
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"{name}\nagain")
    ok(lamina("cat", "-P", "-t", "t", tmp_path / "one", tmp_path / "two", *where))
    ok(lamina("cat", "-P", "-t", "t", "-l", tmp_path / "two", *where))
    read = ("cat", "-C", "-t", "t", "-e", "-q", "-D", "|")
    assert ok(lamina(*read, *where)).out == "one\nagain|two\nagain|two|again|"
    assert lamina("cat", "-P", "-t", "t", "-l", "a", "b", *where).code == 2
    typed(b"k=v\n")
    told = lamina("cat", "-P", "-t", "t", "-K", "=", "-T", "-v", *where)
    assert (told.code, told.out) == (0, "k=v\n")
    assert told.err.startswith("% Produced to partition 0 at offset 4 ")
    assert ok(lamina(*read, "-o", 4, "-O", "-K", ":", *where)).out == "4:k:v|"
    assert ok(lamina(*read, "-o", 4, "-O", *where)).out == "4\tv|"


def test_cat_takes_properties_of_a_file_and_refuses_what_means_nothing(
    lamina: Any, where: list[str], tmp_path: Path, typed: Any
) -> None:
    ok(lamina("topic", "create", "t", *where))
    file = tmp_path / "kcat.conf"
    server = where[1] if where[0] == "--server" else None
    file.write_text(f"# mine\nacks=all\n{f'bootstrap.servers={server}' if server else ''}\n")
    typed(b"x\n")
    ok(lamina("cat", "-P", "-t", "t", "-F", file, *([] if server else where)))
    assert ok(lamina("cat", "-C", "-t", "t", "-e", "-q", *where)).out == "x\n"
    file.write_text("compression.codec=lz4\n")
    for wrong in (("-F", file), ("-X", "client.id=x"), ("-z", "lz4"), ("-X", "acks")):
        ran = lamina("cat", "-C", "-t", "t", "-e", *wrong, *where)
        assert (ran.code, ran.out) == (2, "")
    assert "archive.compression.type" in lamina("cat", "-z", "lz4", "-C", "-t", "t", *where).err
    assert ok(lamina("cat", "-z", "none", "-C", "-t", "t", "-e", "-q", *where)).out == "x\n"


def test_errors_become_one_line_and_the_code_of_their_family(
    lamina: Any, where: list[str], tmp_path: Path
) -> None:
    ok(lamina("topic", "create", "t", *where))
    wrong = [
        ("topic", "describe", "none"),
        ("topic", "create", "t"),
        ("topic", "consume", "t", "-o", "x"),
        ("topic", "consume", "t", "-f", "%z"),
        ("topic", "alter", "t", "-c", "retention"),
        ("topic", "delete", "none", "--yes"),
        ("cat", "-C", "-P", "-t", "t"),
        ("cat", "-C"),
    ]
    for command in wrong:
        ran = lamina(*command, *where)
        assert ran.code == 2, command
        assert ran.out == ""
        assert ran.err.startswith("lamina: ")
        assert ran.err.count("\n") == 1
    for nowhere in ([], ["--data", "a", "--server", "b"]):
        assert lamina("topic", "list", *nowhere).code == 2
    assert lamina("topic", "list", "--data", tmp_path / "none").code == 2
    assert lamina("topic", "delete", "t", "--yes", "--data", tmp_path / "none").code == 2
    assert not (tmp_path / "none").exists(), "a typo makes no directory"


def test_a_directory_that_is_in_use_is_unavailable(lamina: Any, tmp_path: Path) -> None:
    where = ["--data", str(tmp_path / "data")]
    with library.open(str(tmp_path / "data")) as store:
        store.create_topic("t")
        ran = lamina("topic", "create", "u", *where)
        assert ran.code == 3
        assert len(ok(lamina("topic", "list", "--json", *where)).rows) == 1, "reading goes on"


def test_values_cannot_steer_the_terminal(lamina: Any, tmp_path: Path, typed: Any) -> None:
    where = ["--data", str(tmp_path / "data")]
    ok(lamina("topic", "create", "t", *where))
    typed(b"\x1b[31mred\x07")
    ok(lamina("topic", "produce", "t", *where))
    assert "\x1b" not in ok(lamina("topic", "consume", "t", "-o", ":end", *where)).out


def test_keys_are_made_listed_and_deleted(lamina: Any, tmp_path: Path) -> None:
    file = ["--file", str(tmp_path / "keys.json")]
    made = ok(lamina("key", "create", "--scope", "write", "--prefix", "a.", "--json", *file)).rows[
        0
    ]
    listed = ok(lamina("key", "list", "--json", *file)).rows
    assert [(row["id"], row["scope"], row["prefix"]) for row in listed] == [
        (made["id"], "write", "a.")
    ]
    assert made["key"] not in (tmp_path / "keys.json").read_text()
    assert "would be" in ok(lamina("key", "delete", made["id"], *file)).out
    assert len(ok(lamina("key", "list", "--json", *file)).rows) == 1
    ok(lamina("key", "delete", made["id"], "--yes", *file))
    assert ok(lamina("key", "list", "--json", *file)).rows == []
    assert lamina("key", "create", "--scope", "root", *file).code == 2


def test_config_says_every_setting_and_who_set_it(
    lamina: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMINA_HTTP_PORT", "8080")
    rows = {row["key"]: row for row in ok(lamina("config", "--set", "host=::1", "--json")).rows}
    assert (rows["http.port"]["value"], rows["http.port"]["source"]) == (8080, "environment")
    assert (rows["host"]["value"], rows["host"]["source"]) == ("::1", "flag")
    assert rows["flight.port"]["source"] == "default"
    assert all(row["consequence"] for row in rows.values())
    assert lamina("config", "--set", "hots=x").code == 2


def test_doctor_finds_what_is_lost(lamina: Any, where: list[str], tmp_path: Path) -> None:
    ok(lamina("topic", "create", "t", *where))
    rows = ok(lamina("doctor", "--json", *where)).rows
    assert {row["verdict"] for row in rows} <= {"ok", "warning"}
    gone = ["--data", str(tmp_path / "none")]
    assert lamina("doctor", *gone).code == 1
    assert lamina("doctor", "--server", "grpc://127.0.0.1:1").code == 1


def test_bench_measures_and_leaves_nothing(lamina: Any, where: list[str]) -> None:
    rows = ok(lamina("bench", "--seconds", 0.2, "--batch", 10, "--json", *where)).rows
    assert [row["what"] for row in rows] == ["produce (fsynced)", "consume"]
    assert all(row["records_per_s"] > 0 for row in rows)
    assert ok(lamina("topic", "list", "--json", *where)).rows == []


def test_topic_names_are_completed(lamina: Any, where: list[str]) -> None:
    from lamina.cli.target import complete_topic

    ok(lamina("topic", "create", "orders", "orbit", "shop", *where))
    context: Any = SimpleNamespace(params={where[0].removeprefix("--"): where[1]})
    assert complete_topic(context, "or") == ["orbit", "orders"]
    nowhere: Any = SimpleNamespace(params={"data": "/nowhere"})
    assert complete_topic(nowhere, "") == []
