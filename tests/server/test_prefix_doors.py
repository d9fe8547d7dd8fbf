"""Every door there is, tried with a key for some topics: it neither tells of others nor acts there.

Doors are read from the code: a route, an operation, a ticket, a feed or an action that is new is
tried, or this test says that it does not know how. The yardstick is a topic that does not exist:
whatever names a topic of somebody else is answered as if there were none.
"""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyarrow import flight
from starlette.routing import Route

import lamina
from lamina.errors import LaminaError, Unavailable
from lamina.server import auth
from lamina.server.console.actions import ACTIONS
from lamina.server.console.depth import DEPTHS
from lamina.server.console.feeds import FEEDS
from lamina.server.flight import FlightDoor
from lamina.server.http import Routes
from lamina.server.service import Service
from lamina.server.subject_answers import ROWS
from lamina.server.subject_routes import SubjectRoutes
from lamina.wire import failures, messages
from lamina.wire.operations import OPERATIONS
from tests.server.rig import served
from tests.server.test_hasty import until

THEIRS, NOTHING = "qz7secret", "qz7nobody"
"""A topic of somebody else, its group, tag and router; and a name that nothing has."""
SCOPES = ("read", "write", "admin")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = str(tmp_path_factory.mktemp("keys") / "keys.json")
    made = {"file": path, "whole": auth.create(path, scope="admin")[1]}
    for scope in SCOPES:
        made[scope] = auth.create(path, scope=scope, prefix="mine.")[1]
    return made


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, keys: dict[str, str]) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("doors")
    archive = str(folder / "archive")
    with served(folder / "data", keys_file=keys["file"], archive=archive) as running:
        store = running.broker.store
        archived = {"remote.storage.enable": "true"}
        for name in ("mine.a", THEIRS, f"{THEIRS}.dlq"):
            store.create_topic(name, config=archived)
            store.append(name, [name.encode()] * 3)
            store.group(name, THEIRS if name.startswith(THEIRS) else "g")
        for name in ("mine.w", "mine.v", f"{THEIRS}.w"):
            store.create_topic(name, format="wal", config={"max.message.bytes": 1000})
            store.append(name, [{"value": name.encode(), "tag": name.encode()}])
        store.create_router(f"{THEIRS}.r", "mine.w", f"{THEIRS}.w", tag=b"routed")
        store.create_router("mine.r", "mine.w", "mine.v", tag=b"other")
        yield running


def facts(service: Service) -> str:
    """Everything of theirs, as somebody who may know of it sees it."""
    store = service.broker.store
    found: list[Any] = [sorted(store.topics()), store.routers()]
    for topic in (THEIRS, f"{THEIRS}.dlq", f"{THEIRS}.w"):
        info = store.describe_topic(topic)
        found += [topic, info.settings, [p.durable_offset for p in info.partitions]]
        found += [store.earliest_offset(topic), len(store.segments(topic, 0))]
    for topic, group in store.groups():
        if topic.startswith(THEIRS):
            lag = store.describe_group(topic, group).partitions[0]
            found += [topic, group, lag.committed, lag.inflight]
    return repr(found)


def alike(answers: dict[str, tuple[int, str]]) -> bool:
    theirs, nothing = (
        (status, text.replace(name, "NAME")) for name, (status, text) in answers.items()
    )
    return theirs == nothing


ARGUMENTS: dict[str, Any] = {
    "partition": 0, "timestamp_ms": 0, "before": 0, "offset": 0, "before_offset": 0,
    "producer_id": 1, "held": [0], "config": {}, "to": "earliest", "execute": True,
    "source": "mine.w", "target": THEIRS, "tag": "x", "records": [{"value": "x"}],
}  # fmt: skip
"""What calls are given beside names."""


# ---------------------------------------------------------------- HTTP

BESIDE = {
    "/health", "/ready", "/live", "/metrics", "/openapi.json", "/docs", "/", "/console",
    "/v1/reload", "/v1/cluster/promote", "/v1/cluster/handover",
    "/console/static/{path:path}", "/console/session", "/console/feed/jobs",
    "/console/feed/{name}", "/console/tail", "/console/do/{name}",
    "/console/export",
    "/v1/topics/{topic}/records", "/v1/topics/{topic}/partitions/{partition}/records",
    "/v1/topics/{topic}/partitions/{partition}/watch", "/v1/topics/{topic}/groups/{group}/poll",
}  # fmt: skip
"""Routes that are in no table; those of the console are tried by their own tests, below."""


REGISTRY = {each.path for each in SubjectRoutes(None, None, None).routes()}  # type: ignore[arg-type]


