"""A server in a cluster: what its doors learn about the cluster, and the cluster about its doors.

    Membership ──refusal, status──▶ InCluster (a Standing) ──▶ doors, /health, console
               ──serve, drain, retract, follow──▶ ClusterDoors ──▶ Broker, Kafka's connections

Rules.
1. Kafka clients are disconnected when the store goes: what a connection knows (share sessions, the
   order of its appends) is of that store, and its client looks for the holder when it reconnects.
2. What a server knows of the cluster is shown only to keys without a prefix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from lamina.errors import InvalidRequest, NotPrimary
from lamina.server.broker import Broker
from lamina.server.setting_table import ServerSettings
from lamina.storage.objects import Objects
from lamina.store.cluster_life import Charter, Membership, Replica
from lamina.store.replica import ReplicaStore
from lamina.store.store import Store

_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - what is refused
_NAME = re.compile("[A-Za-z0-9._-]{1,100}")
_SCHEMES = ("grpc", "grpc+tls", "http", "https", "kafka")


class InCluster:
    """The standing of a server in a cluster."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership

    def refusal(self, *, was_begun: bool = False) -> NotPrimary | None:
        """Returns why this server does not answer as the holder; None if it does."""
        return self.membership.refusal(was_begun=was_begun)

    def epoch(self) -> int:
        """Returns the epoch of the cluster as this server knows it."""
        return self.membership.member.epoch

    def cluster_id(self) -> str:
        """Returns how Kafka clients know the cluster: by its name."""
        return self.membership.charter.name

    def told(self) -> dict[str, Any]:
        """Returns what health, console and `lamina cluster status` show."""
        return self.membership.status()

    def problems(self) -> list[str]:
        """Returns what a person should know of."""
        return self.membership.problems()

    def promote(self, *, by_force: bool) -> None:
        """Has this server take the cluster."""
        self.membership.promote(by_force=by_force)

    def hand_over(self, timeout_s: float) -> None:
        """Lets another server take the cluster; returns when the lease is released."""
        self.membership.hand_over(timeout_s)

    def gauges(self) -> Iterator[Metric]:
        """Yields what Prometheus reads of the cluster."""
        about = self.membership.status()
        role = GaugeMetricFamily(
            "lamina_cluster_role", "1 for what this server is in its cluster", labels=["role"]
        )
        for each in ("standby", "opening", "holder", "leaving"):
            role.add_metric([each], int(each == about["role"]))
        yield role
        lag_ms = about["replica_lag_ms"]
        for name, text, value in (
            ("epoch", "The epoch of the cluster, as this server knows it", about["epoch"]),
            (
                "lease_seconds_left",
                "For how long this server may answer without another renewal",
                about["lease_left_ms"] / 1000,
            ),
            (
                "tail_age_seconds",
                "How long the oldest durable record is in no window: what a lost machine may take",
                about["tail_age_ms"] / 1000,
            ),
            ("unshipped_records", "Durable records in no window", about["unshipped_records"]),
            (
                "diverged_ranges",
                "Ranges of records that were set aside and never shipped",
                sum(len(each["ranges"]) for each in about["diverged"]),
            ),
            ("replica_lag_seconds", "How far reads of a standby may be behind", lag_ms),
        ):
            if value is not None:
                scaled = value / 1000 if name == "replica_lag_seconds" else value
                yield GaugeMetricFamily(f"lamina_cluster_{name}", text, value=scaled)
        yield CounterMetricFamily(
            "lamina_cluster_takeovers",
            "How often this server has begun to serve the cluster",
            value=about["takeovers"],
        )


class ClusterDoors:
    """The doors of a server as its membership knows them."""

    def __init__(self, broker: Broker, turn_away: Callable[[], None]) -> None:
        self._broker = broker
        self._turn_away = turn_away
        self.is_hurried: Callable[[], bool] = lambda: False

    def serve(self, store: Store) -> None:
        """Is given the store."""
        self._broker.serve(store)

    def drain(self) -> None:
        """Waits until calls that were begun have ended."""
        drain_s = self._broker.settings.drain_ms / 1000
        self._broker.work.wait_until_unused(drain_s, self.is_hurried)

    def retract(self) -> None:
        """Forgets the store, and disconnects the clients that were connected to it."""
        self._broker.retract()
        self._turn_away()

    def follow(self, replica: Replica | None) -> None:
        """Is given what reads are answered from."""
        self._broker.place.replica = replica


def replica_of(objects: Objects, refusal: Callable[[], NotPrimary | None]) -> Replica | None:
    """Makes what a standby answers reads from, before it is started; the refusal says who holds."""
    return ReplicaStore(objects, refusal=refusal)


def charter_of(data: str, settings: ServerSettings, url: str) -> Charter:
    """Returns what a server is in its cluster; raises InvalidRequest where a setting is missing.

    `url` are the addresses as the server listens at them.
    """
    if not _NAME.fullmatch(settings.cluster_name):
        raise InvalidRequest(
            f"a cluster's name is 1 to 100 letters, digits, dots, dashes and underscores, not"
            f" {settings.cluster_name[:100]!r}"
        )
    if not settings.archive:
        raise InvalidRequest("a cluster is in an archive: set archive, to s3://bucket/prefix say")
    if settings.cluster_url:
        url = advertised(settings.cluster_url, url)
    elif settings.host in _EVERYWHERE:
        raise InvalidRequest(
            f"this server listens at {settings.host}, which is nobody's address: set cluster.url to"
            " the host by which clients and the other servers find it"
        )
    return Charter(
        settings.cluster_name,
        url,
        data,
        settings.archive,
        settings.cluster_ttl_ms,
        settings.tail_ms,
    )


def advertised(given: str, listening: str) -> str:
    """Returns the addresses that clients are told: a host at our ports, or all of them as given."""
    if "://" not in given:
        host = f"[{given}]" if ":" in given else given
        ports = (each.rpartition(":") for each in listening.split(","))
        return ",".join(f"{at.partition('://')[0]}://{host}:{port}" for at, _, port in ports)
    for each in given.split(","):
        scheme, _, place = each.partition("://")
        if scheme not in _SCHEMES or not place.rpartition(":")[2].isdigit():
            raise InvalidRequest(
                f"cluster.url has {each!r}; use a host, or grpc://host:port,http://host:port and"
                " kafka://host:port with commas between them"
            )
    return given
