"""A batch is split where its offsets have a hole, and only there."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lamina.log.batch_offsets import after, first_of, runs


@pytest.mark.parametrize(
    "pieces",
    [[[3]], [[0, 1, 2]], [[0, 1], [4]], [[0], [2]], [[5], [7, 8], [20, 21, 22]], [[0], [9]]],
)
def test_runs_are_what_lies_between_holes(pieces: list[list[int]]) -> None:
    batch = pa.record_batch({"offset": pa.array([at for piece in pieces for at in piece])})
    found = list(runs(batch))
    assert [each.column("offset").to_pylist() for each in found] == pieces
    assert [(first_of(each), after(each)) for each in found] == [
        (piece[0], piece[-1] + 1) for piece in pieces
    ]
