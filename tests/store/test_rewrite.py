"""What is left of a segment without some records: runs with the bytes that they had, in place."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from numpy.typing import NDArray

from lamina.api import Gap
from lamina.log.partition import Partition
from lamina.store import rewrite
from lamina.store.rewrite import Sealed, Staged
from lamina.store.store import Store
from tests.support.directories import FORMATS, files_of, flip, opened, positions, rows

BOTH = pytest.mark.parametrize("format_name", FORMATS)
KEPT = [0, 1, 3, 4, 7]


def sealed(store: Store, format_name: str) -> tuple[Partition, Sealed]:
    """A topic with eight records in a sealed segment; the keys of some say that they go."""
    store.create_topic("t", format=format_name)
    store.append(
        "t",
        [
            {"key": b"stays" if number in KEPT else b"goes", "value": b"value %d" % number}
            for number in range(8)
        ],
    )
    store.roll("t")
    partition = store._lookup.partition("t", 0)
    assert isinstance(partition, Partition)
    (segment,) = partition.layout.sealed
    (base, end), size = (segment.base_offset, segment.next_offset), segment.size_bytes
    return partition, Sealed(format_name, segment.path("log"), base, end, size)


def stays(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.equal(batch.column("key"), b"stays").to_numpy(
        zero_copy_only=False
    )
    return found


def staged(segment: Sealed, directory: Path | None) -> Staged:
    made = rewrite.stage(
        segment, None if directory is None else str(directory), stays, lambda spot: False
    )
    assert made is not None
    return made


@BOTH
def test_each_run_that_stays_is_one_segment_with_its_own_bytes(
    tmp_path: Path, format_name: str
) -> None:
    with opened(tmp_path / "data") as store:
        partition, segment = sealed(store, format_name)
        (log,) = files_of(tmp_path / "data", "log")[:1]
        edges, whole = positions(log, partition.codec), log.read_bytes()
        assert staged(segment, None).gone == (2, 5, 6)
        made = staged(segment, tmp_path / "staged")
        assert [(run.base_offset, run.next_offset) for run in made.runs] == [(0, 2), (3, 5), (7, 8)]
        assert made.gone == (2, 5, 6)
        for run in made.runs:
            body = (tmp_path / "staged" / f"{run.base_offset:020}.log").read_bytes()
            body = body[partition.codec.header_bytes :]
            assert body == whole[edges[run.base_offset] : edges[run.next_offset]]
        gaps = [Gap(first, end, "deleted", 0) for first, end in ((2, 3), (5, 7))]
        partition.exclusively(partial(rewrite.swap, partition, 0, made, gaps))
        assert [row["offset"] for row in rows(store)] == KEPT
    with opened(tmp_path / "data") as store:
        assert [row["value"] for row in rows(store)] == [b"value %d" % number for number in KEPT]


@BOTH
def test_records_on_both_sides_of_damage_are_runs_of_their_own(
    tmp_path: Path, format_name: str
) -> None:
    with opened(tmp_path / "data") as store:
        partition, segment = sealed(store, format_name)
        (log,) = files_of(tmp_path / "data", "log")[:1]
        flip(log, positions(log, partition.codec)[4] - 3)
        made = staged(segment, tmp_path / "staged")
        assert [(run.base_offset, run.next_offset) for run in made.runs] == [(0, 2), (4, 5), (7, 8)]
