"""The schema registry on the HTTP door: what Confluent's clients send, and what nobody should."""

from __future__ import annotations

import base64
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lamina.server import auth
from lamina.server.subject_answers import ROWS
from lamina.server.subject_routes import MEDIA
from tests.server.rig import ServerProcess, served
from tests.subjects.test_changes import MORE, ONE, POINT, STRICT, TEXT


@pytest.fixture
def http(tmp_path: Path) -> Iterator[httpx.Client]:
    with (
        served(tmp_path / "data") as service,
        httpx.Client(base_url=service.http_url, timeout=30) as client,
    ):
        yield client


def register(http: httpx.Client, subject: str, schema: str, **more: Any) -> httpx.Response:
    return http.post(f"/subjects/{subject}/versions", json={"schema": schema, **more})


def told(answer: httpx.Response) -> Any:
    assert answer.headers["content-type"] == MEDIA
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx.Response) -> int:
    """The number of a refusal, whose status is its beginning."""
    assert answer.headers["content-type"] == MEDIA
    found = answer.json()
    assert set(found) == {"error_code", "message"}
    assert str(found["error_code"])[:3] == str(answer.status_code)
    return int(found["error_code"])


def test_every_path_answers_as_confluents_does(http: httpx.Client) -> None:
    made = told(register(http, "s", ONE))
    assert (made["id"], made["version"]) == (1, 1)
    assert told(register(http, "s", ONE))["id"] == 1
    assert told(register(http, "s", MORE))["id"] == 2
    assert told(http.get("/subjects")) == ["s"]
    assert told(http.get("/subjects/s/versions")) == [1, 2]
    assert told(http.get("/subjects/s/versions/1")) == {
        "subject": "s", "version": 1, "id": 1, "schema": ONE
    }  # fmt: skip
    for latest in ("latest", "-1", "2"):
        assert told(http.get(f"/subjects/s/versions/{latest}"))["version"] == 2
    assert http.get("/subjects/s/versions/latest/schema").text == MORE
    assert told(http.post("/subjects/s", json={"schema": ONE}))["version"] == 1
    assert told(http.get("/schemas/ids/2")) == {"schema": MORE}
    assert told(http.get("/schemas/ids/2?fetchMaxId=true"))["maxId"] == 2
    assert http.get("/schemas/ids/2/schema").text == MORE
    assert told(http.get("/schemas/ids/2/subjects")) == ["s"]
    assert told(http.get("/schemas/ids/2/versions")) == [{"subject": "s", "version": 2}]
    assert [each["id"] for each in told(http.get("/schemas"))] == [1, 2]
    assert [each["id"] for each in told(http.get("/schemas?latestOnly=true"))] == [2]
    assert told(http.get("/schemas/types")) == ["JSON", "PROTOBUF", "AVRO"]
    assert told(http.get("/contexts")) == ["."]
    assert "kafka-cluster" in told(http.get("/v1/metadata/id"))["scope"]["clusters"]
    assert told(http.get("/subjects/s/versions/1/referencedby")) == []


def test_levels_and_modes(http: httpx.Client) -> None:
    register(http, "s", ONE)
    assert told(http.get("/config")) == {"compatibilityLevel": "BACKWARD"}
    assert refused(http.get("/config/s")) == 40408
    assert told(http.get("/config/s?defaultToGlobal=true"))["compatibilityLevel"] == "BACKWARD"
    assert told(http.put("/config", json={"compatibility": "full"})) == {"compatibility": "FULL"}
    assert told(http.put("/config/s", json={"compatibility": "NONE"})) == {"compatibility": "NONE"}
    assert told(http.get("/config/s")) == {"compatibilityLevel": "NONE"}
    assert told(http.delete("/config/s")) == {"compatibilityLevel": "NONE"}
    assert told(http.delete("/config")) == {"compatibilityLevel": "FULL"}
    assert told(http.get("/config")) == {"compatibilityLevel": "BACKWARD"}
    assert refused(http.put("/config", json={"compatibility": "sideways"})) == 42203
    assert refused(http.put("/config", json={"compatibility": "NONE", "alias": "x"})) == 42205
    assert told(http.get("/mode")) == {"mode": "READWRITE"}
    assert refused(http.get("/mode/s")) == 40409
    assert told(http.put("/mode/s", json={"mode": "READONLY"})) == {"mode": "READONLY"}
    assert refused(register(http, "s", MORE)) == 42205
    assert told(http.delete("/mode/s")) == {"mode": "READONLY"}
    assert refused(http.put("/mode", json={"mode": "NO"})) == 42204
    assert refused(http.put("/mode", json={"mode": "IMPORT"})) == 42205
    assert told(http.put("/mode?force=true", json={"mode": "IMPORT"})) == {"mode": "IMPORT"}
    assert told(register(http, "t", TEXT, id=50, version=3))["id"] == 50


