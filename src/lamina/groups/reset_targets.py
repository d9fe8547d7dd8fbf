"""Where a reset moves a group: to an offset, an end of the log, a time, or by some records."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from lamina.errors import InvalidRequest
from lamina.log.interfaces import LogReader

ResetTo: TypeAlias = Callable[[LogReader, int], int]
"""Where a reset leads to, given a partition and where the group is."""


def reset_target(to: int | str | None, timestamp_ms: int | None, shift: int | None) -> ResetTo:
    """Reads the arguments of a reset, exactly one of which is given."""
    if sum(each is not None for each in (to, timestamp_ms, shift)) != 1:
        raise InvalidRequest("a reset names one of: to, timestamp_ms, shift")
    if isinstance(to, str) and to not in ("earliest", "latest"):
        raise InvalidRequest(f"a reset goes to 'earliest', 'latest' or an offset, not {to!r}")

    def target(reader: LogReader, before: int) -> int:
        earliest, end = reader.earliest_offset(), reader.end_offset("durable")
        if to == "earliest":
            wanted = earliest
        elif to == "latest":
            wanted = end
        elif timestamp_ms is not None:
            found = reader.offset_for_time(timestamp_ms)
            wanted = end if found is None else found
        elif shift is not None:
            wanted = before + shift
        else:
            wanted = int(to) if to is not None else end
        return min(max(wanted, earliest), end)

    return target
