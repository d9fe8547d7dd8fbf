"""The JSON door, over a real socket: what curl does, what the page promises, schemathesis."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis

import lamina
from lamina.server.service import Service
from lamina.wire.operations import OPERATIONS
from tests.server.rig import served

EXAMPLES = 12


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with served(tmp_path_factory.mktemp("http") / "data", wait_ms=200) as running:
        with lamina.connect(running.flight_url) as store:
            store.create_topic("t", partitions=2)
            store.append("t", [b"one", b"two"], partition=0)
        yield running


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.http_url, timeout=60) as client:
        yield client


def test_a_topic_is_created_filled_read_changed_and_deleted(http: httpx.Client) -> None:
    made = http.post("/v1/topics", json={"name": "shop", "config": {"retention.ms": 1000}})
    assert (made.status_code, made.json()) == (200, {"result": None})
    records = [
        {"value": "text", "key": "k", "headers": [["h", "v"]], "timestamp_ms": 5},
        {"value": {"base64": base64.b64encode(b"\xff\x00").decode()}},
        {"value": None, "key": "gone"},
    ]
    appended = http.post("/v1/topics/shop/records", json={"records": records, "acks": "all"})
    assert appended.json() == {
        "parts": {"0": {"base_offset": 0, "count": 3, "durability": "fsynced"}},
        "count": 3,
        "durability": "fsynced",
    }
    rows = http.get("/v1/topics/shop/partitions/0/records?start=0").json()["records"]
    assert rows[0] == {"offset": 0, **records[0]}
    assert [row["value"] for row in rows] == ["text", {"base64": "/wA="}, None]
    again = [{k: v for k, v in row.items() if k != "offset"} for row in rows]
    assert http.post("/v1/topics/shop/records", json={"records": again}).status_code == 200
    http.patch("/v1/topics/shop", json={"config": {"segment.bytes": 2048}})
    described = http.get("/v1/topics/shop").json()["result"]
    assert (
        described["settings"]["segment.bytes"],
        described["partitions"][0]["durable_offset"],
    ) == (
        2048,
        6,
    )
    assert http.get("/v1/topics/shop/partitions/0/latest").json() == {"result": 6}
    trimmed = http.post("/v1/topics/shop/partitions/0/trim", json={"before_offset": 6})
    assert trimmed.json() == {"result": 6}
    gone = http.get("/v1/topics/shop/partitions/0/records?start=0")
    assert (gone.status_code, gone.json()["error"]) == (410, "RecordsMissing")
    assert gone.json()["fields"]["end"] == 6
    assert http.delete("/v1/topics/shop").status_code == 200
    assert http.get("/v1/topics/shop").status_code == 404


def test_a_watcher_gets_what_is_appended_and_resumes_after_what_it_has(
    http: httpx.Client, service: Service
) -> None:
    http.post("/v1/topics", json={"name": "watched"})
    url = f"{service.http_url}/v1/topics/watched/partitions/0/watch"

    def events(headers: dict[str, str], count: int) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        with httpx.stream("GET", url, headers=headers, timeout=60) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            for line in stream.iter_lines():
                if line == ": still here":
                    http.post("/v1/topics/watched/records", json={"records": [{"value": "new"}]})
                if line.startswith("data: "):
                    row = json.loads(line.removeprefix("data: "))
                    found.append((row["offset"], row["value"]))
                if len(found) == count:
                    return found
        return found

    assert events({}, 2) == [(0, "new"), (1, "new")]
    assert events({"last-event-id": "0"}, 1) == [(1, "new")]
    assert httpx.get(f"{url}?start=-5", timeout=60).status_code == 400
    assert httpx.get(url.replace("watched", "none"), timeout=60).status_code == 404


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "records"),
        (b"[]", "not a JSON object"),
        (b"{", "not JSON"),
        (b'{"records": []}', "at least one"),
        (b'{"records": [7]}', "record 0"),
        (b'{"records": [{"value": "a"}, {"key": "b"}]}', "record 1"),
        (b'{"records": [{"value": 7}]}', "record 0: value"),
        (b'{"records": [{"value": {"base64": "%"}}]}', "not base64"),
        (b'{"records": [{"value": "a", "headers": [["x"]]}]}', "pairs"),
        (b'{"records": [{"value": "a", "timestamp_ms": "now"}]}', "timestamp_ms"),
        (b'{"records": [{"value": "a", "price": 1}]}', "price"),
        (b'{"records": [{"value": "\\ud800"}]}', "Unicode"),
        (b'{"records": [{"value": "a"}], "partition": "x"}', "partition"),
        (b'{"records": [{"value": "a"}], "acks": "some"}', "acks"),
        (b'{"records": [{"value": "a"}], "aks": "all"}', "aks"),
    ],
)
def test_a_wrong_body_is_told_what_is_wrong(http: httpx.Client, body: bytes, problem: str) -> None:
    end = http.get("/v1/topics/t/partitions/1/latest").json()
    answer = http.post("/v1/topics/t/records", content=body)
    assert answer.status_code == 400
    assert answer.json()["family"] == "InvalidRequest"
    assert problem in answer.json()["message"]
    assert http.get("/v1/topics/t/partitions/1/latest").json() == end


def test_pages_for_machines_and_people(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok", "problems": []}
    assert http.get("/ready").json()["ready"] is True
    metrics = http.get("/metrics").text
    assert 'lamina_topic_partition_current_offset{partition="0",topic="t"} ' in metrics
    assert re.search(r'lamina_calls_total\{operation="append",outcome="ok"\} [1-9]', metrics)
    page = http.get("/docs").text
    document = http.get("/openapi.json").json()
    for operation in OPERATIONS.values():
        assert operation.verb.lower() in document["paths"][operation.path]
        assert f"<code>{operation.path}</code>" in page
    assert "http" not in page.replace("/openapi", ""), "nothing is loaded from elsewhere"


def test_whatever_the_page_allows_is_answered_as_it_says(service: Service) -> None:
    schema = schemathesis.openapi.from_url(f"{service.http_url}/openapi.json")
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.CHECKS.get_one("response_schema_conformance"),
        schemathesis.checks.CHECKS.get_one("content_type_conformance"),
        schemathesis.checks.CHECKS.get_one("negative_data_rejection"),
    ]
    tried = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/watch"):
            continue  # an answer without end
        for mode in modes:

            @hypothesis.settings(
                max_examples=EXAMPLES,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def try_it(case: Any) -> None:
                case.call_and_validate(checks=checks, timeout=60)
                tried.add(f"{case.method} {case.path}")

            with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # nothing can be wrong
                try_it()
    assert len(tried) >= len(OPERATIONS)
