"""`lamina sql`: topics of a directory or of a server are tables."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lamina as library
from lamina.errors import EXIT_CODES, CorruptData, InvalidRequest
from tests.server.rig import served

SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}}'


@pytest.fixture(params=["data", "server", "archive"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    data, archive = tmp_path / "data", f"file://{tmp_path}/archive"
    config = {"remote.storage.enable": "true"}
    with library.open(str(data), archive=archive) as store:
        store.create_topic("orders", partitions=2, config=config)
        store.create_topic("my.topic-1", format="wal", config=config)
        store.create_topic("typed", config=config)
        store.append("orders", [b"a", b"b"], partition=0)
        store.append("orders", [b"\xff"], partition=1)
        store.append("my.topic-1", [b"x"])
        store.append("typed", [b'{"n": 1}', b"nonsense", b'{"n": 3}'])
        store.set_schema("typed", SCHEMA, encoding="json")
        for topic, partition in (("orders", 0), ("orders", 1), ("my.topic-1", 0), ("typed", 0)):
            store.roll(topic, partition)
        store.archive()
    if request.param != "server":
        yield ["--data", str(data) if request.param == "data" else archive]
        return
    with served(data) as service:
        yield ["--server", service.flight_url]


def test_a_query_prints_a_table_or_rows_of_json(where: list[str], lamina: Any) -> None:
    query = "select _partition, count(*) as n from orders group by 1 order by 1"
    assert lamina("sql", query, *where).out.split() == ["_PARTITION", "N", "0", "2", "1", "1"]
    query = "select _offset, value from orders where _partition = 1"
    (line,) = lamina("sql", query, *where, "--json").out.splitlines()
    assert json.loads(line) == {"_offset": 0, "value": {"base64": "/w=="}}
    (line,) = lamina("sql", 'select value from "my.topic-1"', *where, "--json").out.splitlines()
    assert json.loads(line) == {"value": "x"}
    assert lamina("sql", "select COUNT(*) as n from ORDERS", *where).out.split() == ["N", "3"]


def test_of_topics_that_differ_in_capitals_the_one_is_meant_that_is_written(
    tmp_path: Path, lamina: Any
) -> None:
    where = ["--data", str(tmp_path / "data")]
    with library.open(where[1]) as store:
        for topic in ("Orders", "orders"):
            store.create_topic(topic)
            store.append(topic, [topic.encode()])
    for topic in ("Orders", "orders"):
        (line,) = lamina("sql", f'select value from "{topic}"', *where, "--json").out.splitlines()
        assert json.loads(line) == {"value": topic}
    for query in ("select * from ORDERS", "select * from orders join Orders using (_offset)"):
        ran = lamina("sql", query, *where)
        assert ran.code == EXIT_CODES[InvalidRequest]
        assert "topics Orders, orders are one name to DuckDB" in ran.err


def test_a_column_without_a_name_keeps_what_it_is_called(where: list[str], lamina: Any) -> None:
    assert lamina("sql", "select count(*) from orders", *where).out.split() == ["count_star()", "3"]


def test_a_filter_on_a_served_topic_warns_of_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; from lamina.cli import main as cli;"
        "sys.argv = ['lamina', 'sql', 'select count(*) as n from orders where _offset >= 1',"
        " '--server', sys.argv[1]]; cli.main()"
    )
    with served(tmp_path / "data") as service, library.connect(service.flight_url) as store:
        store.create_topic("orders")
        for each in (b"a", b"bcd", b"efghi"):
            store.append("orders", each)
        asked = [sys.executable, "-c", program, service.flight_url]
        ran = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.split(), ran.stderr) == (0, ["N", "2"], "")


def test_a_value_that_does_not_fit_is_an_error_or_a_row_of_nulls(
    where: list[str], lamina: Any
) -> None:
    ran = lamina("sql", "select sum(n) as n from typed", *where)
    assert (ran.code, ran.err.count("\n")) == (EXIT_CODES[InvalidRequest], 1)
    assert "typed/0, offset 1" in ran.err
    query = "select _offset, n, _error is null as fits from typed"
    found = lamina("sql", query, "--errors", "null", "--json", *where).out.splitlines()
    assert [json.loads(line) for line in found] == [
        {"_offset": 0, "n": 1, "fits": True},
        {"_offset": 1, "n": None, "fits": False},
        {"_offset": 2, "n": 3, "fits": True},
    ]
    ran = lamina("sql", "select * from typed", "--errors", "skip", *where)
    assert ran.code == EXIT_CODES[InvalidRequest]
    assert "errors is one of raise, null for a table, not 'skip'" in ran.err


def test_what_cannot_be_asked_is_one_line(where: list[str], lamina: Any) -> None:
    ran = lamina("sql", "select * from nothing", *where)
    assert ran.code == EXIT_CODES[InvalidRequest]
    assert ran.err.count("\n") == 1
    assert "nothing" in ran.err
    assert "the topics are: my.topic-1, orders, typed" in ran.err
    ran = lamina("sql", "selec 1", *where)
    assert (ran.code, ran.err.count("\n")) == (EXIT_CODES[InvalidRequest], 1)
    assert "syntax error" in ran.err


def test_lost_records_are_an_error_unless_they_may_be_skipped(tmp_path: Path, lamina: Any) -> None:
    data = tmp_path / "data"
    with library.open(str(data)) as store:
        store.create_topic("t", format="frame")
        store.append("t", [b"a" * 50, b"b" * 50, b"c" * 50])
        store.roll("t")
    (log,) = (each for each in data.rglob("*.log") if each.stat().st_size)
    held = bytearray(log.read_bytes())
    held[held.index(b"b" * 50) + 7] ^= 1
    log.write_bytes(held)
    where = ["--data", str(data)]
    ran = lamina("sql", "select * from t", *where)
    assert ran.code != 0
    assert "offsets 1 to 2" in ran.err
    found = lamina("sql", "select _offset from t", "--skip-lost", "--json", *where)
    assert [json.loads(line)["_offset"] for line in found.out.splitlines()] == [0, 2]


def test_an_error_behind_the_first_rows_is_the_log_s_own(tmp_path: Path, lamina: Any) -> None:
    """Arrow had wrapped it, with all of Python's traceback, and it ended with another code."""
    with library.open(str(tmp_path / "data")) as store:
        store.create_topic("orders")
        for _ in range(40):
            store.append("orders", [b"x" * 200_000] * 5)
            store.roll("orders")
    logs = sorted((tmp_path / "data/topics/orders/0/segments").glob("*.log"))
    raw = bytearray(logs[-2].read_bytes())
    raw[len(raw) // 2] ^= 1
    logs[-2].write_bytes(raw)
    query = "select _offset, octet_length(value) as size from orders"
    ran = lamina("sql", query, "--json", "--data", str(tmp_path / "data"))
    assert ran.code == EXIT_CODES[CorruptData]
    assert "Traceback" not in ran.err
    assert "offsets 19" in ran.err
