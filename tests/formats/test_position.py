"""The file that a reader without a store leaves its position in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import CorruptData, InvalidRequest
from lamina.formats.documents.position_file import Position, TopicPosition, decode, encode
from lamina.storage import paths

PARTITIONS, OFFSETS = st.integers(0, (1 << 31) - 1), st.integers(0, 1 << 40)
TOPICS = st.builds(
    TopicPosition, st.text(max_size=8), st.integers(1, 9), st.dictionaries(PARTITIONS, OFFSETS)
)
POSITIONS = st.builds(
    Position, st.text(min_size=1, max_size=8), st.lists(TOPICS, max_size=3).map(tuple)
)
ONE = Position("billing", (TopicPosition("orders", 1, {1: 7, 0: 23}),))


@given(POSITIONS)
def test_a_position_comes_back(position: Position) -> None:
    assert decode(encode(position)) == position


def test_a_position_is_readable_and_sealed() -> None:
    assert encode(ONE) == (
        b'{"version": 1, "group": "billing", "topics": [{"topic": "orders", "epoch": 1, '
        b'"offsets": {"0": 23, "1": 7}}], "crc32": "ed1c2e98"}\n'
    )


@pytest.mark.parametrize("row", range(len(encode(ONE)) - 1))
def test_every_changed_byte_is_noticed(row: int) -> None:
    raw = bytearray(encode(ONE))
    raw[row] ^= 1
    with pytest.raises(CorruptData):
        decode(bytes(raw))


@given(st.text(min_size=1, max_size=60))
def test_a_group_is_found_again_from_its_file_name(group: str) -> None:
    try:
        path = paths.position_file(group)
    except InvalidRequest:
        return
    folder, name = path.split("/")
    assert folder == paths.POSITIONS
    assert paths.position_group(name) == group
    assert paths.position_group(name + ".taken") is None


def test_a_group_that_no_file_can_be_named_after_is_refused() -> None:
    for group in ("", "x" * 250, "\ud800"):
        with pytest.raises(InvalidRequest):
            paths.position_file(group)
