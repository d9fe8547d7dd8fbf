"""Metrics for Prometheus: counters since the server started, and gauges read from the store.

    Metrics           calls, refusals, bytes by door, times of appends, the process itself
    `topic_counters`  what each topic took and gave       `writer_totals`  fsyncs, groups, queues
    store_gauges      partitions, groups, members, archive, as they are when somebody asks

A key with a prefix gets `store_gauges` and the counters of its own topics, and nothing else.
"""

from __future__ import annotations

import contextlib
from collections import Counter as Counted
from collections.abc import Callable, Iterator
from typing import Any, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lamina.api.memberships import MembershipState
from lamina.errors import LaminaError
from lamina.server import telling
from lamina.server.auth import ANYBODY, Caller
from lamina.server.health import topic_of
from lamina.server.topic_counters import TopicCounters
from lamina.server.writer_totals import WriterTotals
from lamina.store.store import Store

DOORS = ("flight", "http", "kafka")
REFUSALS = ("Busy", "NotAllowed", "StorageFull")
"""Outcomes that are counted by themselves, over all operations."""

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """The counters of one server; each server has a registry of its own."""

    def __init__(self, topics_max: int = 1000) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.topics = TopicCounters(topics_max)
        self.writers = WriterTotals()
        self.calls = Counter(
            "lamina_calls",
            "Calls by operation and outcome",
            ["operation", "outcome"],
            registry=self._registry,
        )
        self._children: dict[tuple[str, str], Any] = {}
        self.appended = Counter(
            "lamina_appended_records", "Records appended", registry=self._registry
        )
        self.read = Counter("lamina_read_records", "Records sent", registry=self._registry)
        self.refused = Counter(
            "lamina_refused_calls", "Calls refused, by why", ["reason"], registry=self._registry
        )
        self.reloads = Counter(
            "lamina_reloads", "Reloads, by outcome", ["outcome"], registry=self._registry
        )
        for outcome in ("ok", "refused"):
            self.reloads.labels(outcome)
        received = Counter(
            "lamina_received_bytes", "Bytes of requests", ["door"], registry=self._registry
        )
        sent = Counter("lamina_sent_bytes", "Bytes of answers", ["door"], registry=self._registry)
        self.received: dict[str, Counter] = {door: received.labels(door) for door in DOORS}
        self.sent: dict[str, Counter] = {door: sent.labels(door) for door in DOORS}
        self.seconds = Histogram(
            "lamina_append_seconds",
            "Time from request to answer of appends",
            buckets=_SECONDS,
            registry=self._registry,
        )

    def count(self, operation: str, outcome: str, topic: str = "") -> None:
        """Counts a call; looking a pair of labels up costs more than counting."""
        child = self._children.get((operation, outcome))
        if child is None:
            child = self._children[operation, outcome] = self.calls.labels(operation, outcome)
        child.inc()
        if outcome in REFUSALS:
            self.refused.labels(outcome).inc()
        if outcome == "Busy":
            self.topics.busy(topic)

    def watch(self, gauges: Callable[[], Iterator[Metric]]) -> None:
        """Adds gauges that are read each time somebody asks."""
        self._registry.register(_Gauges(gauges))

    def page(self) -> bytes:
        """Returns the page that Prometheus reads."""
        found: bytes = generate_latest(self._registry)
        return found


def page_of(gauges: Callable[[], Iterator[Metric]]) -> bytes:
    """Returns a page of nothing but these gauges and counters."""
    registry = CollectorRegistry()
    registry.register(_Gauges(gauges))
    found: bytes = generate_latest(registry)
    return found


