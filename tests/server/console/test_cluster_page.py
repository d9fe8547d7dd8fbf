"""The page of a cluster: on the holder beside the others, on a standby the first one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from lamina.server.service import Service
from tests.server.console import axe
from tests.server.rig import served

PATIENCE_MS = 20_000


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Service]]:
    folder = tmp_path_factory.mktemp("cluster")
    settings: dict[str, Any] = {
        "archive": str(folder / "archive"),
        "cluster_name": "orders",
        "cluster_ttl_ms": 5000,
    }
    data: tuple[Path, Path] = folder / "a", folder / "b"
    with served(data[0], **settings) as a, served(data[1], **settings) as b:
        yield a, b


def test_the_holder_shows_its_epoch_and_that_it_holds(
    page: Page, servers: tuple[Service, Service]
) -> None:
    holder, _ = servers
    page.goto(f"{holder.http_url}/console")
    page.get_by_role("link", name="Cluster").click()
    main = page.locator("main")
    expect(main).to_contain_text("This server holds the cluster", timeout=PATIENCE_MS)
    expect(main).to_contain_text("orders")
    expect(page.get_by_role("table", name="Takeovers")).to_contain_text(holder.flight_url)
    assert axe.violations(page, axe.source()) == []


def test_a_standby_shows_the_cluster_first_and_who_holds_it(
    page: Page, servers: tuple[Service, Service]
) -> None:
    holder, standby = servers
    page.goto(f"{standby.http_url}/console")
    main = page.locator("main")
    expect(main).to_contain_text("This server stands by", timeout=PATIENCE_MS)
    expect(main).to_contain_text(holder.flight_url)
