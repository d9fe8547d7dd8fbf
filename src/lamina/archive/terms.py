"""On what terms a store archives: alone, or as a broker of a cluster that another may take over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lamina.log.sealed import Archivable

_NO_END = 1 << 63


def _all_of_it(partition: Archivable) -> int:
    return _NO_END


def _always() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Terms:
    """The epoch that keys carry (0 without a cluster), and how far a partition may be archived.

    What is listed is believed by whoever takes over: in a cluster only records that a committed
    window holds are archived. `require` raises where the cluster may be another's by now.
    """

    epoch: int = 0
    may_archive: Callable[[Archivable], int] = _all_of_it
    require: Callable[[], None] = _always


ALONE = Terms()
"""The terms of a store without a cluster."""
