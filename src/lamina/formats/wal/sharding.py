"""Which shard of the write-ahead log a topic's frames go to.

XXH3-64 of the topic id's 8 little-endian bytes, modulo the number of shards. Only new frames go by
it: recovery replays whatever shards exist, so the number may change between restarts.
"""

from __future__ import annotations

from lamina.formats.kernels.xxh3 import xxh3_of


def shard_of(topic_id: int, shards: int) -> int:
    """Returns the shard of a topic."""
    return xxh3_of(topic_id.to_bytes(8, "little")) % shards
