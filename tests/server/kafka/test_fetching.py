"""What a Fetch reads, by itself: the rest of it is held by tests with clients."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lamina
from lamina.server.kafka import fetching


@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
def test_an_answer_does_not_end_before_its_records(tmp_path: Path, format_name: str) -> None:
    """Records may come between the look at a partition's end and the reading."""
    with lamina.open(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        first = store.append("t", [b"x"] * 5).base_offset
        wanted = fetching.Wanted("t", b"", 0, first, 1 << 20, earliest=first, end=first + 5)
        store.append("t", [b"y"] * 5)
        call: Any = SimpleNamespace(store=store)
        assert fetching._read(call, wanted, 1 << 20)
        assert wanted.end == first + 10
        assert wanted.read[0] == 10
