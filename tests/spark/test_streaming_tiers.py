"""Streams over all tiers: from the archive into the live tail, idle, and seen as a group."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

import lamina
from lamina.errors import InvalidRequest, RecordsMissing
from lamina.spark.access import ServerAccess, Where
from lamina.spark.logs import archived_log
from lamina.spark.logs import served_log as served_logs
from lamina.spark.query_positions import Positions
from lamina.spark.source import LaminaSource
from lamina.spark.stream import StreamReader
from lamina.storage.object_directory import DirectoryObjects
from tests.server.rig import served
from tests.spark.logs import rows_of
from tests.spark.tiers import COUNT, NONE_KEPT, append, by_hand, make_mix

EARLIEST = {"startingOffsets": "earliest", "columns": "topic,partition,offset"}


@pytest.fixture
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archived_log, "LOOK_S", 0.0)
    monkeypatch.setattr(served_logs, "LOOK_S", 0.0)


def stream(**given: Any) -> StreamReader:
    options = CaseInsensitiveDict({name: str(value) for name, value in given.items()})
    source = LaminaSource(options)
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    return made


def drain(reading: StreamReader, start: dict[str, Any]) -> tuple[list[tuple[Any, ...]], Any]:
    """Reads micro-batches until nothing is new."""
    rows: list[tuple[Any, ...]] = []
    while (end := reading.latestOffset(start, reading.getDefaultReadLimit())) != start:
        rows += rows_of(reading, list(reading.partitions(start, end)))
        reading.commit(end)
        start = end
    return rows, start


def offsets(rows: list[tuple[Any, ...]]) -> list[int]:
    return sorted(row[2] for row in rows)


@pytest.mark.usefixtures("_look_at_once")
@pytest.mark.parametrize("door", ["directory", "server"])
def test_one_query_starts_in_the_archive_and_goes_on_into_the_live_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    make_mix(tmp_path, NONE_KEPT, topics="f")
    archive = str(tmp_path / "cold")
    monkeypatch.setenv("LAMINA_ARCHIVE", archive)

    def follow(store: Any, where: dict[str, str]) -> None:
        reading = stream(**where, subscribe="f", maxOffsetsPerTrigger=700, **EARLIEST)
        rows, end = drain(reading, reading.initialOffset())
        assert offsets(rows) == list(range(COUNT))
        for number in range(4):  # the seam moves under the query
            append(store, "f", "frame", COUNT + 250 * number, 250)
            if number % 2:
                store.roll("f", 0)
            if number == 3:
                store.archive()
            else:
                store.maintain()
            more, end = drain(reading, end)
            rows += more
        assert offsets(rows) == list(range(COUNT + 1000))

    if door == "directory":
        with by_hand(tmp_path, archive=archive) as store:
            follow(store, {"path": str(tmp_path / "data"), "archive": archive})
    else:
        with served(tmp_path / "data") as service:
            follow(service._store, {"server": service.flight_url, "archive": archive})


@pytest.mark.usefixtures("_look_at_once")
def test_an_archive_alone_is_followed_as_it_grows(tmp_path: Path) -> None:
    make_mix(tmp_path, NONE_KEPT, topics="f")
    archive = str(tmp_path / "cold")
    reading = stream(path=archive, subscribe="f", **EARLIEST)
    rows, end = drain(reading, reading.initialOffset())
    assert offsets(rows) == list(range(COUNT - 500))
    with by_hand(tmp_path, archive=archive) as store:
        store.roll("f", 0)
        store.archive()
    more, end = drain(reading, end)
    assert offsets(rows + more) == list(range(COUNT))


def test_an_idle_query_asks_the_object_store_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_mix(tmp_path, NONE_KEPT, topics="f")
    asked: Counter[str] = Counter()
    for name in ("list", "read", "read_range", "size"):
        honest = getattr(DirectoryObjects, name)

        def counting(self: Any, *given: Any, name: str = name, honest: Any = honest) -> Any:
            asked[name] += 1
            return honest(self, *given)

        monkeypatch.setattr(DirectoryObjects, name, counting)
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    watched = {
        "archive": stream(path=str(tmp_path / "cold"), subscribe="f", **EARLIEST),
        "pattern": stream(path=str(tmp_path / "cold"), subscribePattern="f", **EARLIEST),
        "directory": stream(
            path=str(tmp_path / "data"), archive=str(tmp_path / "cold"), subscribe="f", **EARLIEST
        ),
    }
    for name, reading in watched.items():
        start = reading.initialOffset()
        end = reading.latestOffset(start, reading.getDefaultReadLimit())
        asked.clear()
        for _ in range(150):  # three seconds of an idle query
            now_s += 0.02
            assert reading.latestOffset(end, reading.getDefaultReadLimit()) == end
        assert asked["list"] <= 3
        assert asked["read_range"] == 0
        most = 0 if name == "directory" else 3 * 3 + 2
        assert asked["read"] <= most
        assert asked["size"] <= most


@pytest.mark.usefixtures("_look_at_once")
def test_a_wal_topic_is_followed_through_its_layers(tmp_path: Path) -> None:
    with by_hand(tmp_path) as store:
        store.create_topic("w", format="wal")
        reading = stream(path=tmp_path / "data", subscribe="w", **EARLIEST)
        rows, end = drain(reading, reading.initialOffset())
        for number in range(6):
            append(store, "w", "wal", 250 * number, 250)
            if number % 2:
                store.maintain()
            more, end = drain(reading, end)
            rows += more
            assert offsets(rows) == list(range(1, 250 * (number + 1) + 1))


@pytest.mark.usefixtures("_look_at_once")
def test_a_topic_created_again_stops_a_query_on_an_archive_and_on_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_mix(tmp_path, NONE_KEPT, topics="f")
    archive = stream(path=tmp_path / "cold", subscribe="f", **EARLIEST)
    _, end = drain(archive, archive.initialOffset())
    other = {**end, "@epoch": {"f": 7}}
    with pytest.raises(InvalidRequest, match="created again"):
        archive.latestOffset(other, archive.getDefaultReadLimit())
    monkeypatch.setenv("LAMINA_ARCHIVE", str(tmp_path / "cold"))
    with served(tmp_path / "data") as service:
        reading = stream(server=service.flight_url, subscribe="f", **EARLIEST)
        _, end = drain(reading, reading.initialOffset())
        service._store.delete_topic("f")
        service._store.create_topic("f", format="frame")
        with pytest.raises(InvalidRequest, match="created again"):
            drain(reading, end)


@pytest.mark.usefixtures("_look_at_once")
def test_a_range_that_is_lost_is_named_and_left_out_if_that_is_wished(tmp_path: Path) -> None:
    make_mix(tmp_path, NONE_KEPT, topics="f")
    given = {"path": tmp_path / "data", "archive": tmp_path / "cold", "subscribe": "f"}
    reading = stream(**given, **EARLIEST)
    start = reading.initialOffset()
    with by_hand(tmp_path, archive=str(tmp_path / "cold")) as store:
        store.archive()
        store.alter_topic("f", {"retention.bytes": 30 << 10})
        store.apply_retention("f", 0)
        store.archive()
        earliest = store.earliest_offset("f", 0)
    assert 0 < earliest < COUNT - 500
    with pytest.raises(RecordsMissing, match="retention"):
        drain(reading, start)
    rows, _ = drain(stream(**given, **EARLIEST, failOnDataLoss="false"), start)
    assert offsets(rows) == list(range(earliest, COUNT))


# ---------------------------------------------------------------- positions


def lag(store: Any, group: str = "q") -> list[tuple[int, int]]:
    return [(each.committed, each.records) for each in store.describe_group("f", group).partitions]


def followed(path: Path, **more: Any) -> StreamReader:
    return stream(path=path / "data", subscribe="f", **EARLIEST, **{"group.id": "q"}, **more)


@pytest.mark.usefixtures("_look_at_once")
def test_a_live_store_sees_where_a_query_stands_and_retention_waits_for_it(
    tmp_path: Path,
) -> None:
    config = {"segment.bytes": 16 << 10, "retention.bytes": 0}
    config |= {"retention.wait.groups": "q", "retention.wait.ms": -1}
    with by_hand(tmp_path) as store:
        store.create_topic("f", format="frame", config=config)
        append(store, "f", "frame", 0, 1000)
        store.maintain()
        reading = followed(tmp_path, maxOffsetsPerTrigger=400)
        start = reading.initialOffset()
        end = reading.latestOffset(start, reading.getDefaultReadLimit())
        assert store.earliest_offset("f") == 0
        reading.commit(end)
        store.maintain()
        assert lag(store) == [(400, 600)]
        store.maintain()
        assert 0 < store.earliest_offset("f") <= 400
        assert not list((tmp_path / "data/positions").iterdir())


@pytest.mark.usefixtures("_look_at_once")
def test_a_position_waits_for_the_next_store_and_readers_see_it_meanwhile(tmp_path: Path) -> None:
    with by_hand(tmp_path) as store:
        store.create_topic("f", format="frame")
        append(store, "f", "frame", 0, 1000)
    reading = followed(tmp_path, maxOffsetsPerTrigger=400)
    first = reading.latestOffset(reading.initialOffset(), reading.getDefaultReadLimit())
    reading.commit(first)
    with lamina.open(str(tmp_path / "data"), read_only=True) as peeking:
        assert peeking.groups() == [("f", "q")]
        assert lag(peeking) == [(400, 600)]
    second = reading.latestOffset(first, reading.getDefaultReadLimit())
    reading.commit(second)
    with by_hand(tmp_path) as store:
        assert lag(store) == [(800, 200)]
        store.reset_group("f", "q", to=100, execute=True)
    with by_hand(tmp_path) as store:
        assert lag(store) == [(100, 900)], "a position is used once"
        store.delete_group("f", "q")
    with by_hand(tmp_path) as store:
        assert store.groups("f") == []


@pytest.mark.usefixtures("_look_at_once")
@pytest.mark.parametrize("what", ["damaged", "recreated", "beyond", "taken"])
def test_a_position_that_does_not_fit_does_no_harm(tmp_path: Path, what: str) -> None:
    with by_hand(tmp_path) as store:
        store.create_topic("f", format="frame")
        append(store, "f", "frame", 0, 500)
    reading = followed(tmp_path)
    drain(reading, reading.initialOffset())
    (file,) = (tmp_path / "data/positions").iterdir()
    if what == "damaged":
        file.write_bytes(file.read_bytes().replace(b"500", b"900"))
    elif what == "taken":
        file.rename(f"{file}.taken")
    elif what == "beyond":
        far = reading._positions
        far.publish("q", {("f", 0): 10**6}, {"f": 1})
    with by_hand(tmp_path) as store:
        assert store.groups("f") == ([] if what == "damaged" else [("f", "q")])
        if what != "damaged":
            assert lag(store) == [(500, 0)]
        if what == "recreated":
            store.delete_topic("f")
            store.create_topic("f", format="frame")
            append(store, "f", "frame", 0, 500)
            reading._positions.publish("q", {("f", 0): 400}, {"f": 1})
            store.maintain()
            assert store.groups("f") == []
        assert not list((tmp_path / "data/positions").iterdir())


@pytest.mark.usefixtures("_look_at_once")
def test_a_query_without_a_name_keeps_the_one_it_got(tmp_path: Path) -> None:
    with by_hand(tmp_path) as store:
        store.create_topic("f", format="frame")
        append(store, "f", "frame", 0, 500)
    given = {"path": tmp_path / "data", "subscribe": "f", "maxOffsetsPerTrigger": 200, **EARLIEST}
    reading = stream(**given)
    start = reading.initialOffset()
    end = reading.latestOffset(start, reading.getDefaultReadLimit())
    reading.commit(end)
    drain(stream(**given), end)
    with by_hand(tmp_path) as store:
        ((_, group),) = store.groups("f")
        assert group.startswith("spark-lamina-source-")
        assert group == end["@group"]
        assert lag(store, group) == [(500, 0)]


def test_a_server_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with by_hand(tmp_path) as store:
        store.create_topic("f", format="frame")
        append(store, "f", "frame", 0, 500)
        monkeypatch.setattr(ServerAccess, "connect", lambda self: store)
        positions = Positions(Where(server=ServerAccess("grpc://here:1")))
        positions.publish("q", {("f", 0): 300}, {"f": 1})
        assert lag(store) == [(300, 200)]
        positions.publish("q", {("f", 0): 501}, {"f": 1})
        assert lag(store) == [(300, 200)], "told, and the query goes on"
