"""Records that a consumer of a group holds: what a poll adds to them, and how a call names them.

A call such as `ack` takes what a poll returned, whole or in part, or the offsets alone. Either way
it is read here, for an embedded group and for a served one, so that both refuse the same.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.api.acks import NOT_WAITED, acks_level
from lamina.errors import InvalidRequest
from lamina.records import TIMESTAMP

POLL_RECORDS_MAX = 1 << 16
POLL_BYTES = 16 << 20
OFFSETS_MAX = 1 << 20
LEASE_MS_MAX = 12 * 3_600_000
MORE_FIELDS = (
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("epoch", pa.int64(), nullable=False),
    pa.field("deadline", TIMESTAMP, nullable=False),
)
"""The columns that a poll adds to those of the topic's format."""

Held: TypeAlias = pa.RecordBatch | pa.Table | int | range | Sequence[int] | np.ndarray | pa.Array
"""The records that a call is about: what a poll returned, or offsets of one partition."""
_Numbers: TypeAlias = NDArray[np.int64]


def as_offsets(held: Any) -> _Numbers:
    """Makes numbers of the offsets that a caller names; raises InvalidRequest for others."""
    if isinstance(held, int | np.integer) and not isinstance(held, bool):
        held = [int(held)]
    if isinstance(held, str | bytes) or not isinstance(held, Sized):
        raise InvalidRequest(f"offsets are whole numbers, not {held!r}")
    size = len(held)
    if size > OFFSETS_MAX:
        raise InvalidRequest(
            f"{size} offsets at once, at most {OFFSETS_MAX}; `commit` acks everything below one"
        )
    if isinstance(held, range):
        offsets = np.arange(held.start, held.stop, held.step, dtype=np.int64)
    else:
        try:
            offsets = np.atleast_1d(np.asarray(held))
        except ValueError as error:  # lists of different lengths
            raise InvalidRequest(f"offsets are whole numbers: {error}") from error
    if offsets.ndim != 1:
        raise InvalidRequest("offsets are a list of whole numbers, not a list of lists")
    if len(offsets) and (offsets.dtype.kind not in "iu" or int(offsets.min()) < 0):
        raise InvalidRequest("offsets are whole numbers from 0 on")
    return offsets.astype(np.int64)


def numbers_of(held: Any, name: str) -> _Numbers:
    """Returns a column of whole numbers of a polled batch."""
    given = held.schema.names.count(name)
    if given != 1:
        told = f"{given} columns" if given else "no column"
        raise InvalidRequest(f"these records have {told} {name!r}")
    column = held.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count or not pa.types.is_integer(column.type):
        raise InvalidRequest(f"column {name!r} must hold whole numbers, not {column.type}")
    numbers: _Numbers = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers


def level_of(acks: object) -> int:
    """Reads the `acks` of a group's call."""
    level = acks_level(acks)
    if level is None or level == NOT_WAITED:
        raise InvalidRequest(f"a group answers what it has done: acks is 1 or 'all', not {acks!r}")
    return level
