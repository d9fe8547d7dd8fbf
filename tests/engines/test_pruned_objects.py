"""What an archive's list knows of its objects keeps queries from reading them: counted in bytes."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lamina
from lamina.api import StoreApi
from lamina.engines.dataset import LogDataset, Stripe
from lamina.records import TIMESTAMP
from lamina.storage.object_directory import DirectoryObjects
from tests.server.rig import served

OBJECTS, RECORDS = 10, 400
ORDER = (3, 0, 7, 1, 9, 4, 2, 8, 5, 6)
"""Which second each object is of: times go back and forth."""
FORMATS = ("frame", "keratin", "wal")
KINDS = ("tiered", "archive", "served")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("objects")
    data, archive = str(root / "data"), str(root / "archive")
    noise = np.random.default_rng(3)
    config = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
    with lamina.open(data, archive=archive) as store:
        for name in FORMATS:
            store.create_topic(name, format=name, config=config)
        for second in ORDER:
            for name in FORMATS:
                times = pa.array(noise.integers(0, 1000, RECORDS) + second * 1000)
                values = [noise.bytes(100) for _ in range(RECORDS)]
                store.append(name, pa.table({"value": values, "timestamp": times.cast(TIMESTAMP)}))
                store.roll(name)
            store.archive()
        store.maintain()
    return data, archive


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, places: tuple[str, str]) -> Iterator[StoreApi]:
    data, archive = places
    if request.param == "served":
        with served(Path(data)) as service, lamina.connect(service.flight_url) as remote:
            yield remote
        return
    where = data if request.param == "tiered" else f"file://{archive}"
    with lamina.open(where, read_only=True) as found:
        yield found


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Notes how long each range is that is read of an object."""
    found, read_range = [], DirectoryObjects.read_range

    def noted(objects: DirectoryObjects, key: str, start: int, end: int) -> Any:
        found.append(end - start)
        return read_range(objects, key, start, end)

    monkeypatch.setattr(DirectoryObjects, "read_range", noted)
    return found


def seconds(number: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(number, datetime.UTC)


time, offset = pc.field("_timestamp"), pc.field("_offset")
FILTERS = {
    "from below": (time >= seconds(8), 2),
    "from above": (time < seconds(2), 2),
    "in between": ((time >= seconds(4)) & (time < seconds(5)), 1),
    "either end": ((time < seconds(1)) | (time >= seconds(9)), 2),
    "at no time": ((time >= seconds(20)) & (time < seconds(21)), 0),
    "low offsets": (offset < RECORDS, 1),
    "high offsets": (offset >= 9 * RECORDS + 1, 1),
    "both": ((offset < 5 * RECORDS) & (time < seconds(3)), 2),
}


@pytest.mark.parametrize("condition", FILTERS)
@pytest.mark.parametrize("name", FORMATS)
def test_only_objects_that_may_match_are_read(
    store: StoreApi, name: str, condition: str, read_bytes: list[int]
) -> None:
    filter, objects = FILTERS[condition]
    table = LogDataset(store, name)
    found = table.to_table(filter=filter)
    read = sum(read_bytes)
    whole = table.to_table()
    assert found.equals(whole.filter(filter))
    size = RECORDS * 100
    assert read < (objects + 0.5) * size, f"{read} bytes read for {objects} objects"
    if not isinstance(store, lamina.RemoteStore):
        assert read > (objects - 0.5) * size or condition.endswith("offsets")


def test_engines_read_no_more_of_it(places: tuple[str, str], read_bytes: list[int]) -> None:
    size = RECORDS * 100
    with lamina.dataset(f"file://{places[1]}", "keratin") as topic:  # noqa: F841 - DuckDB finds it
        query = "select count(*) from topic where _timestamp < to_timestamp(2)"
        assert duckdb.sql(query).fetchall() == [(2 * RECORDS,)]
        assert sum(read_bytes) < 2.5 * size
    read_bytes.clear()
    scanned = lamina.polars.scan(f"file://{places[1]}", "keratin")
    asked = scanned.filter(polars.col("_timestamp") < seconds(2)).select(polars.len())
    assert asked.collect().item() == 2 * RECORDS
    assert sum(read_bytes) < 2.5 * size


def test_what_is_read_is_a_plan_of_layers(places: tuple[str, str]) -> None:
    with lamina.dataset(f"file://{places[1]}", "frame") as topic:
        found = topic.stripes(time < seconds(2))
        assert found == [
            Stripe(0, at * RECORDS, (at + 1) * RECORDS) for at in (ORDER.index(0), ORDER.index(1))
        ]
        assert [each.count_rows() for each in topic.get_fragments(time < seconds(2))] == [
            *(RECORDS, RECORDS)
        ]