def test_compatibility_is_asked_without_registering(http: httpx.Client) -> None:
    place = "/compatibility/subjects/s/versions"
    assert told(http.post(place, json={"schema": ONE})) == {"is_compatible": True}
    assert told(http.post(f"{place}/latest", json={"schema": ONE})) == {"is_compatible": True}
    register(http, "s", ONE)
    register(http, "s", MORE)
    assert told(http.post(place, json={"schema": STRICT})) == {"is_compatible": True}
    found = told(http.post(f"{place}/1?verbose=true", json={"schema": STRICT}))
    assert found == {
        "is_compatible": False, "messages": ["b: the field is new and has no default"]
    }  # fmt: skip
    http.put("/config/s", json={"compatibility": "BACKWARD_TRANSITIVE"})
    assert told(http.post(place, json={"schema": STRICT}))["is_compatible"] is False
    assert refused(http.post(f"{place}/7", json={"schema": STRICT})) == 40402
    assert refused(http.post(f"{place}/x", json={"schema": STRICT})) == 42202
    assert refused(register(http, "s", STRICT)) == 409


def test_deleted_versions_are_shown_where_they_are_asked_for(http: httpx.Client) -> None:
    for text in (ONE, MORE):
        register(http, "s", text)
    assert told(http.delete("/subjects/s/versions/1")) == 1
    assert refused(http.delete("/subjects/s/versions/1")) == 40406
    assert refused(http.delete("/subjects/s/versions/2?permanent=true")) == 40407
    assert told(http.get("/subjects/s/versions")) == [2]
    assert told(http.get("/subjects/s/versions?deleted=true")) == [1, 2]
    assert told(http.get("/subjects/s/versions?deletedOnly=true")) == [1]
    assert refused(http.get("/subjects/s/versions/1")) == 40402
    assert told(http.get("/subjects/s/versions/1?deleted=true"))["id"] == 1
    assert told(http.get("/schemas/ids/1"))["schema"] == ONE, "records name it still"
    assert told(http.get("/schemas/ids/1/subjects")) == []
    assert told(http.get("/schemas/ids/1/subjects?deleted=true")) == ["s"]
    assert told(http.delete("/subjects/s")) == [2]
    assert told(http.get("/subjects")) == []
    assert told(http.get("/subjects?deleted=true")) == ["s"]
    assert refused(http.delete("/subjects/s")) == 40404
    assert refused(http.post("/subjects/s", json={"schema": ONE})) == 40401
    assert told(http.delete("/subjects/s?permanent=true")) == [1, 2]
    assert refused(http.get("/schemas/ids/1")) == 40403
    assert refused(http.get("/subjects/s/versions")) == 40401


def test_references_and_forms_of_protobuf(http: httpx.Client) -> None:
    proto: dict[str, Any] = {"schemaType": "PROTOBUF"}
    register(http, "geo", POINT, **proto)
    path = 'syntax = "proto3"; import "geo.proto"; message Path { repeated geo.Point points = 1; }'
    named = [{"name": "geo.proto", "subject": "geo", "version": 1}]
    number = told(register(http, "path", path, references=named, **proto))["id"]
    assert told(http.get(f"/schemas/ids/{number}"))["references"] == named
    assert told(http.get("/subjects/geo/versions/1/referencedby")) == [number]
    assert refused(http.delete("/subjects/geo")) == 42206
    assert refused(register(http, "path2", path, **proto)) == 42201
    form = told(http.get(f"/schemas/ids/{number}?format=serialized"))["schema"]
    assert base64.b64decode(form).startswith(b"\x0a")
    same = told(register(http, "form", form, references=named, **proto))
    assert same["id"] == number, "the text and its descriptor are one schema"


