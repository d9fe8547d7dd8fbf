"""Typed topics through Kafka: what has columns here is what Kafka's serializers write and read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import lamina
from tests.formats.typed_strategies import read_back
from tests.server.rig import served

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}],
    }
)
ROWS = [{"id": 1, "item": "a"}, {"id": 2, "item": "ç"}, {"id": 1 << 40, "item": ""}]


def fetched(address: Any, topic: str, first: int, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g"})
    consumer.assign([TopicPartition(topic, 0, first)])
    found = consumer.consume(count, 60)
    consumer.close()
    assert [each.error() for each in found] == [None] * count
    return [each.value() for each in found]


@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
def test_rows_are_read_and_written_by_kafka_clients(tmp_path: Path, format_name: str) -> None:
    with (
        served(tmp_path / "data", kafka_port=0) as service,
        lamina.connect(service.flight_url) as store,
    ):
        store.create_topic("orders", format=format_name, schema=SCHEMA)
        first = store.earliest_offset("orders")
        store.append("orders", pa.Table.from_pylist(ROWS))
        values = fetched(service.kafka_address, "orders", first, 3)
        number = store.schema("orders").id
        assert [each[:5] for each in values] == [b"\0" + number.to_bytes(4, "big")] * 3
        assert [read_back(json.loads(SCHEMA), each[5:]) for each in values] == ROWS

        producer = Producer({"bootstrap.servers": service.kafka_address})
        for value in [*values, b"not of the schema"]:
            producer.produce("orders", value, partition=0)
        assert producer.flush(60) == 0
        found = store.read("orders", errors="null").read_all()
        assert found.select(["id", "item"]).to_pylist()[:6] == ROWS * 2
        errors = found["_error"].to_pylist()
        assert errors[:6] == [None] * 6
        assert "schema id" in errors[6]