class _Gauges(Collector):
    def __init__(self, gauges: Callable[[], Iterator[Metric]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        return self._gauges()


def _group_gauges(store: Store, caller: Caller) -> Iterator[GaugeMetricFamily]:
    labels = ["consumergroup", "topic", "partition"]
    offset, lag, seconds = (
        GaugeMetricFamily(f"lamina_consumergroup_{name}", text, labels=labels)
        for name, text in (
            ("current_offset", "The offset below which a group has acked everything"),
            ("lag", "Records that a group has not acked"),
            ("lag_seconds", "The age of the oldest record that a group has not acked"),
        )
    )
    for topic, group in telling.visible(caller, store, "groups", store.groups()):
        try:
            parts = store.describe_group(topic, group).partitions
        except LaminaError:  # deleted in the meantime
            continue
        for part in parts:
            where = [group, topic, str(part.partition)]
            offset.add_metric(where, part.committed)
            lag.add_metric(where, part.records)
            seconds.add_metric(where, part.seconds)
    yield from (offset, lag, seconds)


def _member_gauges(store: Store, caller: Caller) -> Iterator[GaugeMetricFamily]:
    """Counts only: names of groups and clients are whatever clients choose."""
    groups = GaugeMetricFamily(
        "lamina_joined_groups", "Groups that were joined, by state", labels=["kind", "state"]
    )
    members = GaugeMetricFamily("lamina_group_members", "Members of groups", labels=["kind"])
    coordinator = store.coordinator
    for kind, counted, states in (
        ("classic", coordinator.headcounts(), get_args(MembershipState)),
        ("share", coordinator.share.headcounts(), ("Stable",)),
    ):
        covered = [each for each in counted if each.group.startswith(caller.prefix)]
        by_state = Counted(each.state for each in covered)
        for state in states:
            groups.add_metric([kind, state], by_state[state])
        members.add_metric([kind], sum(each.members for each in covered))
    yield from (groups, members)


def _transaction_gauges(store: Store, caller: Caller) -> Iterator[GaugeMetricFamily]:
    gauge = GaugeMetricFamily(
        "lamina_transactions",
        "Transactions of Kafka's producers, open or committed and not stored yet",
        labels=["state"],
    )
    counts = store.transactions.counts(caller.prefix)
    gauge.add_metric(["open"], counts.open)
    gauge.add_metric(["decided"], counts.decided)
    staged = GaugeMetricFamily("lamina_transaction_bytes", "What open transactions hold")
    staged.add_metric([], counts.staged_bytes)
    yield from (gauge, staged)


def _archive_gauges(store: Store, prefix: str) -> Iterator[GaugeMetricFamily]:
    labels = ["topic", "partition"]
    records, size, seconds, failing = (
        GaugeMetricFamily(f"lamina_archive_{name}", text, labels=labels)
        for name, text in (
            ("records_behind", "Durable records that are not in the object store"),
            ("bytes_behind", "Bytes of sealed segments that are not in the object store"),
            ("seconds_behind", "How long sealed segments have been waiting for the object store"),
            ("failing", "1 if the last attempt to archive failed"),
        )
    )
    for each in store.tier_status():
        if not each.topic.startswith(prefix):
            continue
        where = [each.topic, str(each.partition)]
        records.add_metric(where, each.records_behind)
        size.add_metric(where, each.bytes_behind)
        seconds.add_metric(where, each.seconds_behind)
        failing.add_metric(where, 1 if each.last_error else 0)
    yield from (records, size, seconds, failing)


def store_gauges(store: Store, caller: Caller = ANYBODY) -> Iterator[GaugeMetricFamily]:
    """Yields the gauges of all partitions that a caller may see, in kafka_exporter's shapes."""
    prefix = caller.prefix
    labels = ["topic", "partition"]
    described = {
        "current_offset": "One past the newest durable offset",
        "oldest_offset": "The earliest offset",
        "size_bytes": "Bytes on disk",
        "segments": "Segments on disk",
        "archived_bytes": "Bytes of objects that hold what is not on disk",
        "archived_segments": "Objects that hold what is not on disk",
    }
    families = {
        name: GaugeMetricFamily(f"lamina_topic_partition_{name}", text, labels=labels)
        for name, text in described.items()
    }
    for topic in store.topics():
        if not topic.startswith(prefix):
            continue
        try:
            info = store.describe_topic(topic)
        except LaminaError:  # deleted in the meantime
            continue
        for part in info.partitions:
            where = [topic, str(part.partition)]
            families["current_offset"].add_metric(where, part.durable_offset)
            families["oldest_offset"].add_metric(where, part.earliest_offset)
            families["size_bytes"].add_metric(where, part.size_bytes)
            families["segments"].add_metric(where, part.segments)
            families["archived_bytes"].add_metric(where, part.archived_bytes)
            families["archived_segments"].add_metric(where, part.archived_segments)
    yield from families.values()
    yield from _group_gauges(store, caller)
    yield from _member_gauges(store, caller)
    yield from _transaction_gauges(store, caller)
    yield from _archive_gauges(store, prefix)
    yield GaugeMetricFamily(
        "lamina_failed_partitions",
        "Partitions that take no appends, and of groups that take no acks",
        value=sum(topic_of(name).startswith(prefix) for name in store.failures()),
    )


def families_of(metrics: Metrics, store: Store | None) -> Iterator[Metric]:
    """Yields the same of a store that may not be there, or be closed meanwhile."""
    if store is not None:
        with contextlib.suppress(LaminaError):
            yield from all_families(metrics, store)


def all_families(metrics: Metrics, store: Store, caller: Caller = ANYBODY) -> Iterator[Metric]:
    """Yields all that is known of a store; to a key with a prefix, what is of its topics."""
    yield from store_gauges(store, caller)
    try:
        topics = set(store.topics())
        writers = store.writers()
    except LaminaError:  # it is being closed
        return
    yield from metrics.topics.families(topics, caller.prefix)
    if not caller.prefix:
        yield from metrics.writers.families(writers)