def routes(service: Service) -> list[tuple[str, str]]:
    found = Routes(service.broker).application().routes
    assert all(isinstance(each, Route) for each in found)
    found = [each for each in found if each.path not in REGISTRY]  # tried by a test of their own
    known = BESIDE | {operation.path for operation in OPERATIONS.values()}
    strange = {each.path for each in found} - known
    assert not strange, "say here how a key with a prefix is to be tried on it"
    return [(verb, each.path) for each in found for verb in sorted(each.methods - {"HEAD"})]


def request_of(verb: str, path: str, name: str) -> tuple[str, dict[str, Any]]:
    """Fills a route with a name wherever one goes."""
    operation = next(
        (each for each in OPERATIONS.values() if (each.verb, each.path) == (verb, path)), None
    )
    given: dict[str, Any] = {}
    known = operation.signature.parameters if operation else {"records": None}
    for each in known:
        if f"{{{each}}}" not in path:
            is_name = each in ("topic", "name", "group")
            value = name if is_name else ARGUMENTS.get(each)
            given |= {} if value is None else {each: value}
    for each in ("topic", "name", "group", "path:path"):
        path = path.replace(f"{{{each}}}", name)
    return path.replace("{partition}", "0").replace("{producer_id}", "1"), given


@pytest.mark.parametrize("scope", SCOPES)
def test_no_route_tells_of_it_or_acts_on_it(
    service: Service, keys: dict[str, str], scope: str
) -> None:
    before = facts(service)
    headers = {"authorization": f"Bearer {keys[scope]}"}
    with httpx.Client(base_url=service.http_url, headers=headers, timeout=30) as client:
        for verb, path in routes(service):
            answers = {}
            for name in (THEIRS, NOTHING):
                target, given = request_of(verb, path, name)
                if verb == "GET":
                    answer = client.get(target, params=given)
                else:
                    answer = client.request(verb, target, json=given)
                answers[name] = answer.status_code, answer.text
                assert answer.status_code != 500, (verb, target, answer.text)
            is_named = request_of(verb, path, THEIRS) != request_of(verb, path, NOTHING)
            assert not is_named or alike(answers), (verb, path, answers)
            mine, given = request_of(verb, path, "mine.none")
            given = {key: value for key, value in given.items() if value != THEIRS}
            told = client.request(verb, mine, **({"json": given} if verb != "GET" else {})).text
            assert THEIRS not in told, (verb, path)
            with contextlib.suppress(LaminaError):  # what the admin key just made
                service.broker.store.delete_topic("mine.none")
    assert facts(service) == before


@pytest.mark.parametrize("scope", SCOPES)
def test_no_call_of_the_schema_registry_tells_of_it_or_acts_on_it(
    service: Service, keys: dict[str, str], scope: str
) -> None:
    whole, mine = (("any", keys[name]) for name in ("whole", scope))
    secret = '{"type": "fixed", "name": "qz7fixed", "size": 7}'
    with httpx.Client(base_url=service.http_url, timeout=30) as client:
        place = f"/subjects/{THEIRS}-value/versions"
        number = client.post(place, auth=whole, json={"schema": secret}).json()["id"]
        store = service.broker.store
        before = repr(store.schema_registry().book())
        body = {"schema": '"int"', "compatibility": "NONE", "mode": "READONLY"}
        for row in ROWS:
            answers = {}
            for name in (THEIRS, NOTHING):
                number_of = str(number) if name == THEIRS else "2000000000"
                path = row.path.replace("{subject}", f"{name}-value").replace("{version}", "1")
                path = path.replace("{id}", number_of)
                answer = client.request(row.verb, f"/{path}", auth=mine, json=body)
                told = answer.text.replace(f" {number_of} ", " ID ")
                answers[name] = answer.status_code, told
            assert alike(answers), (row, answers)
            assert "qz7fixed" not in answers[THEIRS][1]
            path = row.path.replace("{subject}", "mine.a-value").replace("{version}", "latest")
            told = client.request(row.verb, f"/{path.replace('{id}', '1')}", auth=mine).text
            assert THEIRS not in told, row
        assert repr(store.schema_registry().book()) == before
        if scope != "read":  # a name that begins with the prefix is not a topic that does
            referring = {
                "schema": '["null", "qz7fixed"]',
                "references": [{"name": "qz7fixed", "subject": f"{THEIRS}-value", "version": 1}],
            }
            answer = client.post("/subjects/mine.a-value/versions", auth=mine, json=referring)
            assert (answer.status_code, answer.json()["error_code"]) == (422, 42201)
            assert "qz7nobody" not in answer.text


# ---------------------------------------------------------------- Flight


