"""The streaming source without Spark around it: offsets, admission, loss, epochs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from lamina.errors import InvalidRequest, RecordsMissing
from lamina.spark import stream as streaming
from lamina.spark.admission import shares
from lamina.spark.stream import Offsets, StreamReader
from lamina.store.store import Store
from tests.spark.logs import NEVER_MS, START_MS, fill, rows_of, stream


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store(str(tmp_path / "data"), tick_ms=NEVER_MS) as store:
        store.create_topic("f", format="frame", config={"segment.bytes": 16 << 10})
        store.create_topic("g", partitions=2)
        yield store


def grow(store: Store, topic: str, count: int, first: int = 0) -> None:
    fill(store, topic, count, headers=False, first=first)
    store.maintain()


def next_batch(reading: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reading.latestOffset(start, reading.getDefaultReadLimit())


def read_between(reading: StreamReader, start: Any, end: Any) -> list[int]:
    rows = rows_of(reading, list(reading.partitions(start, end)))
    return sorted(row[4] for row in rows)


def test_a_stream_starts_at_the_end_and_reads_what_comes(store: Store, tmp_path: Path) -> None:
    grow(store, "f", 500)
    reading = stream(tmp_path / "data", subscribe="f", **{"group.id": "g"})
    start = reading.initialOffset()
    named = {"@epoch": {"f": 1}, "@group": "g"}
    assert start == {"f": {"0": 500}, **named, "@latest": {"f": [0]}}
    start = next_batch(reading, start)
    assert start == {"f": {"0": 500}, **named}
    assert next_batch(reading, start) == start
    grow(store, "f", 250, first=500)
    end = next_batch(reading, start)
    assert end["f"] == {"0": 750}
    assert reading.reportLatestOffset() == end
    assert read_between(reading, start, end) == list(range(500, 750))
    assert next_batch(reading, end) == end


STARTS = {
    "latest": {"startingOffsets": "latest"},
    "one partition": {"startingOffsets": '{"g": {"0": -1, "1": -2}}'},
    "a time to come": {
        "startingTimestamp": str(START_MS + 10**9),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "times to come": {
        "startingOffsetsByTimestamp": json.dumps({"g": {"0": START_MS + 10**9}}),
        "startingOffsetsByTimestampStrategy": "latest",
    },
}


@pytest.mark.parametrize("given", STARTS.values(), ids=STARTS)
def test_where_a_stream_started_is_kept_whatever_comes_before_its_first_batch_is_done(
    store: Store, tmp_path: Path, given: dict[str, str]
) -> None:
    """Spark asks for the initial offset twice in a run, and again in the next one."""
    grow(store, "g", 500)
    begun = {each.partition: each.durable_offset for each in store.describe_topic("g").partitions}
    if "-2" in given.get("startingOffsets", ""):
        begun[1] = 0
    first = stream(tmp_path / "data", subscribe="g", **given)
    initial = first.initialOffset()
    grow(store, "g", 250, first=500)
    end = next_batch(first, initial)
    assert end["g"]["0"] == begun[0], "batch 0 ends where the query started"
    grow(store, "g", 250, first=750)
    later = first.initialOffset()
    assert len(read_between(first, later, end)) == end["g"]["1"] - begun[1]
    second = stream(tmp_path / "data", subscribe="g", **given)
    again = second.initialOffset()  # batch 0 was cut off: Spark runs it again, up to the same end
    assert len(read_between(second, again, end)) == end["g"]["1"] - begun[1]
    found = read_between(second, end, next_batch(second, end))
    assert len(found) == 1000 - end["g"]["0"] - end["g"]["1"], "all that came between is read"


def test_the_position_of_a_batch_is_published_when_spark_asks_for_more(
    store: Store, tmp_path: Path
) -> None:
    """Spark calls `commit` only when it plans another batch: never for the last one."""
    grow(store, "f", 500)
    given = {"subscribe": "f", "startingOffsets": "earliest", "group.id": "q"}
    reading = stream(tmp_path / "data", **given, maxOffsetsPerTrigger=300)
    reading.prepareForTriggerAvailableNow()
    start = reading.initialOffset()
    end = next_batch(reading, start)
    store.maintain()
    assert store.groups("f") == [], "nothing is committed yet"
    last = next_batch(reading, end)
    assert next_batch(reading, last) == last
    store.maintain()
    (partition,) = store.describe_group("f", "q").partitions
    assert (partition.committed, partition.records) == (500, 0)


def test_an_idle_stream_only_asks_whether_something_changed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(store, "f", 500)
    reading = stream(tmp_path / "data", subscribe="f", startingOffsets="earliest")
    end = next_batch(reading, reading.initialOffset())

    def refuse(*_: object) -> None:
        raise AssertionError("looked at the directory")

    monkeypatch.setattr("lamina.log.partition_view.PartitionView.refresh", refuse)
    monkeypatch.setattr("lamina.store.catalog.Catalog.peek", refuse)
    for _ in range(10):
        assert next_batch(reading, end) == end
    grow(store, "f", 250, first=500)
    with pytest.raises(AssertionError, match="looked at the directory"):
        next_batch(reading, end)


def test_offsets_are_equal_as_text_whatever_the_order() -> None:
    one = Offsets({("b", 1): 2, ("b", 0): 1, ("a", 0): 5}, {"b": 1, "a": 3})
    two = Offsets({("a", 0): 5, ("b", 0): 1, ("b", 1): 2}, {"a": 3, "b": 1})
    assert json.dumps(one.to_json()) == json.dumps(two.to_json())
    assert Offsets.from_json(one.to_json()) == one


def test_at_most_so_many_offsets_are_taken_in_proportion(store: Store, tmp_path: Path) -> None:
    grow(store, "f", 750)
    grow(store, "g", 250)
    reading = stream(
        tmp_path / "data", subscribe="f,g", startingOffsets="earliest", maxOffsetsPerTrigger=100
    )
    start = reading.initialOffset()
    end = next_batch(reading, start)
    assert end["f"]["0"] == 75
    assert 20 <= sum(end["g"].values()) <= 27
    assert len(read_between(reading, start, end)) == 75 + sum(end["g"].values())
    everything = reading.latestOffset(start, ReadAllAvailable())
    assert everything["f"]["0"] == 750


def test_limits_leave_no_partition_without() -> None:
    assert shares({"a": 1000, "b": 1}, 10) == {"a": 9, "b": 1}
    assert shares({"a": 3, "b": 4}, 10) == {"a": 3, "b": 4}


def test_about_so_many_bytes_are_taken_and_all_in_the_end(store: Store, tmp_path: Path) -> None:
    grow(store, "f", 1000)
    reading = stream(
        tmp_path / "data", subscribe="f", startingOffsets="earliest", maxBytesPerTrigger=20_000
    )
    start, seen, batches = reading.initialOffset(), 0, 0
    while (end := next_batch(reading, start)) != start:
        taken = read_between(reading, start, end)
        assert taken == list(range(seen, seen + len(taken)))
        seen, start, batches = seen + len(taken), end, batches + 1
    assert seen == 1000
    assert 3 <= batches <= 15


def test_too_little_waits_until_there_is_enough_or_time_is_up(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 600}
    reading = stream(tmp_path / "data", subscribe="f", **given)
    start = reading.initialOffset()
    grow(store, "f", 500)
    assert next_batch(reading, start)["f"] == {"0": 0}
    grow(store, "f", 250, first=500)
    end = next_batch(reading, start)
    assert end["f"] == {"0": 750}
    grow(store, "f", 250, first=750)
    assert next_batch(reading, end) == end
    at = streaming.time.monotonic() + 15 * 60 + 1
    monkeypatch.setattr(streaming.time, "monotonic", lambda: at)
    assert next_batch(reading, end)["f"] == {"0": 1000}


def test_available_now_stops_at_the_end_as_it_was(store: Store, tmp_path: Path) -> None:
    grow(store, "f", 500)
    given = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 300}
    reading = stream(tmp_path / "data", subscribe="f", **given)
    start = reading.initialOffset()
    reading.prepareForTriggerAvailableNow()
    grow(store, "f", 250, first=500)
    ends = []
    while (end := next_batch(reading, start)) != start:
        ends.append(end["f"]["0"])
        start = end
    assert ends == [300, 500]
    assert isinstance(reading.getDefaultReadLimit(), ReadMaxRows)


def test_a_restart_plans_the_same_rows(store: Store, tmp_path: Path) -> None:
    grow(store, "g", 500)
    first = stream(tmp_path / "data", subscribe="g", startingOffsets="earliest")
    start = first.initialOffset()
    end = next_batch(first, start)
    grow(store, "g", 500, first=500)
    second = stream(tmp_path / "data", subscribe="g")
    assert read_between(second, start, end) == read_between(first, start, end)


def test_a_topic_created_again_stops_the_query(store: Store, tmp_path: Path) -> None:
    grow(store, "f", 500)
    reading = stream(tmp_path / "data", subscribe="f", startingOffsets="earliest")
    start = reading.initialOffset()
    end = next_batch(reading, start)
    store.delete_topic("f")
    store.create_topic("f", format="frame")
    grow(store, "f", 1000)
    for reader in (reading, stream(tmp_path / "data", subscribe="f", failOnDataLoss="false")):
        with pytest.raises(InvalidRequest, match=r"deleted and created again.*new checkpoint"):
            next_batch(reader, end)
        with pytest.raises(InvalidRequest, match="created again"):
            reader.partitions(start, end)


def test_a_deleted_topic_stops_the_query_unless_loss_is_allowed(
    store: Store, tmp_path: Path
) -> None:
    grow(store, "f", 250)
    grow(store, "g", 250)
    given = {"subscribePattern": "f|g", "startingOffsets": "earliest"}
    reading = stream(tmp_path / "data", **given)
    end = next_batch(reading, reading.initialOffset())
    store.delete_topic("f")
    grow(store, "g", 250, first=250)
    with pytest.raises(RecordsMissing, match="deleted"):
        next_batch(reading, end)
    following = next_batch(stream(tmp_path / "data", **given, failOnDataLoss="false"), end)
    assert "f" not in following
    assert sum(following["g"].values()) == 500


def test_retention_that_passed_the_checkpoint_is_named(store: Store, tmp_path: Path) -> None:
    grow(store, "f", 1000)
    reading = stream(tmp_path / "data", subscribe="f", startingOffsets="earliest")
    start = reading.initialOffset()
    earliest = store.trim("f", 0, 500)
    grow(store, "f", 250, first=1000)
    end = next_batch(reading, start)
    with pytest.raises(RecordsMissing, match=rf"offsets 0 to {earliest} \(trim\)"):
        reading.partitions(start, end)
    lenient = stream(tmp_path / "data", subscribe="f", failOnDataLoss="false")
    assert read_between(lenient, start, end) == list(range(earliest, 1250))


def test_new_topics_of_a_pattern_are_read_from_their_start(store: Store, tmp_path: Path) -> None:
    grow(store, "f", 250)
    reading = stream(tmp_path / "data", subscribePattern="f.*")
    start = reading.initialOffset()
    store.create_topic("fresh", format="frame")
    grow(store, "fresh", 250)
    end = next_batch(reading, start)
    assert end["fresh"] == {"0": 250}
    assert read_between(reading, start, end) == list(range(250))


def test_a_stream_has_no_end(tmp_path: Path, store: Store) -> None:
    with pytest.raises(InvalidRequest, match="no end"):
        stream(tmp_path / "data", subscribe="f", endingOffsets="latest")
