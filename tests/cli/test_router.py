"""`lamina router`, on both doors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lamina as library
from tests.cli.test_topic import ok
from tests.server.rig import served


@pytest.fixture(params=["data", "server"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    data = tmp_path / "data"
    with library.open(str(data)) as store:
        for topic in ("sensors", "alarms", "other"):
            store.create_topic(topic, format="wal")
    if request.param == "data":
        yield ["--data", str(data)]
    else:
        with served(data) as service:
            yield ["--server", service.flight_url]


def test_routers_are_created_listed_altered_and_deleted(lamina: Any, where: list[str]) -> None:
    ok(lamina("router", "create", "r", "sensors", "alarms", "--tag-prefix", "err", *where))
    listed = ok(lamina("router", "list", "--json", *where)).rows
    row = {"router": "r", "source": "sensors", "target": "alarms"}
    assert listed == [row | {"tag": None, "tag_prefix": "err", "node": None}]
    ok(lamina("router", "alter", "r", "--target", "other", "--node", "n", *where))
    assert "other" in ok(lamina("router", "list", *where)).out
    assert "would be deleted" in ok(lamina("router", "delete", "r", *where)).out
    assert len(ok(lamina("router", "list", "--json", *where)).rows) == 1
    ok(lamina("router", "delete", "r", "--yes", *where))
    assert ok(lamina("router", "list", "--json", *where)).rows == []
    assert lamina("router", "delete", "r", *where).code != 0
    assert lamina("router", "create", "r", "sensors", "alarms", *where).code != 0
