"""Share groups request by request: sessions, verdicts, bounds, and every refusal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.server import auth
from lamina.wire.kafka.connection_apis import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.group_apis import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    JOIN_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
)
from lamina.wire.kafka.share_apis import (
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
)
from lamina.wire.kafka.topic_apis import (
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
)
from tests.server.kafka.raw_client import RawClient, offsets_of
from tests.server.rig import served

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
LATEST = 2
GROUP_RESOURCE = 32
FOREVER = 600_000
"""Longer than a client of these tests waits: only an event ends it."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("share")
    with served(folder / "data", kafka_port=0, wait_ms=FOREVER) as service:
        yield service


@pytest.fixture
def client(server: Any) -> Iterator[RawClient]:
    with RawClient(server.kafka_address) as made_client:
        yield made_client


class Member:
    """A share consumer of one topic and one partition, as raw requests."""

    def __init__(self, client: RawClient, topic: str, name: str, group: str | None = None) -> None:
        self.client, self.name, self.group = client, name, group or topic
        answer = client.ask(METADATA, 12, {"topics": [{"name": topic}]})
        self.topic_id = answer["topics"][0]["topic_id"]
        self.epoch = 0

    def topics(self, *acks: tuple[int, int, list[int]], partition: int = 0) -> list[Any]:
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": kinds}
            for first, last, kinds in acks
        ]
        part = {"partition_index": partition, "acknowledgement_batches": batches}
        return [{"topic_id": self.topic_id, "partitions": [part]}]

    def request(self, *acks: tuple[int, int, list[int]], **more: Any) -> dict[str, Any]:
        epoch = more.pop("epoch", self.epoch)
        self.epoch = epoch + 1
        return {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": epoch,
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "topics": self.topics(*acks),
            **more,
        }

    def fetch(self, *acks: tuple[int, int, list[int]], **more: Any) -> dict[str, Any]:
        return self.client.ask(SHARE_FETCH, LATEST, self.request(*acks, **more))

    def acquired(self, *acks: tuple[int, int, list[int]], **more: Any) -> list[tuple[int, ...]]:
        answer = self.fetch(*acks, **more)
        assert answer["error_code"] == 0
        return [
            (each["first_offset"], each["last_offset"], each["delivery_count"])
            for part in parts_of(answer)
            for each in part["acquired_records"]
        ]

    def acknowledge(self, *acks: tuple[int, int, list[int]], **more: Any) -> int:
        """The number of the answer, or of its one partition."""
        request = self.request(*acks, **more)
        answer = self.client.ask(SHARE_ACKNOWLEDGE, LATEST, request)
        found = parts_of(answer)
        return int(answer["error_code"] or (found[0]["error_code"] if found else 0))

    def beat(self, epoch: int = 0, **more: Any) -> dict[str, Any]:
        asked = {"group_id": self.group, "member_id": self.name, "member_epoch": epoch, **more}
        return self.client.ask(SHARE_GROUP_HEARTBEAT, 1, asked)


def parts_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for topic in answer["responses"] for each in topic["partitions"]]


def filled(server: Any, name: str, count: int = 10, **more: Any) -> None:
    """A topic with records and a group of its name that begins with the first of them."""
    with lamina.connect(server.flight_url) as store:
        store.create_topic(name, **more)
        if count:
            store.append(name, [b"%d" % number for number in range(count)])
        store.group(name, name)


# ---------------------------------------------------------------- sessions


