"""What the bytes of a damaged frame prove: one or two sectors can, more cannot."""

from __future__ import annotations

from lamina.formats.wal import log
from lamina.records import prepare
from lamina.wal.evidence import SECTOR_BYTES, has_rotted


def group(size: int, *, durable: bool = True) -> tuple[bytearray, list[int]]:
    """Three records of one write, and where their frames begin."""
    rows = prepare([b"." * 300, b"." * size, b"." * 20], "wal", now_ms=1)
    data, positions = log.encode(rows, topic_id=1, base_sequence=1, durable=durable)
    return bytearray(data.tobytes()), positions.tolist()


def is_rot(size: int, *, durable: bool = True) -> bool:
    """Whether a flipped bit in the second value is taken for rot."""
    data, (before, first, after) = group(size, durable=durable)
    assert 0 < first < SECTOR_BYTES < after
    data[after - 20] ^= 1
    return has_rotted(data, before, first, after)


def test_a_durable_frame_in_two_sectors_has_rotted_where_the_next_one_begins_in_the_second() -> (
    None
):
    assert is_rot(300)


def test_of_a_frame_in_three_sectors_nothing_is_proven() -> None:
    assert not is_rot(900)


def test_of_a_frame_that_nobody_asked_to_be_durable_nothing_is_proven() -> None:
    assert not is_rot(300, durable=False)


def test_a_second_sector_that_never_came_is_no_rot() -> None:
    data, (before, first, after) = group(300)
    data[SECTOR_BYTES:after] = bytes(after - SECTOR_BYTES)
    assert not has_rotted(data, before, first, after)
