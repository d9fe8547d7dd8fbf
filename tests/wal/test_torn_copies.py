"""An active segment whose end the WAL holds: a torn copy is cut, anything else is kept aside."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lamina.config import WalSettings
from lamina.store.store import Store
from lamina_torture.cross.damages import _other_log

ACTIVE = "segments/0000000000000001/seg-00000000000000000001.data"
COUNT = 12


def opened(path: Path) -> Store:
    return Store(str(path), wal=WalSettings(shards=1, checkpoint_min_bytes=0), tick_ms=1 << 30)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """What a killed store leaves whose records are in the WAL and in the active segment."""
    copied = tmp_path / "killed"
    with opened(tmp_path / "live") as store:
        store.create_topic("t", format="wal")
        store.append("t", [b"value %d" % number for number in range(COUNT)])
        store.maintain()
        shutil.copytree(tmp_path / "live", copied)
    assert (copied / ACTIVE).stat().st_size > 0
    return copied


def values(store: Store) -> list[bytes]:
    return [value for batch in store.scan("t") for value in batch.column("value").to_pylist()]


def kept(path: Path) -> list[bytes]:
    return [each.read_bytes() for each in (path / "quarantine").rglob("*") if each.is_file()]


@pytest.mark.parametrize(
    "foreign", [b"Dear reader, this is no log.\n" * 40, b"\x89PNG\r\n" * 200, _other_log("wal")]
)
@pytest.mark.parametrize("sound", [0, 5])
def test_the_bytes_of_something_else_are_kept(killed: Path, foreign: bytes, sound: int) -> None:
    file = killed / ACTIVE
    whole = file.read_bytes()
    head = whole[: len(whole) * sound // COUNT]
    file.write_bytes(head + foreign)
    with opened(killed) as store:
        assert values(store) == [b"value %d" % number for number in range(COUNT)]
    assert any(foreign in data for data in kept(killed))


@pytest.mark.parametrize("torn", [3, 20, 60])
@pytest.mark.parametrize("zeros", [0, 500])
def test_a_torn_copy_is_cut_and_written_again(killed: Path, torn: int, zeros: int) -> None:
    file = killed / ACTIVE
    file.write_bytes(file.read_bytes()[:-torn] + bytes(zeros))
    with opened(killed) as store:
        assert values(store) == [b"value %d" % number for number in range(COUNT)]
    assert not any(data.strip(b"\0") for data in kept(killed))