def test_a_session_counts_up_and_refuses_every_other_epoch(server: Any, client: RawClient) -> None:
    filled(server, "sessions")
    member = Member(client, "sessions", "m")
    assert member.fetch(epoch=1)["error_code"] == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.fetch(epoch=-1)["error_code"] == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=1) == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=0) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.acquired(epoch=0, max_records=2) == [(0, 1, 1)]
    for epoch in (2, 7, -2):
        assert member.fetch(epoch=epoch)["error_code"] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert member.acknowledge(epoch=epoch) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.acquired(epoch=1, max_records=2) == [(2, 3, 1)]
    assert member.acknowledge((0, 3, [ACCEPT])) == 0
    assert member.acquired(max_records=1, topics=[]) == [(4, 4, 1)]  # it is still looked at
    gone = [{"topic_id": member.topic_id, "partitions": [0]}]
    assert member.acquired(topics=[], forgotten_topics_data=gone) == []
    assert member.acknowledge((4, 4, [ACCEPT]), epoch=-1) == 0
    assert member.acknowledge(epoch=5) == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_what_a_closed_replaced_or_cut_off_session_holds_is_released(
    server: Any, client: RawClient
) -> None:
    filled(server, "endings", 3)
    first, second = (Member(client, "endings", name) for name in ("first", "second"))
    assert first.acquired() == [(0, 2, 1)]
    assert second.acquired() == []
    assert first.fetch(epoch=-1, topics=[])["error_code"] == 0
    assert second.acquired(max_wait_ms=FOREVER) == [(0, 2, 2)]
    assert second.acquired(epoch=0, max_wait_ms=FOREVER) == [(0, 2, 3)]
    with RawClient(server.kafka_address) as cut:
        third = Member(cut, "endings", "third")
        assert second.fetch(epoch=-1, topics=[])["error_code"] == 0
        assert third.acquired(max_wait_ms=FOREVER) == [(0, 2, 4)]
    assert first.acquired(epoch=0, max_wait_ms=FOREVER) == [(0, 2, 5)]


def test_acknowledgements_cannot_open_a_session(server: Any, client: RawClient) -> None:
    filled(server, "unopened")
    answer = Member(client, "unopened", "m").fetch((0, 0, [ACCEPT]), epoch=0)
    assert answer["error_code"] == ErrorCode.INVALID_REQUEST


def test_nobody_without_a_name_is_served(server: Any, client: RawClient) -> None:
    filled(server, "names")
    member = Member(client, "names", "m")
    for wrong in ({"group_id": None}, {"group_id": ""}, {"member_id": ""}, {"member_id": "m" * 37}):
        assert member.fetch(epoch=0, **wrong)["error_code"] == ErrorCode.INVALID_REQUEST
        assert member.acknowledge(epoch=1, **wrong) == ErrorCode.INVALID_REQUEST


# ---------------------------------------------------------------- records


def test_an_answer_has_exactly_the_acquired_records_by_runs(server: Any, client: RawClient) -> None:
    filled(server, "runs")
    member = Member(client, "runs", "m")
    assert member.acquired(max_records=6) == [(0, 5, 1)]
    kinds = [RELEASE, ACCEPT, ACCEPT, RELEASE, RELEASE, RELEASE]
    answer = member.fetch((0, 5, kinds))
    (part,) = parts_of(answer)
    ranges = [tuple(each.values()) for each in part["acquired_records"]]
    assert ranges == [(0, 0, 2), (3, 5, 2), (6, 9, 1)]
    assert part["acknowledge_error_code"] == 0
    assert sum(count for _, _, count in offsets_of(part["records"])) == 8
    assert answer["acquisition_lock_timeout_ms"] == 30_000


def test_a_long_poll_ends_with_an_append_and_with_its_time(server: Any, client: RawClient) -> None:
    filled(server, "waiting", 0)
    member = Member(client, "waiting", "m")
    assert member.acquired(max_wait_ms=50) == []
    client.send(SHARE_FETCH, LATEST, member.request(max_wait_ms=FOREVER))
    with lamina.connect(server.flight_url) as store:
        store.append("waiting", [b"a"])
    (part,) = parts_of(client.receive(SHARE_FETCH, LATEST)[1])
    assert part["acquired_records"][0]["last_offset"] == 0


