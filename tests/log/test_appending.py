"""How large a record is: everything of it counts, wherever its column stands."""

from __future__ import annotations

import pytest

from lamina.log.appending import _largest
from lamina.records import INPUT_SCHEMAS, prepare

ROWS = {
    "frame": {"key": b"k" * 100, "value": b"v" * 10},
    "keratin": {"key": b"k" * 60, "value": b"v" * 10, "headers": [("h" * 15, b"x" * 25)]},
    "wal": {"value": b"v" * 70, "tag": b"t" * 30, "node": b"n" * 10},
}


@pytest.mark.parametrize("format_name", ROWS)
def test_every_part_of_the_largest_record_counts(format_name: str) -> None:
    assert set(ROWS[format_name]) | {"timestamp"} == set(INPUT_SCHEMAS[format_name].names)
    batch = prepare([{"value": b"small"}, ROWS[format_name]], format_name, now_ms=1)
    assert _largest(batch) == 110
