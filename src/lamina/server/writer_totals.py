"""Histograms of fsyncs and group commits, summed over all writers of a store.

A writer counts for itself and goes with its topic. The sums may not shrink, or Prometheus would
take that for a restart: what a writer had counted when it was last seen stays in the sum.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from lamina.api import Pulse, WriterFacts
from lamina.api.writer_counts import BOUNDS

SYNC_BUCKETS = tuple((f"{(1 << bits) / 1e6:g}", 1 << bits) for bits in (*range(7, 18), 19, 21))
"""Of the page: the label in seconds, and the microseconds that an fsync takes less than."""
GROUP_BUCKETS = tuple(
    (str(least - 1), least) for least in (2, 3, 4, *(1 << n for n in range(3, 11)))
)
"""The label, which is the largest group of the bucket, and the next larger one."""


class WriterTotals:
    """The sums over writers that there are, and over those that there were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, Pulse] = {}
        self._gone = Pulse()

    def families(self, writers: Sequence[WriterFacts]) -> Iterator[Metric]:
        """Yields the histograms and sums, and how much waits in queues just now."""
        total = self._total({each.name: each.pulse for each in writers})
        yield _histogram(
            ("lamina_fsync_seconds", "Time of the fsyncs that appends wait for"),
            *(total.sync_microseconds, SYNC_BUCKETS, None),
        )
        yield _histogram(
            ("lamina_commit_group_requests", "Requests that share a write and an fsync"),
            *(total.group_requests, GROUP_BUCKETS, total.requests),
        )
        for name, text, value in (
            ("lamina_written_records", "Records written to logs", total.records),
            ("lamina_written_bytes", "Bytes of requests written to logs", total.size_bytes),
        ):
            yield CounterMetricFamily(name, text, value=value)
        depths = [each.depth for each in writers]
        for name, text, value in (
            ("lamina_queue_requests", "Requests that wait to be written", sum(depths)),
            ("lamina_queue_requests_max", "The same, of the longest queue", max(depths, default=0)),
            (
                "lamina_unsynced_records",
                "Records that are written and not durable yet",
                sum(each.unsynced_records for each in writers),
            ),
        ):
            yield GaugeMetricFamily(name, text, value=value)

    def _total(self, now: dict[str, Pulse]) -> Pulse:
        with self._lock:
            for name, before in self._seen.items():
                if name not in now or now[name].groups < before.groups:  # gone, or another one
                    self._gone = self._gone.plus(before)
            self._seen = now
            total = self._gone
            for each in now.values():
                total = total.plus(each)
            return total


def _histogram(
    named: tuple[str, str],
    counts: Sequence[int],
    wanted: Sequence[tuple[str, int]],
    total: float | None,
) -> HistogramMetricFamily:
    """Joins fine buckets to those of the page; each of these ends where a fine one begins."""
    sums = [0, *itertools.accumulate(counts)]
    buckets = [(label, float(sums[BOUNDS.index(end)])) for label, end in wanted]
    buckets.append(("+Inf", float(sums[-1])))
    return HistogramMetricFamily(*named, buckets=buckets, sum_value=total)