def test_a_long_poll_ends_when_a_lock_does(server: Any, client: RawClient) -> None:
    lock = {"group.share.record.lock.duration.ms": 300}
    filled(server, "expiring", 2, config=lock)
    holder, waiter = (Member(client, "expiring", name) for name in ("holder", "waiter"))
    assert holder.acquired() == [(0, 1, 1)]
    assert waiter.acquired(max_wait_ms=FOREVER) == [(0, 1, 2)]
    assert holder.acknowledge((0, 1, [ACCEPT])) == ErrorCode.INVALID_RECORD_STATE
    assert waiter.acknowledge((0, 0, [ACCEPT])) == 0


def test_no_more_is_held_of_a_partition_than_the_topic_allows(
    server: Any, client: RawClient
) -> None:
    filled(server, "bounded", config={"group.share.partition.max.record.locks": 4})
    first, second = (Member(client, "bounded", name) for name in ("first", "second"))
    assert first.acquired(max_records=3) == [(0, 2, 1)]
    assert second.acquired() == [(3, 3, 1)]
    assert second.acquired() == []
    assert first.acknowledge((0, 1, [ACCEPT])) == 0
    assert second.acquired() == [(4, 5, 1)]


def test_partitions_and_topics_that_are_not_there(server: Any, client: RawClient) -> None:
    filled(server, "here")
    member = Member(client, "here", "m")
    (part,) = parts_of(member.fetch(topics=member.topics(partition=5)))
    assert part["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    member.topic_id = b"x" * 16
    codes = [each["error_code"] for each in parts_of(member.fetch())]
    assert ErrorCode.UNKNOWN_TOPIC_ID in codes
    assert member.acknowledge((0, 0, [ACCEPT])) == ErrorCode.UNKNOWN_TOPIC_ID
    assert parts_of(member.fetch(topics=[])) == []  # told once: clients cannot pile them up


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    "acks",
    [
        [(3, 2, [ACCEPT])],
        [(-1, 2, [ACCEPT])],
        [(0, 1, [])],
        [(0, 2, [ACCEPT, ACCEPT])],
        [(0, 2, [ACCEPT]), (2, 3, [ACCEPT])],
        [(2, 3, [ACCEPT]), (0, 1, [ACCEPT])],
        [(0, 0, [5])],
        [(0, 0, [-1])],
        [(0, 0, [RENEW])],
    ],
)
def test_ranges_that_are_none_are_refused(
    server: Any, client: RawClient, acks: list[tuple[int, int, list[int]]]
) -> None:
    with lamina.connect(server.flight_url) as store:
        if "ranges" not in store.topics():
            filled(server, "ranges")
    member = Member(client, "ranges", "m")
    assert member.acquired(epoch=0, max_wait_ms=FOREVER)[0][0] == 0
    assert member.acknowledge(*acks) == ErrorCode.INVALID_REQUEST
    (part,) = parts_of(member.fetch(*acks))
    assert part["acknowledge_error_code"] == ErrorCode.INVALID_REQUEST
    with lamina.connect(server.flight_url) as store:
        store.reset_group("ranges", "ranges", to="earliest", execute=True)


def test_only_its_holder_settles_a_record_and_all_or_nothing(
    server: Any, client: RawClient
) -> None:
    filled(server, "owners")
    first, second = (Member(client, "owners", name) for name in ("first", "second"))
    assert first.acquired(max_records=3) == [(0, 2, 1)]
    assert second.acquired(max_records=3) == [(3, 5, 1)]
    for range_ in ((0, 2), (2, 3), (6, 6), (0, (1 << 63) - 1), (3, 6)):
        for kind in (GAP, ACCEPT, RELEASE, REJECT):
            code = second.acknowledge((*range_, [kind]))
            assert code == ErrorCode.INVALID_RECORD_STATE
    assert second.acknowledge((3, 3, [ACCEPT]), (5, 5, [GAP])) == 0
    assert second.acknowledge((3, 3, [ACCEPT])) == ErrorCode.INVALID_RECORD_STATE
    with lamina.connect(server.flight_url) as store:
        info = store.describe_group("owners", "owners").partitions[0]
        assert (info.committed, info.acked_ahead, info.inflight) == (0, 2, 4)


