"""What a reader is told of a damaged range: the ledger's reason, one range with one reason."""

from __future__ import annotations

import pytest

from lamina.errors import RecordsMissing
from lamina.formats.documents.ledger import ARCHIVED, LOST, Gap, Ledger
from lamina.log import damage

TRIMMED = "trim"
KNOWN = Ledger((Gap(2, 4, TRIMMED, 0), Gap(4, 6, ARCHIVED, 0), Gap(8, 9, TRIMMED, 0)))


@pytest.mark.parametrize(
    ("offset", "told"),
    [
        (2, (2, 4, TRIMMED)),
        (5, (4, 6, LOST)),
        (1, (0, 2, LOST)),
        (7, (6, 8, LOST)),
        (9, (9, 12, LOST)),
    ],
)
def test_damage_has_the_reason_of_the_ledger_unless_an_archive_was_to_have_it(
    offset: int, told: tuple[int, int, str]
) -> None:
    missing = RecordsMissing("damaged", first=0, end=12, reason=LOST)
    found = damage._at(missing, KNOWN, offset)
    assert (found.first, found.end, found.reason) == told
