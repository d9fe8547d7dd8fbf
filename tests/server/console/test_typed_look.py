"""A typed topic in the console: versions and their differences, and records as columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest
from playwright.sync_api import Page, expect

from lamina.server import auth
from lamina.server.console import typed_look
from tests.server.console.rig import MARKUP, Broker, broker, typed_topic


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("typed")) as running:
        typed_topic(running.store)
        running.store.create_topic("plain")
        yield running


def fed(live: Broker, name: str, **given: Any) -> dict[str, Any]:
    answer = httpx.get(f"{live.url}/console/feed/{name}", params=given, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_versions_say_what_they_changed(live: Broker) -> None:
    found = fed(live, "schema", topic="typed")
    assert (found["encoding"], found["compatibility"], found["total"]) == ("avro", "BACKWARD", 2)
    second, first = found["versions"]
    assert [each["name"] for each in first["fields"]] == ["id", "item"]
    assert first["changes"] is None
    about = {"type": "double", "nullable": True}
    assert second["changes"] == [{"kind": "added", "name": "discount", "to": about}]
    assert '"name": "discount"' in second["text"]


def test_dropped_and_changed_columns_are_named() -> None:
    long, text = {"type": "int64", "nullable": False}, {"type": "string", "nullable": False}
    found = typed_look._changes({"a": long, "b": long, "c": text}, {"b": text, "c": text})
    assert found == [
        {"kind": "changed", "name": "b", "from": long, "to": text},
        {"kind": "dropped", "name": "a", "from": long},
    ]


def test_a_topic_without_a_schema_is_no_error(live: Broker) -> None:
    assert fed(live, "schema", topic="plain")["versions"] == []
    refused = httpx.get(f"{live.url}/console/feed/columns", params={"topic": "plain"})
    assert refused.status_code in (400, 404)
    assert "schema" in refused.text


def test_the_newest_records_are_columns_and_a_bad_one_says_why(live: Broker) -> None:
    found = fed(live, "columns", topic="typed")
    assert found["columns"] == ["id", "item", "discount"]
    assert (found["start"], found["end"], len(found["rows"])) == (22, 72, typed_look.ROWS)
    first, typed, bad = found["rows"][0], found["rows"][-2], found["rows"][-1]
    assert first["cells"] == ["22", "item 22", None]
    assert typed["cells"] == ["70", MARKUP[: typed_look.CELL_MAX], "0.5"]
    assert bad["cells"] == [None, None, None]
    assert bad["error"]


def test_pages_of_records_follow_each_other(live: Broker) -> None:
    first = fed(live, "columns", topic="typed", start=0)
    then = fed(live, "columns", topic="typed", start=first["next"])
    offsets = [row["offset"] for row in first["rows"] + then["rows"]]
    assert offsets == list(range(72))
    assert then["next"] == then["end"]


def test_an_older_version_is_read_where_it_is_asked_for(live: Broker) -> None:
    assert fed(live, "columns", topic="typed", version=1)["columns"] == ["id", "item"]


def test_a_page_goes_on_behind_deleted_records(live: Broker) -> None:
    live.store.create_topic("holes", schema=pa.schema([("n", pa.int64())]))
    live.store.append("holes", pa.table({"n": list(range(10))}))
    live.store.delete_records("holes", 0, 4)
    found = fed(live, "columns", topic="holes", start=0)
    assert [row["cells"] for row in found["rows"]] == [[str(n)] for n in range(4, 10)]


def test_a_large_value_is_cut(live: Broker) -> None:
    live.store.create_topic("large", schema=pa.schema([("text", pa.string())]))
    live.store.append("large", pa.table({"text": ["x" * (3 << 20)] * 6}))
    rows = fed(live, "columns", topic="large")["rows"]
    assert 0 < len(rows) < 6, "a page has a bounded number of bytes"
    assert all(len(row["cells"][0]) == typed_look.CELL_MAX + 1 for row in rows)


def test_a_key_sees_the_schemas_of_its_own_topics(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("keyed")
    keys = str(folder / "keys.json")
    _, key = auth.create(keys, scope="read", prefix="mine.")
    with broker(folder / "data", keys_file=keys) as keyed:
        typed_topic(keyed.store)
        with httpx.Client(base_url=keyed.url, headers={"x-lamina-console": "1"}) as client:
            assert client.post("/console/session", json={"key": key}).status_code == 200
            for name in ("schema", "columns"):
                asked = client.get(f"/console/feed/{name}", params={"topic": "typed"})
                assert asked.status_code == 403, asked.text


def test_the_page_shows_versions_and_walks_through_records(page: Page, live: Broker) -> None:
    page.goto(f"{live.url}/console#/topic/typed/schema")
    expect(page.get_by_role("table", name="Columns", exact=True)).to_contain_text("discount")
    expect(page.get_by_role("table", name="Versions")).to_contain_text("added discount: double")
    shown = page.get_by_role("table", name="Records as columns")
    expect(shown).to_contain_text("item 69")
    expect(shown).to_contain_text(MARKUP[:20])
    page.get_by_role("button", name="Older").click()
    expect(shown).to_contain_text("item 0")
    expect(page.get_by_role("button", name="Older")).to_be_disabled()
    assert page.title() != "owned"
