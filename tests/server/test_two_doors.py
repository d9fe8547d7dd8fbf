"""One suite, two doors: every call embedded and served gives the same results and errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lamina
from lamina.api import RouterInfo
from lamina.client.remote_store import RemoteStore
from lamina.errors import (
    Closed,
    InvalidRequest,
    LaminaError,
    OffsetOutOfRange,
    OutOfSequence,
    RecordsMissing,
    TopicExists,
    UnknownGroup,
    UnknownRouter,
    UnknownSchema,
    UnknownTopic,
    UnsupportedField,
)
from lamina.store.store import Store
from lamina.wire.operations import OPERATIONS
from tests.server.rig import served
from tests.support.public_calls import Target, answers, signature_of

DOORS = ("embedded", "served")
SMALL = {"segment.bytes": 1024}


@pytest.fixture(params=DOORS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "embedded":
        with lamina.open(str(tmp_path / "data")) as opened:
            yield opened
    else:
        with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as client:
            yield client


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """An embedded and a served store, for calls whose outcomes are compared."""
    folder = tmp_path_factory.mktemp("both")
    with (
        lamina.open(str(folder / "embedded")) as embedded,
        served(folder / "served") as service,
        lamina.connect(service.flight_url) as client,
    ):
        yield {"embedded": embedded, "served": client}


def values(store: Any, topic: str, **asked: Any) -> list[bytes]:
    return [v for batch in store.scan(topic, **asked) for v in batch.column("value").to_pylist()]


def test_routers_are_made_listed_changed_and_deleted(store: Any) -> None:
    for name in ("s", "t", "u"):
        store.create_topic(name, format="wal")
    store.create_router("r", "s", "t", tag=b"red")
    store.append("s", [{"value": b"1", "tag": b"red"}, {"value": b"2", "tag": b"blue"}])
    assert values(store, "t") == [b"1"]
    assert store.routers() == [RouterInfo("r", "s", "t", tag=b"red")]
    store.alter_router("r", target="u", tag_prefix=b"b")
    assert store.routers() == [RouterInfo("r", "s", "u", tag_prefix=b"b")]
    store.append("s", [{"value": b"3", "tag": b"blue"}])
    assert values(store, "u") == [b"3"]
    with pytest.raises(InvalidRequest, match="exists"):
        store.create_router("r", "s", "t", tag=b"red")
    store.delete_router("r")
    assert store.routers() == []
    for call in (store.delete_router, store.alter_router):
        with pytest.raises(UnknownRouter):
            call("r")


@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
def test_the_names_of_the_logs_document(store: Any, format_name: str) -> None:
    store.create_topic("t", format=format_name, partitions=2)
    first = store.earliest_offset("t", 1)
    assert store.append_batch("t", [b"a", b"b", b"c"], partition=1) == (first, 3)
    assert store.append_batch("t", [b"d"], partition=1, acks="all") == (first + 3, 1)

    def read(offset: int, **limits: int) -> list[bytes]:
        batches = store.scan_from("t", 1, offset, **limits)
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    assert read(first) == [b"a", b"b", b"c", b"d"]
    assert read(first + 1, max_msgs=2) == [b"b", b"c"]
    assert read(first, max_bytes=1) == [b"a"]
    assert read(first + 4) == []
    for limits in ({"max_msgs": 0}, {"max_bytes": -1}):
        with pytest.raises(InvalidRequest):
            read(first, **limits)
    with pytest.raises(OffsetOutOfRange):
        read(first + 9)


def test_a_topic_is_created_where_it_is_not_there_yet(store: Any) -> None:
    for _ in range(2):
        store.create_topic("t", partitions=2, format="frame", exist_ok=True)
    with pytest.raises(TopicExists) as refused:
        store.create_topic("t", partitions=3, format="wal", exist_ok=True)
    difference = "partitions 2, not 3; format frame, not wal"
    assert (refused.value.topic, refused.value.difference) == ("t", difference)
    with pytest.raises(TopicExists) as taken:
        store.create_topic("t", partitions=2, format="frame")
    assert (taken.value.topic, taken.value.difference) == ("t", "")
    assert store.format_of("t") == ("frame", 2)


def test_what_is_appended_is_read_back(store: Any) -> None:
    store.create_topic("t")
    ack = store.append("t", [b"a", b"b"])
    assert (ack.base_offset, ack.count, ack.durability, ack.partition) == (0, 2, "fsynced", 0)
    assert store.append("t", b"c", acks=1).durability in ("written", "fsynced")
    assert store.append("t", b"d", acks=0).durability == "none"
    assert store.append("t", b"e").base_offset == 4
    assert values(store, "t") == [b"a", b"b", b"c", b"d", b"e"]
    assert values(store, "t", start=3, end=4) == [b"d"]


def test_all_kinds_of_records_are_taken(store: Any) -> None:
    store.create_topic("t")
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    store.append("t", [(b"k", b"v"), (None, None)])
    store.append("t", [{"value": b"x", "headers": headers, "timestamp": 5}])
    store.append("t", pa.table({"value": [b"1", b"2"], "key": [b"a", None]}))
    store.append("t", pa.RecordBatch.from_pydict({"value": [b"3"]}))
    store.append("t", [b"%d" % number for number in range(200)])
    rows = [row for batch in store.scan("t") for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(206))
    assert [(row["key"], row["value"]) for row in rows[:3]] == [
        (b"k", b"v"),
        (None, None),
        (None, b"x"),
    ]
    assert rows[2]["headers"] == headers
    assert rows[2]["timestamp"].timestamp() == 0.005
    assert rows[-1]["value"] == b"199"


def test_a_table_of_several_batches_is_one_append(store: Any) -> None:
    store.create_topic("t")
    batches = [pa.record_batch({"value": [b"%d" % n, b"%d" % (n + 1)]}) for n in range(0, 6, 2)]
    ack = store.append("t", pa.Table.from_batches(batches))
    assert (ack.base_offset, ack.count) == (0, 6)
    assert values(store, "t") == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_keys_choose_the_partition(store: Any) -> None:
    store.create_topic("t", partitions=4)
    keyed = [(b"key %d" % (number % 9), b"%d" % number) for number in range(90)]
    ack = store.append("t", keyed)
    assert (ack.count, sum(part.count for part in ack.parts.values())) == (90, 90)
    homes = [
        {row["key"] for batch in store.scan("t", number) for row in batch.to_pylist()}
        for number in range(4)
    ]
    assert set.union(*homes) == {key for key, _ in keyed}
    assert sum(map(len, homes)) == 9, "a key has one home"
    assert store.append("t", keyed).parts.keys() == ack.parts.keys()


def test_batches_keep_to_the_limits(store: Any) -> None:
    store.create_topic("t", config=SMALL)
    store.append("t", [b"x" * 50] * 100)
    sizes = [batch.num_rows for batch in store.scan("t", max_records=7)]
    assert sum(sizes) == 100
    assert max(sizes) == 7
    assert store.fetch("t", 0, 99, max_records=10).column("offset").to_pylist() == [99]
    assert store.fetch("t", 0, 100).num_rows == 0
    assert store.fetch("t", 0, 100).schema == store.fetch("t", 0, 0).schema


def test_a_long_poll_ends_with_the_append_that_it_waits_for(store: Any) -> None:
    import threading

    store.create_topic("t")
    found: list[pa.RecordBatch] = []
    waiting = threading.Thread(target=lambda: found.append(store.fetch("t", 0, 0, wait_ms=60_000)))
    waiting.start()
    store.append("t", b"now")
    waiting.join(50)
    assert not waiting.is_alive()
    assert found[0].column("value").to_pylist() == [b"now"]


def test_topics_are_created_changed_described_and_deleted(store: Any) -> None:
    store.create_topic("b", partitions=2, format="frame", config={"retention.ms": 5000})
    store.create_topic("a")
    assert store.topics() == ["a", "b"]
    store.alter_topic("b", {"retention.bytes": 10_000})
    info = store.describe_topic("b")
    assert (info.name, info.format, info.epoch, len(info.partitions)) == ("b", "frame", 1, 2)
    assert info.settings["retention.ms"] == 5000
    assert info.settings["retention.bytes"] == 10_000
    store.delete_topic("b")
    assert store.topics() == ["a"]
    store.create_topic("b")
    assert store.describe_topic("b").epoch == 2
    store.append("b", b"again")
    assert values(store, "b") == [b"again"]


def test_segments_are_rolled_trimmed_and_explained(store: Any) -> None:
    store.create_topic("t", config=SMALL)
    for _ in range(10):
        store.append("t", [b"x" * 100] * 3)
    store.roll("t")
    before = store.segments("t")
    assert [segment.sealed for segment in before] == [True] * (len(before) - 1) + [False]
    cut = before[2].base_offset
    assert store.trim("t", 0, cut) == cut == store.earliest_offset("t")
    assert [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")] == [(0, cut, "trim")]
    with pytest.raises(RecordsMissing) as caught:
        list(store.scan("t", start=0))
    assert (caught.value.first, caught.value.end, caught.value.reason) == (0, cut, "trim")
    store.alter_topic("t", {"retention.bytes": 1})
    decisions = store.explain_retention("t")
    assert decisions[0].goes
    assert "retention.bytes" in decisions[0].why
    assert store.apply_retention("t") + 1 == len(decisions)
    assert store.offset_for_time("t", 0, 1 << 50) is None
    assert store.latest_offset("t") == 30
    store.flush()
    store.maintain()


def test_a_reader_gets_what_is_before_a_gap_and_then_the_reason(store: Any) -> None:
    store.create_topic("t", config=SMALL)
    for number in range(12):
        store.append("t", [b"%03d" % number * 30] * 2)
    cut = store.segments("t")[1].base_offset
    scan = store.scan("t", max_records=1)
    first = next(scan)
    assert first.column("offset").to_pylist() == [0]
    store.trim("t", 0, cut)
    rest: list[int] = []
    told: list[RecordsMissing] = []
    try:
        for batch in scan:
            rest += batch.column("offset").to_pylist()
    except RecordsMissing as missing:  # unless the reader had the segment in its hands already
        told.append(missing)
    assert rest == list(range(1, 1 + len(rest)))
    assert len(rest) == 23 or [each.end for each in told] == [cut]


def test_a_producer_that_repeats_itself_gets_its_first_answer(store: Any) -> None:
    store.create_topic("t")
    stamp = lamina.ProducerStamp(7, 0, 0)
    first = store.append("t", [b"a", b"b"], partition=0, producer=stamp)
    again = store.append("t", [b"a", b"b"], partition=0, producer=stamp)
    assert (again.base_offset, again.count) == (first.base_offset, first.count)
    with pytest.raises(OutOfSequence):
        store.append("t", b"c", partition=0, producer=lamina.ProducerStamp(7, 0, 9))
    assert values(store, "t") == [b"a", b"b"]


def test_records_of_a_wal_topic_are_deleted_and_followed(store: Any) -> None:
    store.create_topic("w", format="wal")
    rows = [
        {"value": b"%d" % n, "tag": b"t%d" % (n % 3), "node": b"n%d" % (n % 2)} for n in range(9)
    ]
    store.append("w", rows)
    assert store.delete("w", tag=b"t1") == 3
    assert store.delete("w", offsets=iter([1, 1, 3])) == 2
    assert store.delete("w", 0, before=5) == 1
    assert store.delete("w", tag_prefix=b"t\xff") == 0
    found = store.diff("w", 0, 1, exclude_node=b"n0")
    assert found.records.column("value").to_pylist() == [b"5"]
    assert (found.next_offset, found.caught_up) == (10, True)
    part = store.diff("w", 0, 6, limit=2)
    assert (part.records.num_rows, part.caught_up) == (2, False)
    assert part.records.schema == store.fetch("w", 0, part.next_offset).schema


def test_a_diff_goes_over_gaps_and_names_them(store: Any) -> None:
    store.create_topic("t", config=SMALL)
    for number in range(12):
        store.append("t", [b"%03d" % number * 60])
    left = store.trim("t", 0, 6)
    found = store.diff("t", 0, 0)
    assert [(gap.first, gap.end, gap.reason) for gap in found.gaps] == [(0, left, "trim")]
    assert found.records.column("offset").to_pylist() == list(range(left, 12))
    assert found.records.schema == store.fetch("t", 0, left).schema


def test_a_store_tells_of_formats_failures_producers_and_its_archive(store: Any) -> None:
    store.create_topic("f", format="frame", partitions=3)
    assert store.format_of("f") == ("frame", 3)
    assert store.failures() == {}
    assert store.tier_status() == []
    assert store.producer_position("f", 1, 7) is None
    store.append("f", [b"a", b"b"], partition=1, producer=lamina.ProducerStamp(7, 3, 0))
    assert store.producer_position("f", 1, 7) == (3, 2)


def test_a_closed_store_says_so(store: Any) -> None:
    store.create_topic("t")
    store.close()
    for call in (
        lambda: store.append("t", b"x"),
        store.topics,
        lambda: store.fetch("t", 0, 0),
        lambda: list(store.scan("t")),
    ):
        with pytest.raises(Closed):
            call()


# ---------------------------------------------------------------- the same errors, word for word

WRONG: dict[str, tuple[type[LaminaError], Callable[[Any], object]]] = {
    "a topic that is there": (TopicExists, lambda s: s.create_topic("t")),
    "a topic that is there, another one": (
        TopicExists,
        lambda s: s.create_topic("t", partitions=2, exist_ok=True),
    ),
    "a name that leaves the directory": (InvalidRequest, lambda s: s.create_topic("../x")),
    "an unknown format": (InvalidRequest, lambda s: s.create_topic("x", format="csv")),
    "no partitions": (InvalidRequest, lambda s: s.create_topic("x", partitions=0)),
    "an unknown setting": (InvalidRequest, lambda s: s.create_topic("x", config={"retention": 1})),
    "a setting out of range": (InvalidRequest, lambda s: s.alter_topic("t", {"segment.ms": -7})),
    "describing nothing": (UnknownTopic, lambda s: s.describe_topic("x")),
    "altering nothing": (UnknownTopic, lambda s: s.alter_topic("x", {})),
    "deleting nothing": (UnknownTopic, lambda s: s.delete_topic("x")),
    "appending to nothing": (UnknownTopic, lambda s: s.append("x", b"v")),
    "a partition that is not there": (UnknownTopic, lambda s: s.append("t", b"v", partition=3)),
    "a negative partition": (UnknownTopic, lambda s: s.fetch("t", -1, 0)),
    "no records": (InvalidRequest, lambda s: s.append("t", [])),
    "an empty batch": (
        InvalidRequest,
        lambda s: s.append("t", pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())})),
    ),
    "an unknown level": (InvalidRequest, lambda s: s.append("t", b"v", acks="some")),
    "an unknown column": (UnknownSchema, lambda s: s.append("t", pa.table({"price": [1]}))),
    "a column of another type": (
        InvalidRequest,
        lambda s: s.append("t", pa.table({"value": [1.5]})),
    ),
    "offsets of one's own": (
        InvalidRequest,
        lambda s: s.append("t", pa.table({"value": [b"v"], "offset": [7]})),
    ),
    "a field that is not kept": (
        UnsupportedField,
        lambda s: s.append("f", [{"value": b"v", "headers": [{"key": "a", "value": b"b"}]}]),
    ),
    "a null that is not kept": (UnsupportedField, lambda s: s.append("f", [(b"k", None)])),
    "a record that is none": (InvalidRequest, lambda s: s.append("t", [7])),
    "a record without a value": (InvalidRequest, lambda s: s.append("t", [{"key": b"k"}])),
    "a large record": (InvalidRequest, lambda s: s.append("small", b"x" * 2000)),
    "a start below zero": (OffsetOutOfRange, lambda s: list(s.scan("t", start=-1))),
    "a start beyond the end": (OffsetOutOfRange, lambda s: list(s.scan("t", start=99))),
    "a fetch beyond the end": (OffsetOutOfRange, lambda s: s.fetch("t", 0, 99)),
    "a scan of nothing": (UnknownTopic, lambda s: list(s.scan("x"))),
    "a limit of nothing": (InvalidRequest, lambda s: list(s.scan("t", max_records=0))),
    "an idempotent append without partition": (
        InvalidRequest,
        lambda s: s.append("many", b"v", producer=lamina.ProducerStamp(1, 0, 0)),
    ),
    "a trim of nothing": (UnknownTopic, lambda s: s.trim("x", 0, 5)),
    "gaps of nothing": (UnknownTopic, lambda s: s.gaps("t", 9)),
    "a deletion in a segmented log": (InvalidRequest, lambda s: s.delete("t", before=1)),
    "a deletion of nothing named": (InvalidRequest, lambda s: s.delete("wal")),
    "a deletion by two ways": (InvalidRequest, lambda s: s.delete("wal", before=1, tag=b"x")),
    "an archive that is not there": (InvalidRequest, lambda s: s.archive()),
    "a node that is not kept": (InvalidRequest, lambda s: s.diff("t", 0, 0, exclude_node=b"n")),
    "a diff of nothing": (UnknownTopic, lambda s: s.diff("x", 0, 0)),
    "a producer of nothing": (UnknownTopic, lambda s: s.producer_position("x", 0, 1)),
    "a producer of a wal topic that skips": (
        OutOfSequence,
        lambda s: s.append("wal", b"x", partition=0, producer=lamina.ProducerStamp(1, 0, 9)),
    ),
    "a group of nothing": (UnknownTopic, lambda s: s.group("x", "g")),
    "a group that starts elsewhere": (InvalidRequest, lambda s: s.group("t", "g", start="last")),
    "a group that is not made": (UnknownGroup, lambda s: s.group("t", "none", start="none")),
    "a group's wrong name": (InvalidRequest, lambda s: s.group("t", "")),
    "describing no group": (UnknownGroup, lambda s: s.describe_group("t", "none")),
    "deleting no group": (UnknownGroup, lambda s: s.delete_group("t", "none")),
    "resetting no group": (UnknownGroup, lambda s: s.reset_group("t", "none", to=0)),
    "a reset to two places": (
        InvalidRequest,
        lambda s: s.reset_group("t", "there", to=0, shift=1),
    ),
    "a reset to a word": (InvalidRequest, lambda s: s.reset_group("t", "there", to="first")),
    "a reset of no partition": (
        InvalidRequest,
        lambda s: s.reset_group("t", "there", to=0, partitions=[4]),
    ),
    "no records polled": (InvalidRequest, lambda s: s.group("t", "there").poll(0)),
    "a poll of no bytes": (InvalidRequest, lambda s: s.group("t", "there").poll(max_bytes=0)),
    "a lease of nothing": (InvalidRequest, lambda s: s.group("t", "there").poll(lease_ms=0)),
    "a poll not waited for": (InvalidRequest, lambda s: s.group("t", "there").poll(acks=0)),
    "a poll elsewhere": (UnknownTopic, lambda s: s.group("t", "there").poll(partitions=[4])),
    "an ack of text": (InvalidRequest, lambda s: s.group("t", "there").ack("0")),
    "an ack below zero": (InvalidRequest, lambda s: s.group("t", "there").ack([-1])),
    "an ack of halves": (InvalidRequest, lambda s: s.group("t", "there").ack([0.5])),
    "an ack of a stranger": (
        InvalidRequest,
        lambda s: s.group("t", "there").ack(pa.table({"value": [b"v"]})),
    ),
    "an ack without partition": (InvalidRequest, lambda s: s.group("many", "there").ack(0)),
    "an ack elsewhere": (UnknownTopic, lambda s: s.group("many", "there").ack(0, partition=5)),
    "a release elsewhere": (UnknownTopic, lambda s: s.group("t", "there").release(0, partition=5)),
    "an extension of nothing": (InvalidRequest, lambda s: s.group("t", "there").extend(0, 0)),
    "a commit below zero": (InvalidRequest, lambda s: s.group("t", "there").commit(-1)),
    "a commit elsewhere": (UnknownTopic, lambda s: s.group("t", "there").commit(0, 7)),
    "the place elsewhere": (UnknownTopic, lambda s: s.group("t", "there").committed(7)),
    "a missing range": (RecordsMissing, lambda s: list(s.scan("gone", start=0))),
}


@pytest.fixture(scope="module")
def prepared(both: dict[str, Any]) -> dict[str, Any]:
    for store in both.values():
        store.create_topic("t")
        store.append("t", b"first")
        store.create_topic("f", format="frame")
        store.create_topic("many", partitions=2)
        store.create_topic("wal", format="wal")
        store.append("wal", b"first", partition=0, producer=lamina.ProducerStamp(1, 0, 0))
        store.group("t", "there")
        store.group("many", "there")
        store.create_topic("small", config={"max.message.bytes": 1000})
        store.create_topic("gone", config=SMALL)
        store.append("gone", [b"x" * 100] * 40)
        store.trim("gone", 0, 20)
    return both


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_gets_the_same_error_through_both_doors(
    prepared: dict[str, Any], name: str
) -> None:
    kind, call = WRONG[name]
    told = {}
    for door, store in prepared.items():
        with pytest.raises(LaminaError) as caught:
            call(store)
        told[door] = (type(caught.value), str(caught.value), vars(caught.value))
        assert type(caught.value) is kind
        assert values(store, "t") == [b"first"], "nothing was changed"
    problem = f"{told['embedded'][1]} | {told['served'][1]}"
    assert told["served"] == told["embedded"], problem


DRAWN = {"blocks", "extents", "layers", "raw_record", "sinks", "writers"}
"""What the console draws inside the server; a client sees it as pages."""
HELD = {
    *("gone_from", "purge_wal", "segmented", "wal_partitions", "write_ahead_log"),
    *("coordinator", "new_producer_id"),
}
"""What jobs and the tier need of a store that this process holds: its partitions themselves."""
OF_THE_DIRECTORY = {"identity", "path", "recovery_report", "seat", "tier"}


def test_every_public_method_of_a_store_is_there_on_a_client(both: dict[str, Any]) -> None:
    methods = set(dir(Store)) - {name for name in dir(Store) if name.startswith("_")}
    refusing = {name for name in methods if not answers(RemoteStore, name)}
    assert refusing == DRAWN | HELD | OF_THE_DIRECTORY
    for name in refusing:
        signature = signature_of(RemoteStore, name)
        given = Target(lambda: None, RemoteStore).arguments(name, signature) if signature else {}
        with pytest.raises(InvalidRequest, match=f"{name} is not served"):
            getattr(both["served"], name)(**given)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if "." not in name])
def test_an_operation_has_the_signature_of_its_method(name: str) -> None:
    served, embedded = (
        inspect.signature(getattr(kind, name)).replace(return_annotation=None)
        for kind in (RemoteStore, Store)
    )
    assert served == embedded
    first_words = [getattr(kind, name).__doc__.split(";")[0][:40] for kind in (RemoteStore, Store)]
    assert first_words[0] == first_words[1]
