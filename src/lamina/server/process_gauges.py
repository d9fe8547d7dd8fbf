"""Gauges of the server itself: what runs, on how much disk, and how much of its limits is used."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Protocol

import pyarrow as pa
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from lamina.server.health import Condition
from lamina.server.limits import Allowance
from lamina.server.log_lines import Refusals
from lamina.server.quotas import ByteQuotas
from lamina.storage import machine


class Watched(Protocol):
    """What a server reports of its process."""

    condition: Condition
    quotas: ByteQuotas
    refusals: Refusals
    inflight: Allowance
    streams: Allowance
    waiting: Allowance
    calls: Allowance
    work: Allowance


def version() -> str:
    """Returns the version of this package; a tree that was never installed has none."""
    try:
        return metadata.version("lamina")
    except metadata.PackageNotFoundError:
        return "unknown"


def build() -> dict[str, str]:
    """Returns what runs here."""
    return {
        "version": version(),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "system": f"{platform.system()} {platform.machine()}",
    }


def server_gauges(server: Watched) -> Iterator[Metric]:
    """Yields the gauges of a server, as it is now."""
    about = build()
    info = GaugeMetricFamily("lamina_build_info", "What runs here", labels=list(about))
    info.add_metric(list(about.values()), 1)
    yield info
    yield GaugeMetricFamily(
        "lamina_threads",
        "Threads of the process, those of libraries included",
        value=machine.threads_of_process(),
    )
    yield from _disk(server.condition)
    used = GaugeMetricFamily("lamina_limit_used", "How much is taken of a limit", labels=["what"])
    most = GaugeMetricFamily("lamina_limit_max", "How much may be taken of it", labels=["what"])
    for what, allowance in (
        ("inflight_bytes", server.inflight),
        ("streams", server.streams),
        ("waiting", server.waiting),
        ("calls", server.calls),
    ):
        used.add_metric([what], allowance.used)
        most.add_metric([what], allowance.limit)
    yield from (used, most)
    yield GaugeMetricFamily("lamina_calls_at_work", "Calls at work", value=server.work.used)
    yield CounterMetricFamily(
        "lamina_unknown_callers",
        "Calls without a key that is known here",
        value=server.refusals.strangers,
    )
    refused = CounterMetricFamily(
        "lamina_quota_refused_calls", "Calls refused for a key's bytes", labels=["direction"]
    )
    delayed = CounterMetricFamily(
        "lamina_quota_delay_seconds",
        "For how long Kafka clients were delayed",
        labels=["direction"],
    )
    for direction, quota in (("produce", server.quotas.produce), ("fetch", server.quotas.fetch)):
        refused.add_metric([direction], quota.refused)
        delayed.add_metric([direction], quota.delayed_ms / 1000)
    yield from (refused, delayed)


def _disk(condition: Condition) -> Iterator[Metric]:
    space = condition.disk.space()
    if space is None:
        return
    for name, text, value in (
        ("lamina_disk_free_bytes", "Free space where the data lies", space.free_bytes),
        ("lamina_disk_size_bytes", "The size of that disk", space.total_bytes),
        ("lamina_disk_free_files", "Free file entries of that disk", space.free_files),
    ):
        yield GaugeMetricFamily(name, text, value=value)
