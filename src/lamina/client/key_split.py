"""One of two places where a client uses kernels: which partition takes which keyed records.

Keys belong to partitions by a hash (XXH3-64), the same in every process, and only the compiled
kernel of `lamina.formats.partitioning` computes it fast enough for large batches. Compiling code
needs Numba, which takes longer to load than everything else in a client together. So it is loaded
here, inside the function, by the first append of keyed records to a topic of several partitions;
a client that never makes one never loads it.

Rule: this and `typed_values` are the only modules of client and wire that may import from
`lamina.formats`, and they do so only when they are called. The test of the layers names them.
"""

from __future__ import annotations

import pyarrow as pa


def split_by_key(
    batch: pa.RecordBatch, partitions: int, unkeyed: int
) -> list[tuple[int, pa.RecordBatch]]:
    """Splits a batch by the hash of its keys, order kept; records without a key go to `unkeyed`."""
    if partitions == 1 or batch.column("key").null_count == batch.num_rows:
        return [(unkeyed, batch)]
    from lamina.formats import partitioning

    return partitioning.split_by_key(batch, partitions, unkeyed)
