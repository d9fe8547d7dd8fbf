"""Reading with a group: `topic consume -g` and `cat -G`.

Rule: a batch is acknowledged after it was printed and flushed, never before. If that is
interrupted, the batch is given back and delivered again: at least once.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lamina.cli.record_printing import Read
from lamina.errors import LaminaError

if TYPE_CHECKING:
    import pyarrow as pa

    from lamina.api import StoreApi
    from lamina.api.group_api import GroupApi

_POLL_RECORDS, _LEASE_MS, _WAIT_MS = 100, 30_000, 200


def group_reads(
    store: StoreApi,
    name: str,
    topics: list[str],
    *,
    count: int | None,
    ends: bool,
    from_end: bool = False,
) -> Iterator[Read]:
    """Yields what a group hands out, for ever or until nothing is left (`ends`).

    A group that does not exist yet is made at the start, or at the end with `from_end`.
    """
    groups = [
        store.group(topic, name, start="latest" if from_end else "earliest") for topic in topics
    ]
    wait_ms = 0 if ends or len(groups) > 1 else _WAIT_MS
    number = 0
    while True:
        before = number
        for group in groups:
            left = _POLL_RECORDS if count is None else min(_POLL_RECORDS, count - number)
            batch = group.poll(left, _LEASE_MS, wait_ms=wait_ms)
            if batch.num_rows:
                yield from _printed(group, batch, number)
            number += batch.num_rows
            if number == count:
                return
        if number == before and ends:
            return
        if number == before and len(groups) > 1:
            time.sleep(_WAIT_MS / 1000)


def _printed(group: GroupApi, batch: pa.RecordBatch, number: int) -> Iterator[Read]:
    """Yields a batch to print it; acknowledges it afterwards, or gives it back."""
    try:
        yield Read(group.topic, None, batch, number)
        sys.stdout.buffer.flush()
    except BaseException:
        with contextlib.suppress(LaminaError):  # its lease runs out in any case
            group.release(batch)
        raise
    group.ack(batch)
