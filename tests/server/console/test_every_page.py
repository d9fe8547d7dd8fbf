"""Every page of the console at three widths, light and dark: nothing overflows, and axe is content.

Also pages that are not there: they say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from lamina.server import auth
from tests.server.console import axe
from tests.server.console.rig import (
    ARCHIVED,
    MARKUP,
    SMALL,
    Broker,
    broker,
    order,
    typed_topic,
    until,
)

WIDTHS = {390: 844, 820: 1180, 1440: 900}
PAGES = {
    "topics": "a-topic-with-a-long-name",
    "topic/orders/layers": "durable up to",
    "topic/orders/layers?p=0&base=0": "Segment 0",
    "topic/orders/layers?p=0&base=0&start=0&until=40": "customer-",
    "topic/orders/layers?p=0&base=0&offset=3": "Record 3",
    "topic/orders/partitions": "Written up to",
    "topic/typed/schema": "added discount",
    "topic/orders/schema": "orders has no schema",
    "topic/orders/tail": "Live",
    "topic/orders/groups": "billing",
    "topic/orders/retention": "segments go",
    "topic/orders/settings": "retention.ms",
    "group/orders/billing": "records behind",
    "groups": "billing",
    "writers": "orders-0",
    "archive": "layers",
    "spark": "spark-enrich",
    "reports": "The last start took",
    "jobs": "verify layers",
    "clients": "No Kafka client is connected",
    "broker": "Recovery took",
    "keys": "max.inflight.bytes",
    "nowhere": "There is no such page",
    "topic/none/layers": "There is no topic none",
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("pages")) as running:
        store = running.store
        store.create_topic("orders", partitions=2, config={"segment.bytes": 20_000})
        store.create_topic("a-topic-with-a-long-name." * 4 + "end", format="wal")
        store.create_topic("layers", config=ARCHIVED)
        store.create_topic("trimmed", config=SMALL)
        for _ in range(6):
            store.append("orders", [order(number) for number in range(60)], partition=0)
            store.append("layers", [MARKUP.encode()] * 200)
            store.append("trimmed", [b"x" * 100] * 200)
        store.archive()
        store.trim("trimmed", 0, store.layers("trimmed")[1].next_offset)
        typed_topic(store)
        store.group("orders", "billing")
        store.group("orders", "spark-enrich")
        console = running.service._http._console  # type: ignore[union-attr]
        console._jobs.verify(store, "layers", "me")
        until(lambda: len(console._history.rings.times()) > 1)
        yield running


@pytest.fixture(scope="module", params=["light", "dark"])
def shown(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    context = browser.new_context(
        color_scheme=request.param, reduced_motion="reduce", timezone_id="Asia/Kathmandu"
    )
    yield context.new_page()
    context.close()


def size(width: int) -> ViewportSize:
    return {"width": width, "height": WIDTHS[width]}


@pytest.mark.parametrize("address", PAGES)
def test_nothing_is_wider_than_the_window_and_axe_is_content(
    shown: Page, live: Broker, address: str
) -> None:
    source = axe.source()
    is_dark = shown.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    rules = axe.COLOURS if is_dark else axe.STANDARDS
    shown.goto("about:blank")
    for width in WIDTHS:
        shown.set_viewport_size(size(width))
        if width == min(WIDTHS):
            shown.goto(f"{live.url}/console#/{address}")
        expect(shown.locator("main")).to_contain_text(PAGES[address])
        wide = shown.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{wide} px of content in a window of {width}"
        assert axe.violations(shown, source, rules) == [], f"at {width}"


@pytest.mark.parametrize("width", WIDTHS)
def test_dialogs_fit_and_are_accessible(shown: Page, live: Broker, width: int) -> None:
    source = axe.source()
    shown.set_viewport_size(size(width))
    for address, button in (
        ("topics", "New topic"),
        ("topic/orders/layers", "Produce…"),
        ("topic/orders/layers", "Trim…"),
        ("topic/orders/tail", "Export…"),
        ("topic/orders/settings", "Delete topic…"),
        ("group/orders/billing", "Seek…"),
    ):
        shown.goto(f"{live.url}/console#/{address}")
        shown.get_by_role("button", name=button).click()
        box = shown.get_by_role("dialog").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert axe.violations(shown, source) == [], button
        shown.keyboard.press("Escape")
        expect(shown.get_by_role("dialog")).to_have_count(0)


def test_the_log_in_and_the_list_of_keys_fit_and_are_accessible(
    shown: Page, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = axe.source()
    folder = tmp_path_factory.mktemp("keyed")
    keys = str(folder / "keys.json")
    _, ruling = auth.create(keys, scope="admin", note="the one who rules")
    with broker(folder / "data", keys_file=keys) as keyed:
        shown.set_viewport_size(size(min(WIDTHS)))
        shown.goto(f"{keyed.url}/console#/keys")
        expect(shown.get_by_label("API key")).to_be_visible()
        assert axe.violations(shown, source) == []
        shown.get_by_label("API key").fill(ruling)
        shown.get_by_role("button", name="Log in").click()
        expect(shown.get_by_role("table", name="Keys")).to_contain_text("the one who rules")
        assert shown.evaluate("document.documentElement.scrollWidth") <= min(WIDTHS)
        assert axe.violations(shown, source) == []


@pytest.mark.parametrize(
    ("address", "told", "link"),
    [
        ("nowhere", "There is no such page", "All topics"),
        ("constructor", "There is no such page", "All topics"),
        ("topic/orders/nowhere", "A topic has no page “nowhere”", "orders"),
        ("topic/none/layers", "There is no topic none", "All topics"),
        ("topic/orders/layers?p=7", "There is no partition 7", "Partition 0"),
        ("topic/trimmed/layers?p=0&base=5", "This segment is gone", "Whole history"),
        ("group/orders/none", "There is no group none", "All groups"),
        ("topic/%E0%A4%A/layers", "There is no topic", "All topics"),
    ],
)
def test_what_is_not_there_is_said_and_leads_back(
    page: Page, live: Broker, address: str, told: str, link: str
) -> None:
    page.goto(f"{live.url}/console#/{address}")
    expect(page.get_by_role("alert")).to_contain_text(told)
    expect(page.locator("#notes")).to_be_empty()
    page.get_by_role("alert").get_by_role("link", name=link).click()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator("main h1")).to_be_visible()


def test_a_topic_that_is_deleted_meanwhile_is_said_to_be_gone(page: Page, live: Broker) -> None:
    live.store.create_topic("passing")
    page.goto(f"{live.url}/console#/topic/passing/partitions")
    expect(page.get_by_role("table", name="Partitions")).to_be_visible()
    live.store.delete_topic("passing")
    expect(page.get_by_role("alert")).to_contain_text("There is no topic passing")


def test_the_skip_link_leads_to_the_content_and_not_to_a_page_of_its_name(
    page: Page, live: Broker
) -> None:
    page.goto(f"{live.url}/console#/groups")
    expect(page.get_by_role("heading", name="Consumer groups")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    assert page.url.endswith("#/groups")


def test_times_say_their_zone(shown: Page, live: Broker) -> None:
    zone = "UTC+05:45"
    shown.set_viewport_size(size(1440))
    for address in ("layers?p=0&offset=3", "layers?p=0&base=0&start=0&until=40", "tail"):
        shown.goto(f"{live.url}/console#/topic/orders/{address}")
        expect(shown.locator("section.tab")).to_contain_text(zone)
    for address in ("topic/orders/layers", "reports", "jobs", "broker", "spark"):
        shown.goto(f"{live.url}/console#/{address}")
        expect(shown.locator("main")).to_contain_text(zone)


def test_a_time_is_read_in_the_form_in_which_it_is_shown(shown: Page, live: Broker) -> None:
    shown.goto(f"{live.url}/console#/topics")
    read = shown.evaluate(
        """async () => {
          const { parseTime, instant } = await import("/console/static/format.js");
          const now = 1769860800123;
          const texts = ["2026-01-31 12:00:00 UTC", "2026-01-31T12:00:00Z", "2026-01-31 17:45:00",
            "2026-01-31 13:00:00+01:00", "2026-01-31 13:00 UTC+0100", "1769860800000"];
          return [texts.map(parseTime), parseTime(instant(now)), now, parseTime("2026-01-31")];
        }"""
    )
    assert read[0] == [1_769_860_800_000] * 6
    assert read[1] == read[2]
    assert read[3] == 1_769_860_800_000 - (17 * 60 + 45) * 60_000


def test_an_offset_is_read_in_the_form_in_which_it_is_shown(page: Page, live: Broker) -> None:
    end = live.store.latest_offset("layers")
    assert end > 1000
    page.goto(f"{live.url}/console#/topic/layers/layers")
    for text in ("1,100", "1100", "0:1,100", "1_100"):
        page.get_by_label("Offset", exact=True).fill(text)
        page.get_by_role("button", name="Go", exact=True).click()
        expect(page.get_by_role("heading", name="Record 1,100")).to_be_visible()
        page.get_by_role("link", name="Whole history").click()
    page.get_by_label("Offset", exact=True).fill("1,10")
    page.get_by_role("button", name="Go", exact=True).click()
    expect(page.locator("#notes")).to_contain_text("whole number")
    page.goto(f"{live.url}/console#/topic/layers/tail")
    page.get_by_label("From offset").fill("1,198")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#tail-rows tr")).to_have_count(end - 1198)


def test_the_ticks_of_charts_are_numbers_in_steps_that_are_read_at_once(
    page: Page, live: Broker
) -> None:
    page.goto(f"{live.url}/console#/topics")
    shown = page.evaluate(
        """async () => {
          const { KINDS, ticks } = await import("/console/static/format.js");
          const axis = (kind, step) => ticks(kind, [0, 1, 2, 3].map((n) => n * step));
          return Object.fromEntries(Object.entries(KINDS).map(([kind, { steps }]) =>
            [kind, steps.map((step) => axis(kind, step))]));
        }"""
    )
    assert shown["rate"][0] == ["0", "0.1", "0.2", "0.3"]
    assert shown["count"][0] == ["0", "1", "2", "3"]
    assert ["0", "500", "1K", "1.5K"] in shown["count"]
    assert shown["micros"][9] == ["0 µs", "1 ms", "2 ms", "3 ms"]
    assert ["0 ms", "100 ms", "200 ms", "300 ms"] in shown["seconds"]
    assert ["0 ms", "1 h", "2 h", "3 h"] in shown["seconds"]
    assert shown["bytes"][10] == ["0 B", "1 KiB", "2 KiB", "3 KiB"]
    for axes in shown.values():
        for labels in axes:
            assert len(set(labels)) == len(labels), labels
            assert all(re.fullmatch(r"[\d.]+\D{0,6}( \d+ \w+)?", each) for each in labels), labels


def test_charts_show_the_window_that_is_chosen(page: Page, live: Broker) -> None:
    page.goto(f"{live.url}/console#/writers")
    window = page.get_by_label("Charts show the last")
    expect(window.locator("option:checked")).to_have_text("15 minutes")
    with page.expect_response(re.compile("window_s=21600")) as answered:
        window.select_option(label="6 hours")
    assert answered.value.json()["series"]["times"]
    figure = page.locator("figure").first
    expect(figure).to_have_attribute("aria-label", re.compile("over the last 6 hours"))
    with page.expect_response(re.compile(r"feed/group.*window_s=21600")):
        page.goto(f"{live.url}/console#/group/orders/billing")
