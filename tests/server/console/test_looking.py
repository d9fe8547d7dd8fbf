"""The console as a person uses it, in a browser, on a live broker under load: looking."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.server.console.rig import ARCHIVED, MARKUP, SMALL, Broker, broker, under_load, until

FIRST_PAINT_BYTES = 100_000


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("looking")) as running:
        store = running.store
        store.create_topic("orders", config={"segment.bytes": 100_000})
        store.create_topic("layers", config=ARCHIVED)
        store.create_topic("markup")
        store.append("markup", [{"key": MARKUP.encode(), "value": MARKUP.encode()}])
        store.group("markup", "<b>bold</b>")
        store.create_topic("sessions", format="wal")
        store.create_topic("keys", config=SMALL)
        for _ in range(4):
            store.append("keys", [b"x" * 100] * 200)
        store.group("orders", "spark-enrich")
        under_load(running)
        yield running


def at(live: Broker, address: str) -> str:
    return f"{live.url}/console#/{address}"


def bands(page: Page, state: str) -> int:
    return page.locator(f'.band[data-state="{state}"]').count()


def test_the_topics_show_their_rates_and_sizes_within_a_small_first_paint(
    page: Page, live: Broker
) -> None:
    sizes: list[int] = []
    page.on("response", lambda answer: sizes.append(len(answer.body())))
    page.goto(f"{live.url}/console")
    row = page.get_by_role("row", name=re.compile("^orders"))
    expect(row).to_contain_text("keratin")
    page.wait_for_load_state("networkidle")
    assert 10_000 < sum(sizes) < FIRST_PAINT_BYTES
    expect(row.get_by_role("cell").nth(5)).to_have_text(re.compile(r"[1-9][\d.]*K?"))
    expect(page.locator("dl.tiles")).to_contain_text("Appended")


def test_a_record_is_found_by_its_time_and_shown_as_json_and_hex(page: Page, live: Broker) -> None:
    until(lambda: live.store.latest_offset("orders", 0) > 300)
    batch = live.store.fetch("orders", 0, 200, max_records=1)
    wanted_ms = int(batch.column("timestamp").cast("int64")[0].as_py())
    expected = live.store.offset_for_time("orders", 0, wanted_ms)
    page.goto(at(live, "topic/orders/layers"))
    page.get_by_label("At time").fill(str(wanted_ms))
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("heading", name=f"Record {expected}")).to_be_visible()
    expect(page.get_by_role("tabpanel")).to_contain_text(f'"order": {expected}')
    expect(page.locator("dl.facts")).to_contain_text("customer-")
    expect(page.locator("dl.facts")).to_contain_text("Header source")
    page.get_by_role("tab", name="Hex").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("7b 22 6f 72 64 65 72")
    page.get_by_role("tab", name="On disk").click()
    raw = live.store.raw_record("orders", 0, expected or 0)
    assert raw is not None
    expect(page.get_by_role("tabpanel")).to_contain_text(f"{raw.position:08x}")
    page.get_by_role("button", name="Newer").click()
    expect(page.get_by_role("heading", name=f"Record {(expected or 0) + 1}")).to_be_visible()


def test_one_zooms_from_the_history_to_a_record_and_back(page: Page, live: Broker) -> None:
    until(lambda: len(live.store.layers("orders")) > 1)
    page.goto(at(live, "topic/orders/layers"))
    page.locator('.band[data-state="sealed"]').last.click()
    expect(page.locator(".crumbs")).to_contain_text("Segment 0")
    page.locator(".band").last.click()
    expect(page.get_by_role("table", name="Records")).to_be_visible()
    page.get_by_role("button", name="0", exact=True).click()
    expect(page.get_by_role("heading", name="Record 0")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("table", name="Records")).to_be_visible()
    page.get_by_role("link", name="Whole history").click()
    expect(page.locator('.band[data-state="active"]')).to_be_visible()


def test_the_layers_change_as_a_segment_seals_moves_and_is_archived(
    page: Page, live: Broker
) -> None:
    store = live.store
    store.append("layers", [b"x" * 100] * 50)
    page.goto(at(live, "topic/layers/layers"))
    expect(page.locator(".band")).to_have_count(1)
    assert (bands(page, "active"), bands(page, "sealed")) == (1, 0)
    store.roll("layers")
    expect(page.locator('.band[data-state="sealed"]')).to_have_count(1)
    for _ in range(12):
        store.append("layers", [b"x" * 100] * 250)
    sealed = len([each for each in store.layers("layers") if each.state == "sealed"])
    expect(page.locator('.band[data-state="sealed"]')).to_have_count(sealed)
    store.archive()
    expect(page.locator('.band[data-state="cold"]').first).to_contain_text("lz4")
    kept = page.locator('.band[data-state="sealed"]')
    expect(kept.first).to_contain_text("sealed + archived")
    assert kept.count() < sealed
    page.locator('.band[data-state="cold"]').last.click()
    page.locator(".band").last.click()
    expect(page.get_by_role("table", name="Records")).to_contain_text("xxxx")


def test_the_tail_follows_pauses_and_chooses(page: Page, live: Broker) -> None:
    page.goto(at(live, "topic/orders/tail"))
    rows = page.locator("#tail-rows tr")
    expect(rows.first).to_contain_text("order")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("p[role=status]")).to_have_text("Paused")
    before = rows.first.inner_text()
    end = live.store.latest_offset("orders", 0)
    until(lambda: live.store.latest_offset("orders", 0) > end + 60)
    assert rows.first.inner_text() == before
    page.get_by_role("button", name="Resume").click()
    expect(rows.first).not_to_have_text(before)
    page.get_by_label("Key has").fill("customer-7")
    page.get_by_label("From offset").fill("0")
    page.get_by_role("button", name="Apply").click()
    expect(rows.last).to_contain_text("customer-7")
    keys = page.locator("#tail-rows td:nth-child(3)").all_inner_texts()
    assert set(keys) == {"customer-7"}
    page.get_by_label("Key has").fill("")
    page.get_by_label("Value has").fill('"order": 77,')
    page.get_by_role("button", name="Apply").click()
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text('"order": 77,')


def test_the_tail_chooses_by_time_and_by_tag(page: Page, live: Broker) -> None:
    times = [1_700_000_000_000 + 1000 * number for number in range(10)]
    live.store.append(
        "sessions",
        [
            {"value": b"visit %d" % n, "tag": b"user-%d" % (n % 2), "timestamp": times[n]}
            for n in range(10)
        ],
    )
    page.goto(at(live, "topic/sessions/tail"))
    page.get_by_label("Tag has").fill("user-1")
    page.get_by_label("Since").fill(str(times[4]))
    page.get_by_label("Until").fill(str(times[8]))
    page.get_by_label("From offset").fill("0")
    page.get_by_role("button", name="Apply").click()
    values = page.locator("#tail-rows td:nth-child(4)")
    expect(values).to_have_text(["visit 7", "visit 5"])


def test_the_lag_of_a_group_grows_and_shrinks(page: Page, live: Broker) -> None:
    group = live.store.group("orders", "billing")
    page.goto(at(live, "group/orders/billing"))
    lag = page.get_by_role("cell").nth(2)
    expect(lag).to_be_visible()
    first = number(lag.inner_text())
    until(lambda: number(lag.inner_text()) > first + 50)
    grown = page.locator("figure").first
    until(lambda: re.search(r"now records [1-9]", grown.get_attribute("aria-label") or ""))
    live.keep(lambda: drain(group), 0.01)
    until(lambda: number(lag.inner_text()) < 100)
    page.goto(at(live, "spark"))
    expect(page.get_by_role("table", name="Queries that read")).to_contain_text("spark-enrich")


def number(text: str) -> int:
    return int(text.replace(",", ""))


def drain(group: object) -> None:
    held = group.poll(2000)  # type: ignore[attr-defined]
    if held.num_rows:
        group.ack(held)  # type: ignore[attr-defined]


def test_a_record_full_of_markup_is_text_everywhere(page: Page, live: Broker) -> None:
    page.goto(at(live, "topic/markup/tail"))
    page.get_by_label("From offset").fill("0")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#tail-rows")).to_contain_text('<script>document.title="owned"')
    page.goto(at(live, "topic/markup/layers?p=0&base=0&start=0&until=1"))
    expect(page.get_by_role("table", name="Records")).to_contain_text("<img src=x onerror")
    page.goto(at(live, "topic/markup/layers?p=0&offset=0"))
    expect(page.get_by_role("tabpanel")).to_have_text(MARKUP)
    assert page.locator("main img, main script").count() == 0
    page.goto(at(live, "groups"))
    expect(page.get_by_role("link", name="<b>bold</b>")).to_be_visible()
    assert page.locator("main b").count() == 0
    assert "owned" not in page.title()


def test_one_record_is_one_record(page: Page, live: Broker) -> None:
    page.goto(at(live, "topic/markup/layers?p=0"))
    expect(page.get_by_text("active: 1 · 1 record ·")).to_be_visible()
    expect(page.get_by_text("1 partition ·")).to_be_visible()


def test_names_in_what_a_setting_does_are_code(page: Page, live: Broker) -> None:
    page.goto(at(live, "broker"))
    expect(page.locator("main code").get_by_text("lamina.connect", exact=True)).to_be_visible()
    expect(page.locator("main")).not_to_contain_text("`")
    page.goto(at(live, "topic/orders/settings"))
    expect(page.get_by_role("table", name="Settings")).to_contain_text("retention.ms")
    expect(page.locator("main")).not_to_contain_text("`")


def test_a_record_is_asked_for_when_it_is_known_what_to_ask(page: Page, live: Broker) -> None:
    held: list[Route] = []
    page.route("**/console/feed/topic?*", lambda route: held.append(route), times=1)  # noqa: PLW0108
    page.goto(at(live, "topic/markup/layers?p=0"))
    while not held:
        page.wait_for_timeout(10)
    produce = page.get_by_role("button", name="Produce…")
    expect(produce).to_be_disabled()  # how many partitions there are is not known yet
    held[0].continue_()
    expect(produce).to_be_enabled()


def test_an_address_that_comes_before_its_view_is_not_lost(page: Page, live: Broker) -> None:
    held: list[Route] = []
    page.route("**/views/layers.js", lambda route: held.append(route))  # noqa: PLW0108
    with page.expect_request("**/views/layers.js"):
        page.goto(at(live, "topic/markup/layers?p=0&base=0&start=0&until=1"))
    expect(page.get_by_role("heading", name="markup")).to_be_visible()
    page.goto(at(live, "topic/markup/layers?p=0&offset=0"))
    for each in held:
        each.continue_()
    expect(page.get_by_role("tabpanel")).to_have_text(MARKUP)


def test_the_writer_the_archive_retention_and_the_reports_are_shown(
    page: Page, live: Broker
) -> None:
    page.goto(at(live, "writers"))
    row = page.get_by_role("row", name=re.compile("^orders-0"))
    expect(row).to_contain_text(re.compile(r"µs|ms"))
    charts = page.locator("figure[aria-label^='fsync']")
    expect(charts).to_have_attribute("aria-label", re.compile(r"p99 [\d.]+ (µs|ms|s)"))
    assert page.locator(".uplot canvas").count() == 4
    page.goto(at(live, "archive"))
    expect(page.get_by_role("row", name=re.compile("^layers"))).to_contain_text("none")
    page.goto(at(live, "topic/orders/retention"))
    expect(page.get_by_role("table")).to_contain_text("no retention is set")
    expect(page.get_by_role("table")).to_contain_text("it is the active segment")
    live.store.trim("layers", 0, 1)
    page.goto(at(live, "reports"))
    expect(page.locator("main")).to_contain_text("The last start took")


def test_light_and_dark_follow_the_system_and_the_button(browser: Browser, live: Broker) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)
        page = context.new_page()
        page.goto(at(live, "topics"))
        expect(page.get_by_role("heading", name="Topics")).to_be_visible()
        grounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.get_by_role("button", name="Theme: auto").click()
        expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
        chosen = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert chosen == grounds["light"]
        context.close()
    assert grounds["light"] != grounds["dark"]


def test_the_keyboard_alone_leads_to_a_record(page: Page, live: Broker) -> None:
    page.goto(at(live, "groups"))
    expect(page.get_by_role("heading", name="Consumer groups")).to_be_visible()
    page.keyboard.press("1")
    expect(page.get_by_role("link", name="keys", exact=True)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("keys")
    expect(page.get_by_role("row")).to_have_count(2)
    for _ in range(3):
        page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="keys", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    page.locator(".band").first.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator('.band[data-state="sealed"]').first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".crumbs a")).to_have_count(2)
    expect(page.locator(".band").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("button.link").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=re.compile("^Record"))).to_be_visible()
    page.keyboard.press("Backspace")
    expect(page.get_by_role("table", name="Records")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
