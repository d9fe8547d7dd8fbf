"""Erasing takes the records that were chosen out of every segment, and the others stay as is."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from numpy.typing import NDArray

from lamina.wal.segment_rewrite import erase
from tests.wal.stores import contents, fill, numbered, opened


def without(*offsets: int) -> partial[NDArray[np.bool_]]:
    def stays(gone: pa.Array, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = pc.invert(pc.is_in(batch.column("offset"), gone)).to_numpy(
            zero_copy_only=False
        )
        return found

    return partial(stays, pa.array(offsets, pa.int64()))


@pytest.mark.parametrize("damaged", [None, 13])
@pytest.mark.parametrize("gone", [(12,), (11, 16, 20), tuple(range(11, 21))])
def test_what_stays_is_read_and_what_goes_is_not_in_any_file(
    tmp_path: Path, gone: tuple[int, ...], damaged: int | None
) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal")
        fill(store, 1, 31)
        store.maintain()
        (topic,) = store.write_ahead_log()._topics.values()
        path = Path(topic.layout.segments[1].path("data"))
        if damaged is not None:
            path.write_bytes(path.read_bytes().replace(b"value %d" % damaged, b"damage."))
        wanted = {n for n in gone if n != damaged}
        assert topic.exclusively(partial(erase, topic, without(*gone), dry_run=True)) == len(wanted)
        assert topic.exclusively(partial(erase, topic, without(*gone))) == len(wanted)
        found, _ = contents(store)
        assert found == {
            n: each for n, each in numbered(1, 31).items() if n not in gone and n != damaged
        }
        first = Path(topic.layout.segments[0].path("data"))  # "value 1", and perhaps a digit behind
        others = [each for each in tmp_path.glob("segments/*/*.data") if each != first]
        files = b"".join(each.read_bytes() for each in others)
        assert not any(b"value %d" % offset in files for offset in gone)
        assert topic.exclusively(partial(erase, topic, without(*gone))) == 0
