"""The console as a person uses it, in a browser, on a live broker: keys, actions, confirmation."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from lamina.server import auth
from tests.server.console.rig import ARCHIVED, SMALL, Broker, broker, until


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("doing")) as running:
        store = running.store
        store.create_topic("events", config=SMALL)
        for _ in range(8):
            store.append("events", [b"x" * 100] * 200)
        store.create_topic("archived", config=ARCHIVED)
        store.append("archived", [b"y" * 100] * 1000)
        store.create_topic("tagged", format="wal")
        store.append("tagged", [{"value": b"v", "tag": b"user-%d" % (n % 4)} for n in range(40)])
        store.group("events", "billing")
        yield running


def at(live: Broker, address: str) -> str:
    return f"{live.url}/console#/{address}"


def test_a_topic_is_created_and_altered(page: Page, live: Broker) -> None:
    page.goto(at(live, "topics"))
    page.get_by_role("button", name="New topic").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("made here")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("is refused")
    dialog.get_by_label("Name").fill("made-here")
    dialog.get_by_label("Partitions").fill("3")
    dialog.get_by_label("Settings").fill("retention.ms=60000")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("row", name=re.compile("^made-here"))).to_contain_text("3")
    assert live.store.describe_topic("made-here").settings["retention.ms"] == 60_000
    page.goto(at(live, "topic/made-here/settings"))
    page.get_by_role("button", name="Change…").click()
    expect(dialog.get_by_label("Settings")).to_have_value("retention.ms=60000")
    dialog.get_by_label("Settings").fill("retention.ms=90000")
    dialog.get_by_label(re.compile("^Type made-here")).fill("made-here")
    dialog.get_by_role("button", name="Change").click()
    expect(dialog).to_have_count(0)
    assert live.store.describe_topic("made-here").settings["retention.ms"] == 90_000


def test_a_trim_says_what_goes_and_waits_for_the_name(page: Page, live: Broker) -> None:
    layers = live.store.layers("events")
    before = layers[2].base_offset
    page.goto(at(live, "topic/events/layers"))
    expect(page.locator(".band")).to_have_count(len(layers))
    page.get_by_role("button", name="Trim…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Before offset").fill(str(before))
    expect(dialog).to_contain_text(f"This would remove 2 layers with {before} records.")
    trim = dialog.get_by_role("button", name="Trim")
    expect(trim).to_be_disabled()
    dialog.get_by_label(re.compile("^Type events")).fill("event")
    expect(trim).to_be_disabled()
    assert live.store.earliest_offset("events") == 0
    dialog.get_by_label(re.compile("^Type events")).fill("events")
    trim.click()
    expect(dialog).to_have_count(0)
    assert live.store.earliest_offset("events") == before
    expect(page.locator('.band[data-state="gone"]')).to_contain_text("trim")
    page.goto(at(live, "reports"))
    gaps = page.get_by_role("table", name="Missing offsets")
    expect(gaps).to_contain_text("removed because somebody asked")


def test_records_are_deleted_by_tag(page: Page, live: Broker) -> None:
    page.goto(at(live, "topic/tagged/layers"))
    page.get_by_role("button", name="Delete by tag…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Tag", exact=True).fill("user-2")
    dialog.get_by_label(re.compile("^Type tagged")).fill("tagged")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.locator("#notes")).to_contain_text("Deleted 10 records.")
    left = live.store.fetch("tagged", 0, 1).column("tag").to_pylist()
    assert len(left) == 30
    assert b"user-2" not in left


def test_a_group_is_moved_after_a_look_at_the_plan(page: Page, live: Broker) -> None:
    end = live.store.latest_offset("events")
    page.goto(at(live, "group/events/billing"))
    page.get_by_role("button", name="Seek…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To", exact=True).fill("latest")
    expect(dialog).to_contain_text(f"→ {end:,}")
    assert live.store.describe_group("events", "billing").lag > 0
    dialog.get_by_label(re.compile("^Type billing")).fill("billing")
    dialog.get_by_role("button", name="Seek").click()
    expect(dialog).to_have_count(0)
    assert live.store.describe_group("events", "billing").lag == 0


def test_verifying_and_archiving_show_their_progress(page: Page, live: Broker) -> None:
    page.goto(at(live, "topic/events/layers"))
    page.get_by_role("button", name="Verify now").click()
    page.get_by_role("dialog").get_by_role("button", name="Verify").click()
    row = page.get_by_role("row", name=re.compile("verify events"))
    expect(row).to_contain_text("done")
    expect(row).to_contain_text("nothing wrong")
    expect(row.get_by_role("progressbar")).to_have_attribute("value", re.compile(r"^[1-9]"))
    assert live.store.tier_status()[0].objects == 0
    live.store.roll("archived")
    page.goto(at(live, "archive"))
    page.get_by_role("button", name="Archive now").click()
    page.get_by_role("dialog").get_by_role("button", name="Archive").click()
    expect(page.get_by_role("row", name=re.compile("archive"))).to_contain_text("done")
    assert live.store.tier_status()[0].objects > 0


def test_damage_is_found_by_verifying(page: Page, live: Broker) -> None:
    live.store.create_topic("damaged", config=SMALL)
    for _ in range(4):
        live.store.append("damaged", [b"z" * 100] * 200)
    sealed = Path(live.store.path, live.store.layers("damaged")[0].where)
    with sealed.open("r+b") as file:
        file.seek(5_000)
        file.write(b"\xff" * 40)
    page.goto(at(live, "topic/damaged/layers"))
    page.get_by_role("button", name="Verify now").click()
    page.get_by_role("dialog").get_by_role("button", name="Verify").click()
    row = page.get_by_role("row", name=re.compile("verify damaged"))
    expect(row).to_contain_text("a record is damaged")
    page.goto(at(live, "reports"))
    expect(page.get_by_role("table", name="Missing offsets")).to_contain_text("lost")


def test_a_wrong_key_is_refused_and_a_key_shows_what_it_covers(page: Page, tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    _, reading = auth.create(keys, scope="read", prefix="shop.")
    with broker(tmp_path / "keyed", keys_file=keys) as live:
        for name in ("shop.orders", "secret"):
            live.store.create_topic(name)
            live.store.append(name, [b"x"])
        page.goto(f"{live.url}/console")
        key = page.get_by_label("API key")
        key.fill(reading[:-1] + ("a" if reading[-1] != "a" else "b"))
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("not known here")
        assert page.context.cookies() == []
        key.fill(reading)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("link", name="shop.orders")).to_be_visible()
        assert page.get_by_text("secret").count() == 0
        assert page.get_by_role("button", name="New topic").count() == 0
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert reading not in page.content() + page.evaluate("JSON.stringify({...localStorage})")
        page.goto(at(live, "topic/secret/layers"))
        expect(page.get_by_role("alert")).to_contain_text("is for topics 'shop.'")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("API key")).to_be_visible()
        until(lambda: page.context.cookies() == [])


def test_a_record_is_produced_with_key_value_and_headers(page: Page, live: Broker) -> None:
    live.store.create_topic("produced", partitions=3)
    page.goto(at(live, "topic/produced/layers"))
    page.get_by_role("button", name="Produce…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Partition").select_option("2")
    dialog.get_by_label("Key").fill("c-7")
    dialog.get_by_label("The value is").select_option("JSON")
    dialog.get_by_label("Value", exact=True).fill('{"total": 3')
    dialog.get_by_label("Headers").fill("source=console\nby=ö")
    dialog.get_by_role("button", name="Produce").click()
    expect(dialog.get_by_role("alert")).not_to_be_empty()
    assert live.store.latest_offset("produced", 2) == 0
    dialog.get_by_label("Value", exact=True).fill('{"total": 3}')
    dialog.get_by_role("button", name="Produce").click()
    expect(page.locator("#notes")).to_contain_text("at offset 0, fsynced")
    (row,) = live.store.fetch("produced", 2, 0).to_pylist()
    assert (row["key"], row["value"]) == (b"c-7", b'{"total": 3}')
    assert [(each["key"], each["value"]) for each in row["headers"]] == [
        ("source", b"console"),
        ("by", "ö".encode()),
    ]


def test_a_topic_is_deleted_when_its_name_is_typed(page: Page, live: Broker) -> None:
    live.store.create_topic("doomed")
    live.store.append("doomed", [b"x"])
    live.store.group("doomed", "readers")
    page.goto(at(live, "topic/doomed/settings"))
    page.get_by_role("button", name="Delete topic…").click()
    dialog = page.get_by_role("dialog")
    delete = dialog.get_by_role("button", name="Delete topic")
    expect(delete).to_be_disabled()
    dialog.get_by_label(re.compile("^Type doomed")).fill("doomed")
    delete.click()
    expect(page.get_by_role("heading", name="Topics", exact=True)).to_be_visible()
    assert "doomed" not in live.store.topics()
    expect(page.locator("#notes")).to_contain_text("Topic doomed was deleted.")


def test_what_was_searched_is_exported_whole(page: Page, live: Broker) -> None:
    live.store.create_topic("searched", partitions=2)
    value = "value %d " + "x" * 600
    for number in range(6):
        row = {"key": b"key-%d" % (number % 2), "value": (value % number).encode()}
        live.store.append("searched", [row], partition=number % 2)
    page.goto(at(live, "topic/searched/tail"))
    page.get_by_label("Key has").fill("key-1")
    page.get_by_role("button", name="Apply").click()
    page.get_by_role("button", name="Export…").click()
    with page.expect_download() as saved:
        page.get_by_role("dialog").get_by_role("button", name="Export").click()
    assert saved.value.suggested_filename == "searched.jsonl"
    rows = [json.loads(line) for line in Path(saved.value.path()).read_text().splitlines()]
    assert [(row["partition"], row["offset"], row["key"]) for row in rows] == [
        (1, 0, "key-1"),
        (1, 1, "key-1"),
        (1, 2, "key-1"),
    ]
    assert rows[2]["value"] == value % 5
    expect(page.locator("#notes")).to_contain_text("Exported 3 records. That is all of them.")
    page.goto(at(live, "topic/searched/layers?p=0&base=0&start=1&until=3"))
    page.get_by_role("button", name="Export…").click()
    page.get_by_role("dialog").get_by_label("Format").select_option("CSV")
    with page.expect_download() as saved:
        page.get_by_role("dialog").get_by_role("button", name="Export").click()
    with Path(saved.value.path()).open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [(row["offset"], row["key"]) for row in table] == [("1", "key-0"), ("2", "key-0")]
    assert table[1]["value"] == value % 4


def test_a_key_of_scope_write_produces_and_deletes_nothing(page: Page, tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    _, writing = auth.create(keys, scope="write", note="the till")
    with broker(tmp_path / "keyed", keys_file=keys) as live:
        live.store.create_topic("t")
        page.goto(f"{live.url}/console")
        page.get_by_label("API key").fill(writing)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("link", name="t", exact=True)).to_be_visible()
        page.goto(at(live, "topic/t/settings"))
        expect(page.get_by_role("button", name="Produce…")).to_be_visible()
        assert page.get_by_role("button", name="Delete topic…").count() == 0
        page.goto(at(live, "keys"))
        expect(page.locator("main")).to_contain_text("may write, all topics")
        expect(page.locator("main")).to_contain_text("The keys are listed for admins")
        assert page.get_by_text("the till").count() == 0