def test_a_renewed_lock_lasts_longer_and_fetches_nothing(server: Any, client: RawClient) -> None:
    filled(server, "renewed", 2)
    member = Member(client, "renewed", "m")
    member.acquired()
    nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    answer = member.fetch((0, 0, [RENEW]), is_renew_ack=True)
    assert answer["error_code"] == ErrorCode.INVALID_REQUEST
    member.epoch -= 1
    (part,) = parts_of(member.fetch((0, 0, [RENEW]), is_renew_ack=True, **nothing))
    assert (part["acknowledge_error_code"], part["acquired_records"]) == (0, [])
    assert member.acknowledge((0, 1, [RENEW, ACCEPT]), is_renew_ack=True) == 0
    assert member.acknowledge((0, 0, [ACCEPT])) == 0
    assert member.acknowledge((0, 0, [RENEW]), is_renew_ack=True) == ErrorCode.INVALID_RECORD_STATE


def test_a_record_that_was_released_too_often_is_a_dead_letter(
    server: Any, client: RawClient
) -> None:
    filled(server, "spent", 1, config={"group.share.delivery.count.limit": 2})
    member = Member(client, "spent", "m")
    assert member.acquired() == [(0, 0, 1)]
    assert member.acquired((0, 0, [RELEASE])) == [(0, 0, 2)]
    assert member.acquired((0, 0, [RELEASE])) == []
    with lamina.connect(server.flight_url) as store:
        assert store.latest_offset("spent.dlq") == 1
        assert store.describe_group("spent", "spent").lag == 0


# ---------------------------------------------------------------- members


def test_heartbeats_join_stay_and_leave(server: Any, client: RawClient) -> None:
    filled(server, "members", partitions=2)
    member = Member(client, "members", "m")
    joined = member.beat(subscribed_topic_names=["members"])
    assert (joined["error_code"], joined["heartbeat_interval_ms"]) == (0, 5000)
    (assigned,) = joined["assignment"]["topic_partitions"]
    assert assigned == {"topic_id": member.topic_id, "partitions": [0, 1]}
    stayed = member.beat(joined["member_epoch"])
    assert (stayed["error_code"], stayed["assignment"]) == (0, None)
    assert member.beat(99)["error_code"] == ErrorCode.FENCED_MEMBER_EPOCH
    stranger = Member(client, "members", "stranger")
    assert stranger.beat(1)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.beat(-1)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    (about,) = client.ask(SHARE_GROUP_DESCRIBE, 1, {"group_ids": ["members"]})["groups"]
    assert (about["group_state"], about["assignor_name"]) == ("Stable", "simple")
    assert [each["member_id"] for each in about["members"]] == ["m"]
    assert about["members"][0]["assignment"]["topic_partitions"][0]["topic_name"] == "members"
    assert member.acquired(topics=member.topics(partition=0)) != []
    assert member.beat(-1)["member_epoch"] == -1
    with lamina.connect(server.flight_url) as store:
        info = store.describe_group("members", "members")
        assert sum(each.inflight for each in info.partitions) == 0
    (about,) = client.ask(SHARE_GROUP_DESCRIBE, 1, {"group_ids": ["members"]})["groups"]
    assert (about["group_state"], about["members"]) == ("Empty", [])


def test_heartbeats_that_say_too_little_are_refused(server: Any, client: RawClient) -> None:
    filled(server, "little")
    member = Member(client, "little", "m")
    for wrong in (
        {},
        {"subscribed_topic_names": []},
        {"member_id": "", "subscribed_topic_names": ["little"]},
        {"group_id": "", "subscribed_topic_names": ["little"]},
        {"member_epoch": -2},
        {"rack_id": "", "subscribed_topic_names": ["little"]},
    ):
        assert member.beat(**wrong)["error_code"] == ErrorCode.INVALID_REQUEST