def test_a_schema_is_shown_after_what_it_named_has_gone(http: httpx.Client) -> None:
    register(http, "geo", POINT, schemaType="PROTOBUF")
    path = 'syntax = "proto3"; import "geo.proto"; message Path { geo.Point point = 1; }'
    named = [{"name": "geo.proto", "subject": "geo", "version": 1}]
    register(http, "path", path, schemaType="PROTOBUF", references=named)
    for gone in ("path", "geo", "geo?permanent=true"):
        told(http.delete(f"/subjects/{gone}"))
    assert told(http.get("/schemas/ids/2"))["schema"] == path
    assert [each["id"] for each in told(http.get("/schemas?deleted=true"))] == [2]
    assert refused(http.get("/schemas/ids/2?format=serialized")) == 42201


def test_what_clients_keep_beside_a_schema_is_given_back(http: httpx.Client) -> None:
    beside = {"metadata": {"properties": {"owner": "ada"}}, "ruleSet": {"domainRules": []}}
    assert told(register(http, "s", ONE))["id"] == 1
    made = told(register(http, "s", ONE, **beside, tags=None))
    assert (made["id"], made["version"]) == (2, 2), "it is another schema"
    assert told(http.get("/schemas/ids/2")) == {"schema": ONE, **beside}
    assert told(register(http, "t", ONE, **beside))["id"] == 2


def test_the_latest_version_with_some_properties_is_found(http: httpx.Client) -> None:
    for number, text in enumerate((ONE, MORE), 1):
        properties = {"owner": "ada", "part": str(number)}
        register(http, "s", text, metadata={"properties": properties})
    for query, version in (
        *[("key=owner&value=ada", 2), ("key=part&value=1", 1), ("", 2)],
        ("key=owner&value=ada&key=part&value=1", 1),
    ):
        found = told(http.get(f"/subjects/s/metadata?{query}"))
        assert (found["subject"], found["version"], found["id"]) == ("s", version, version)
    assert refused(http.get("/subjects/s/metadata?key=owner&value=bob")) == 40403
    assert refused(http.get("/subjects/s/metadata?key=owner")) == 400
    assert refused(http.get("/subjects/s/metadata?deleted=true&deleted=true")) == 400
    assert refused(http.get("/subjects/none/metadata?key=owner&value=ada")) == 40401


def test_names_may_have_any_character(http: httpx.Client) -> None:
    for name in ("a%2Fb", "a%20b", "com.Ä", "%25", "versions"):
        register(http, name, TEXT)
        assert told(http.get(f"/subjects/{name}/versions")) == [1]
    assert told(http.get("/subjects")) == ["%", "a b", "a/b", "com.Ä", "versions"]
    assert told(http.get("/subjects?subjectPrefix=a&offset=1&limit=1")) == ["a/b"]
    assert told(http.get("/subjects?subjectPrefix=:*:")) == told(http.get("/subjects"))
    assert refused(register(http, ":.other:s", TEXT)) == 42208
    assert told(register(http, ":.:s", TEXT))["id"] == 1


# ---------------------------------------------------------------------- who may


