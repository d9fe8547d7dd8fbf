"""A classic group belongs to whom its own name does: other keys neither see nor move it.

It has committed in a topic that the key may read, which is where the key could come across it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import lamina
from lamina.api.memberships import Committed
from lamina.errors import UnknownGroup
from lamina.groups.share_membership import ShareBeat
from lamina.server import auth
from lamina.server.console.feeds import FEEDS
from lamina.server.service import Service
from lamina.wire.kafka.connection_apis import API_VERSIONS
from lamina.wire.kafka.consumer_protocol import encode_assignment
from tests.server.kafka.raw_client import RawClient
from tests.server.rig import SESSION_MS, joined, served
from tests.server.test_prefix_doors import logged_in

SECRET = "qz8hidden"
"""What members of groups of others, and clients that are connected, say of themselves."""
THEIRS, MINE, SHARED = "spark-qz7secret", "mine.readers", "workers"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = str(tmp_path_factory.mktemp("keys") / "keys.json")
    made = {"file": path, "whole": auth.create(path, scope="admin")[1]}
    return made | {"mine": auth.create(path, scope="admin", prefix="mine.")[1]}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, keys: dict[str, str]) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("groups")
    with served(folder / "data", keys_file=keys["file"], kafka_port=0) as running:
        store = running.broker.store
        for topic in ("mine.a", "other"):
            store.create_topic(topic)
            store.append(topic, [b"a record"] * 5)
        for group in (THEIRS, MINE):
            store.commit_offsets(group, [Committed("mine.a", 0, 3), Committed("other", 0, 2)])
        store.group("mine.a", SHARED)
        for group, client_id in ((THEIRS, SECRET), (MINE, "till"), (SHARED, SECRET)):
            share = encode_assignment({"mine.a": [0], "other": [0]})
            joined(store, group, share, client_id=client_id)
        for group, client_id in ((f"{THEIRS}.queue", SECRET), (f"x.{THEIRS}", SECRET)):
            beat = ShareBeat("m", 0, ("mine.a", "other"), client_id=client_id)
            store.coordinator.share.heartbeat(
                group, beat, lambda _: 1, session_ms=SESSION_MS, on_end=lambda: None
            )
        with RawClient(running.kafka_address) as stranger:
            software = {"client_software_name": SECRET, "client_software_version": "1"}
            stranger.ask(API_VERSIONS, 3, software)
            yield running


@pytest.fixture
def store(service: Service, keys: dict[str, str]) -> Iterator[Any]:
    with lamina.connect(service.flight_url, api_key=keys["mine"]) as connected:
        yield connected


def committed(service: Service) -> int:
    (found,) = [c for c in service.broker.store.committed_offsets(THEIRS) if c.topic == "mine.a"]
    return found.offset


@pytest.mark.parametrize("topic", [None, "mine.a"])
def test_lists_have_the_groups_of_a_key_and_those_of_its_topics(
    store: Any, topic: str | None
) -> None:
    assert store.groups(topic) == [("mine.a", MINE), ("mine.a", SHARED)]
    assert [each.topic for each in store.committed_offsets(MINE)] == ["mine.a"]


CALLS = {
    "describe_group": {},
    "reset_group": {"to": "earliest", "execute": True},
    "delete_group": {},
}


@pytest.mark.parametrize("name", CALLS)
def test_a_group_of_others_is_told_and_treated_like_one_that_is_not_there(
    service: Service, store: Any, name: str
) -> None:
    told = []
    for group in (THEIRS, "nobody"):
        with pytest.raises(UnknownGroup) as refused:
            getattr(store, name)("mine.a", group, **CALLS[name])
        told.append(str(refused.value).replace(group, "…"))
    assert told[0] == told[1]
    assert committed(service) == 3


def test_metrics_and_lists_by_http_leave_it_out(service: Service, keys: dict[str, str]) -> None:
    for path in ("/metrics", "/v1/groups", "/v1/groups?topic=mine.a"):
        for key, is_told in (("mine", False), ("whole", True)):
            headers = {"authorization": f"Bearer {keys[key]}"}
            text = httpx.get(service.http_url + path, headers=headers, timeout=30).text
            assert (THEIRS in text) == is_told, (path, key)
            assert MINE in text
            assert SHARED in text


def test_the_same_feeds_tell_whoever_may_know(service: Service, keys: dict[str, str]) -> None:
    """Or the test below would see nothing."""
    with logged_in(service, keys["whole"]) as client:
        for feed in ("members", "clients"):
            assert SECRET in client.get(f"/console/feed/{feed}").text, feed
        asked = {"topic": "mine.a", "group": THEIRS}
        assert SECRET in client.get("/console/feed/group", params=asked).text


@pytest.mark.parametrize(("key", "classic", "shares"), [("mine", 1, 0), ("whole", 3, 2)])
def test_metrics_count_the_members_of_its_groups(
    service: Service, keys: dict[str, str], key: str, classic: int, shares: int
) -> None:
    headers = {"authorization": f"Bearer {keys[key]}"}
    text = httpx.get(f"{service.http_url}/metrics", headers=headers, timeout=30).text
    assert f'lamina_group_members{{kind="classic"}} {classic}.0' in text
    assert f'lamina_joined_groups{{kind="classic",state="Stable"}} {classic}.0' in text
    assert f'lamina_group_members{{kind="share"}} {shares}.0' in text
    assert ("lamina_kafka_connections 1.0" in text) == (key == "whole")
    assert SECRET not in text


def test_the_console_neither_shows_nor_moves_it(service: Service, keys: dict[str, str]) -> None:
    asked = {"topic": "mine.a", "partition": "0"}
    with logged_in(service, keys["mine"]) as client:
        for feed in FEEDS:
            for group in (MINE, THEIRS):
                text = client.get(f"/console/feed/{feed}", params=asked | {"group": group}).text
                assert THEIRS not in text.replace(f"no group '{THEIRS}'", ""), feed
                assert SECRET not in text, feed
                assert '"other"' not in text, feed
        (row,) = client.get("/console/feed/members").json()["rows"]
        assert (row["group"], row["client_id"], row["partitions"]) == (MINE, "till", 1)
        shared = client.get("/console/feed/group", params=asked | {"group": SHARED}).json()
        assert shared["members"] == []
        told = client.get("/console/feed/group", params=asked | {"group": THEIRS})
        assert json.loads(told.text)["error"] == "UnknownGroup"
        given = {"topic": "mine.a", "group": THEIRS, "to": "earliest", "execute": True}
        moved = client.post("/console/do/seek_group", json=given)
        assert moved.status_code >= 400
    assert committed(service) == 3
