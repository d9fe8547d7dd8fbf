"""A store behind a server: what is asked of it again, and when a scan has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.client.remote_store import RemoteStore
from tests.server.rig import served

COUNT = 20


@pytest.mark.parametrize("gone", ["the last", "all", "below the beginning"])
def test_a_scan_of_deleted_records_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    begun = RemoteStore._start_scan
    parts = 0

    def counted(self: RemoteStore, *given: Any) -> tuple[Any, int]:
        nonlocal parts
        parts += 1
        assert parts < 5, "it asks for the same again and again"
        return begun(self, *given)

    monkeypatch.setattr(RemoteStore, "_start_scan", counted)
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as store:
        store.create_topic("t", format="wal")
        store.append("t", [b"%d" % number for number in range(COUNT)])
        start, end, wanted = 1, COUNT + 1, list(range(1, COUNT))
        if gone == "the last":
            store.delete("t", offsets=[COUNT])
        elif gone == "all":
            store.delete("t", offsets=list(range(1, COUNT + 1)))
            wanted = []
        else:
            store.delete_records("t", 0, 12)
            end, wanted = 8, []
        found = [at for each in store.scan("t", 0, start, end=end) for at in each["offset"]]
    assert [at.as_py() for at in found] == wanted
