"""What is archived counts: in every listing, for every kind of store and format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lamina
from lamina.cli.main import app
from lamina.server.metrics import store_gauges
from lamina.storage.files import LocalFiles
from lamina.storage.object_directory import DirectoryObjects
from lamina.store.archive_store import ArchiveStore
from lamina.store.store import Store
from tests.archive.rig import NEVER, SETTINGS, TOPIC, values

COUNT = 60


@pytest.fixture(params=["keratin", "frame", "wal"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, int]:
    """A data directory whose records are nearly all in the archive alone; its first offset."""
    with Store(str(tmp_path / "data"), archive=str(tmp_path / "archive"), tick_ms=NEVER) as store:
        store.create_topic(TOPIC, format=request.param, config=SETTINGS)
        for first in range(0, COUNT, 10):
            store.append(TOPIC, values(first, 10))
            store.roll(TOPIC)
        store.archive()
    return tmp_path, 1 if request.param == "wal" else 0


def _run(*arguments: str) -> list[dict[str, Any]]:
    found = CliRunner().invoke(app, [*arguments])
    assert found.exit_code == 0, found.output
    return [json.loads(line) for line in found.output.splitlines()]


def test_commands_count_what_is_archived(made: tuple[Path, int]) -> None:
    folder, first = made
    data = ["--data", str(folder / "data"), "--json"]
    (row,) = _run("topic", "list", *data)
    assert row["records"] == COUNT
    archived = sum(path.stat().st_size for path in (folder / "archive").rglob("*.seg"))
    assert row["size"] > archived // 2
    (described,) = _run("topic", "describe", TOPIC, *data)
    (part,) = described["partitions"]
    assert (part["earliest_offset"], part["durable_offset"]) == (first, first + COUNT)
    assert part["archived_segments"] > 0
    assert part["archived_bytes"] > archived // 2
    listed = CliRunner().invoke(app, ["cat", "-L", "--data", str(folder / "data")])
    assert f"offsets {first} to {first + COUNT}" in listed.output


def test_every_store_counts_what_is_archived(made: tuple[Path, int]) -> None:
    folder, first = made
    objects = DirectoryObjects(LocalFiles(), str(folder / "archive"))
    with Store(str(folder / "data"), tick_ms=NEVER) as store:
        gauges = {each.name: each.samples for each in store_gauges(store)}
        assert gauges["lamina_topic_partition_oldest_offset"][0].value == first
        store.archive()
        gauges = {each.name: each.samples for each in store_gauges(store)}
        assert gauges["lamina_topic_partition_archived_bytes"][0].value > 0
        group = store.group(TOPIC, "g")
        assert group.lag()[0].records == COUNT
        _check(store, first)
    with lamina.open(str(folder / "data"), read_only=True) as reader:
        _check(reader, first)
    with ArchiveStore(objects) as archive:
        _check(archive, first)


def _check(store: Any, first: int) -> None:
    (part,) = store.describe_topic(TOPIC).partitions
    assert part.earliest_offset == store.earliest_offset(TOPIC) == first
    assert part.durable_offset - part.earliest_offset == COUNT
    assert part.archived_segments > 0
    assert part.archived_bytes > 0


def test_an_archive_that_is_away_changes_no_count_of_records(made: tuple[Path, int]) -> None:
    folder, _ = made
    (folder / "archive").rename(folder / "away")
    (row,) = _run("topic", "list", "--data", str(folder / "data"), "--json")
    assert row["records"] == COUNT