def test_a_member_that_falls_silent_loses_what_it_holds(server: Any, client: RawClient) -> None:
    filled(server, "silent", 2)
    alter(client, "silent", "share.session.timeout.ms", "1000")
    member, waiter = (Member(client, "silent", name) for name in ("m", "waiter"))
    member.beat(subscribed_topic_names=["silent"])
    assert member.acquired() == [(0, 1, 1)]
    assert waiter.acquired(max_wait_ms=FOREVER) == [(0, 1, 2)]
    assert member.acknowledge((0, 0, [ACCEPT])) == ErrorCode.SHARE_SESSION_NOT_FOUND


# ---------------------------------------------------------------- administration


def alter(client: RawClient, group: str, key: str, value: str | None) -> int:
    entry = {"name": key, "config_operation": 0 if value is not None else 1, "value": value}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": [entry]}
    asked = {"resources": [resource], "validate_only": False}
    return int(client.ask(INCREMENTAL_ALTER_CONFIGS, 1, asked)["responses"][0]["error_code"])


def described(client: RawClient, group: str) -> dict[str, tuple[str, int]]:
    resource = {
        "resource_type": GROUP_RESOURCE,
        "resource_name": group,
        "configuration_keys": None,
    }
    (found,) = client.ask(DESCRIBE_CONFIGS, 4, {"resources": [resource]})["results"]
    return {each["name"]: (each["value"], each["config_source"]) for each in found["configs"]}


def test_settings_of_a_group_are_described_changed_and_taken_back(client: RawClient) -> None:
    key = "share.auto.offset.reset"
    assert described(client, "set")[key] == ("latest", 5)
    assert alter(client, "set", key, "earliest") == 0
    assert described(client, "set")[key] == ("earliest", 8)
    assert alter(client, "set", key, "sometime") == ErrorCode.INVALID_CONFIG
    assert alter(client, "set", "share.nothing", "1") == ErrorCode.INVALID_CONFIG
    assert alter(client, "set", key, None) == 0
    assert described(client, "set")[key] == ("latest", 5)


def test_settings_of_a_group_last(tmp_path: Path) -> None:
    for value in ("latest", "earliest"):
        with (
            served(tmp_path / "data", kafka_port=0) as service,
            RawClient(service.kafka_address) as client,
        ):
            assert described(client, "g")["share.auto.offset.reset"][0] == value
            assert alter(client, "g", "share.auto.offset.reset", "earliest") == 0


def test_a_share_group_is_listed_described_and_deleted(server: Any, client: RawClient) -> None:
    filled(server, "listed")
    member = Member(client, "listed", "m")
    epoch = member.beat(subscribed_topic_names=["listed"])["member_epoch"]
    asked = {"states_filter": ["stable"], "types_filter": ["share"]}
    rows = client.ask(LIST_GROUPS, 5, asked)["groups"]
    (row,) = [each for each in rows if each["group_id"] == "listed"]
    assert (row["group_type"], row["protocol_type"]) == ("Share", "share")
    asked = {"states_filter": [], "types_filter": ["classic"]}
    rows = client.ask(LIST_GROUPS, 5, asked)["groups"]
    assert "listed" not in [each["group_id"] for each in rows]
    (classic,) = client.ask(DESCRIBE_GROUPS, 5, {"groups": ["listed"]})["groups"]
    assert classic["group_state"] == "Dead"
    assert deleted(client, "listed") == ErrorCode.NON_EMPTY_GROUP
    assert member.beat(-1)["error_code"] == 0
    assert epoch > 0
    assert deleted(client, "listed") == 0
    assert deleted(client, "listed") == ErrorCode.GROUP_ID_NOT_FOUND
    (about,) = client.ask(SHARE_GROUP_DESCRIBE, 1, {"group_ids": ["listed"]})["groups"]
    assert about["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND


def deleted(client: RawClient, group: str) -> int:
    asked = {"groups_names": [group]}
    return int(client.ask(DELETE_GROUPS, 2, asked)["results"][0]["error_code"])


def joining(group: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }


def committing(group: str, topic: str) -> dict[str, Any]:
    part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": topic, "partitions": [part]}],
    }


