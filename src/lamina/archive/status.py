"""How far an archive is behind, as a value: light, for every store can be asked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierStatus:
    """How far a partition's archive is behind its sealed segments and its end.

    `records` counts durable records that are not archived, `bytes` local bytes of sealed segments
    that are not, `seconds` how long sealed ones have been waiting.
    """

    topic: str
    partition: int
    archived_offset: int
    objects: int
    size_bytes: int
    records_behind: int
    bytes_behind: int
    seconds_behind: float
    last_error: str
