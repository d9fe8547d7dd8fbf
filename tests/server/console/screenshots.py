"""Makes the pictures of docs/console.md: `make screenshots`.

A broker of a small shop is filled and put under load for a while; then each view is pictured, and
the pictures are reduced to a palette, so that all of them together stay small.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

import lamina
from lamina.formats.documents.sink_transaction import State, encode_state
from lamina.store.store import Store
from tests.server.console.conftest import NONE, executable
from tests.server.console.rig import Broker, broker

WIDTH = 1280
HEIGHTS = {"topics": 800, "layers": 960, "blocks": 860, "record": 1060, "tail": 860, "writers": 860}
HEIGHTS |= {"narrow": 1600, "broker": 760, "schema": 1000}
LOW = 560
COLOURS = 224
LOAD_S = 75
VIEWS: dict[str, tuple[str, str]] = {
    "topics": ("light", "topics"),
    "layers": ("dark", "topic/orders/layers"),
    "blocks": ("light", "topic/clicks/layers?p=0&base={clicks}"),
    "record": ("dark", "topic/orders/layers?p=0&base={orders}&offset={offset}"),
    "schema": ("light", "topic/ratings/schema"),
    "tail": ("light", "topic/orders/tail"),
    "group": ("light", "group/orders/billing"),
    "groups": ("dark", "groups"),
    "writers": ("dark", "writers"),
    "archive": ("light", "archive"),
    "spark": ("light", "spark"),
    "reports": ("light", "reports"),
    "retention": ("dark", "topic/clicks/retention"),
    "jobs": ("light", "jobs"),
    "partitions": ("light", "topic/orders/partitions"),
    "broker": ("light", "broker"),
    "narrow": ("dark", "topic/orders/layers"),
}
WIDTHS = {"narrow": 390}


def crash(data: Path) -> None:
    """Leaves a directory as a power cut may leave it: a torn tail, a query's last transaction."""
    with lamina.open(str(data)) as store:
        store.create_topic("payments")
        store.append("payments", [b"paid %d" % number for number in range(500)])
        log = Path(store.path, store.layers("payments")[-1].where)
    with log.open("ab") as file:
        file.write(log.read_bytes()[-300:-120])
    for application, number in (("orders-daily", 412), ("fraud-scores", 96_118)):
        folder = data / "sink" / f"of-{application}"
        folder.mkdir(parents=True)
        state = State(application, number, "6f1c2c3e-8a55-4f0e-9d53-0b7d3a1c9e10")
        (folder / "state.json").write_bytes(encode_state(state))


def fill(live: Broker) -> None:
    """Makes the topics of a small shop, and somebody to read them."""
    store = live.store
    archived = {
        "segment.bytes": 250_000,
        "remote.storage.enable": "true",
        "local.retention.bytes": 900_000,
        "archive.object.bytes": 600_000,
        "archive.delay.ms": 5_000,
    }
    store.create_topic("orders", partitions=2, config=archived)
    store.create_topic(
        "clicks", format="frame", config={"segment.bytes": 300_000, "retention.bytes": 1_800_000}
    )
    store.create_topic("sessions", format="wal")
    for place in ("berlin", "kyiv", "lisbon", "nairobi", "oslo", "quito"):
        for kind in ("humidity", "power", "temperature"):
            store.create_topic(f"sensors.{place}.{kind}", format="wal")
    rated(store)
    billing, enrich = store.group("orders", "billing"), store.group("orders", "spark-enrich")
    store.group("orders", "shipping", start="latest")
    started = time.monotonic()

    def read() -> None:
        """Reads as fast as orders come, but for a pause in between."""
        if not 20 < time.monotonic() - started < 45:
            held = billing.poll(2000)
            if held.num_rows:
                billing.ack(held)
        held = enrich.poll(600)
        if held.num_rows:
            enrich.ack(held)

    live.keep(read, 0.25)


def rated(store: Store) -> None:
    """Makes a typed topic whose schema has grown."""
    columns = [pa.field("customer", pa.string(), nullable=False), pa.field("stars", pa.int32())]
    store.create_topic("ratings", schema=pa.schema(columns))
    stars = [1 + number % 5 for number in range(40)]
    customers = [f"c-{number * 37 % 900:03}" for number in range(40)]
    store.append("ratings", pa.table({"customer": customers, "stars": stars}))
    store.set_schema("ratings", pa.schema([*columns, pa.field("comment", pa.string())]))
    words = [["worth it", "a little late", None][number % 3] for number in range(40)]
    store.append("ratings", pa.table({"customer": customers, "stars": stars, "comment": words}))


def load(live: Broker) -> None:
    """Appends to every topic, in waves."""
    store, luck, numbers = live.store, random.Random(7), iter(range(1 << 30))
    sensors = [name for name in store.topics() if name.startswith("sensors.")]

    def order() -> dict[str, Any]:
        number = next(numbers)
        value = {
            "order": number,
            "customer": f"c-{luck.randrange(900):03}",
            "amount": luck.randrange(100, 99_999) / 100,
            "items": luck.sample(["lamp", "rug", "chair", "desk", "shelf"], 2),
            "note": "<b>leave at the door</b>" if number % 5 == 0 else None,
        }
        headers = [{"key": "source", "value": luck.choice([b"web", b"app"])}]
        return {
            "key": value["customer"].encode(),
            "value": json.dumps(value).encode(),
            "headers": headers,
        }

    def work() -> None:
        wave = 1 + (time.time() % 30) / 20
        store.append(
            "orders", [order() for _ in range(int(25 * wave))], partition=luck.randrange(2)
        )
        pages = [
            (b"c-%03d" % luck.randrange(900), b"GET /shop/%d" % luck.randrange(999))
            for _ in range(40)
        ]
        store.append("clicks", pages)
        store.append("sessions", [{"value": b"login", "tag": b"c-%03d" % luck.randrange(900)}])
        store.append(luck.choice(sensors), [b"%.1f" % luck.uniform(5, 30) for _ in range(12)])

    for _ in range(3):
        live.keep(work, 0.06)


def taken(page: Page, live: Broker, name: str, folder: Path) -> None:
    """Takes one picture."""
    store = live.store
    address = VIEWS[name][1].format(
        clicks=[each.base_offset for each in store.layers("clicks") if each.state == "sealed"][-1],
        orders=store.layers("orders")[-1].base_offset,
        offset=store.latest_offset("orders", 0) - 1,
    )
    page.set_viewport_size({"width": WIDTHS.get(name, WIDTH), "height": HEIGHTS.get(name, LOW)})
    page.goto(f"{live.url}/console#/{address}")
    page.wait_for_timeout(3000)
    if name == "record":
        page.get_by_role("tab", name="On disk").click()
        page.wait_for_timeout(300)
    path = folder / f"console-{name}.png"
    page.screenshot(path=path)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def picture(browser: Browser, live: Broker, folder: Path) -> None:
    """Takes all pictures."""
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        for name, (wanted, _) in VIEWS.items():
            if wanted == scheme:
                taken(page, live, name, folder)
        context.close()


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as data:
        path = executable(playwright)
        if path is None:
            raise SystemExit(NONE)
        crash(Path(data, "data"))
        with broker(Path(data)) as live:
            fill(live)
            load(live)
            time.sleep(LOAD_S)
            live.store.trim("sessions", 0, 40)
            console = live.service._http._console  # type: ignore[union-attr]
            for topic in ("orders", "clicks"):
                console._jobs.verify(live.store, topic, "anonymous")
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            picture(browser, live, folder)
            browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
