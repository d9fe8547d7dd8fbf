"""Ids of Kafka's producers are unique for ever: across restarts, kills and lost files."""

from __future__ import annotations

import errno

import pytest

from lamina.errors import NewerFormat, StorageFull
from lamina.formats.documents import producer_ids as document
from lamina.formats.documents.producer_ids import Reserved
from lamina.log.data_directory import DataDirectory
from lamina.store.producer_ids import BLOCK, ProducerIds
from lamina_torture.simulated import SimulatedFiles

PATH = "/srv/data/meta/producers.json"


@pytest.fixture
def files() -> SimulatedFiles:
    made = SimulatedFiles()
    made.make_directory("/srv/data/meta")
    return made


def ids(files: SimulatedFiles, remembered: int = -1) -> ProducerIds:
    return ProducerIds(DataDirectory(files, "/srv/data", lambda: 0), lambda: remembered)


def test_ids_count_up_and_a_block_is_reserved_once(files: SimulatedFiles) -> None:
    first = ids(files)
    assert [first.take() for _ in range(BLOCK)] == list(range(BLOCK))
    assert files.calls["rename"] == 1
    assert first.take() == BLOCK
    assert files.calls["rename"] == 2


def test_ids_are_not_given_away_again_after_a_restart_or_power_loss(files: SimulatedFiles) -> None:
    given = {ids(files).take() for _ in range(3)}
    lost = files.snapshot().crash("dropped")
    assert ids(lost).take() not in given
    assert given == {0, BLOCK, 2 * BLOCK}


@pytest.mark.parametrize("content", [None, b"", b"{}", document.encode(Reserved(7))[:-9]])
def test_without_the_file_ids_go_on_above_what_partitions_remember(
    files: SimulatedFiles, content: bytes | None
) -> None:
    if content is not None:
        files.replace(PATH, content)
    assert ids(files, remembered=41).take() == 42
    assert document.decode(files.read(PATH)) == Reserved(42 + BLOCK)


def test_a_newer_file_is_refused_and_left(files: SimulatedFiles) -> None:
    newer = document.encode(Reserved(7)).replace(b'"version": 1', b'"version": 2')
    files.replace(PATH, newer)
    with pytest.raises(NewerFormat, match=r"producers\.json"):
        ids(files).take()
    assert files.read(PATH) == newer


def test_a_full_disk_gives_no_id_away(files: SimulatedFiles) -> None:
    giver = ids(files)
    files.fail("write_at", error=errno.ENOSPC)
    with pytest.raises(StorageFull):
        giver.take()
    assert giver.take() == 0


def test_a_file_that_is_none_is_kept_aside_before_it_is_replaced(files: SimulatedFiles) -> None:
    files.replace(PATH, b"somebody else's")
    assert ids(files, remembered=6).take() == 7
    (kept,) = files.list("/srv/data/quarantine/0")
    assert files.read(f"/srv/data/quarantine/0/{kept}") == b"somebody else's"
