"""A key with a prefix learns nothing of topics outside it, whichever way it asks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyarrow import flight

import lamina
from lamina.errors import LaminaError, UnknownTopic
from lamina.server import auth
from lamina.server.console.depth import DEPTHS
from lamina.server.console.feeds import FEEDS
from lamina.server.service import Service
from lamina.wire import failures
from lamina.wire.operations import OPERATIONS
from tests.server.rig import served

SECRET = "qz7secret"
"""The name of a topic and of a group that the key must not learn of."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = str(tmp_path_factory.mktemp("keys") / "keys.json")
    made = {"file": path, "whole": auth.create(path, scope="admin")[1]}
    for scope in ("read", "write", "admin"):
        made[scope] = auth.create(path, scope=scope, prefix="mine.")[1]
    return made


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, keys: dict[str, str]) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("prefix") / "data"
    with served(folder, keys_file=keys["file"]) as running:
        with lamina.connect(running.flight_url, api_key=keys["whole"]) as store:
            for name in ("mine.a", "mine.w", SECRET, f"{SECRET}.dlq"):
                store.create_topic(name, format="wal" if name.endswith("w") else "keratin")
                store.append(name, [SECRET.encode() * 3] if SECRET in name else [b"mine"])
            store.group(SECRET, SECRET)
            store.group("mine.a", "g")
        poison(running, SECRET)
        yield running


def poison(service: Service, topic: str) -> None:
    """Has the secret topic fail, so that health speaks of it."""
    partition = service.broker.store._partitions[topic, 0]
    partition.writer.poison(OSError(5, f"Input/output error: {topic}"))


def arguments(name: str) -> dict[str, Any]:
    given: dict[str, Any] = {
        "partition": 0, "timestamp_ms": 0, "before": 0, "offset": 0, "before_offset": 0,
        "producer_id": 1, "held": [0], "config": {}, "to": "earliest", "execute": True,
    }  # fmt: skip
    known = OPERATIONS[name].signature.parameters
    return {each: value for each, value in given.items() if each in known}