class Stranger:
    """A Flight client with a key."""

    def __init__(self, url: str, key: str) -> None:
        self.client = flight.connect(url)
        headers = [(b"authorization", f"Bearer {key}".encode())]
        self.options = flight.FlightCallOptions(timeout=30, headers=headers)

    def told(self, call: Any) -> tuple[int, str]:
        try:
            return 200, str(call())
        except flight.FlightError as error:
            described = json.loads(error.extra_info)
            return 400, json.dumps(described)

    def act(self, name: str, given: dict[str, Any]) -> tuple[int, str]:
        action = flight.Action(name, json.dumps(given).encode())
        return self.told(
            lambda: [each.body.to_pybytes() for each in self.client.do_action(action, self.options)]
        )

    def get(self, asked: dict[str, Any]) -> tuple[int, str]:
        ticket = flight.Ticket(json.dumps(asked).encode())
        return self.told(lambda: self.client.do_get(ticket, self.options).read_all().to_pylist())

    def append(self, topic: str) -> tuple[int, str]:
        def append() -> bytes:
            command = flight.FlightDescriptor.for_command(b"append")
            writer, reader = self.client.do_exchange(command, self.options)
            writer.begin(messages.NO_COLUMNS)
            writer.write_metadata(messages.encode_order(messages.Order(topic), [b"x"]))
            answer: bytes = reader.read_chunk().app_metadata.to_pybytes()
            writer.close()
            return answer

        try:
            return self.told(append)
        except (pa.ArrowException, OSError):  # refused before it was begun
            return 403, ""

    def close(self) -> None:
        self.client.close()


@pytest.fixture(params=SCOPES)
def stranger(
    request: pytest.FixtureRequest, service: Service, keys: dict[str, str]
) -> Iterator[Stranger]:
    made = Stranger(service.flight_url, keys[request.param])
    before = facts(service)
    yield made
    made.close()
    assert facts(service) == before, "nothing of theirs has changed"


def test_flight_has_no_calls_but_those_tried_here() -> None:
    calls = {name for name, _ in inspect.getmembers(FlightDoor) if name in vars(FlightDoor)}
    assert {name for name in calls if not name.startswith("_")} == {
        "do_exchange", "do_get", "do_action", "list_flights", "get_flight_info", "get_schema",
        "list_actions", "stop_soon",
    }  # fmt: skip
    assert set(messages._TICKETS) == {"scan", "fetch", "poll", "diff"}


def test_no_action_tells_of_it_or_acts_on_it(stranger: Stranger) -> None:
    for name, operation in OPERATIONS.items():
        answers = {}
        for topic in (THEIRS, NOTHING):
            known = operation.signature.parameters
            given = {each: value for each, value in ARGUMENTS.items() if each in known}
            given |= {each: topic for each in ("topic", "name", "group") if each in known}
            answers[topic] = stranger.act(name, given)
        assert alike(answers), (name, answers)


def test_no_ticket_tells_of_it_or_takes_of_it(stranger: Stranger) -> None:
    for kind in messages._TICKETS:
        answers = {
            topic: stranger.get({"kind": kind, "topic": topic, "partition": 0, "start": 0}
                                | {"group": topic, "wait_ms": 1})
            for topic in (THEIRS, NOTHING)
        }  # fmt: skip
        assert alike(answers), (kind, answers)
        told = stranger.get({"kind": kind, "topic": "mine.none", "start": 0, "group": THEIRS})
        assert THEIRS not in told[1].replace(f"'{THEIRS}'", ""), (kind, told)


def test_no_append_tells_of_it_or_reaches_it(stranger: Stranger) -> None:
    answers = {topic: stranger.append(topic) for topic in (THEIRS, NOTHING)}
    assert alike(answers), answers


# ---------------------------------------------------------------- the console


@contextlib.contextmanager
def logged_in(service: Service, key: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.http_url, timeout=30) as page:
        page.headers["x-lamina-console"] = "1"
        assert page.post("/console/session", json={"key": key}).status_code == 200
        yield page


MORE = {"base": "0", "start": "0", "offset": "0", "time_ms": "0", "group": THEIRS}


@pytest.mark.parametrize("scope", SCOPES)
def test_no_page_of_the_console_tells_of_it(
    service: Service, keys: dict[str, str], scope: str
) -> None:
    with logged_in(service, keys[scope]) as page:
        for path in (*(f"feed/{name}" for name in (*FEEDS, *DEPTHS, "jobs")), "tail"):
            answers = {}
            for name in (THEIRS, NOTHING):
                asked = MORE | {"topic": name, "group": name}
                answer = page.get(f"/console/{path}", params=asked)
                answers[name] = answer.status_code, answer.text
            assert alike(answers), (path, answers)
            if path != "tail":
                for asked in (MORE, MORE | {"topic": "mine.a"}, {"search": "qz7"}):
                    told = page.get(f"/console/{path}", params=asked).text
                    assert THEIRS not in told.replace(f"'{THEIRS}'", ""), (path, asked, told)
        answers = {}
        for name in (THEIRS, NOTHING):
            asked = MORE | {"topic": name, "format": "jsonl"}
            answer = page.get("/console/export", params=asked)
            answers[name] = answer.status_code, answer.text
        assert alike(answers), answers
        assert THEIRS not in page.get("/console/session").text


