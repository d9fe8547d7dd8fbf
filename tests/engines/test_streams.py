"""What `scan` and `read` return is a stream of Arrow to whoever takes one, from any store.

It is read batch by batch, and ended by whoever drops it.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from datafusion import SessionContext

import lamina
from lamina import aio
from lamina.api import StoreApi
from lamina.errors import InvalidRequest, RecordsMissing
from tests.server.rig import served

ROWS = 3000
COLUMNS = pa.schema([("id", pa.int64()), ("city", pa.string())])
PIECE = 100


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A data directory and its archive: one plain topic, one of many columns, one typed."""
    root = tmp_path_factory.mktemp("streams")
    data, archive = str(root / "data"), str(root / "archive")
    remote = {"remote.storage.enable": "true"}
    with lamina.open(data, archive=archive) as store:
        for name, kind in (("plain", "keratin"), ("log", "wal")):
            store.create_topic(name, format=kind, config=remote)
            store.append(name, [b"%d" % each for each in range(ROWS)])
        store.create_topic("empty", config=remote)
        store.create_topic("typed", schema=COLUMNS, config=remote)
        cities = {"id": range(ROWS), "city": ["a", None, "b"] * (ROWS // 3)}
        store.append("typed", pa.table(cities, schema=COLUMNS))
        for name in ("plain", "typed", "empty", "log"):
            store.roll(name)
        store.archive()
    return {"data": data, "archive": f"file://{archive}"}


@pytest.fixture(params=["embedded", "read-only", "archive", "served"])
def store(request: pytest.FixtureRequest, places: dict[str, str]) -> Iterator[StoreApi]:
    data = places["data"]
    if request.param == "served":
        with served(Path(data)) as service, lamina.connect(service.flight_url) as remote:
            yield remote
        return
    opened = {
        "embedded": lambda: lamina.open(data),
        "read-only": lambda: lamina.open(data, read_only=True),
        "archive": lambda: lamina.open(places["archive"], read_only=True),
    }
    with opened[request.param]() as found:
        yield found


def by_duckdb(stream: Any) -> pa.Table:
    return duckdb.sql("select * from stream").to_arrow_table()


def by_datafusion(stream: Any) -> pa.Table:
    return SessionContext().from_arrow(stream).to_arrow_table()


READERS: dict[str, Callable[[Any], Any]] = {
    "pyarrow": pa.table,
    "reader": lambda stream: pa.RecordBatchReader.from_stream(stream).read_all(),
    "polars": lambda stream: polars.DataFrame(stream).to_arrow(),
    "duckdb": by_duckdb,
    "datafusion": by_datafusion,
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_takes_a_scan_and_a_read(store: StoreApi, reader: str) -> None:
    for topic in ("plain", "log"):
        found = READERS[reader](store.scan(topic, max_records=PIECE))
        expected = pa.Table.from_batches(store.scan(topic))
        assert found["offset"].to_pylist() == expected["offset"].to_pylist()
        assert found["value"].to_pylist() == expected["value"].to_pylist()
        assert set(found.column_names) == set(expected.column_names)
    typed = READERS[reader](store.read("typed", max_records=PIECE))
    assert typed["id"].to_pylist() == list(range(ROWS))
    assert typed["city"].null_count == ROWS // 3
    if reader != "datafusion":  # which makes no frame of a stream without batches
        assert READERS[reader](store.scan("empty")).num_rows == 0


def test_the_columns_are_known_without_reading(store: StoreApi) -> None:
    stream = store.scan("plain")
    assert stream.schema.names == ["offset", "timestamp", "key", "value", "headers"]
    assert "0 batches, 0 records so far, open" in repr(stream)
    assert store.scan_from("plain", 0, 5, max_msgs=7).schema == stream.schema
    assert pa.table(store.scan_from("plain", 0, 5, max_msgs=7))["offset"].to_pylist() == [
        *range(5, 12)
    ]


def test_a_stream_is_read_as_far_as_it_is_asked_and_ended_when_it_is_dropped(
    store: StoreApi,
) -> None:
    stream = store.scan("plain", max_records=PIECE)
    reader = pa.RecordBatchReader.from_stream(stream)
    assert "0 batches" in repr(stream)
    reader.read_next_batch()
    assert "1 batch, 100 records so far, open" in repr(stream)
    del reader
    gc.collect()
    assert "1 batch, 100 records so far, closed" in repr(stream)
    with pytest.raises(InvalidRequest, match="closed: scan again"):
        pa.table(stream)
    whole = store.scan("plain")
    assert pa.table(whole).num_rows == ROWS
    with pytest.raises(InvalidRequest, match="at its end: scan again"):
        polars.DataFrame(whole)


def test_a_reader_of_typed_columns_that_is_dropped_ends_the_scan(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with lamina.open(places["data"], read_only=True) as store:
        scans, scan = [], store._reads.scan
        monkeypatch.setattr(
            store._reads,
            "scan",
            lambda *given, **named: scans.append(scan(*given, **named)) or scans[-1],
        )
        query = duckdb.from_arrow(store.read("typed", max_records=PIECE)).limit(1)
        assert len(query.fetchall()) == 1
        del query
        gc.collect()
        (begun,) = scans
        assert begun._records < ROWS
        assert "records so far, closed" in repr(begun)


def test_a_partly_read_scan_hands_out_the_rest(store: StoreApi) -> None:
    stream = store.scan("plain", max_records=PIECE)
    next(stream)
    assert pa.table(stream)["offset"].to_pylist() == list(range(PIECE, ROWS))


def test_asyncio_reads_the_blocking_stream_on_a_thread(places: dict[str, str]) -> None:
    async def read() -> polars.DataFrame:
        async with aio.open(places["data"], read_only=True) as store:
            return await asyncio.to_thread(polars.DataFrame, store.store.scan("plain"))

    assert asyncio.run(read()).height == ROWS


def test_what_goes_wrong_in_a_stream_reaches_its_reader(tmp_path: Path) -> None:
    with lamina.open(str(tmp_path / "data")) as store:
        store.create_topic("t")
        for value in (b"a", b"b"):
            store.append("t", [value])
            store.roll("t")
        store.trim("t", 0, 1)
        with pytest.raises(RecordsMissing):
            list(store.scan("t", 0, 0))
        stream = store.scan("t", 0, 0)
        with pytest.raises(Exception, match="RecordsMissing"):
            pa.table(stream)
        assert "broken off" in repr(stream)
