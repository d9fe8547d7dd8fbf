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
from lamina.server.openapi import document
from lamina.server.service import Service
from lamina.wire.operations import OPERATIONS
from tests.server.rig import served

EXAMPLES = 5


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
    deleting = "/v1/topics/shop/partitions/0/delete_records"
    assert http.post(deleting, json={"before_offset": 6}).json() == {"result": 6}
    beyond = http.post(deleting, json={"before_offset": 7}).json()
    assert beyond["error"] == "OffsetOutOfRange"
    gone = http.get("/v1/topics/shop/partitions/0/records?start=0")
    assert (gone.status_code, gone.json()["error"]) == (410, "RecordsMissing")
    assert gone.json()["fields"]["end"] == 6
    assert http.delete("/v1/topics/shop").status_code == 200
    assert http.get("/v1/topics/shop").status_code == 404


def test_a_topic_that_is_there_is_a_conflict_unless_it_may_be(http: httpx.Client) -> None:
    asked = {"name": "taken", "partitions": 2}
    assert http.post("/v1/topics", json=asked).status_code == 200
    refused = http.post("/v1/topics", json=asked)
    assert (refused.status_code, refused.json()["error"]) == (409, "TopicExists")
    assert refused.json()["family"] == "InvalidRequest"
    again = http.post("/v1/topics", json=asked | {"exist_ok": True})
    assert (again.status_code, again.json()) == (200, {"result": None})
    other = http.post("/v1/topics", json=asked | {"exist_ok": True, "partitions": 3})
    assert other.status_code == 409
    assert other.json()["fields"] == {"topic": "taken", "difference": "partitions 2, not 3"}
    assert http.delete("/v1/topics/taken").status_code == 200


def test_a_group_is_made_polled_acked_moved_and_deleted(http: httpx.Client) -> None:
    http.post("/v1/topics", json={"name": "jobs"})
    rows = [{"value": f"job {number}"} for number in range(4)]
    http.post("/v1/topics/jobs/records", json={"records": rows})
    made = http.post("/v1/topics/jobs/groups", json={"name": "workers"})
    assert (made.status_code, made.json()["result"]["group"]) == (200, "workers")
    where = "/v1/topics/jobs/groups/workers"
    polled = http.post(f"{where}/poll", json={"max_records": 3, "lease_ms": 60_000}).json()
    held = polled["records"]
    assert [(row["offset"], row["value"], row["epoch"]) for row in held] == [
        (number, f"job {number}", 1) for number in range(3)
    ]
    assert held[0]["deadline_ms"] > held[0]["timestamp_ms"] + 59_000
    names = [{key: row[key] for key in ("offset", "partition", "epoch")} for row in held]
    assert http.post(f"{where}/ack", json={"held": names[:1]}).json() == {"result": 1}
    assert http.post(f"{where}/ack", json={"held": [0, 1], "partition": 0}).json() == {"result": 1}
    extended = http.post(f"{where}/extend", json={"held": names[2:], "lease_ms": 90_000})
    assert extended.json() == {"result": 1}
    assert http.post(f"{where}/release", json={"held": names[2:]}).json() == {"result": 1}
    assert [row["epoch"] for row in http.post(f"{where}/poll").json()["records"]] == [2, 1]
    assert http.post(f"{where}/poll", json={"wait_ms": 1}).json() == {"records": []}
    assert http.post(f"{where}/commit", json={"offset": 3}).json() == {"result": 3}
    assert http.get(f"{where}/committed?partition=0").json() == {"result": 3}
    assert http.post(f"{where}/reject", json={"held": [3]}).json() == {"result": 1}
    assert http.get("/v1/groups?topic=jobs").json() == {"result": [["jobs", "workers"]]}
    lag = http.get(where).json()["result"]["partitions"][0]
    assert (lag["committed"], lag["records"]) == (4, 0)
    labels = 'consumergroup="workers",partition="0",topic="jobs"'
    metrics = http.get("/metrics").text
    assert f"lamina_consumergroup_lag{{{labels}}} 0.0" in metrics
    assert f"lamina_consumergroup_current_offset{{{labels}}} 4.0" in metrics
    assert f"lamina_consumergroup_lag_seconds{{{labels}}} 0.0" in metrics
    moved = http.post(f"{where}/reset", json={"to": "earliest", "execute": True})
    assert moved.json() == {"result": [{"partition": 0, "before": 4, "after": 0}]}
    assert http.post(f"{where}/reset", json={"to": 2}).json()["result"][0]["after"] == 2
    assert http.delete(where).status_code == 200
    for path, body in (("ack", {"held": [0]}), ("poll", {}), ("commit", {"offset": 1})):
        gone = http.post(f"{where}/{path}", json=body)
        assert (gone.status_code, gone.json()["error"]) == (404, "UnknownGroup")
    assert http.post(f"{where}/poll", json={"kind": "scan"}).status_code == 400
    http.delete("/v1/topics/jobs")


def test_records_of_a_wal_topic_are_deleted(http: httpx.Client) -> None:
    http.post("/v1/topics", json={"name": "small", "format": "wal"})
    rows = [{"value": "v", "tag": tag} for tag in ("a", {"base64": "/w=="}, "b")]
    http.post("/v1/topics/small/records", json={"records": rows})
    where = "/v1/topics/small/partitions/0"
    deleted = http.post(f"{where}/delete", json={"tag": {"base64": "/w=="}})
    assert deleted.json() == {"result": 1}
    assert http.post(f"{where}/delete", json={"tag": "a"}).json() == {"result": 1}
    left = http.get(f"{where}/records?start=1").json()["records"]
    assert [row["tag"] for row in left] == ["b"]
    http.delete("/v1/topics/small")


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


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://elsewhere.example", "content-type": "text/plain"},
        {"sec-fetch-site": "cross-site"},
        {"host": "elsewhere.example"},
    ],
)
def test_without_keys_pages_of_other_sites_are_refused(
    http: httpx.Client, headers: dict[str, str]
) -> None:
    body = b'{"name": "from-elsewhere"}'
    assert http.post("/v1/topics", content=body, headers=headers).status_code == 403
    assert http.get("/v1/topics", headers=headers).status_code == 403
    own = {"origin": str(http.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
    assert "from-elsewhere" not in http.get("/v1/topics", headers=own).json()["result"]


def test_pages_for_machines_and_people(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok", "problems": [], "warnings": []}
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
        described = document()["paths"][operation.path][operation.method]
        for mode in modes if _can_be_wrong(described) else modes[:1]:

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


def _can_be_wrong(described: dict[str, Any]) -> bool:
    """Whether a call takes more than names: any text is a name that somebody may ask for."""
    kinds = [each["schema"].get("type") for each in described["parameters"]]
    return "requestBody" in described or any(kind != "string" for kind in kinds)


def test_only_what_can_be_wrong_is_tried_as_wrong() -> None:
    paths = document()["paths"]
    assert not _can_be_wrong(paths["/v1/topics/{name}"]["get"])
    assert _can_be_wrong(paths["/v1/topics"]["post"])
    assert _can_be_wrong(paths["/v1/topics/{topic}/partitions/{partition}/latest"]["get"])
