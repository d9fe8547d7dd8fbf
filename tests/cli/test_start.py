"""Commands that need no kernel, or little of one, load neither the compiler nor what takes long."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lamina
from lamina.cli.names_on_disk import groups_in, topics_in
from tests.server.rig import served

PROGRAM = """
import sys
sys.argv[0] = "lamina"
from lamina.cli import main
try:
    main.main()
except SystemExit as ended:
    assert ended.code == 0, ended.code
slow = {"numba", "llvmlite", "pyspark", "duckdb", "obstore", "starlette", "pyarrow"}
print(*sorted(slow & set(sys.modules)), file=sys.stderr)
"""


def loaded(*arguments: object, **variables: str) -> set[str]:
    """What a command has loaded when it is done."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | variables,
    )
    assert ran.returncode == 0, ran.stderr
    return set(ran.stderr.splitlines()[-1].split())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("start") / "data") as service:
        with lamina.connect(service.flight_url) as store:
            store.create_topic("t", partitions=2)
            store.append("t", b"1")
            store.group("t", "g")
        yield service.flight_url


@pytest.mark.parametrize(
    "command", ["--help", "--version", "topic --help", "topic consume --help", "cat -h", "config"]
)
def test_what_needs_no_store_loads_no_arrow(command: str) -> None:
    assert loaded(*command.split()) == set()


def test_a_document_is_dumped_without_arrow(tmp_path: Path) -> None:
    lamina.open(str(tmp_path / "data")).close()
    assert loaded("dump", tmp_path / "data" / "meta" / "broker.id") == set()


@pytest.mark.parametrize(
    "command",
    [
        *(
            "topic list",
            "topic describe t",
            "topic consume t -o :end",
            "topic alter t -c segment.ms=9",
        ),
        *(
            "group list",
            "group describe g",
            "router list",
            "segment list t",
            "tier status",
            "schema list t",
        ),
        *("cat -L", "cat -C -t t -e"),
    ],
)
def test_a_command_on_a_server_loads_arrow_and_no_compiler(server: str, command: str) -> None:
    assert loaded(*command.split(), "--server", server) == {"pyarrow"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with topics of every format, each with records behind its last index entry."""
    data = str(tmp_path_factory.mktemp("local") / "data")
    with lamina.open(data) as store:
        for log in ("keratin", "frame", "wal"):
            store.create_topic(log, format=log)
            store.append(log, [b"%d" % number for number in range(100)])
        store.create_topic("typed", schema=pa.schema({"n": pa.int64()}))
        store.group("keratin", "g").poll(10)
    return data


@pytest.mark.parametrize(
    "command",
    [
        *("topic list", "topic describe keratin", "topic describe frame", "topic describe wal"),
        *("group list", "group describe g", "router list", "segment list keratin"),
        *("schema list typed", "schema show typed", "cat -L"),
        *("topic consume keratin -o :end", "cat -C -t frame -e"),
    ],
)
def test_a_command_that_looks_at_a_small_directory_loads_no_compiler(
    directory: str, command: str
) -> None:
    assert "numba" not in loaded(*command.split(), "--data", directory)


def test_a_command_that_makes_or_changes_a_topic_loads_no_compiler(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for command in ("topic create t", "topic alter t -c segment.ms=9", "topic delete t --yes"):
        assert "numba" not in loaded(*command.split(), "--data", data), command


def test_keys_are_listed_without_the_compiler(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    assert "numba" not in loaded("key", "create", "--scope", "read", "--file", file)
    assert "numba" not in loaded("key", "list", "--file", file)


@pytest.mark.parametrize(
    ("words", "names"),
    [("topic describe ", ["t", "u"]), ("group describe ", ["billing", "g"])],
)
def test_a_shell_completes_names_of_a_directory_without_arrow(
    tmp_path: Path, words: str, names: list[str]
) -> None:
    data = str(tmp_path / "data")
    with lamina.open(data) as store:
        for topic, group in (("t", "billing"), ("u", "g"), ("gone", "left")):
            store.create_topic(topic)
            store.group(topic, group)
        store.group("t", "away")
        store.delete_group("t", "away")
        store.delete_topic("gone")
    on_disk = topics_in if words.startswith("topic") else groups_in
    assert on_disk(data) == names
    with lamina.open(data, read_only=True) as store:
        known = (
            store.topics() if words.startswith("topic") else [each for _, each in store.groups()]
        )
        assert sorted(known) == names
    asked = {"_LAMINA_COMPLETE": "complete_bash", "COMP_CWORD": "3", "LAMINA_DATA": data}
    assert loaded(COMP_WORDS=f"lamina {words}", **asked) == set()


def test_a_damaged_topic_is_offered_and_a_foreign_directory_is_not(tmp_path: Path) -> None:
    with lamina.open(str(tmp_path)) as store:
        store.create_topic("t")
        store.group("t", "g")
    (tmp_path / "topics" / "t" / "topic.json").write_bytes(b"{")
    (tmp_path / "topics" / "foreign").mkdir()
    (tmp_path / "meta" / "groups.json").write_bytes(b"{")
    assert (topics_in(str(tmp_path)), groups_in(str(tmp_path))) == (["t"], ["g"])
    assert (topics_in(str(tmp_path / "none")), groups_in(str(tmp_path / "none"))) == ([], [])
