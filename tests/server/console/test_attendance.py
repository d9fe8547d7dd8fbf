"""Who is there: members with what they read and clients that are connected, as feeds and pages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition
from playwright.sync_api import Page, expect

import lamina
from lamina.api.memberships import Committed, JoinRequest
from lamina.groups.share_membership import ShareBeat
from lamina.server import auth
from lamina.server.auth import Caller
from lamina.server.connected_client import ConnectedClient
from lamina.server.console import attendance, feeds
from lamina.server.console.history import History
from lamina.server.console.looks import PAGE, View
from lamina.store.store import Store
from lamina.wire.kafka.connection_apis import API_VERSIONS
from lamina.wire.kafka.consumer_protocol import encode_assignment
from lamina_torture.simulated import SimulatedFiles
from tests.server.console.rig import MARKUP, Broker, broker, until
from tests.server.kafka.raw_client import RawClient
from tests.server.rig import SESSION_MS, joined

WAIT_S = 10
SOFTWARE = {"client_software_name": MARKUP, "client_software_version": "1.2"}


@pytest.fixture
def store() -> Iterator[Store]:
    with Store("/data", files=SimulatedFiles()) as opened:
        opened.create_topic("shop.a", partitions=3)
        opened.create_topic("other")
        yield opened


def look(store: Store, prefix: str = "", **given: str) -> View:
    nobody = ConnectedClient("c", "s", "1", "h", "k", 0)
    return View(store, History(), Caller("me", prefix=prefix), given, lambda: [nobody])


def test_a_member_is_shown_with_its_share_in_runs(store: Store) -> None:
    joined(store, "g", encode_assignment({"shop.a": [2, 0, 1, 7], "other": []}))
    (row,) = attendance.members(look(store))["rows"]
    assert row["member"]
    assert (row["client_id"], row["host"], row["state"]) == ("till", "10.0.0.7", "Stable")
    assert row["partitions"] == 4
    assert row["share"] == [
        {"topic": "other", "spans": []},
        {"topic": "shop.a", "spans": [(0, 2), (7, 7)]},
    ]


def test_a_share_that_is_no_consumer_s_is_not_told(store: Store) -> None:
    joined(store, "connectors", encode_assignment({"shop.a": [0]}), kind="connect")
    joined(store, "garbage", b"\0\0\x7f\xff\xff\xff")
    rows = attendance.members(look(store))["rows"]
    assert [(row["partitions"], row["share"]) for row in rows] == [(None, []), (None, [])]


def test_what_a_member_leaves_here_is_shown_within_bounds(store: Store) -> None:
    many = {f"t{number:03}": list(range(0, 400, 2)) for number in range(100)}
    joined(store, "g", encode_assignment(many), client_id="x" * 100_000)
    (row,) = attendance.members(look(store))["rows"]
    assert row["partitions"] == 20_000
    assert len(row["share"]) == attendance.TOPICS_MAX
    assert {len(each["spans"]) for each in row["share"]} == {attendance.SPANS_MAX}
    assert len(row["client_id"]) == attendance.TEXT_MAX


def test_members_come_in_pages_over_all_groups(store: Store) -> None:
    for number in range(PAGE + 3):
        joined(store, f"g{number:03}", b"")
    found = [attendance.members(look(store, page=page)) for page in ("0", "1")]
    names = [row["group"] for each in found for row in each["rows"]]
    assert names == [f"g{number:03}" for number in range(PAGE + 3)]
    assert (len(found[0]["rows"]), found[0]["total"], found[0]["pages"]) == (PAGE, PAGE + 3, 2)
    assert attendance.members(look(store, search="G007"))["total"] == 1


def test_a_page_begins_inside_of_a_group_with_many_members(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attendance, "PAGE", 2)
    monkeypatch.setattr("lamina.server.console.looks.PAGE", 2)
    request = JoinRequest("consumer", (("range", b""),), session_timeout_ms=SESSION_MS)
    waiting = [store.coordinator.join("crowd", request) for _ in range(5)]
    names = [each.result(WAIT_S).member_id for each in waiting]
    joined(store, "last", b"")
    pages = [attendance.members(look(store, page=str(page)))["rows"] for page in range(3)]
    assert [len(each) for each in pages] == [2, 2, 2]
    assert [row["member"] for page in pages for row in page][:5] == names
    assert pages[2][1]["group"] == "last"


def test_a_prefix_shows_groups_of_its_name_and_partitions_of_its_topics(store: Store) -> None:
    share = encode_assignment({"shop.a": [0], "other": [0]})
    joined(store, "shop.readers", share)
    joined(store, "foreign", share)
    found = attendance.members(look(store, "shop."))
    assert (found["total"], found["groups"]) == (1, 1)
    (row,) = found["rows"]
    assert (row["group"], row["partitions"]) == ("shop.readers", 1)
    assert [each["topic"] for each in row["share"]] == ["shop.a"]
    assert attendance.clients(look(store, "shop."))["rows"] == []
    assert attendance.clients(look(store))["total"] == 1
    assert attendance.clients(look(store, search="nobody"))["total"] == 0


def test_a_share_group_has_no_members_though_a_classic_one_has_its_name(store: Store) -> None:
    store.group("shop.a", "g")
    store.commit_offsets("g", [Committed("other", 0, 0)])
    joined(store, "g", encode_assignment({"other": [0]}))
    counted = {row["topic"]: row["members"] for row in feeds.groups(look(store))["rows"]}
    assert counted == {"shop.a": None, "other": 1}
    described = {
        topic: feeds.group(look(store, topic=topic, group="g"))["members"] for topic in counted
    }
    assert described["shop.a"] == []
    assert [row["group"] for row in described["other"]] == ["g"]
    shown = feeds.group(look(store, "shop.", topic="shop.a", group="g"))
    assert shown["members"] == []


def test_members_of_a_share_group_are_shown_where_they_read(store: Store) -> None:
    for topic in ("shop.a", "other"):
        store.group(topic, "shop.queue")
    for name, topics in (("m1", ("shop.a", "other")), ("m2", ("other",))):
        beat = ShareBeat(name, 0, topics, client_id=f"client {name}", client_host="/10.0.0.8")
        store.coordinator.share.heartbeat(
            "shop.queue", beat, lambda _: 3, session_ms=SESSION_MS, on_end=lambda: None
        )
    joined(store, "shop.classic", b"")
    rows = attendance.members(look(store))["rows"]
    assert [(row["kind"], row["client_id"]) for row in rows] == [
        ("classic", "till"),
        ("share", "client m1"),
        ("share", "client m2"),
    ]
    assert {row["host"] for row in rows[1:]} == {"10.0.0.8"}
    mine = attendance.members(look(store, "shop."))["rows"]
    assert [each["topic"] for row in mine for each in row["share"]] == ["shop.a"]
    assert attendance.members(look(store, "other"))["rows"] == []
    counted = {row["topic"]: row["members"] for row in feeds.groups(look(store))["rows"]}
    assert counted == {"shop.a": 1, "other": 2}
    (row,) = feeds.group(look(store, topic="shop.a", group="shop.queue"))["members"]
    assert (row["member"], row["share"][1]) == ("m1", {"topic": "shop.a", "spans": [(0, 2)]})
    assert feeds.groups(look(store, "other"))["rows"][0]["members"] is None
    assert feeds.group(look(store, "other", topic="other", group="shop.queue"))["members"] == []


# ---------------------------------------------------------------- a live broker, in a browser


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("attending"), kafka_port=0) as running:
        running.store.create_topic("orders", partitions=4)
        for partition in range(4):
            running.store.append("orders", [b"x"] * 5, partition=partition)
        yield running


def at(live: Broker, address: str) -> str:
    return f"{live.url}/console#/{address}"


@pytest.fixture
def members(live: Broker) -> Iterator[tuple[Any, Any]]:
    """A member by Kafka's protocol and one of Lamina's own, which share a topic."""
    config = {"group.id": "billing", "auto.offset.reset": "earliest"}
    own = {"client.id": "till-7", "bootstrap.servers": live.service.kafka_address}
    kafka = KafkaConsumer(config | own)
    kafka.subscribe(["orders"])
    with lamina.Consumer(live.store, config | {"client.id": "ledger"}) as ours:
        ours.subscribe(["orders"])

        def is_shared() -> bool:
            kafka.poll(0.05)
            ours.poll(0.05)
            return len(kafka.assignment()) == len(ours.assignment()) == 2

        until(is_shared)
        read = [TopicPartition("orders", each.partition, 1) for each in kafka.assignment()]
        kafka.commit(offsets=read, asynchronous=False)
        yield kafka, ours
    kafka.close()


def test_members_and_clients_are_shown(page: Page, live: Broker, members: tuple[Any, Any]) -> None:
    page.goto(at(live, "groups"))
    table = page.get_by_role("table", name="Members")
    rows = table.get_by_role("row")
    expect(rows).to_have_count(3)
    theirs = rows.filter(has_text="till-7")
    expect(theirs).to_contain_text("billing")
    expect(theirs).to_contain_text("127.0.0.1")
    expect(theirs).to_contain_text("Stable")
    first = min(place.partition for place in members[0].assignment())
    expect(theirs).to_contain_text(f"orders {first}–{first + 1}")
    expect(rows.filter(has_text="ledger")).to_contain_text("orders")
    page.get_by_label("Search groups").fill("nobody")
    expect(page.get_by_text("No group has members.")).to_be_visible()

    page.goto(at(live, "group/orders/billing"))
    expect(page.get_by_role("table", name="Members").get_by_role("row")).to_have_count(3)
    page.keyboard.press("8")
    expect(page.get_by_role("heading", name="Kafka clients")).to_be_visible()
    client = page.get_by_role("row").filter(has_text="till-7").first
    expect(client).to_contain_text("confluent-kafka-python")
    expect(client).to_contain_text("127.0.0.1")
    expect(client).to_contain_text("anonymous")
    metrics = httpx.get(f"{live.url}/metrics").text
    assert 'lamina_joined_groups{kind="classic",state="Stable"} 1.0' in metrics
    assert 'lamina_group_members{kind="classic"} 2.0' in metrics


def test_what_a_client_says_of_itself_is_text(page: Page, live: Broker) -> None:
    with RawClient(live.service.kafka_address) as raw:
        raw.ask(API_VERSIONS, 3, SOFTWARE)
        page.goto(at(live, "clients"))
        row = page.get_by_role("row").filter(has_text="raw")
        expect(row).to_contain_text(MARKUP[:100])
        expect(row).to_contain_text("1.2")
        assert page.locator("main img, main script, main b").count() == 0
    expect(page.get_by_text("No Kafka client is connected.")).to_be_visible()


def test_clients_are_listed_while_others_come_and_go(live: Broker) -> None:
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            with RawClient(live.service.kafka_address) as each:
                each.ask(API_VERSIONS, 3, SOFTWARE)

    crowd = [threading.Thread(target=come_and_go) for _ in range(4)]
    with RawClient(live.service.kafka_address) as raw:
        raw.ask(API_VERSIONS, 3, SOFTWARE | {"client_software_name": "steady"})
        for each in crowd:
            each.start()
        try:
            for _ in range(2000):
                found = live.service.broker.kafka_clients()
                assert sum(each.software == "steady" for each in found) == 1
                assert [each.since_ms for each in found] == sorted(each.since_ms for each in found)
        finally:
            over.set()
            for each in crowd:
                each.join()


def test_a_key_with_a_prefix_is_told_who_may_see_clients(page: Page, tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    _, reading = auth.create(keys, scope="read", prefix="shop.")
    with broker(tmp_path / "keyed", keys_file=keys, kafka_port=0) as live:
        page.goto(at(live, "clients"))
        page.get_by_label("API key").fill(reading)
        with RawClient(live.service.kafka_address) as raw:
            raw.ask(API_VERSIONS, 3, SOFTWARE)
            assert [each.key for each in live.service.broker.kafka_clients()] == [""]
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_text("keys of all topics")).to_be_visible()
            assert page.get_by_text("raw").count() == 0
