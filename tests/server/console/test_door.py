"""The console's door without a browser: headers, sessions, other sites, pages, what is shipped."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from lamina.errors import InvalidRequest, NotAllowed
from lamina.server import auth
from lamina.server.auth import Caller
from lamina.server.console import depth, feeds, found_records, logins, tail
from lamina.server.console.history import LENGTH, History, Rings
from lamina.server.console.logins import SESSIONS_MAX, LoggedOut, Sessions
from lamina.server.console.looks import View
from lamina.server.console.pages import HEADERS
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles
from tests.server.console.rig import Broker, broker

STATIC = Path(logins.__file__).parent / "static"
MARK = {"x-lamina-console": "1"}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("door")) as running:
        running.store.create_topic("t")
        running.store.append("t", [b"x" * 100] * 2000)
        yield running


@pytest.fixture
def http(live: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=60) as client:
        yield client


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/console", "/console/static/main.js", "/console/session", "/console/feed/topics"),
        *("/console/static/nothing.js", "/console/feed/nothing", "/console/feed/topic?topic=none"),
    ],
)
def test_every_answer_forbids_what_is_not_ours(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "Traceback" not in answer.text


def test_the_page_has_no_script_and_no_style_of_its_own() -> None:
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL) == [""]
    assert "<style" not in page
    assert not re.search(r"\s(style|on\w+)=", page)
    assert not re.search(r"https?://", page)


@pytest.mark.parametrize(
    "path", sorted(STATIC.rglob("*.js")), ids=lambda path: str(path.relative_to(STATIC))
)
def test_a_script_parses_no_markup_and_loads_nothing_from_elsewhere(path: Path) -> None:
    source = path.read_text()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in source
    if path.parent.name != "vendor":
        assert source.startswith("// "), "a file begins with its one idea"
        assert len(source.splitlines()) <= 300
        assert re.findall(r"https?://\S+", source) in ([], ['http://www.w3.org/2000/svg";'])


def test_what_is_vendored_is_what_its_sums_say() -> None:
    vendor = STATIC / "vendor"
    sums = dict(reversed(line.split()) for line in (vendor / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == {each.name for each in vendor.iterdir()} - {"SHA256SUMS"}
    for name, wanted in sums.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == wanted
    assert "MIT License" in (vendor / "uplot.LICENSE.txt").read_text()


def test_a_file_is_sent_once(http: httpx.Client) -> None:
    first = http.get("/console/static/main.js")
    assert first.headers["content-type"].startswith("text/javascript")
    again = http.get("/console/static/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["../pages.py", "%2e%2e/pages.py", "vendor/../../pages.py", ""])
def test_only_the_page_s_own_files_are_served(http: httpx.Client, path: str) -> None:
    assert http.get(f"/console/static/{path}").status_code == 404


def test_a_change_that_another_site_may_have_caused_is_refused(http: httpx.Client) -> None:
    body = {"topic": "evil"}
    refused = [
        {},
        MARK | {"origin": "http://evil.example"},
        MARK | {"sec-fetch-site": "cross-site"},
        MARK | {"host": "evil.example"},
    ]
    for headers in refused:
        assert http.post("/console/do/create_topic", json=body, headers=headers).status_code == 403
    as_form = http.post("/console/do/create_topic", data=body, headers=MARK)
    assert as_form.status_code == 400
    assert http.get("/console/do/create_topic").status_code == 405
    rows = http.get("/console/feed/topics").json()["rows"]
    assert [row["name"] for row in rows] == ["t"]


def test_without_keys_only_loopback_names_are_answered(http: httpx.Client) -> None:
    assert http.get("/console/feed/topics", headers={"host": "rebound.example"}).status_code == 403
    for host in ("localhost:1", "127.0.0.1", "[::1]:9301"):
        assert http.get("/console/feed/topics", headers={"host": host}).status_code == 200


def test_what_cannot_be_undone_needs_the_name_again(http: httpx.Client, live: Broker) -> None:
    body = {"topic": "t", "partition": 0, "before_offset": 500}
    for confirm in ({}, {"confirm": "T"}, {"confirm": True}):
        answer = http.post("/console/do/trim", json=body | confirm, headers=MARK)
        assert answer.status_code == 400
        assert "cannot be undone" in answer.json()["message"]
    assert live.store.earliest_offset("t") == 0


@pytest.mark.parametrize(
    "query",
    [
        "topic?topic=none",
        "layers?topic=t&partition=7",
        "layers?topic=t&partition=x",
        "layers?topic=t&first=-1",
        "blocks?topic=t&base=3",
        "blocks?topic=t&base=0&first=9&end=2",
        "record?topic=t&offset=999999999",
        "records?topic=t",
        "find?topic=t&time_ms=" + "9" * 30,
        "topics?sort=evil",
        "topics?search=" + "x" * 5000,
    ],
)
def test_a_wrong_question_gets_a_typed_answer(http: httpx.Client, query: str) -> None:
    answer = http.get(f"/console/feed/{query}")
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["message"]


def test_a_thousand_topics_cost_a_page() -> None:
    with Store("/data", files=SimulatedFiles()) as store:
        for number in range(1000):
            store.create_topic(f"many.{number:04}", format="wal")
        history = History()
        history.sample(store)

        def asked(**given: str) -> dict[str, Any]:
            return feeds.topics(View(store, history, Caller("me"), given))

        found = asked(search="MANY.", page="3")
        assert (len(found["rows"]), found["total"], found["pages"]) == (50, 1000, 20)
        assert found["rows"][0]["name"] == "many.0150"
        assert len(json.dumps(found)) < 60_000
        assert len(asked(search="many.", page="99")["rows"]) == 50
        assert asked(search="many.0007")["total"] == 1
        store.append("many.0999", [b"x"] * 10)
        assert asked(sort="records")["rows"][0]["name"] == "many.0999"


def test_many_segments_are_joined_and_part_again_on_the_way_down() -> None:
    with Store("/data", files=SimulatedFiles()) as store:
        store.create_topic("t", config={"segment.bytes": 1024})
        for _ in range(80):
            store.append("t", [b"x" * 200] * 16)
        every = store.layers("t")
        assert len(every) >= 300

        def asked(step: str, **given: int) -> dict[str, Any]:
            view = View(store, History(), Caller("me"), {"topic": "t", **given})
            return depth.DEPTHS[step](view)

        found = asked("layers")
        bands = found["layers"]
        assert len(bands) <= depth.LAYERS_MAX + 4
        assert len(json.dumps(found)) < 60_000
        assert sum(band["joined"] for band in bands) == found["count"] == len(every)
        deeper = bands[3]
        inner = asked("layers", first=deeper["base_offset"], end=deeper["next_offset"])["layers"]
        assert [band["joined"] for band in inner] == [1] * deeper["joined"]
        (block,) = asked("blocks", base=inner[0]["base_offset"])["blocks"]
        records = asked("records", start=block["base_offset"], end=block["next_offset"])["rows"]
        assert [row["offset"] for row in records] == list(
            range(inner[0]["base_offset"], inner[0]["next_offset"])
        )


def test_a_session_ends_when_it_is_closed_idle_or_crowded_out() -> None:
    now = [0.0]
    held = Sessions(clock=lambda: now[0])
    caller = Caller("me")
    first, second = held.open(caller), held.open(caller)
    assert held.caller(first) is caller
    held.close(first)
    for token in (first, None, "", "x"):
        with pytest.raises(LoggedOut):
            held.caller(token)
    now[0] += logins.IDLE_S - 1
    assert held.caller(second) is caller
    now[0] += logins.IDLE_S + 1
    with pytest.raises(NotAllowed):
        held.caller(second)
    oldest = held.open(caller)
    for _ in range(SESSIONS_MAX):
        held.open(caller)
    with pytest.raises(LoggedOut):
        held.caller(oldest)


def test_scopes_and_prefixes_hold_for_feeds_tails_and_actions(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    _, reading = auth.create(keys, scope="read", prefix="shop.")
    _, ruling = auth.create(keys, scope="admin", prefix="shop.")
    with broker(tmp_path / "keyed", keys_file=keys) as live:
        for name in ("shop.a", "other"):
            live.store.create_topic(name)
            live.store.append(name, [b"x"])
            live.store.group(name, "g")
        with httpx.Client(base_url=live.url) as http:
            for path in ("feed/topics", "feed/jobs", "feed/keys", "tail?topic=shop.a", "export"):
                assert http.get(f"/console/{path}").status_code == 401
            assert http.post("/console/do/archive", json={}, headers=MARK).status_code == 401
            assert http.post("/console/session", json={"key": "x"}, headers=MARK).status_code == 401
            http.post("/console/session", json={"key": reading}, headers=MARK)
            assert [r["name"] for r in http.get("/console/feed/topics").json()["rows"]] == [
                "shop.a"
            ]
            assert [r["topic"] for r in http.get("/console/feed/groups").json()["rows"]] == [
                "shop.a"
            ]
            names = [r["name"] for r in http.get("/console/feed/writers").json()["rows"]]
            assert names == ["shop.a-0"]
            for path in ("feed/topic", "feed/layers", "feed/retention", "tail", "export"):
                assert http.get(f"/console/{path}?topic=other").status_code == 403
            assert http.get("/console/feed/group?topic=other&group=g").status_code == 403
            made = {"topic": "shop.b"}
            assert http.post("/console/do/create_topic", json=made, headers=MARK).status_code == 403
            record = {"topic": "shop.a", "record": {"value": "x"}}
            assert http.post("/console/do/produce", json=record, headers=MARK).status_code == 403
            http.post("/console/session", json={"key": ruling}, headers=MARK)
            assert http.post("/console/do/create_topic", json=made, headers=MARK).status_code == 200
            for name, body in (
                ("create_topic", {"topic": "other2"}),
                ("trim", {"topic": "other", "before_offset": 1, "confirm": "other"}),
                ("delete_topic", {"topic": "other", "confirm": "other"}),
                ("produce", {"topic": "other", "record": {"value": "x"}}),
                ("archive", {}),
            ):
                answer = http.post(f"/console/do/{name}", json=body, headers=MARK)
                assert answer.status_code == 403, name
        assert live.store.topics() == ["other", "shop.a", "shop.b"]


def test_a_tail_steps_over_history_in_bounded_steps(live: Broker) -> None:
    following = tail.Tail("t", tail.Choice())
    following.begin(live.store, [0], 0)
    told = following.step(live.store)
    assert (told["looked"], told["matched"]) == (2000, 2000)
    assert len(told["rows"]) == tail.ROWS_MAX
    assert told["unshown"] == 2000 - tail.ROWS_MAX
    assert told["rows"][-1]["offset"] == 1999
    assert following.step(live.store)["looked"] == 0
    again = tail.Tail("t", tail.Choice())
    again.begin(live.store, [0], None)
    assert again.mark() == "0:2000"
    again.go_on("0:1990")
    assert len(again.step(live.store)["rows"]) == 10
    for mark in ("1:5", "x", "0:", "0:-1", "0:1,"):
        with pytest.raises(InvalidRequest):
            again.go_on(mark)


def test_a_value_is_cut_at_a_character_and_bytes_are_told_from_text(
    http: httpx.Client, live: Broker
) -> None:
    live.store.create_topic("values")
    values = ["é" * 5000, "", None]
    live.store.append(
        "values",
        [{"value": None if v is None else v.encode()} for v in values]
        + [{"value": b"\xff\x00" * 99}],
    )
    rows = http.get("/console/feed/records?topic=values&start=0").json()["rows"]
    first, empty, null, raw = (row["value"] for row in rows)
    assert (first["text"], first["size"], first["cut"]) == ("é" * 120, 10_000, True)
    assert (empty["text"], null) == ("", None)
    assert (raw["hex"][:4], raw["size"], raw["cut"]) == ("ff00", 198, True)
    live.store.delete_topic("values")


def test_rings_keep_the_newest_samples_and_forget_what_is_gone() -> None:
    rings = Rings()
    for tick in range(LENGTH + 10):
        values = {("a",): float(tick)} | ({("b",): 1.0} if tick < LENGTH else {})
        rings.add(float(tick), values)
    assert rings.times() == [float(tick) for tick in range(10, LENGTH + 10)]
    assert rings.series(("a",), 3) == [LENGTH + 7, LENGTH + 8, LENGTH + 9]
    assert rings.series(("b",), 2) == [None, None]
    rings.add(0.0, {("new",): 5.0})
    assert rings.series(("new",), 2) == [None, 5.0]


def test_a_sample_is_the_rate_since_the_one_before(live: Broker) -> None:
    now = [100.0]
    history = History(clock=lambda: now[0])
    history.sample(live.store)
    assert history.rings.last(("topic", "t", "records")) is None
    live.store.append("t", [b"x"] * 30)
    now[0] += 10
    history.sample(live.store)
    assert history.rings.last(("topic", "t", "records")) == 3.0
    assert history.rings.last(("writer", "groups")) == 0.1
    assert history.last_pulses["t-0"].records == 30


def test_series_reach_back_a_day_in_coarser_points() -> None:
    rings = Rings()
    key, worst = ("topic", "t", "records"), ("group", "t", "g", "seconds")
    for tick in range(0, 86_400 * 2, 2):
        rings.add(float(tick), {key: float(tick % 60), worst: float(tick % 60)})
    for window_s, points in ((60, 31), (300, 151), (900, 450), (3600, 61), (21_600, 360)):
        drawn = rings.drawn(window_s, {"records": key, "seconds": worst})
        assert len(drawn["times"]) == len(drawn["records"]) == points, window_s
        assert drawn["times"][-1] == 86_400 * 2 - 2
        assert drawn["times"][0] >= drawn["times"][-1] - window_s
    day = rings.drawn(86_400, {"records": key, "seconds": worst})
    assert len(day["times"]) == 288
    assert set(day["records"]) == {29.0}
    assert set(day["seconds"]) == {58.0}
    rings.add(86_400 * 2.0, {})
    assert set(rings.drawn(86_400, {"records": key})["records"]) == {None}


def test_a_coarse_point_grows_and_skips_what_is_not_known() -> None:
    rings = Rings()
    for now_s, value in ((0, 4.0), (2, float("nan")), (4, 8.0)):
        rings.add(float(now_s), {("a",): value})
    assert rings.drawn(3600, {"a": ("a",)}) == {"times": [4.0], "a": [6.0]}
    assert rings.drawn(60, {"a": ("a",)})["a"] == [4.0, None, 8.0]


def test_only_the_windows_that_there_are_are_answered(http: httpx.Client) -> None:
    assert http.get("/console/feed/writers?window_s=3600").status_code == 200
    for wrong in ("7", "x", "-900", "9000000"):
        assert http.get(f"/console/feed/writers?window_s={wrong}").status_code == 400


def test_the_server_is_described_without_a_secret(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    ruler, ruling = auth.create(keys, scope="admin", note="ops")
    _, some = auth.create(keys, scope="admin", prefix="shop.")
    with (
        broker(tmp_path / "keyed", keys_file=keys) as live,
        httpx.Client(base_url=live.url) as http,
    ):
        http.post("/console/session", json={"key": ruling}, headers=MARK)
        told = http.get("/console/feed/keys")
        first = told.json()["keys"][0]
        told_of = {"id": ruler.id, "scope": "admin", "prefix": "", "note": "ops"}
        assert first == told_of | {"produce_bytes": -2, "fetch_bytes": -2}
        assert {row["key"]: row["used"] for row in told.json()["limits"]}["max.waiting"] == 0
        about = http.get("/console/feed/broker")
        assert about.json()["version"]
        assert 0 < about.json()["disk"]["free_bytes"] < about.json()["disk"]["total_bytes"]
        assert {row["key"]: row["value"] for row in about.json()["settings"]}["keys.file"] == keys
        for answer in (told, about):
            for key in auth.load(keys):
                assert key.sha256 not in answer.text
            assert ruling.split("_")[-1] not in answer.text
        http.post("/console/session", json={"key": some}, headers=MARK)
        assert http.get("/console/feed/broker").status_code == 403
        limited = http.get("/console/feed/keys").json()
        assert limited["keys"] is None
        assert {row["used"] for row in limited["limits"]} == {None}


def test_an_export_is_bounded_and_says_where_to_go_on(http: httpx.Client, live: Broker) -> None:
    live.store.create_topic("exported", partitions=2)
    for number in range(2):
        rows = [{"key": b"k", "value": b"%d" % n} for n in range(300)]
        live.store.append("exported", rows, partition=number)
    where = "/console/export?topic=exported&limit=250"
    first = http.get(where)
    assert first.headers["content-disposition"] == 'attachment; filename="exported.jsonl"'
    about = json.loads(first.headers["x-lamina-export"])
    assert about == {"records": 250, "looked": 300, "whole": False, "next": "0:250,1:0"}
    seen = [json.loads(line) for line in first.text.splitlines()]
    while not about["whole"]:
        answer = http.get(f"{where}&next={about['next']}")
        about = json.loads(answer.headers["x-lamina-export"])
        seen += [json.loads(line) for line in answer.text.splitlines()]
    assert [(row["partition"], row["offset"]) for row in seen] == [
        (number, offset) for number in range(2) for offset in range(300)
    ]
    assert http.get("/console/export?topic=exported&format=exe").status_code == 400
    live.store.delete_topic("exported")


def test_csv_is_no_formula_and_keeps_what_is_no_text(http: httpx.Client, live: Broker) -> None:
    live.store.create_topic("cells")
    values = [b"=1+1", b"-5", b"+cmd", b'a,"b"', b"\xff\x00", None]
    headers = [{"key": "source", "value": b"web"}]
    live.store.append("cells", [{"value": each, "headers": headers} for each in values])
    answer = http.get("/console/export?topic=cells&format=csv")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["value"] for row in rows] == ["'=1+1", "-5", "'+cmd", 'a,"b"', "base64:/wA=", ""]
    assert rows[0]["headers"] == '[["source", "web"]]'
    assert datetime.fromisoformat(rows[0]["time"]).tzinfo is not None
    live.store.delete_topic("cells")


def test_an_export_ends_when_its_time_is_over(live: Broker) -> None:
    clock = iter(range(0, 1000, 6))
    made = found_records.Export(
        "t", tail.Choice(), "jsonl", {0: 0}, {0: 2000}, clock=lambda: float(next(clock))
    )
    made.made(live.store)
    assert made.is_whole
    late = found_records.Export(
        "t", tail.Choice(), "jsonl", {0: 0}, {0: 2000}, clock=iter([0.0, 99.0, 99.0]).__next__
    )
    assert late.made(live.store) == b""
    assert not late.is_whole


@pytest.mark.parametrize("record", [None, {}, {"value": 5}, {"value": "x", "more": 1}, ["x"]])
def test_what_is_no_record_is_not_produced(
    http: httpx.Client, live: Broker, record: object
) -> None:
    end = live.store.latest_offset("t")
    body = {"topic": "t", "record": record}
    assert http.post("/console/do/produce", json=body, headers=MARK).status_code == 400
    assert live.store.latest_offset("t") == end
