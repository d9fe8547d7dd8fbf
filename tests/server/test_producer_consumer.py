"""Producer and Consumer, on an embedded and on a served store."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lamina
from lamina import Consumer, Producer, TopicPartition
from lamina.client.committed import InMemory
from lamina.client.message import OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, Message
from lamina.errors import (
    InvalidRequest,
    LaminaError,
    OffsetOutOfRange,
    QueueFull,
    RecordsMissing,
    Unavailable,
    UnknownTopic,
)
from tests.server.rig import served


@pytest.fixture(params=["embedded", "served"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "embedded":
        with lamina.open(str(tmp_path / "data")) as opened:
            opened.create_topic("t", partitions=3)
            yield opened
    else:
        with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as client:
            client.create_topic("t", partitions=3)
            yield client


def everything(store: Any) -> dict[tuple[int, int], tuple[bytes, bytes]]:
    return {
        (partition, row["offset"]): (row["key"], row["value"])
        for partition in range(3)
        for batch in store.scan("t", partition)
        for row in batch.to_pylist()
    }


def test_every_record_is_delivered_once_and_told_where(store: Any) -> None:
    told: list[Message] = []
    with Producer(store, {"linger.ms": 2}) as producer:
        for number in range(500):
            producer.produce(
                "t",
                f"value {number}",
                f"key {number % 20}",
                on_delivery=lambda error, message: told.append(message),
                headers={"n": b"1"},
            )
            producer.poll(0)
        assert producer.flush() == 0
        assert len(producer) == 0
    assert [message.error() for message in told] == [None] * 500
    found = everything(store)
    assert len(found) == 500
    for message in told:
        where = message.partition(), message.offset()
        assert found[where] == (message.key(), message.value())
    homes = {(message.key(), message.partition()) for message in told}
    assert len(homes) == 20, "a key has one home"


def test_the_callbacks_run_where_poll_is_called(store: Any) -> None:
    threads: list[str] = []
    with Producer(store) as producer:
        producer.produce(
            "t", b"x", on_delivery=lambda *_: threads.append(threading.current_thread().name)
        )
        while not producer.poll(1):
            pass
    assert threads == [threading.current_thread().name]


def test_what_cannot_be_delivered_is_told_and_the_rest_goes_on(store: Any) -> None:
    told: dict[str, Any] = {}
    with Producer(store) as producer:
        for topic, partition in (("t", 0), ("none", -1), ("t", 9), ("t", 1)):
            producer.produce(
                topic,
                b"v",
                partition=partition,
                on_delivery=lambda error, message, name=f"{topic}{partition}": told.update(
                    {name: error}
                ),
            )
        producer.flush()
    assert told["t0"] is None
    assert told["t1"] is None
    assert isinstance(told["none-1"], UnknownTopic)
    assert isinstance(told["t9"], UnknownTopic)


def test_a_full_queue_is_told(store: Any) -> None:
    with Producer(store, {"queue.buffering.max.messages": 5, "linger.ms": 1000}) as producer:

        def produce_many() -> None:
            for _ in range(100):
                producer.produce("t", b"v")

        with pytest.raises(QueueFull):
            produce_many()
        producer.flush()
    assert len(everything(store)) >= 5


@pytest.mark.parametrize("kind", [Producer, Consumer])
@pytest.mark.parametrize("given", [{"bootstrap.servers": "host:9092"}, "data", None])
def test_whoever_begins_as_with_kafka_s_clients_is_told_to_name_a_store(
    kind: Any, given: Any
) -> None:
    """Otherwise each record would be taken, and lost where nobody looks at its delivery."""
    with pytest.raises(InvalidRequest, match=rf"{kind.__name__} begins with a store, lamina\."):
        kind(given)


@pytest.mark.parametrize("address", ["localhost:9300", "http://localhost:9301", "grpc://"])
def test_an_address_that_is_none_is_told_what_one_looks_like(address: str) -> None:
    with pytest.raises(InvalidRequest, match=r"grpc://host:port.* Flight port \(9300 by default\)"):
        lamina.connect(address)


def test_wrong_settings_are_refused(store: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"linger\.mss"):
        Producer(store, {"linger.mss": 5})
    with pytest.raises(InvalidRequest, match=r"group\.ids"):
        Consumer(store, {"group.ids": "x"})
    with pytest.raises(InvalidRequest, match="earliest"):
        Consumer(store, {"auto.offset.reset": "first"})


def test_a_consumer_reads_everything_in_the_order_of_each_partition(store: Any) -> None:
    for partition in range(3):
        store.append("t", [b"%d" % number for number in range(40)], partition=partition)
    with Consumer(store, {"auto.offset.reset": "earliest", "max.poll.records": 7}) as consumer:
        consumer.subscribe(["t"])
        found: dict[int, list[bytes | None]] = {0: [], 1: [], 2: []}
        while (message := consumer.poll(0.2)) is not None:
            found[message.partition()].append(message.value())
        assert found == {n: [b"%d" % number for number in range(40)] for n in range(3)}
        assert consumer.poll(0) is None
        store.append("t", b"later", partition=1)
        later = consumer.consume(5, 30)
        assert [(each.partition(), each.value()) for each in later] == [(1, b"later")]
        assert consumer.get_watermark_offsets(TopicPartition("t", 1)) == (0, 41)


def test_commits_say_what_was_processed_and_nothing_else_does(store: Any) -> None:
    store.append("t", [b"a", b"b", b"c"], partition=0)
    positions = InMemory()
    settings = {"group.id": "g", "auto.offset.reset": "earliest"}
    with Consumer(store, settings, positions=positions) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        first, _ = consumer.consume(2, 5)
        assert consumer.committed([TopicPartition("t", 0)])[0].offset == OFFSET_STORED
        assert consumer.position([TopicPartition("t", 0)])[0].offset == 2
        consumer.commit(first)
    with Consumer(store, settings, positions=positions) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        assert [each.value() for each in consumer.consume(10, 5)] == [b"b", b"c"]
        assert [each.offset for each in consumer.commit()] == [3]
        assert consumer.committed([TopicPartition("t", 0)])[0].offset == 3


def placed(store: Any) -> dict[int, int]:
    return {each.partition: each.offset for each in store.committed_offsets("g")}


def test_positions_of_a_group_outlive_the_consumer_and_show_its_lag(store: Any) -> None:
    store.append("t", [b"a", b"b", b"c"], partition=0)
    store.append("t", [b"d"], partition=1)
    settings = {"group.id": "g", "auto.offset.reset": "earliest"}
    with Consumer(store, settings) as consumer:
        consumer.subscribe(["t"])
        first = consumer.consume(1, 5)[0]
        assert [part.records for part in store.describe_group("t", "g").partitions] == [3, 1, 0]
        where = first.partition()
        assert consumer.commit(first) == [TopicPartition("t", where, 1)]
        assert placed(store) == {0: 0, 1: 0, 2: 0} | {where: 1}
        consumer.commit(offsets=[TopicPartition("t", where, 0), TopicPartition("t", 0, 1)])
    assert store.describe_group("t", "g").lag == 3
    with Consumer(store, {"group.id": "g"}) as again:
        again.subscribe(["t"])
        found = {(m.partition(), m.value()) for _ in range(3) for m in again.consume(9, 5)}
        assert found == {(0, b"b"), (0, b"c"), (1, b"d")}
        assert [each.offset for each in again.committed(again.assignment())] == [1, 0, 0]
        again.commit()
    assert store.describe_group("t", "g").lag == 0
    assert store.groups() == [("t", "g")]


def test_a_group_that_is_not_there_is_not_made_by_looking(store: Any) -> None:
    with Consumer(store, {"group.id": "g"}) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(OffsetOutOfRange, match=r"auto\.offset\.reset"):
            consumer.poll(5)
        assert consumer.committed([TopicPartition("t", 0)])[0].offset == OFFSET_STORED
    assert store.groups() == []
    store.append("t", b"old", partition=0)
    with Consumer(store, {"group.id": "g", "auto.offset.reset": "latest"}) as consumer:
        consumer.subscribe(["t"])
        assert consumer.poll(1) is None
        assert len(consumer.assignment()) == 3
    store.append("t", b"new", partition=0)
    with Consumer(store, {"group.id": "g", "auto.offset.reset": "latest"}) as consumer:
        consumer.subscribe(["t"])
        assert [m.value() for m in consumer.consume(9, 5)] == [b"new"], "nothing is missed"


def test_what_commits_by_itself_is_behind_what_was_handed_out(store: Any) -> None:
    store.append("t", [b"%d" % n for n in range(6)], partition=0)
    settings = {"group.id": "g", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 0}
    settings |= {"enable.auto.commit": True, "max.poll.records": 4}
    with Consumer(store, settings) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.consume(2, 5)
        assert placed(store)[0] == 0, "they are being worked on"
        consumer.consume(2, 5)
        assert placed(store)[0] == 2
    assert placed(store)[0] == 4, "closed: they are done"

    def fail() -> None:
        with Consumer(store, settings) as failing:
            failing.assign([TopicPartition("t", 0)])
            failing.consume(2, 5)
            raise KeyError("work failed")

    with pytest.raises(KeyError):
        fail()
    assert placed(store)[0] == 4, "what failed is not done"
    lazy = settings | {"auto.commit.interval.ms": 3_600_000}
    with Consumer(store, lazy) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.consume_batch(2, 5)
        consumer.consume_batch(2, 0)
        assert placed(store)[0] == 4, "its time has not come"
    assert placed(store)[0] == 6
    with pytest.raises(InvalidRequest, match="true or false"):
        Consumer(store, {"enable.auto.commit": "perhaps"})


def test_without_a_position_the_default_is_an_error(store: Any) -> None:
    with Consumer(store) as consumer, pytest.raises(OffsetOutOfRange, match=r"auto\.offset\.reset"):
        consumer.subscribe(["t"])
    with Consumer(store, {"auto.offset.reset": "latest"}) as consumer:
        store.append("t", b"old", partition=0)
        consumer.subscribe(["t"])
        store.append("t", b"new", partition=0)
        message = consumer.poll(30)
        assert message is not None
        assert message.value() == b"new"


def test_a_consumer_seeks_pauses_and_finds_times(store: Any) -> None:
    store.append("t", [{"value": b"%d" % n, "timestamp": 1000 * n} for n in range(10)], partition=0)
    with Consumer(store, {"auto.offset.reset": "earliest"}) as consumer:
        where = TopicPartition("t", 0)
        consumer.assign([where])
        consumer.poll(5)
        consumer.seek(TopicPartition("t", 0, 7))
        assert [each.offset() for each in consumer.consume(10, 5)] == [7, 8, 9]
        consumer.seek(TopicPartition("t", 0, OFFSET_BEGINNING))
        assert [each.offset() for each in consumer.consume(1, 5)] == [0]
        consumer.pause([where])
        assert consumer.poll(0.1) is None
        consumer.resume([where])
        assert [each.offset() for each in consumer.consume(1, 5)] == [1], "nothing was skipped"
        found = consumer.offsets_for_times(
            [TopicPartition("t", 0, 4500), TopicPartition("t", 0, 1 << 45)]
        )
        assert [each.offset for each in found] == [5, OFFSET_END]
        with pytest.raises(InvalidRequest, match="not read"):
            consumer.seek(TopicPartition("t", 2, 0))


def test_a_gap_is_told_once_and_stepped_over(store: Any) -> None:
    store.alter_topic("t", {"segment.bytes": 1024})
    for _ in range(10):
        store.append("t", [b"x" * 200] * 2, partition=0)
    with Consumer(store) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        left = store.trim("t", 0, 10)
        assert left > 0
        with pytest.raises(RecordsMissing) as caught:
            consumer.poll(5)
        assert caught.value.end == left
        message = consumer.poll(5)
        assert message is not None
        assert message.offset() == left


def test_a_gap_in_one_topic_costs_nothing_of_another(store: Any) -> None:
    """What was fetched of the first topic was dropped when the second one raised."""
    for topic in ("whole", "trimmed"):
        store.create_topic(topic, config={"segment.bytes": 1024})
        for number in range(60):
            store.append(topic, [b"%d " % number + b"." * 100], partition=0)
    consumer = Consumer(store, {"auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("trimmed", 0, 0), TopicPartition("whole", 0, 0)])
    first = store.trim("trimmed", 0, 40)
    assert first > 0
    found: dict[str, list[int]] = {"whole": [], "trimmed": []}
    gaps = 0
    for _ in range(20):
        try:
            for message in consumer.consume(1000, 0):
                found[message.topic()].append(message.offset())
        except RecordsMissing:
            gaps += 1
    assert gaps == 1
    assert found["whole"] == list(range(60))
    assert found["trimmed"] == list(range(first, 60))


def test_batches_go_in_and_come_out_as_arrow(store: Any) -> None:
    table = pa.table({"value": [b"a", b"b"], "key": [b"k", None]})
    ack = Producer(store).produce_batch("t", table, partition=2)
    assert (ack.base_offset, ack.count) == (0, 2)
    with Consumer(store, {"auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["t"])
        found = consumer.consume_batch(10, 5)
        assert found.select(["value", "key", "topic", "partition"]).to_pylist() == [
            {"value": b"a", "key": b"k", "topic": "t", "partition": 2},
            {"value": b"b", "key": None, "topic": "t", "partition": 2},
        ]
        assert consumer.consume_batch(10, 0).num_rows == 0


class Frame:
    """What pandas and polars have in common: their columns can be handed over as Arrow."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_frames_of_other_libraries_go_in_and_come_out(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(store)
    producer.produce_batch("t", Frame(pa.table({"value": [b"f"]})), partition=0)
    with pytest.raises(InvalidRequest, match="Arrow, pandas or polars"):
        producer.produce_batch("t", {"value": [b"x"]})
    fake = types.ModuleType("polars")
    fake.from_arrow = lambda table: ("polars", table.num_rows)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "polars", fake)
    with Consumer(store, {"auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["t"])
        assert consumer.consume_batch(10, 5, kind="polars") == ("polars", 1)
        with pytest.raises(InvalidRequest, match="arrow, pandas or polars"):
            consumer.consume_batch(10, 0, kind="excel")  # type: ignore[arg-type]


class Failing:
    """A store whose appends fail in a way that nobody foresaw."""

    def append(self, topic: str, records: Any, **_: Any) -> Any:
        raise RuntimeError("nobody foresaw this")


def test_an_error_that_is_none_of_ours_is_told_to_whoever_produced() -> None:
    told: list[LaminaError | None] = []
    producer = lamina.Producer(Failing())  # type: ignore[arg-type]
    producer.produce("t", b"x", partition=0, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(20) == 0, "the thread that delivers goes on"
    producer.close()
    (error,) = told
    assert isinstance(error, Unavailable)
    assert "nobody foresaw this" in str(error)
