"""How much there is to interpret in a call of a kernel, in rows: does it wait for its compiler?

A row is a record, or the bytes that a middling one takes.
"""

from __future__ import annotations

from typing import Any

SMALL_CALL_BYTES = 256 << 10
SMALL_CALL_ROWS = 1_000
"""Up to here, interpreting a call takes less than a second: about as long as its compiler."""
EARLY_ROWS = 2_000
"""So many rows are interpreted, in all, in the time that loading the compiler takes."""


def rows_of_batch(batch: int, out: Any, positions: Any, *_: Any) -> int:
    """The rows of a call of an encode kernel."""
    return len(positions)


def rows_at(data: Any, positions: Any, *_: Any) -> int:
    """The rows of a kernel that looks at positions in its bytes."""
    return len(positions)


def rows_within(data: Any, *_: Any) -> int:
    """The rows of a kernel that walks bytes, as if each took a fair share of them."""
    return -(-len(data) * SMALL_CALL_ROWS // SMALL_CALL_BYTES)
