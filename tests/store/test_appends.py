"""Appending: what is taken, what is refused and why, and what the answer says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow as pa
import pytest

import lamina
from lamina.errors import InvalidRequest, UnknownTopic, UnsupportedField
from tests.server.rig import served
from tests.support.directories import (
    FORMATS,
    START_MS,
    Clock,
    copied,
    files_of,
    opened,
    rows,
    timed,
    values,
)

BOTH = pytest.mark.parametrize("format_name", FORMATS)


@BOTH
@pytest.mark.parametrize(
    "records",
    [
        b"a",
        [b"a"],
        [(None, b"a")],
        [{"value": b"a"}],
        pa.table({"value": [b"a"]}),
        pa.record_batch({"value": pa.array([b"a"])}),
        [bytearray(b"a")],
    ],
    ids=["bytes", "list", "tuples", "dicts", "table", "batch", "bytearray"],
)
def test_every_form_of_a_record_is_taken(tmp_path: Path, format_name: str, records: Any) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        answer = store.append("t", records)
        assert (answer.count, answer.durability) == (1, "fsynced")
        (row,) = rows(store)
        assert (row["offset"], row["key"], row["value"]) == (0, None, b"a")
        assert row["timestamp"] == START_MS


@BOTH
@pytest.mark.parametrize("nothing", [[], pa.table({"value": pa.array([], pa.binary())}), timed([])])
@pytest.mark.parametrize("partitions", [1, 3])
def test_nothing_is_refused(
    tmp_path: Path, format_name: str, nothing: Any, partitions: int
) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name, partitions=partitions)
        with pytest.raises(InvalidRequest, match="no records"):
            store.append("t", nothing)
        with pytest.raises(InvalidRequest, match="no records"):
            asyncio.run(store.append_async("t", nothing))


@BOTH
@pytest.mark.parametrize("wrong", ["text", [1], [("a", "b", "c")], [{"valve": b"a"}], [None], 7])
def test_what_is_no_record_is_refused_and_nothing_is_kept(
    tmp_path: Path, format_name: str, wrong: Any
) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        with pytest.raises(InvalidRequest):
            store.append("t", wrong)
        assert store.append("t", [b"a"]).parts[0].base_offset == 0


@BOTH
def test_a_record_over_the_limit_is_refused_and_one_at_it_is_kept(
    tmp_path: Path, format_name: str
) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name, config={"max.message.bytes": 1000})
        for fits in ([b"x" * 1000], [(b"k" * 400, b"x" * 600)], [b"x" * 1000] * 50):
            store.append("t", fits)
        for wrong in ([b"x" * 1001], [b"a", b"x" * 1001], [(b"k" * 400, b"x" * 601)]):
            with pytest.raises(
                InvalidRequest, match=r"1001 bytes is over max\.message\.bytes 1000"
            ):
                store.append("t", wrong)
        assert store.latest_offset("t") == 52


def test_headers_count_for_the_limit_in_bytes(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", config={"max.message.bytes": 1000})
        header = {"key": "é" * 100, "value": b"h" * 300}
        store.append("t", [{"value": b"x" * 500, "headers": [header]}])
        with pytest.raises(InvalidRequest, match="1001 bytes"):
            store.append("t", [{"value": b"x" * 501, "headers": [header]}])


@BOTH
def test_the_largest_record_of_all_is_kept(tmp_path: Path, format_name: str) -> None:
    largest = bytes(256) + b"x" * ((16 << 20) - 256 - 5)
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name, config={"segment.bytes": 1024})
        store.append("t", [(b"12345", largest)])
        store.append("t", [b"small"])
        assert values(store) == [largest, b"small"]
        assert len(files_of(tmp_path / "data", "log")) == 2, "it owns a segment"


@BOTH
def test_a_batch_larger_than_a_segment_is_split_at_records(
    tmp_path: Path, format_name: str
) -> None:
    contents = [bytes([number]) * 300 for number in range(40)]
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name, config={"segment.bytes": 1024})
        store.append("t", contents[:1])
        answer = store.append("t", contents[1:])
        assert (answer.parts[0].base_offset, answer.count) == (1, 39)
        assert values(store) == contents
        killed = copied(tmp_path / "data")
        logs = files_of(killed, "log")
        assert len(logs) > 10
        assert all(log.stat().st_size <= 1024 for log in logs[:-1])
    with opened(killed) as store:
        assert values(store) == contents


@BOTH
def test_append_time_replaces_the_producers_where_the_topic_says_so(
    tmp_path: Path, format_name: str
) -> None:
    clock = Clock()
    with opened(tmp_path / "data", clock) as store:
        config = {"message.timestamp.type": "LogAppendTime"}
        store.create_topic("t", format=format_name, config=config)
        store.append("t", timed([1, 2]))
        clock.now_ms += 5
        store.append("t", [b"a"])
        assert [row["timestamp"] for row in rows(store)] == [START_MS, START_MS, START_MS + 5]
        store.alter_topic("t", {"message.timestamp.type": "CreateTime"})
        store.append("t", timed([1]))
        assert [row["timestamp"] for row in rows(store)][-1] == 1
        assert store.offset_for_time("t", 0, START_MS + 1) == 2


@BOTH
def test_a_missing_time_is_the_time_of_the_append(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        batch = pa.record_batch(
            {"value": [b"a", b"b"], "timestamp": pa.array([7, None], pa.timestamp("ms", "UTC"))}
        )
        store.append("t", batch)
        assert [row["timestamp"] for row in rows(store)] == [7, START_MS]


@pytest.mark.parametrize(
    ("format_name", "record", "able"),
    [
        ("frame", {"value": b"a", "headers": [{"key": "h", "value": b"v"}]}, "keratin"),
        ("frame", {"value": b"a", "tag": b"x"}, "wal"),
        ("frame", {"value": None}, "keratin"),
        ("keratin", {"value": b"a", "tag": b"x"}, "wal"),
        ("keratin", {"value": b"a", "node": b"x"}, "wal"),
    ],
)
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_field_that_is_not_kept_is_refused_naming_a_format_that_keeps_it(
    tmp_path: Path, format_name: str, record: dict[str, Any], able: str, partitions: int
) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name, partitions=partitions)
        with pytest.raises(UnsupportedField, match=rf"format {format_name}.*{able}"):
            store.append("t", [record])
        assert store.latest_offset("t") == 0


@BOTH
@pytest.mark.parametrize("acks", ["none", 2, None, True, 1.5, [], "archive"])
def test_unknown_acks_are_refused(tmp_path: Path, format_name: str, acks: Any) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        with pytest.raises(InvalidRequest, match="acks must be 0, 1, 'all' or 'archived'"):
            store.append("t", [b"a"], acks=acks)


@BOTH
def test_the_answer_says_what_was_reached(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        reached = [
            (acks, store.append("t", [b"a"], acks=acks).durability)
            for acks in (0, "0", 1, "1", "all", -1, "-1")
        ]
        assert reached == [
            (0, "none"),
            ("0", "none"),
            (1, "written"),
            ("1", "written"),
            ("all", "fsynced"),
            (-1, "fsynced"),
            ("-1", "fsynced"),
        ]
        assert len(values(store)) == 7


@pytest.fixture(params=["embedded", "served"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An open store, and one behind a server: both say the same of what they are given."""
    if request.param == "embedded":
        with opened(tmp_path / "data") as found:
            yield found
        return
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as found:
        yield found


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("text", r"a record is bytes, not text: use text\.encode\(\)"),
        (["text"], r"use text\.encode\(\)"),
        ({"value": b"a"}, "put a single dict in a list"),
        (7, "not int"),
        (None, "not None"),
        ([{"value": b"a", "vlaue": b"b"}], "unknown column 'vlaue': topic 't' has no schema"),
        (pa.table({"key": [b"k"]}), "no column 'value': topic 't' has no schema"),
    ],
)
def test_a_refusal_says_how_records_are_handed_in(store: Any, given: Any, advice: str) -> None:
    store.create_topic("t")
    with pytest.raises(InvalidRequest, match=advice):
        store.append("t", given)
    assert store.latest_offset("t") == 0


