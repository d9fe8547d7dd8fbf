"""How much of what is new a micro-batch takes: pure, from offsets to offsets.

As Spark's Kafka source does it, a limit is shared out in proportion to what each partition has
waiting, and no partition that has something is left without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

Partition = TypeVar("Partition")


def shares(waiting: Mapping[Partition, int], limit: int) -> dict[Partition, int]:
    """Shares a limit out in proportion to what is waiting; none gets more than it has."""
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    return {
        partition: min(amount, _rounded(limit * amount / total))
        for partition, amount in waiting.items()
    }


def _rounded(share: float) -> int:
    return math.ceil(share) if share < 1 else math.floor(share)