def test_a_key_comes_as_a_password_or_a_token_and_its_scope_holds(tmp_path: Path) -> None:
    path = str(tmp_path / "keys.json")
    made = {scope: auth.create(path, scope=scope, prefix="mine.")[1] for scope in ("read", "write")}
    made |= {"admin": auth.create(path, scope="admin")[1]}
    with (
        served(tmp_path / "data", keys_file=path) as service,
        httpx.Client(base_url=service.http_url, timeout=30) as http,
    ):
        answer = http.get("/subjects")
        assert (answer.status_code, answer.json()["error_code"]) == (401, 40101)
        assert answer.headers["www-authenticate"].startswith("Basic")
        for wrong in ("Basic", "Basic !", "Basic " + base64.b64encode(b"x:y").decode(), "x y"):
            assert http.get("/subjects", headers={"authorization": wrong}).status_code == 401
        for subject, scope, status in (
            ("mine.a-value", "write", 200),
            ("mine.a-key", "write", 200),
            ("mine.a-value", "read", 403),
            ("other-value", "write", 403),
            ("other-value", "admin", 200),
            ("mine.", "write", 200),
            ("mine-value", "write", 403),
        ):
            place = f"/subjects/{subject}/versions"
            answer = http.post(place, json={"schema": TEXT}, auth=("any", made[scope]))
            assert answer.status_code == status, (subject, scope, answer.text)
        headers = {"authorization": f"Bearer {made['write']}"}
        assert http.get("/subjects", headers=headers).json() == [
            "mine.", "mine.a-key", "mine.a-value"
        ]  # fmt: skip
        assert http.get("/schemas/ids/1/subjects", headers=headers).json() == [
            "mine.", "mine.a-key", "mine.a-value"
        ]  # fmt: skip
        assert http.delete("/subjects/mine.a-value", headers=headers).status_code == 403
        assert http.put("/config", json={}, auth=("", made["write"])).status_code == 403
        admin = ("", made["admin"])
        assert len(http.get("/subjects", auth=admin).json()) == 4
        assert http.put("/mode", json={"mode": "READONLY"}, auth=admin).status_code == 200


# ---------------------------------------------------------------------- hostile


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 42201),
        (b"{", 400),
        (b"[]", 400),
        (b"\xff", 400),
        (b"[" * 100_000, 400),
        (b'{"schema": ' + b"9" * 5000 + b"}", 400),
        (b'{"schema": "9' + b"9" * 5000 + b'"}', 42201),
        (json.dumps({"schema": "[" * 10_000 + "]" * 10_000}).encode(), 42201),
        (json.dumps({"schema": '"' + "x" * (2 << 20) + '"'}).encode(), 42201),
        (json.dumps({"schema": TEXT, "references": [{}] * 300}).encode(), 42201),
        (b'{"schema": "' + b"x" * (9 << 20) + b'"}', 400),
    ],
    ids=range(11),
)
def test_what_is_no_request_is_refused_in_confluents_form(
    tmp_path: Path, body: bytes, code: int
) -> None:
    with (
        served(tmp_path / "data", request_bytes=8 << 20) as service,
        httpx.Client(base_url=service.http_url, timeout=30) as http,
    ):
        answer = http.post("/subjects/s/versions", content=body)
        assert refused(answer) == code
        assert len(answer.text) < 2000
        assert told(http.get("/subjects")) == []


def test_paths_and_verbs_that_are_none(http: httpx.Client) -> None:
    for path in ("/subjects/s", "/schemas/ids", "/subjects/a/b/c/d/e", "/associations/x"):
        assert refused(http.get(path)) in (404, 405)
    assert refused(http.put("/subjects/s/versions")) == 405
    assert refused(http.get("/schemas/ids/x")) == 40403
    assert refused(http.get("/schemas/ids/" + "9" * 300)) == 40403
    assert refused(http.get("/subjects?offset=x")) == 400
    assert refused(http.get("/subjects?deleted=true&deleted=false")) == 400


def test_rows_are_each_once() -> None:
    assert len({(row.verb, row.path) for row in ROWS}) == len(ROWS)


def test_two_who_register_at_once_get_one_id(http: httpx.Client) -> None:
    found: list[int] = []
    ready = threading.Barrier(6)

    def work() -> None:
        ready.wait()
        found.append(register(http, "s", MORE).json()["id"])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [1] * 6
    assert told(http.get("/subjects/s/versions")) == [1]


def test_what_was_answered_is_there_after_a_kill(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        for number in range(1, 4):
            with httpx.Client(base_url=server.http_url, timeout=30) as http:
                assert told(register(http, f"s{number}", f'"{WORDS[number]}"'))["id"] == number
            server.end(signal.SIGKILL)
            server.start()
            with httpx.Client(base_url=server.http_url, timeout=30) as http:
                assert told(http.get(f"/schemas/ids/{number}/subjects")) == [f"s{number}"]
                assert len(told(http.get("/subjects"))) == number


WORDS = ("null", "int", "long", "bytes")
