"""The segment that an offset is read from: the one that holds it, or the next one behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina.log.segment_pile import Layout
from tests.support.directories import FORMATS, opened


@pytest.mark.parametrize("format_name", FORMATS)
def test_an_offset_leads_to_its_segment_and_one_before_all_to_the_first(
    tmp_path: Path, format_name: str
) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        for _ in range(4):
            store.append("t", [b"a", b"b"])
            store.roll("t")
        whole = store._partitions["t", 0].layout
        layout = Layout(whole.sealed[1:], whole.active)
        found = [layout.layer_for(offset, "durable") for offset in range(9)]
    bases = [None if each is None else each.base_offset for each in found]
    assert bases == [2, 2, 2, 2, 4, 4, 6, 6, None]
