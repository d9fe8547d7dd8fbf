"""CURRENT: one exact line, nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import CorruptData
from lamina.formats.wal import current


@given(st.integers(0, current.INDEX_MAX))
def test_any_index_comes_back(wal_index: int) -> None:
    assert current.decode(current.encode(wal_index)) == wal_index


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"wal-1.log",
        b"wal-1.log\n\n",
        b"wal-1.log\r\n",
        b"wal-01.log\n",
        b"wal-+1.log\n",
        b"wal- 1.log\n",
        b"wal-.log\n",
        b"WAL-1.log\n",
        b"wal-1xlog\n",
        b"wal-18446744073709551616.log\n",
        "wal-١.log\n".encode(),
        b"\x00" * 10,
        b"wal-1.log\nwal-2.log\n",
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptData, match="CURRENT") as caught:
        current.decode(data)
    assert caught.value.expected
    assert caught.value.found


def test_every_prefix_is_refused() -> None:
    data = current.encode(1234)
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            current.decode(data[:size])


def test_a_changed_byte_is_refused_or_names_another_file() -> None:
    data = current.encode(1234)
    for position in range(len(data)):
        for byte in set(range(256)) - {data[position]}:
            changed = data[:position] + bytes([byte]) + data[position + 1 :]
            try:
                wal_index = current.decode(changed)
            except CorruptData:
                continue
            assert 4 <= position < 8
            assert current.encode(wal_index) == changed
