"""Users behind a server: Flight, HTTP, metrics and the console, each over a real socket."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

import lamina
from lamina.errors import LaminaError
from lamina.server.console.depth import DEPTHS
from lamina.server.console.feeds import FEEDS
from lamina.server.service import Service
from lamina.server.setting_table import ServerSettings
from lamina.wire import failures
from lamina.wire.operations import OPERATIONS
from lamina_torture.cross.ground import EVERYWHERE, Ground, Saw, read_over
from lamina_torture.cross.lookers import look
from lamina_torture.cross.promise import is_out_of_reach
from lamina_torture.cross.readers import BOTH, by_consumer, by_diff, by_fetch, by_group, by_scan
from lamina_torture.cross.templates import GROUP, NEIGHBOUR, TOPIC
from lamina_torture.rows import demand, violated

WAIT_S = 60
TYPED = range(200, 500)
"""A server that is asked something answers, or says what is wrong with the question."""
UNAVAILABLE = (502, 503, 507)


@contextmanager
def served(ground: Ground) -> Iterator[Service]:
    """A server over the root, on ports of its own."""
    service = Service(ground.data, ServerSettings(flight_port=0, http_port=0, kafka_port=-1))
    service.start()
    try:
        yield service
    finally:
        service.stop()


def _remote(read: Callable[[Any], Saw]) -> Callable[[Ground], Saw]:
    def user(ground: Ground) -> Saw:
        with served(ground) as service, lamina.connect(service.flight_url) as store:
            return read(store)

    return user


remote_scan = _remote(by_scan)
remote_fetch = _remote(by_fetch)
remote_diff = _remote(by_diff)
remote_group = _remote(by_group)
remote_consumer = _remote(by_consumer)


def remote_describe(ground: Ground) -> Saw:
    """All that a served store tells through Flight."""
    with served(ground) as service, lamina.connect(service.flight_url) as store:
        refused = look(store, ground, ("data", "cold", "archive"))
        for question in (
            store.failures,
            lambda: store.explain_retention(TOPIC),
            lambda: store.offset_for_time(TOPIC, 0, 0),
            lambda: store.producer_position(TOPIC, 0, 1),
        ):
            try:
                question()
            except LaminaError as error:
                refused = refused or error
        return Saw(refused=refused)


def remote_change(ground: Ground) -> Saw:
    """Every changing operation that keeps all records, through Flight."""
    with served(ground) as service, lamina.connect(service.flight_url) as store:
        last: LaminaError | None = None
        for change in (
            lambda: store.append(TOPIC, [b"more"], partition=0),
            store.flush,
            store.maintain,
            lambda: store.roll(TOPIC),
            lambda: store.apply_retention(TOPIC),
            lambda: store.alter_topic(TOPIC, {"retention.ms": 1 << 50}),
            lambda: store.create_topic("third", format=ground.template.format),
            lambda: store.reset_group(TOPIC, GROUP, to="earliest"),
            *((store.archive,) if ground.template.is_archived else ()),
        ):
            try:
                change()
            except LaminaError as error:
                last = error
        return Saw(refused=last)


# ---------------------------------------------------------------- HTTP


class Http:
    """One connection to a server."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._connection = http.client.HTTPConnection(where.hostname or "", where.port, WAIT_S)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """Asks; returns the status and the body. What nobody foresaw is a violation."""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"content-type": "application/json"}
        self._connection.request(method, path, data, headers)
        answer = self._connection.getresponse()
        raw = answer.read()
        allowed = answer.status in TYPED or answer.status in UNAVAILABLE
        if not allowed or b"its log says how" in raw:
            told = raw.decode(errors="replace")[:300]
            is_typed = answer.status == 500 and _named(raw) not in ("", "LaminaError")
            demand(is_typed, "I12", f"{method} {path} is a {answer.status}: {told}")
        return answer.status, raw

    def close(self) -> None:
        """Hangs up."""
        self._connection.close()


def _named(raw: bytes) -> str:
    try:
        return str(json.loads(raw).get("error", ""))
    except (ValueError, AttributeError):
        return ""


@contextmanager
def _talking(ground: Ground) -> Iterator[Http]:
    with served(ground) as service:
        talk = Http(service.http_url)
        try:
            yield talk
        finally:
            talk.close()


def http_fetch(ground: Ground) -> Saw:
    """GET of records, page by page; a gap is a typed answer that says where to go on."""
    with _talking(ground) as talk:
        return read_over(_Bounds(talk), lambda topic, at: _pages(talk, topic, at), BOTH)


class _Bounds:
    def __init__(self, talk: Http) -> None:
        self._talk = talk

    def earliest_offset(self, topic: str, partition: int = 0) -> int:
        return self._number(topic, partition, "earliest")

    def latest_offset(self, topic: str, partition: int = 0) -> int:
        return self._number(topic, partition, "latest")

    def _number(self, topic: str, partition: int, name: str) -> int:
        status, raw = self._talk.ask("GET", f"/v1/topics/{topic}/partitions/{partition}/{name}")
        demand(status == 200, "I12", f"{name} of {topic} is a {status}: {raw[:200]!r}")
        return int(json.loads(raw)["result"])


def _pages(talk: Http, topic: str, at: int) -> Iterator[pa.RecordBatch]:
    while True:
        path = f"/v1/topics/{topic}/partitions/0/records?start={at}&max_records=50"
        status, raw = talk.ask("GET", path)
        told = json.loads(raw)
        if status != 200:
            raise _as_error(told)
        if not told["records"]:
            return
        offsets = [row["offset"] for row in told["records"]]
        values = [_value(row["value"]) for row in told["records"]]
        yield pa.RecordBatch.from_pydict({"offset": offsets, "value": values})
        at = offsets[-1] + 1


def _value(shown: Any) -> bytes:
    return base64.b64decode(shown["base64"]) if isinstance(shown, dict) else shown.encode()


def _as_error(told: dict[str, Any]) -> LaminaError:
    return failures.from_object(told)


def http_pages(ground: Ground) -> Saw:
    """Every GET of the HTTP door, and a group's poll."""
    with _talking(ground) as talk:
        for path in ("/health", "/ready", "/metrics", "/openapi.json", "/docs", "/"):
            talk.ask("GET", path)
        for operation in OPERATIONS.values():
            if operation.verb == "GET":
                talk.ask("GET", _filled(operation.path))
        talk.ask("POST", f"/v1/topics/{TOPIC}/groups/{GROUP}/poll", {"max_records": 5})
        return Saw()


