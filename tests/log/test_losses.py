"""What is entered of records that are gone: archived, lost, or for the reason of a tombstone."""

from __future__ import annotations

import pytest

from lamina.api import Gap
from lamina.errors import RecordsMissing
from lamina.formats.documents import tombstone
from lamina.formats.documents.ledger import Ledger
from lamina.formats.documents.tombstone import Tomb
from lamina.log.damage import _at, not_delivered
from lamina.log.removal import reason_at
from lamina.log.spares import losses
from lamina_torture.simulated import SimulatedFiles

GAP = Gap(10, 20, "lost", 5, "damaged")


def entered(spans: list[tuple[int, int]] | None) -> list[tuple[int, int, str]]:
    found = losses(GAP, spans)
    assert all(gap.at_ms == 5 for gap in found)
    assert all((gap.detail == "damaged") == (gap.reason == "lost") for gap in found)
    return [(gap.first, gap.end, gap.reason) for gap in found]


def test_nothing_is_lost_before_the_archive_has_said_so() -> None:
    assert entered(None) == [(10, 20, "archived")]
    assert entered([]) == [(10, 20, "lost")]


def test_what_the_archive_has_is_archived_and_the_rest_is_lost() -> None:
    assert entered([(0, 12), (15, 17), (19, 40)]) == [
        (10, 12, "archived"),
        (12, 15, "lost"),
        (15, 17, "archived"),
        (17, 19, "lost"),
        (19, 20, "archived"),
    ]
    assert entered([(0, 10), (20, 30)]) == [(10, 20, "lost")]
    assert entered([(0, 100)]) == [(10, 20, "archived")]


# -------------------------------------------------------------------- one reason at a time


def around(offset: int, *gaps: Gap, first: int = 10, end: int = 20) -> tuple[int, int, str]:
    missing = RecordsMissing("damaged", first=first, end=end, reason="lost")
    found = _at(missing, Ledger(gaps), offset)
    return found.first, found.end, found.reason


def test_a_reader_is_told_of_the_part_with_one_reason() -> None:
    assert around(15) == (10, 20, "lost")
    assert around(15, Gap(12, 17, "trim", 1)) == (12, 17, "trim")
    assert around(15, Gap(0, 99, "trim", 1)) == (10, 20, "trim")
    assert around(15, Gap(12, 17, "archived", 1)) == (12, 17, "lost"), "the archive had it not"


def test_what_the_ledger_knows_on_either_side_is_not_told_with_it() -> None:
    known = Gap(8, 12, "trim", 1), Gap(12, 13, "deleted", 1), Gap(17, 18, "trim", 1)
    assert around(14, *known, Gap(19, 25, "deleted", 1)) == (13, 17, "lost")
    assert around(18, *known) == (18, 20, "lost")


def test_a_device_that_does_not_deliver_is_named() -> None:
    assert not_delivered("/a.log", 7, OSError(5, "Input/output error")) == (
        "/a.log: byte 7: the device does not deliver it (Input/output error);"
        " read again, or look at the device"
    )


# -------------------------------------------------------------------- tombstones


@pytest.mark.parametrize(
    ("written", "reason"),
    [("delete", "deleted"), ("trim", "trim"), ("retention", "retention"), ("", "retention")],
)
def test_a_tombstone_says_why_in_the_words_of_the_ledger(written: str, reason: str) -> None:
    files = SimulatedFiles()
    files.make_directory("/srv")
    files.replace("/srv/a.tomb", tombstone.encode(Tomb(7, written, 1)))
    assert reason_at(files, "/srv/a.tomb") == reason


def test_a_damaged_tombstone_is_of_retention() -> None:
    files = SimulatedFiles()
    files.make_directory("/srv")
    files.replace("/srv/a.tomb", b"garbage")
    assert reason_at(files, "/srv/a.tomb") == "retention"