@pytest.mark.parametrize("scope", ["read", "write", "admin"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_operation_tells_of_it(
    service: Service, keys: dict[str, str], scope: str, name: str
) -> None:
    operation = OPERATIONS[name]
    client = flight.connect(service.flight_url)
    options = flight.FlightCallOptions(
        timeout=30, headers=[(b"authorization", f"Bearer {keys[scope]}".encode())]
    )
    if "mine.b" not in service.broker.store.topics():
        service.broker.store.create_topic("mine.b")
    for topic in ("mine.none", "mine.b", "elsewhere", None):
        given = arguments(name)
        if operation.topic is not None and topic is not None:
            given[operation.topic] = topic
        known = operation.signature.parameters
        given |= {each: "none" for each in ("group", "name") if each in known and each not in given}
        body = json.dumps(given).encode()
        try:
            told = str(
                [r.body.to_pybytes() for r in client.do_action(flight.Action(name, body), options)]
            )
        except flight.FlightError as error:
            told = f"{error} {error.extra_info!r}"
        assert SECRET not in told, (name, topic)
    client.close()


PAGES = [
    "/health", "/ready", "/metrics", "/openapi.json", "/docs", "/v1/topics", "/v1/groups",
    "/v1/tier", "/v1/failures", "/v1/topics/mine.none", "/v1/topics/mine.none/partitions/0/records",
    "/v1/topics/mine.none/groups/x", f"/v1/topics/mine.a?name={SECRET}",
    f"/v1/topics/mine.a/partitions/0/latest?topic={SECRET}",
    f"/v1/topics/mine.a/partitions/0/records?topic={SECRET}",
    f"/v1/topics/mine.a/partitions/0/watch?topic={SECRET}", f"/v1/groups?topic={SECRET}x",
]  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_no_page_tells_of_it(service: Service, keys: dict[str, str], path: str) -> None:
    asked = path.partition("?")[2]
    for headers in ({"authorization": f"Bearer {keys['read']}"}, {}):
        answer = httpx.get(service.http_url + path, headers=headers, timeout=30)
        text = answer.text.replace(asked.partition("=")[2], "") if asked else answer.text
        assert SECRET not in text
        assert answer.status_code != 500


def test_the_same_pages_tell_whoever_may_know(service: Service, keys: dict[str, str]) -> None:
    """Or the test above would see nothing."""
    headers = {"authorization": f"Bearer {keys['whole']}"}
    for path in (
        "/health",
        "/metrics",
        "/v1/topics",
        "/v1/groups",
        "/v1/failures",
        "/v1/topics/none",
    ):
        assert SECRET in httpx.get(service.http_url + path, headers=headers, timeout=30).text, path
    assert "partitions" in httpx.get(service.http_url + "/ready", headers=headers).json()


def test_a_key_sees_its_own(service: Service, keys: dict[str, str]) -> None:
    headers = {"authorization": f"Bearer {keys['read']}"}
    metrics = httpx.get(service.http_url + "/metrics", headers=headers).text
    assert re.search(r"current_offset.*mine\.a.* 1\.0", metrics), metrics
    assert "lamina_failed_partitions 0.0" in metrics
    assert "lamina_calls" not in metrics, "what others do is not told, either"
    health = httpx.get(service.http_url + "/health", headers=headers)
    assert (health.status_code, health.json()["status"]) == (200, "ok")
    stranger = httpx.get(service.http_url + "/health")
    assert (stranger.status_code, stranger.json()["problems"]) == (503, [])
    with (
        lamina.connect(service.flight_url, api_key=keys["read"]) as store,
        pytest.raises(UnknownTopic, match=r"there are: mine\.a, [a-z., ]*$"),
    ):
        store.latest_offset("mine.none")


def test_no_feed_of_the_console_tells_of_it(service: Service, keys: dict[str, str]) -> None:
    with httpx.Client(base_url=service.http_url, timeout=30) as page:
        page.headers["x-lamina-console"] = "1"
        logged_in = page.post("/console/session", json={"key": keys["admin"]})
        assert logged_in.json()["caller"]["prefix"] == "mine."
        assert SECRET not in logged_in.text
        for name in (*FEEDS, *DEPTHS, "jobs"):
            for query in ({}, {"topic": "mine.a"}, {"topic": "mine.none"}, {"search": SECRET[:3]}):
                more = {"base": "0", "start": "0", "offset": "0", "time_ms": "0", "group": "none"}
                answer = page.get(f"/console/feed/{name}", params=query | more)
                assert SECRET not in answer.text, (name, query)
                assert answer.status_code != 500, (name, query, answer.text)


def test_what_failed_is_told_by_its_topic(service: Service, keys: dict[str, str]) -> None:
    with lamina.connect(service.flight_url, api_key=keys["whole"]) as store:
        assert [name for name in store.failures() if SECRET in name]
    with lamina.connect(service.flight_url, api_key=keys["read"]) as store:
        assert store.failures() == {}


# ---------------------------------------------------------------- one place for each argument


@pytest.mark.parametrize("path", [
    "/v1/topics/mine.a/partitions/0/latest?topic=mine.w",
    "/v1/topics/mine.a/partitions/0/latest?partition=1",
    "/v1/topics/mine.a/partitions/0/records?topic=mine.w",
    "/v1/topics/mine.a/partitions/0/records?partition=1",
    "/v1/topics/mine.a/partitions/0/watch?topic=mine.w",
    "/v1/topics/mine.a?name=mine.w",
    "/v1/topics/mine.a/groups/g?group=x",
    "/v1/topics/mine.a/groups/g/lag?topic=mine.w",
    "/v1/topics/mine.a/partitions/0/records?start=0&start=5",
])  # fmt: skip
def test_nothing_replaces_what_the_path_says(
    service: Service, keys: dict[str, str], path: str
) -> None:
    headers = {"authorization": f"Bearer {keys['whole']}"}
    answer = httpx.get(service.http_url + path, headers=headers, timeout=30)
    assert answer.status_code == 400
    assert answer.json()["error"] == "InvalidRequest"


def test_nothing_replaces_it_in_a_body_or_a_post(service: Service, keys: dict[str, str]) -> None:
    headers = {"authorization": f"Bearer {keys['whole']}"}
    with httpx.Client(base_url=service.http_url, headers=headers, timeout=30) as client:
        record = {"records": [{"value": "x"}]}
        before = client.get("/v1/topics/mine.a/partitions/0/latest").json()
        for path, body in (
            ("/v1/topics/mine.w/records?topic=mine.a", record),
            ("/v1/topics/mine.w/records", record | {"topic": "mine.a"}),
            ("/v1/topics/mine.w/groups/g/poll", {"topic": "mine.a"}),
            ("/v1/topics/mine.w/groups/g/ack", {"topic": "mine.a", "held": [0]}),
            ("/v1/topics/mine.w/partitions/0/trim?topic=mine.a", {"before_offset": 1}),
        ):
            assert client.post(path, json=body).status_code == 400, path
        assert client.get("/v1/topics/mine.a/partitions/0/latest").json() == before


# ---------------------------------------------------------------- Flight's other calls


def test_calls_that_are_not_there_are_refused_without_a_traceback(
    service: Service, keys: dict[str, str]
) -> None:
    client = flight.connect(service.flight_url)
    options = flight.FlightCallOptions(
        timeout=30, headers=[(b"authorization", f"Bearer {keys['read']}".encode())]
    )
    described = flight.FlightDescriptor.for_command(b"x")
    calls: list[Any] = [
        lambda options: list(client.list_flights(options=options)),
        lambda options: client.get_flight_info(described, options),
        lambda options: put(client, described, options),
    ]
    for call in calls:
        with pytest.raises(flight.FlightError) as caught:
            call(options)
        assert "Traceback" not in str(caught.value)
        assert b"InvalidRequest" in caught.value.extra_info
        with pytest.raises(flight.FlightUnauthorizedError):
            call(flight.FlightCallOptions(timeout=30))
    assert client.get_schema(described, options).schema.names == []
    client.close()


def put(client: Any, described: Any, options: Any) -> None:
    writer, reader = client.do_put(described, pa.schema([("value", pa.binary())]), options)
    with writer:
        reader.read()
        writer.done_writing()


def test_an_error_that_names_topics_is_the_same_on_both_sides() -> None:
    told = UnknownTopic("there is no topic 'x'", ("a", "b"))
    again = failures.from_object(json.loads(failures.encode(told)))
    assert (type(again), str(again), vars(again)) == (type(told), str(told), vars(told))
    assert isinstance(again, LaminaError)
