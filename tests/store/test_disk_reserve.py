"""Space that is kept for deleting: given up on a full disk, and made again with what there is."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from lamina.errors import StorageFull
from lamina.store.disk_reserve import RESERVE_BYTES, RESERVE_BYTES_MIN, Reserve
from lamina_torture.simulated import SimulatedFiles

PATH = "/srv/data/meta/reserve"


def made(capacity: int | None = None) -> tuple[SimulatedFiles, Reserve]:
    files = SimulatedFiles(capacity_bytes=capacity)
    files.make_directory("/srv/data/meta")
    return files, Reserve(files, "/srv/data")


def full(files: SimulatedFiles) -> Callable[[], str]:
    """An action that finds no space while the reserve is there."""

    def action() -> str:
        if files.exists(PATH):
            raise StorageFull("no space")
        return "done"

    return action


def test_the_reserve_is_made_once_and_made_whole() -> None:
    files, reserve = made()
    reserve.keep()
    assert files.read(PATH) == bytes(RESERVE_BYTES)
    writes = files.calls["write_at"]
    reserve.keep()
    assert files.calls["write_at"] == writes, "it is whole"
    files.replace(PATH, bytes(RESERVE_BYTES - 1))
    reserve.keep()
    assert files.size(PATH) == RESERVE_BYTES


def test_an_action_that_finds_space_leaves_the_reserve() -> None:
    files, reserve = made()
    reserve.keep()
    assert reserve.use(lambda: "done") == "done"
    assert files.calls["remove"] == 0


def test_an_action_on_a_full_disk_gets_the_space_and_it_is_kept_again() -> None:
    files, reserve = made()
    reserve.keep()
    assert reserve.use(full(files)) == "done"
    assert files.size(PATH) == RESERVE_BYTES


def test_without_a_reserve_the_disk_is_full() -> None:
    files, reserve = made()
    tries = []

    def action() -> None:
        tries.append(files.exists(PATH))
        raise StorageFull("no space")

    with pytest.raises(StorageFull):
        reserve.use(action)
    assert tries == [False]
    files.replace(PATH, b"")
    with pytest.raises(StorageFull):
        reserve.use(action)
    assert tries == [False, True], "an empty one gives nothing up"


def test_an_action_that_fails_again_gives_the_reserve_back() -> None:
    files, reserve = made()
    reserve.keep()

    def action() -> None:
        raise StorageFull("no space")

    with pytest.raises(StorageFull):
        reserve.use(action)
    assert files.size(PATH) == RESERVE_BYTES


@pytest.mark.parametrize("halvings", [1, 2, 4])
def test_as_much_is_kept_as_there_is_room(halvings: int) -> None:
    size = RESERVE_BYTES >> halvings
    files, reserve = made(RESERVE_BYTES + size)
    reserve.keep()

    def action() -> None:
        if files.exists(PATH):
            raise StorageFull("no space")
        files.replace("/srv/data/taken", bytes(RESERVE_BYTES))

    reserve.use(action)
    assert files.size(PATH) == size


def test_less_than_is_of_use_is_not_kept() -> None:
    files, reserve = made(RESERVE_BYTES + RESERVE_BYTES_MIN - 1)
    reserve.keep()

    def action() -> None:
        if files.exists(PATH):
            raise StorageFull("no space")
        files.replace("/srv/data/taken", bytes(RESERVE_BYTES))

    reserve.use(action)
    assert not files.exists(PATH)


def test_an_error_of_another_kind_ends_the_tries_to_keep_it() -> None:
    files, reserve = made()
    reserve.keep()
    files.fail("create", error=errno.EIO)
    assert reserve.use(full(files)) == "done"
    assert not files.exists(PATH)
    reserve.keep()
    assert files.size(PATH) == RESERVE_BYTES


def test_nobody_takes_the_space_back_while_it_is_used() -> None:
    files, reserve = made()
    reserve.keep()

    def action() -> None:
        if files.exists(PATH):
            raise StorageFull("no space")
        reserve.keep()
        assert not files.exists(PATH)

    reserve.use(action)
    assert files.size(PATH) == RESERVE_BYTES
