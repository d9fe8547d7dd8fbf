"""Where share groups stand: told, moved and forgotten by administrators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.server import auth
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.group_apis import OFFSET_COMMIT
from lamina.wire.kafka.share_apis import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
)
from tests.server.kafka.raw_client import RawClient
from tests.server.kafka.test_share_requests import ACCEPT, Member, entered, filled
from tests.server.rig import served

NO_ID = bytes(16)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with served(tmp_path_factory.mktemp("offsets") / "data", kafka_port=0) as service:
        yield service


@pytest.fixture
def client(server: Any) -> Iterator[RawClient]:
    with RawClient(server.kafka_address) as made:
        yield made


def described(
    client: RawClient, group: str, topics: dict[str, list[int]] | None = None, version: int = 1
) -> Any:
    """The number of the group, or (topic, partition, start, lag, error) of each partition."""
    asked = None
    if topics is not None:
        asked = [{"topic_name": name, "partitions": each} for name, each in topics.items()]
    request = {"groups": [{"group_id": group, "topics": asked}]}
    (found,) = client.ask(DESCRIBE_SHARE_GROUP_OFFSETS, version, request)["groups"]
    assert found["group_id"] == group
    fields = ("partition_index", "start_offset", "lag", "error_code")
    if found["error_code"]:
        return found["error_code"]
    return [
        (topic["topic_name"], *(each[name] for name in fields))
        for topic in found["topics"]
        for each in topic["partitions"]
    ]


def altered(client: RawClient, group: str, topic: str, offsets: dict[int, int]) -> Any:
    """The number of the answer, or of each partition."""
    rows = [{"partition_index": n, "start_offset": offset} for n, offset in offsets.items()]
    request = {"group_id": group, "topics": [{"topic_name": topic, "partitions": rows}]}
    answer = client.ask(ALTER_SHARE_GROUP_OFFSETS, 0, request)
    if answer["error_code"]:
        return answer["error_code"]
    return [each["error_code"] for row in answer["responses"] for each in row["partitions"]]


def deleted(client: RawClient, group: str, topic: str) -> int:
    request = {"group_id": group, "topics": [{"topic_name": topic}]}
    answer = client.ask(DELETE_SHARE_GROUP_OFFSETS, 0, request)
    return int(answer["error_code"] or answer["responses"][0]["error_code"])


def test_where_a_group_stands_is_told_with_its_lag(server: Any, client: RawClient) -> None:
    filled(server, "told", 10, partitions=2)
    member = Member(client, "told", "m")
    with lamina.connect(server.flight_url) as store:
        ends = [store.latest_offset("told", number) for number in range(2)]
    assert described(client, "told") == [
        ("told", 0, 0, ends[0], 0),
        ("told", 1, 0, ends[1], 0),
    ]
    assert member.acquired(max_records=3) == [(0, 2, 1)]
    assert member.acknowledge((0, 1, [ACCEPT])) == 0
    assert described(client, "told", {"told": [0]}) == [("told", 0, 2, ends[0] - 2, 0)]
    assert described(client, "told", {"told": [0]}, version=0)[0][:3] == ("told", 0, 2)
    assert member.fetch(epoch=-1, topics=[])["error_code"] == 0


def test_what_is_not_there_is_told_as_such(server: Any, client: RawClient) -> None:
    filled(server, "there")
    filled(server, "unread")
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert described(client, "there", {"there": [0, 1], "unread": [0], "nowhere": [0]}) == [
        ("there", 0, 0, 10, 0),
        ("there", 1, -1, -1, unknown),
        ("unread", 0, -1, -1, 0),
        ("nowhere", 0, -1, -1, unknown),
    ]
    assert described(client, "nobody") == ErrorCode.GROUP_ID_NOT_FOUND
    assert altered(client, "nobody", "there", {0: 0}) == ErrorCode.GROUP_ID_NOT_FOUND
    assert deleted(client, "nobody", "there") == ErrorCode.GROUP_ID_NOT_FOUND
    assert altered(client, "there", "there", {0: 1, 1: 1, -1: 1}) == [0, unknown, unknown]
    assert altered(client, "there", "there", {0: -1}) == [ErrorCode.INVALID_REQUEST]
    assert altered(client, "there", "nowhere", {0: 1}) == [unknown]
    assert deleted(client, "there", "nowhere") == unknown
    assert deleted(client, "there", "unread") == unknown


def test_a_classic_group_is_none_of_these(server: Any, client: RawClient) -> None:
    filled(server, "classic")
    place = {"partition_index": 0, "committed_offset": 3}
    topics = [{"name": "classic", "partitions": [place]}]
    client.ask(OFFSET_COMMIT, 8, {"group_id": "of-old", "topics": topics})
    assert described(client, "of-old") == ErrorCode.GROUP_ID_NOT_FOUND
    assert altered(client, "of-old", "classic", {0: 0}) == ErrorCode.GROUP_ID_NOT_FOUND
    assert deleted(client, "of-old", "classic") == ErrorCode.GROUP_ID_NOT_FOUND
    with lamina.connect(server.flight_url) as store:
        assert [each.offset for each in store.committed_offsets("of-old")] == [3]


def test_a_group_without_members_is_moved_and_every_door_sees_it(
    server: Any, client: RawClient
) -> None:
    filled(server, "moved")
    filled(server, "another")
    member = Member(client, "moved", "m")
    assert member.beat(subscribed_topic_names=["moved"])["error_code"] == 0
    assert altered(client, "moved", "moved", {0: 4}) == ErrorCode.NON_EMPTY_GROUP
    assert deleted(client, "moved", "moved") == ErrorCode.NON_EMPTY_GROUP
    assert member.beat(-1)["error_code"] == 0
    assert altered(client, "moved", "moved", {0: 4}) == [0]
    assert member.acquired(epoch=0) == [(4, 9, 1)]
    assert member.fetch(epoch=-1, topics=[])["error_code"] == 0
    assert altered(client, "moved", "moved", {0: 99}) == [0]  # there is nothing so far
    assert altered(client, "moved", "another", {0: 7}) == [0]  # it had not begun there
    assert described(client, "moved") == [("another", 0, 7, 3, 0), ("moved", 0, 10, 0, 0)]
    with lamina.connect(server.flight_url) as store:
        assert store.group("another", "moved", start="none").committed(0) == 7
    assert deleted(client, "moved", "another") == 0
    assert described(client, "moved") == [("moved", 0, 10, 0, 0)]


def test_moves_are_there_after_a_restart(tmp_path: Path) -> None:
    with served(tmp_path / "data", kafka_port=0) as service:
        filled(service, "kept")
        with RawClient(service.kafka_address) as client:
            assert altered(client, "kept", "kept", {0: 6}) == [0]
    with served(tmp_path / "data", kafka_port=0) as service, RawClient(service.kafka_address) as c:
        assert described(c, "kept") == [("kept", 0, 6, 4, 0)]


def test_keys_look_with_read_and_move_with_admin_within_their_prefix(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    _, reader = auth.create(keys, scope="read", prefix="mine.")
    _, admin = auth.create(keys, scope="admin", prefix="mine.")
    with (
        served(tmp_path / "data", kafka_port=0, keys_file=keys) as service,
        contextlib.ExitStack() as enter,
    ):
        store = service.broker.store
        for topic in ("mine.t", "theirs"):
            store.create_topic(topic)
            store.append(topic, [b"x"] * 5)
        for topic, group in (("mine.t", "mine.g"), ("theirs", "mine.g"), ("theirs", "theirs")):
            store.group(topic, group)
        store.group("theirs", "mine.hidden")
        looking = enter.enter_context(entered(service.kafka_address, reader))
        moving = enter.enter_context(entered(service.kafka_address, admin))
        assert described(looking, "mine.g") == [("mine.t", 0, 0, 5, 0)]
        no = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert described(looking, "mine.g", {"theirs": [0]}) == [("theirs", 0, -1, -1, no)]
        assert described(looking, "mine.hidden") == ErrorCode.GROUP_ID_NOT_FOUND
        refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert described(looking, "theirs") == refused
        assert altered(looking, "mine.g", "mine.t", {0: 1}) == refused
        assert deleted(looking, "mine.g", "mine.t") == refused
        assert altered(moving, "theirs", "theirs", {0: 1}) == refused
        assert altered(moving, "mine.g", "theirs", {0: 1}) == [no]
        assert deleted(moving, "mine.g", "theirs") == no
        assert altered(moving, "mine.g", "mine.t", {0: 1}) == [0]
        assert described(moving, "mine.g") == [("mine.t", 0, 1, 4, 0)]
        assert store.group("theirs", "mine.g", start="none").committed(0) == 0
