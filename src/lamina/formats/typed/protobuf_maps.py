"""Maps of which a value said a key twice: the last entry holds, as Protobuf has it.

Kernels put entries side by side as they come. Here, once per batch and column, keys are numbered
together with the row that they are in, and what is found twice is left out. Where nothing is, which
is nearly always, the column stays as it is.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def last_of_each_key(array: pa.Array) -> pa.Array:
    """Returns a column in which each map has a key once; maps may lie at any depth."""
    kind = array.type
    if not _has_maps(kind):
        return array
    if pa.types.is_struct(kind):
        inner = [last_of_each_key(array.field(at)) for at in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:1], children=inner)
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32, count=len(array) + 1)
    if pa.types.is_list(kind):
        items = last_of_each_key(array.values)
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], children=[items])
    keys, items = array.keys, last_of_each_key(array.items)
    kept = _kept(keys, offsets)
    buffers = array.buffers()[:2]
    if kept is not None:
        gone = np.zeros(len(keys) + 1, dtype=np.int64)
        np.cumsum(~kept, out=gone[1:])
        buffers[1] = pa.py_buffer((offsets - gone[offsets]).astype(np.int32))
        mask = pa.array(kept)
        keys, items = keys.filter(mask), items.filter(mask)
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, len(array), buffers, children=[entries])


def _has_maps(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    if pa.types.is_struct(kind):
        return any(_has_maps(kind.field(at).type) for at in range(kind.num_fields))
    return pa.types.is_list(kind) and _has_maps(kind.value_type)


def _kept(keys: pa.Array, offsets: NDArray[np.int32]) -> NDArray[np.bool_] | None:
    """Which entries stay; None where all do."""
    if int(np.diff(offsets).max(initial=0)) < 2:
        return None
    numbers = np.asarray(pc.dictionary_encode(keys).indices, dtype=np.int64)
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    both = rows * (len(keys) + 1) + numbers[offsets[0] : offsets[-1]]
    _, backwards = np.unique(both[::-1], return_index=True)
    if len(backwards) == len(both):
        return None
    kept = np.zeros(len(keys), dtype=np.bool_)
    kept[offsets[0] + len(both) - 1 - backwards] = True
    return kept
