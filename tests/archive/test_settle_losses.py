"""What a ledger calls lost and the archive has: ranges that hold something, no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lamina.api import Gap
from lamina.archive.settle_losses import held
from lamina.formats.documents.ledger import LOST, Ledger


def test_an_object_that_only_touches_a_gap_holds_nothing_of_it() -> None:
    entries = tuple(
        SimpleNamespace(base_offset=first, next_offset=first + 10, is_dense=True)
        for first in (0, 10, 20, 30)
    )
    cold: Any = SimpleNamespace(entries=entries)
    known = Ledger((Gap(10, 25, LOST, 0), Gap(38, 50, LOST, 0)))
    assert list(held(known, cold)) == [(10, 20), (20, 25), (38, 40)]