def _filled(path: str) -> str:
    """Puts names into a path, and into the query what has to be said besides."""
    names = {"topic": TOPIC, "name": TOPIC, "partition": "0", "group": GROUP, "producer_id": "1"}
    for name, value in names.items():
        path = path.replace("{" + name + "}", value)
    return f"{path}?timestamp_ms=0" if path.endswith("offset_for_time") else path


def metrics(ground: Ground) -> Saw:
    """The bounds that `/metrics` gives for topics hold all that can be read, archived or not."""
    with _talking(ground) as talk:
        status, raw = talk.ask("GET", "/metrics")
        demand(status == 200, "I12", f"/metrics is a {status}: {raw[:200]!r}")
        if not is_out_of_reach(ground):
            for topic in BOTH:
                check_bounds(ground, raw.decode(), topic)
        return Saw()


def check_bounds(ground: Ground, page: str, topic: str) -> None:
    """Demands that a page of metrics tells of a topic, and of no fewer records than there are."""
    wanted = [at for _, at in ground.expected(EVERYWHERE, (topic,))]
    first, end = _gauge(page, "oldest_offset", topic), _gauge(page, "current_offset", topic)
    demand(first is not None and end is not None, "I9", f"/metrics says nothing of {topic}")
    assert first is not None
    assert end is not None
    demand(
        first <= min(wanted) and max(wanted) < end,
        "I9",
        f"/metrics: {topic} begins at {first} and ends at {end}, not {min(wanted)}, {max(wanted)}",
    )


def _gauge(page: str, name: str, topic: str) -> int | None:
    """What a page of metrics gives for a topic; None where it gives nothing."""
    wanted = f'lamina_topic_partition_{name}{{partition="0",topic="{topic}"}} '
    found = [line for line in page.splitlines() if line.startswith(wanted)]
    return int(float(found[0].removeprefix(wanted))) if found else None


def console(ground: Ground) -> Saw:
    """Every feed and every step into the depth of the console."""
    with _talking(ground) as talk:
        talk.ask("GET", "/console")
        talk.ask("GET", "/console/session")
        talk.ask("GET", "/console/feed/jobs")
        for topic in BOTH:
            for name in (*FEEDS, *DEPTHS):
                query = f"topic={topic}&partition=0&group={GROUP}&offset=3&base=0&base_offset=0"
                talk.ask("GET", f"/console/feed/{name}?{query}&value=x&timestamp_ms=0&start=0")
        return Saw()


def console_do(ground: Ground) -> Saw:
    """Every action of the console that keeps all records."""
    with _talking(ground) as talk:
        for name, more in (
            ("alter_topic", {"config": {"retention.ms": 1 << 50}}),
            ("plan_trim", {"partition": 0, "before": 50}),
            ("roll", {"partition": 0}),
            ("archive", {}),
            ("seek_group", {"group": GROUP, "to": "earliest"}),
        ):
            talk.ask("POST", f"/console/do/{name}", {"topic": TOPIC, **more})
        talk.ask(
            "POST", "/console/do/create_topic", {"topic": "third", "format": ground.template.format}
        )
        return Saw(topics=(TOPIC, NEIGHBOUR))


def tail(ground: Ground) -> Saw:
    """The console's tail and the watch of a partition: their first events come, or a typed one."""
    with served(ground) as service:
        for path in (
            f"/v1/topics/{TOPIC}/partitions/0/watch?start=0",
            f"/console/tail?topic={TOPIC}&partition=0&start=0",
        ):
            where = urlsplit(service.http_url)
            connection = http.client.HTTPConnection(where.hostname or "", where.port, WAIT_S)
            connection.request("GET", path)
            answer = connection.getresponse()
            first = answer.read1(1 << 16)
            connection.close()
            if b"its log says how" in first or not first:
                violated("I12", f"{path}: {answer.status} {first[:200]!r}")
        return Saw()
