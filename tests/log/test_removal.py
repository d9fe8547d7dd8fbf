"""Cutting records that nobody was told of: durable, kept aside, and nothing where there is none."""

from __future__ import annotations

import pytest

from lamina.formats.log_format import CODECS
from lamina.log.active_segment import ActiveSegment
from lamina.log.partition import Partition
from lamina.log.removal import take_back
from lamina.log.sealed_segment import SealedSegment
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles
from tests.support.directories import rows

BOTH = pytest.mark.parametrize("format_name", CODECS)
NEVER_MS = 1 << 30


def opened(files: SimulatedFiles) -> Store:
    return Store("/d", files=files, tick_ms=NEVER_MS)


def made(files: SimulatedFiles, format_name: str, *, tail: int) -> tuple[Store, Partition]:
    """Six records in a sealed segment, and some in the active one."""
    store = opened(files)
    store.create_topic("t", format=format_name)
    store.append("t", [b"value %d" % number for number in range(6)])
    store.roll("t")
    if tail:
        store.append("t", [b"tail %d" % number for number in range(tail)])
    partition = store._lookup.partition("t", 0)
    assert isinstance(partition, Partition)
    return store, partition


def segments_of(partition: Partition) -> list[SealedSegment | ActiveSegment]:
    active = partition.layout.active
    assert isinstance(active, ActiveSegment)
    return [*partition.layout.sealed, active]


def set_aside(files: SimulatedFiles) -> list[bytes]:
    return [data for path, data in files.contents().items() if path.startswith("/d/quarantine/")]


@BOTH
@pytest.mark.parametrize("offset", [2, 6, 7])
def test_a_cut_is_durable_when_it_returns(format_name: str, offset: int) -> None:
    files = SimulatedFiles()
    _, partition = made(files, format_name, tail=3)
    take_back(partition.place, partition.codec, segments_of(partition), offset)
    assert b"tail 2" in b"".join(set_aside(files))
    after = files.snapshot().crash("dropped")
    with opened(after) as store:
        assert [row["offset"] for row in rows(store)] == list(range(offset))


@BOTH
def test_of_a_segment_without_records_nothing_is_kept_aside(format_name: str) -> None:
    files = SimulatedFiles()
    _, partition = made(files, format_name, tail=0)
    take_back(partition.place, partition.codec, segments_of(partition), 4)
    (kept,) = set_aside(files)
    assert b"value 4" in kept
    assert b"value 3" not in kept
    with opened(files.snapshot().crash("dropped")) as store:
        assert [row["offset"] for row in rows(store)] == list(range(4))