@pytest.mark.parametrize("scope", SCOPES)
def test_no_action_of_the_console_acts_on_it(
    service: Service, keys: dict[str, str], scope: str
) -> None:
    job = service._http._console._jobs.verify(service.broker.store, THEIRS, "somebody")  # type: ignore[union-attr]
    before = facts(service)
    with logged_in(service, keys[scope]) as page:
        for name in ACTIONS:
            answers = {}
            for topic in (THEIRS, NOTHING):
                given = ARGUMENTS | {"topic": topic, "group": topic, "confirm": topic}
                answer = page.post(f"/console/do/{name}", json=given | {"job": job.number})
                answers[topic] = answer.status_code, answer.text
            assert alike(answers), (name, answers)
            assert answers[THEIRS][0] == 403, (name, answers)
        assert THEIRS not in page.get("/console/feed/jobs").text
    assert facts(service) == before


# ---------------------------------------------------------------- what goes wrong elsewhere


def test_a_router_that_cannot_copy_does_not_say_where_to(
    service: Service, keys: dict[str, str]
) -> None:
    """The append needs the other topic; why that refuses is for those who may know of it."""
    large = {"value": b"x" * 900, "tag": b"routed"}
    target = f"{THEIRS}.w"
    service.broker.store.alter_topic(target, {"max.message.bytes": 100})
    try:
        for key, tells in ((keys["whole"], True), (keys["write"], False)):
            with lamina.connect(service.flight_url, api_key=key, timeout_s=20) as store:
                with pytest.raises(LaminaError) as caught:
                    store.append("mine.w", [large])
                assert (THEIRS in str(caught.value)) is tells, caught.value
                assert ("the key is not for" in str(caught.value)) is not tells
    finally:
        service.broker.store.alter_topic(target, {"max.message.bytes": 1000})


def test_a_router_whose_target_is_full_does_not_say_so(
    service: Service, keys: dict[str, str]
) -> None:
    store = service.broker.store
    target = f"{THEIRS}.w"
    store.alter_topic(target, {"discard": "new", "retention.records": 1})
    try:
        body = {"records": [{"value": "x", "tag": "routed"}]}
        headers = {"authorization": f"Bearer {keys['write']}"}
        answer = httpx.post(
            f"{service.http_url}/v1/topics/mine.w/records", json=body, headers=headers
        )
        assert (answer.status_code, answer.json()["error"]) == (503, "Unavailable")
        assert THEIRS not in answer.text
        with pytest.raises(Unavailable, match=THEIRS):
            store.append("mine.w", [{"value": b"x", "tag": b"routed"}])
    finally:
        store.alter_topic(target, {"discard": "old", "retention.records": -1})


def test_a_topic_that_goes_while_it_is_followed_takes_no_names_along(
    service: Service, keys: dict[str, str]
) -> None:
    """A tail, a watch, a job: what they meet later is told as carefully as what they meet first."""
    store = service.broker.store
    store.create_topic("mine.brief")
    store.append("mine.brief", [b"x"] * 100)
    headers = {"authorization": f"Bearer {keys['admin']}"}
    jobs = service._http._console._jobs  # type: ignore[union-attr]
    with logged_in(service, keys["admin"]) as page:
        told = ""
        with page.stream("GET", "/console/tail", params={"topic": "mine.brief"}) as tail:
            lines = tail.iter_lines()
            next(lines)
            watching = httpx.stream(
                "GET",
                f"{service.http_url}/v1/topics/mine.brief/partitions/0/watch?start=0",
                headers=headers,
                timeout=30,
            )
            with watching as watch:
                seen = watch.iter_lines()
                next(seen)
                store.delete_topic("mine.brief")
                told += "".join(seen)
            told += "".join(lines)
        assert "mine.brief" in told
        assert THEIRS not in told
        job = jobs._begin(  # one that finds its topic gone
            type(jobs.verify(store, "mine.a", "k"))(99, "verify", "mine.brief", "k", 0, total=1),
            lambda job: jobs._verify(store, job, [(0, 0, 1)]),
        )
        assert until(lambda: job.state == "failed")
        rows = page.get("/console/feed/jobs").text
        assert "mine.brief" in rows
        assert THEIRS not in rows


def test_what_an_error_speaks_of_stays_here() -> None:
    """It is for the door to judge; the other side gets text and fields."""
    error = Unavailable("router 'r': it is full")
    error.speaks_of = ("t",)
    assert "speaks_of" not in json.dumps(failures.to_object(error))