def test_a_data_frame_is_taken_as_a_table(store: Any) -> None:
    given = {"key": [b"a", b"b"], "value": [b"1", b"2"]}
    store.create_topic("t")
    store.append("t", pandas.DataFrame(given))
    store.append("t", polars.DataFrame(given))
    relation = duckdb.sql("select 'c'::blob as key, '3'::blob as value")
    store.append("t", relation)
    (read,) = store.scan("t")
    assert read["key"].to_pylist() == [b"a", b"b", b"a", b"b", b"c"]
    assert read["value"].to_pylist() == [b"1", b"2", b"1", b"2", b"3"]
    with pytest.raises(InvalidRequest, match="Series"):
        store.append("t", polars.Series([b"1"]))


def test_rows_of_a_typed_topic_are_dicts_of_its_columns(store: Any) -> None:
    store.create_topic("t", schema=pa.schema([("id", pa.int64()), ("value", pa.float64())]))
    store.append("t", [{"id": 1, "value": 0.5}, {"id": 2}])
    store.append("t", pandas.DataFrame({"id": [3], "value": [1.5]}))
    table = store.read("t").read_all()
    assert table["id"].to_pylist() == [1, 2, 3]
    assert table["value"].to_pylist() == [0.5, None, 1.5]
    for wrong in ([{"id": 1}, b"x"], [{"id": 1}, {"id": "a"}], [{"di": 1}]):
        with pytest.raises(InvalidRequest):
            store.append("t", wrong)
    assert store.latest_offset("t") == 3


def test_the_only_partition_of_a_topic_is_named(store: Any) -> None:
    store.create_topic("t")
    with pytest.raises(UnknownTopic, match="topic 't' has one partition, 0, not 5"):
        store.append("t", b"a", partition=5)
