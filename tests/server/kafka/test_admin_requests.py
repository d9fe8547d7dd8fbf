"""What administrators ask for in particular: lists, operations, the newest time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.server import auth
from lamina.wire.kafka.connection_apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.group_apis import DESCRIBE_GROUPS, LEAVE_GROUP
from lamina.wire.kafka.record_apis import LIST_OFFSETS, PRODUCE
from lamina.wire.kafka.share_apis import SHARE_GROUP_DESCRIBE
from lamina.wire.kafka.topic_apis import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
)
from tests.server.kafka.raw_client import RawClient, made, produced
from tests.server.rig import served

SET, DELETE, APPEND, SUBTRACT = range(4)
NEWEST_TIME = -3
TIME_MAX = (1 << 63) - 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with served(tmp_path_factory.mktemp("admin") / "data", kafka_port=0) as service:
        yield service


@pytest.fixture
def client(server: Any) -> Iterator[RawClient]:
    with RawClient(server.kafka_address) as made_client:
        yield made_client


def create(server: Any, topic: str, **more: Any) -> None:
    with lamina.connect(server.flight_url) as store:
        store.create_topic(topic, **more)


# ---------------------------------------------------------------- the newest time


def listed(client: RawClient, topic: str, *times: int) -> list[tuple[int, int, int]]:
    parts = [{"partition_index": 0, "timestamp": each} for each in times]
    answer = client.ask(LIST_OFFSETS, 10, {"topics": [{"name": topic, "partitions": parts}]})
    found = answer["topics"][0]["partitions"]
    return [(each["error_code"], each["offset"], each["timestamp"]) for each in found]


@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
@pytest.mark.parametrize(
    ("times", "newest"),
    [
        ([-5, -3, -4], 1),
        ([5, 3, 9, 9, 1], 2),
        ([1_700_000_000_000_000_000, 1_700_000_000_000_000_007, 3], 1),
        ([7, TIME_MAX, -(1 << 63), TIME_MAX - 1], 1),
        ([0, 0], 0),
    ],
)
def test_the_newest_time_is_found_whatever_the_times_are(
    server: Any, client: RawClient, format_name: str, times: list[int], newest: int
) -> None:
    topic = f"newest-{format_name}-{abs(hash(tuple(times)))}"
    create(server, topic, format=format_name)
    answer = client.ask(PRODUCE, 9, produced(topic, made([b"x"] * len(times), times=times)))
    first = answer["responses"][0]["partition_responses"][0]["base_offset"]
    assert listed(client, topic, NEWEST_TIME) == [(0, first + newest, times[newest])]


def test_a_partition_is_asked_for_once_in_a_request(server: Any, client: RawClient) -> None:
    create(server, "asked-twice")
    twice = (ErrorCode.INVALID_REQUEST, -1, -1)
    assert listed(client, "asked-twice", -1, NEWEST_TIME) == [twice, twice]
    assert listed(client, "asked-twice", -1) == [(0, 0, -1)]


# ---------------------------------------------------------------- settings


def altered(client: RawClient, topic: str, *changes: tuple[str, int, str | None]) -> int:
    configs = [
        {"name": name, "config_operation": operation, "value": value}
        for name, operation, value in changes
    ]
    resource = {"resource_type": 2, "resource_name": topic, "configs": configs}
    (done,) = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})["responses"]
    return int(done["error_code"])


def described(client: RawClient, topic: str, keys: list[str] | None) -> dict[str, str]:
    asked = {"resource_type": 2, "resource_name": topic, "configuration_keys": keys}
    (found,) = client.ask(DESCRIBE_CONFIGS, 4, {"resources": [asked]})["results"]
    return {each["name"]: each["value"] for each in found["configs"]}


def test_values_are_added_to_a_list_and_taken_out(server: Any, client: RawClient) -> None:
    create(server, "listing")
    key = "cleanup.policy"
    for operation, value, expected in (
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "delete", "compact"),
    ):
        assert altered(client, "listing", (key, operation, value)) == 0
        assert described(client, "listing", [key]) == {key: expected}
    assert altered(client, "listing", (key, SUBTRACT, "compact")) == ErrorCode.INVALID_CONFIG
    assert altered(client, "listing", (key, APPEND, "shred")) == ErrorCode.INVALID_CONFIG
    assert altered(client, "none-such", (key, APPEND, "compact")) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    retention = ("retention.ms", APPEND, "5")
    assert altered(client, "listing", retention) == ErrorCode.INVALID_CONFIG
    assert described(client, "listing", [key]) == {key: "compact"}


def test_a_change_that_says_nothing_certain_is_refused(server: Any, client: RawClient) -> None:
    create(server, "uncertain")
    invalid = ErrorCode.INVALID_REQUEST
    assert altered(client, "uncertain", ("retention.ms", SET, None)) == invalid
    assert altered(client, "uncertain", ("retention.ms", 4, "5")) == invalid
    both = ("retention.ms", SET, "5000"), ("retention.ms", SET, "6000")
    assert altered(client, "uncertain", *both) == invalid
    configs = [{"name": "retention.ms", "value": None}]
    whole = {"resource_type": 2, "resource_name": "uncertain", "configs": configs}
    (done,) = client.ask(ALTER_CONFIGS, 2, {"resources": [whole]})["responses"]
    assert done["error_code"] == invalid
    assert described(client, "uncertain", ["retention.ms"]) == {"retention.ms": "-1"}


def test_no_named_setting_is_every_setting(server: Any, client: RawClient) -> None:
    create(server, "everything")
    every = described(client, "everything", None)
    assert len(every) > 20
    assert described(client, "everything", []) == every


# ---------------------------------------------------------------- groups


def test_a_key_is_told_what_it_may_do_with_a_group(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    allowed = {"read": {8, 10}, "write": {3, 8, 10}, "admin": {3, 6, 8, 10, 11}}
    secrets = {scope: auth.create(keys, scope=scope)[1] for scope in allowed}
    with served(tmp_path / "data", kafka_port=0, keys_file=keys) as service:
        for scope, operations in allowed.items():
            with RawClient(service.kafka_address) as asking:
                asking.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
                said = b"\0a\0" + secrets[scope].encode()
                assert asking.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": said})["error_code"] == 0
                asked = {"groups": ["g"], "include_authorized_operations": True}
                (group,) = asking.ask(DESCRIBE_GROUPS, 5, asked)["groups"]
                assert group["authorized_operations"] == sum(1 << each for each in operations)
                (group,) = asking.ask(DESCRIBE_GROUPS, 5, {"groups": ["g"]})["groups"]
                assert group["authorized_operations"] == -(1 << 31)


def test_a_share_group_is_told_with_what_may_be_done(server: Any, client: RawClient) -> None:
    create(server, "shared")
    with lamina.connect(server.flight_url) as store:
        store.group("shared", "sharers").poll()
    asked = {"group_ids": ["sharers"], "include_authorized_operations": True}
    (group,) = client.ask(SHARE_GROUP_DESCRIBE, 1, asked)["groups"]
    assert group["error_code"] == 0
    assert group["authorized_operations"] == sum(1 << each for each in (3, 6, 8, 10, 11))


def test_nobody_leaves_where_nobody_is_named(client: RawClient) -> None:
    assert client.ask(LEAVE_GROUP, 5, {"group_id": "g", "members": []})["members"] == []