def test_a_name_stands_for_one_kind_of_group(server: Any, client: RawClient) -> None:
    filled(server, "shared")
    answer = client.ask(JOIN_GROUP, 5, joining("shared"))
    assert answer["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    answer = client.ask(OFFSET_COMMIT, 8, committing("shared", "shared"))
    assert answer["topics"][0]["partitions"][0]["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    answer = client.ask(OFFSET_COMMIT, 8, committing("classic", "shared"))
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0
    member = Member(client, "shared", "m", "classic")
    answer = member.beat(subscribed_topic_names=["shared"])
    assert answer["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    assert member.fetch()["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    with lamina.connect(server.flight_url) as store:
        assert "classic" in {name for _, name in store.groups("shared")}


# ---------------------------------------------------------------- keys


def test_keys_scopes_and_prefixes_hold(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    made = {scope: auth.create(keys, scope=scope, prefix="mine.")[1] for scope in ("read", "write")}
    made["admin"] = auth.create(keys, scope="admin", prefix="mine.")[1]
    _, whole = auth.create(keys, scope="admin")
    with (
        served(tmp_path / "data", kafka_port=0, keys_file=keys) as service,
        contextlib.ExitStack() as enter,
    ):
        store = service.broker.store
        for topic in ("mine.a", "theirs"):
            store.create_topic(topic)
            store.append(topic, [b"x"])
        store.group("mine.a", "mine.g")
        store.group("theirs", "mine.other")
        store.group("theirs", "theirs")
        owner = enter.enter_context(entered(service.kafka_address, whole))
        theirs = Member(owner, "theirs", "m").topic_id
        for scope, key in made.items():
            client = enter.enter_context(entered(service.kafka_address, key))
            hidden = Member(client, "mine.a", "m", "theirs")
            assert hidden.fetch()["error_code"] == ErrorCode.GROUP_AUTHORIZATION_FAILED
            assert hidden.acknowledge(epoch=1) == ErrorCode.GROUP_AUTHORIZATION_FAILED
            answer = hidden.beat(subscribed_topic_names=["mine.a"])
            assert answer["error_code"] == ErrorCode.GROUP_AUTHORIZATION_FAILED
            (about,) = client.ask(SHARE_GROUP_DESCRIBE, 1, {"group_ids": ["theirs"]})["groups"]
            assert about["error_code"] == ErrorCode.GROUP_AUTHORIZATION_FAILED
            rows = client.ask(LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})["groups"]
            assert [each["group_id"] for each in rows] == ["mine.g"]
            for group in ("mine.other", "theirs"):
                assert deleted(client, group) == ErrorCode.GROUP_AUTHORIZATION_FAILED
            mine = Member(client, "mine.a", "m", "mine.g")
            refused = ErrorCode.GROUP_AUTHORIZATION_FAILED if scope == "read" else 0
            assert mine.fetch(max_records=0)["error_code"] == refused
            answer = mine.beat(subscribed_topic_names=["mine.a", "theirs"])
            assert answer["error_code"] == (refused or ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if scope == "read":
                continue
            mine.topic_id = theirs
            codes = [each["error_code"] for each in parts_of(mine.fetch())]
            assert ErrorCode.UNKNOWN_TOPIC_ID in codes
            if scope == "write":
                assert alter(client, "mine.g", "share.auto.offset.reset", "earliest") != 0
            assert alter(client, "theirs", "share.auto.offset.reset", "earliest") != 0
        assert store.describe_group("theirs", "theirs").partitions[0].inflight == 0
        assert ("theirs", "mine.other") in store.groups()
        assert ("theirs", "mine.g") not in store.groups()


def entered(address: str | None, key: str) -> RawClient:
    client = RawClient(address)
    assert client.ask(API_VERSIONS, 3, {})["error_code"] == 0
    assert client.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})["error_code"] == 0
    said = b"\0anybody\0" + key.encode()
    assert client.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": said})["error_code"] == 0
    return client
