"""What a device still delivers is read: a bad page costs its bytes, any other error the reading."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

import pytest

from lamina.storage import bad_pages as module
from lamina.storage.bad_pages import FILLER, PAGE_BYTES, STEP_BYTES, read_error, salvage


@dataclass
class Device:
    """Bytes of which some pages are not delivered."""

    data: bytes
    bad: dict[int, int] = field(default_factory=dict)
    """The number of the error, by the page that has it."""
    asked: list[tuple[int, int]] = field(default_factory=list)

    def read_at(self, position: int, length: int) -> bytes:
        self.asked.append((position, position + length))
        last = min(position + length, len(self.data))
        for page, number in self.bad.items():
            if page * PAGE_BYTES < last and position < (page + 1) * PAGE_BYTES:
                raise OSError(number, "not delivered")
        return self.data[position : position + length]


def device(pages: int, *bad: int, number: int = errno.EIO) -> Device:
    data = bytes((at * 7 + at // 251) % 251 for at in range(pages * PAGE_BYTES + 100))
    return Device(data, dict.fromkeys(bad, number))


def test_a_sound_range_is_read_at_once() -> None:
    disk = device(3)
    assert salvage(disk, 10, 5000) == (disk.data[10:5010], ())
    assert disk.asked == [(10, 5010)]


@pytest.mark.parametrize("number", sorted(module.UNREADABLE))
def test_a_bad_page_is_filled_and_named(number: int) -> None:
    disk = device(4, 1, 3, number=number)
    found = salvage(disk, 100, 4 * PAGE_BYTES)
    assert found.holes == ((PAGE_BYTES, 2 * PAGE_BYTES), (3 * PAGE_BYTES, 4 * PAGE_BYTES))
    expected = bytearray(disk.data)
    for first, end in found.holes:
        expected[first:end] = FILLER * (end - first)
    assert bytes(found.data) == bytes(expected[100 : 100 + 4 * PAGE_BYTES])


def test_a_range_within_a_bad_page_is_a_hole_of_its_own_size() -> None:
    disk = device(3, 1)
    found = salvage(disk, PAGE_BYTES + 5, 10)
    assert found == (FILLER * 10, ((PAGE_BYTES + 5, PAGE_BYTES + 15),))


def test_what_lies_beyond_the_end_is_not_made_up() -> None:
    disk = device(2, 0)
    found = salvage(disk, 0, 5 * PAGE_BYTES)
    assert found.holes == ((0, PAGE_BYTES),)
    assert bytes(found.data) == FILLER * PAGE_BYTES + disk.data[PAGE_BYTES:]
    before = len(disk.asked)
    salvage(disk, 0, 5 * STEP_BYTES)
    assert max(end for _, end in disk.asked[before + 1 :]) <= STEP_BYTES, "no step behind the end"


def test_only_the_step_with_the_bad_page_is_read_page_by_page() -> None:
    pages = STEP_BYTES // PAGE_BYTES
    disk = device(2 * pages, pages + 1)
    found = salvage(disk, 0, 2 * STEP_BYTES)
    assert found.holes == (((pages + 1) * PAGE_BYTES, (pages + 2) * PAGE_BYTES),)
    assert bytes(found.data[:STEP_BYTES]) == disk.data[:STEP_BYTES]
    assert bytes(found.data[-PAGE_BYTES:]) == disk.data[2 * STEP_BYTES - PAGE_BYTES :][:PAGE_BYTES]
    assert (0, STEP_BYTES) in disk.asked
    assert len(disk.asked) == 1 + 1 + 1 + pages


@pytest.mark.parametrize("bad", [{0: errno.EACCES}, {0: errno.EIO, 2: errno.EACCES}])
def test_an_error_of_another_kind_is_raised(bad: dict[int, int]) -> None:
    disk = device(3)
    disk.bad = bad
    with pytest.raises(PermissionError):
        salvage(disk, 0, 3 * PAGE_BYTES)
    assert len(disk.asked) == (1 if bad[0] == errno.EACCES else 5)


def test_an_error_of_another_kind_in_a_later_step_is_raised() -> None:
    disk = device(2 * STEP_BYTES // PAGE_BYTES)
    disk.bad = {1: errno.EIO, STEP_BYTES // PAGE_BYTES: errno.EACCES}
    with pytest.raises(PermissionError):
        salvage(disk, 0, 2 * STEP_BYTES)
    assert disk.asked[-1] == (STEP_BYTES, 2 * STEP_BYTES), "it is not tried page by page"


def test_a_device_that_fails_too_often_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BAD_PAGES_MAX", 3)
    assert len(salvage(device(6, 0, 2, 4), 0, 6 * PAGE_BYTES).holes) == 3
    with pytest.raises(OSError, match="not delivered"):
        salvage(device(6, 0, 2, 4, 5), 0, 6 * PAGE_BYTES)


def test_a_second_reading_finds_the_error_or_none() -> None:
    sound = device(2 * STEP_BYTES // PAGE_BYTES)
    assert read_error(sound, 5, 2 * STEP_BYTES) is None
    assert sound.asked == [(5, STEP_BYTES + 5), (STEP_BYTES + 5, 2 * STEP_BYTES)]
    assert read_error(sound, 7, 7) is None
    for page in (0, STEP_BYTES // PAGE_BYTES + 3):
        error = read_error(device(2 * STEP_BYTES // PAGE_BYTES, page), 0, 2 * STEP_BYTES)
        assert error is not None
        assert error.errno == errno.EIO
