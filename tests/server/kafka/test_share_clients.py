"""Share groups by a real client: confluent-kafka's ShareConsumer beside Lamina's own groups."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

import lamina
from tests.server.rig import ServerProcess, free_port, served

EARLIEST = "share.auto.offset.reset"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with served(tmp_path_factory.mktemp("share") / "data", kafka_port=0) as service:
        yield service


def set_for_group(address: str, group: str, key: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()


def filled(url: str, address: str, name: str, count: int = 100, **config: Any) -> None:
    """A topic with records, and a group of its name that begins with the first of them."""
    with lamina.connect(url) as store:
        store.create_topic(name, config=config)
        store.append(name, [b"%d" % number for number in range(count)])
    set_for_group(address, name, EARLIEST, "earliest")


def consumer(address: str, group: str, mode: str = "explicit") -> ShareConsumer:
    made = ShareConsumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "share.acknowledgement.mode": mode,
        }
    )
    made.subscribe([group])
    return made


def polled(member: ShareConsumer, *, tries: int = 60) -> list[Any]:
    """The next records that come, in their order."""
    for _ in range(tries):
        found = list(member.poll(1.0))
        assert [each.error() for each in found if each.error() is not None] == []
        if found:
            return found
    raise AssertionError("nothing came")


def accept(member: ShareConsumer, messages: list[Any]) -> None:
    for each in messages:
        member.acknowledge(each, AcknowledgeType.ACCEPT)


def committed(member: ShareConsumer) -> None:
    assert [error for error in member.commit_sync(30).values() if error is not None] == []


def values(messages: list[Any]) -> list[int]:
    return [int(each.value()) for each in messages]


def test_what_is_accepted_implicitly_never_comes_again(server: Any) -> None:
    filled(server.flight_url, server.kafka_address, "implicit")
    member = consumer(server.kafka_address, "implicit", "implicit")
    found: list[int] = []
    while len(found) < 100:
        found += values(polled(member))
    committed(member)
    member.close()
    assert found == list(range(100))
    with lamina.connect(server.flight_url) as store:
        assert store.describe_group("implicit", "implicit").lag == 0
        assert store.describe_group("implicit", "implicit").partitions[0].inflight == 0


def test_two_consumers_share_one_partition_without_duplicates(server: Any) -> None:
    filled(server.flight_url, server.kafka_address, "pair", 1000)
    members = [consumer(server.kafka_address, "pair", "implicit") for _ in range(2)]
    found: list[list[int]] = [[], []]
    for _ in range(600):
        for member, mine in zip(members, found, strict=True):
            mine.extend(values([each for each in member.poll(0.1) if each.error() is None]))
        if sum(map(len, found)) >= 1000:
            break
    for member in members:
        member.close()
    assert sorted(found[0] + found[1]) == list(range(1000))
    assert found[0]
    assert found[1]


def test_released_records_come_again_and_count(server: Any) -> None:
    filled(server.flight_url, server.kafka_address, "given-back", 10)
    member = consumer(server.kafka_address, "given-back")
    first = polled(member)
    assert {each.delivery_count() for each in first} == {1}
    for each in first:
        kept = int(each.value()) % 2
        member.acknowledge(each, AcknowledgeType.ACCEPT if kept else AcknowledgeType.RELEASE)
    committed(member)
    again = polled(member)
    assert values(again) == [0, 2, 4, 6, 8]
    assert {each.delivery_count() for each in again} == {2}
    accept(member, again)
    committed(member)
    member.close()


def test_rejected_records_are_dead_letters(server: Any) -> None:
    filled(server.flight_url, server.kafka_address, "rejected", 3)
    member = consumer(server.kafka_address, "rejected")
    found = polled(member)
    for each in found:
        bad = each.value() == b"1"
        member.acknowledge(each, AcknowledgeType.REJECT if bad else AcknowledgeType.ACCEPT)
    committed(member)
    member.close()
    with lamina.connect(server.flight_url) as store:
        rows = [row for batch in store.scan("rejected.dlq") for row in batch.to_pylist()]
        assert [row["value"] for row in rows] == [b"1"]
        assert {"key": "lamina.dlq.group", "value": b"rejected"} in rows[0]["headers"]
        assert store.describe_group("rejected", "rejected").lag == 0


def test_what_a_consumer_keeps_longer_than_its_lock_comes_again(server: Any) -> None:
    lock = {"group.share.record.lock.duration.ms": 1000}
    filled(server.flight_url, server.kafka_address, "late", 3, **lock)
    slow, quick = (consumer(server.kafka_address, "late") for _ in range(2))
    held = polled(slow)
    again = polled(quick)
    assert values(again) == values(held)
    assert {each.delivery_count() for each in again} == {2}
    accept(quick, again)
    committed(quick)
    accept(slow, held)
    errors = [error for error in slow.commit_sync(30).values() if error is not None]
    assert len(errors) == 1
    assert "INVALID_RECORD_STATE" in str(errors[0])
    slow.close()
    quick.close()


def test_a_consumer_that_closes_gives_back_what_it_holds(server: Any) -> None:
    filled(server.flight_url, server.kafka_address, "left", 5)
    first = consumer(server.kafka_address, "left")
    held = polled(first)
    first.close()
    second = consumer(server.kafka_address, "left")
    assert values(polled(second)) == values(held)
    second.close()


def test_share_consumers_and_lamina_clients_share_one_group(server: Any) -> None:
    filled(server.flight_url, server.kafka_address, "doors", 10)
    with lamina.connect(server.flight_url) as store:
        group = store.group("doors", "doors")
        mine = group.poll(4, lease_ms=60_000)
        member = consumer(server.kafka_address, "doors")
        theirs = polled(member)
        assert values(theirs) == [4, 5, 6, 7, 8, 9]
        accept(member, theirs)
        committed(member)
        group.ack(mine)
        assert store.describe_group("doors", "doors").lag == 0
        member.close()


def test_a_group_begins_with_what_comes_after_its_first_member(server: Any) -> None:
    with lamina.connect(server.flight_url) as store:
        store.create_topic("from-now")
        store.append("from-now", [b"0", b"1"])
        member = consumer(server.kafka_address, "from-now")
        while ("from-now", "from-now") not in store.groups():
            assert list(member.poll(0.1)) == []
        store.append("from-now", [b"2", b"3"])
        assert values(polled(member)) == [2, 3]
    member.close()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_acked_records_never_come_again_after_the_server_has_ended(
    tmp_path: Path, end: signal.Signals
) -> None:
    port = free_port()
    lock = {"group.share.record.lock.duration.ms": 2000}
    address = f"127.0.0.1:{port}"
    with ServerProcess(tmp_path / "data", f"kafka.port={port}") as process:
        filled(process.url, address, "ended", 20, **lock)
        member = consumer(address, "ended")
        found = polled(member)
        assert values(found) == list(range(20))
        for each in found:
            kept = int(each.value()) < 10
            member.acknowledge(each, AcknowledgeType.ACCEPT if kept else AcknowledgeType.RELEASE)
        committed(member)
        again = polled(member)
        assert values(again) == list(range(10, 20))
        process.end(end)
        process.start()
        accept(member, again)
        later = polled(member)  # the same consumer finds its way back by itself
        assert values(later) == list(range(10, 20))
        assert {each.delivery_count() for each in later} == {3}
        accept(member, later)
        committed(member)
        member.close()
        with lamina.connect(process.url) as store:
            assert store.describe_group("ended", "ended").lag == 0
