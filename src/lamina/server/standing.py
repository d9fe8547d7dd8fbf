"""The standing of a server in its cluster, as doors ask for it: may I answer, and who else would?

    alone     always                                    no cluster: the store is this server's own
    holder    until its time by the lease is up         the store
    standby   reads, with how old they may be           the replica; everything else is the holder's

Rules.
1. A door asks twice: before a call, and when its answer is ready. An answer that leaves after the
   lease is over could contradict one of the next holder.
2. Only operations that are marked as reads are answered by a standby; all others are the holder's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

from prometheus_client.metrics_core import Metric

from lamina.errors import Closed, InvalidRequest, LaminaError, NotPrimary
from lamina.server.auth import Caller

READS = frozenset(
    (
        *("topics", "describe_topic", "format_of", "schema", "schemas", "routers"),
        *("earliest_offset", "latest_offset", "offset_for_time", "gaps", "segments"),
        *("scan", "fetch", "diff"),
    )
)
"""The calls that a standby answers."""
_ALONE = "this server is in no cluster: start it with --cluster NAME and an archive"


class Standing(Protocol):
    """What doors and pages ask of the server's place in a cluster."""

    def refusal(self, *, was_begun: bool = False) -> NotPrimary | None:
        """Returns why this server does not answer as the holder; None if it does.

        A holder that hands over takes no calls, and answers those that were begun.
        """

    def epoch(self) -> int:
        """Returns the epoch of the cluster as this server knows it; 0 without one."""

    def cluster_id(self) -> str:
        """Returns how Kafka clients know the cluster."""

    def told(self) -> dict[str, Any]:
        """Returns what health, console and `lamina cluster status` show, the role among it."""

    def problems(self) -> list[str]:
        """Returns what a person should know of: /health is degraded by it."""

    def promote(self, *, by_force: bool) -> None:
        """Has this server take the cluster: what was released, or by force."""

    def hand_over(self, timeout_s: float) -> None:
        """Lets another server take the cluster; returns when that may."""

    def gauges(self) -> Iterator[Metric]:
        """Yields what Prometheus reads of the cluster."""


class Alone:
    """The standing of a server without a cluster."""

    def refusal(self, *, was_begun: bool = False) -> NotPrimary | None:
        """Never refuses."""
        del was_begun
        return None

    def epoch(self) -> int:
        """Has none."""
        return 0

    def cluster_id(self) -> str:
        """Has none of its own: it is the store's."""
        return ""

    def told(self) -> dict[str, Any]:
        """Returns nothing: there is no cluster to speak of."""
        return {}

    def problems(self) -> list[str]:
        """Has none."""
        return []

    def promote(self, *, by_force: bool) -> None:
        """Raises InvalidRequest: there is nothing to take."""
        del by_force
        raise InvalidRequest(_ALONE)

    def hand_over(self, timeout_s: float) -> None:
        """Raises InvalidRequest: there is nobody to take it."""
        del timeout_s
        raise InvalidRequest(_ALONE)

    def gauges(self) -> Iterator[Metric]:
        """Has none."""
        return iter(())


class Place:
    """Where a server stands, and what it reads from while it is a standby."""

    def __init__(self) -> None:
        self.standing: Standing = Alone()
        self.replica: Any = None
        """A store that follows the holder; None where this server holds, or has no cluster."""

    def require_holder(self) -> None:
        """Raises NotPrimary if this server does not hold its cluster."""
        refusal = self.standing.refusal()
        if refusal is not None:
            raise refusal

    def confirm(self) -> None:
        """Raises NotPrimary if this server may no longer answer calls that it has begun."""
        refusal = self.standing.refusal(was_begun=True)
        if refusal is not None:
            raise NotPrimary(str(refusal), refusal.holder, was_begun=True)

    def explain(self, error: LaminaError) -> None:
        """Raises NotPrimary in place of an error that says only that the store has been closed."""
        if isinstance(error, Closed) and self.standing.refusal() is not None:
            refusal = self.standing.refusal(was_begun=True)
            why = str(error) if refusal is None else str(refusal)
            holder = "" if refusal is None else refusal.holder
            raise NotPrimary(why, holder, was_begun=True) from error

    def is_leaving(self) -> bool:
        """Returns whether calls that wait here should end: others are going to be answered."""
        return self.replica is None and self.standing.refusal() is not None

    def confirm_read(self) -> None:
        """The same for reads, which a replica may answer: nobody expects the newest from it."""
        if self.followed() is None:
            self.confirm()

    def is_answering(self, store: object) -> bool:
        """Returns whether there is something that calls are answered from."""
        return self.replica is not None or (store is not None and self.standing.refusal() is None)

    def replica_for(self, name: str) -> Any:
        """Returns the replica for a call that it answers; else None."""
        return self.followed() if name in READS else None

    def followed(self) -> Any:
        """Returns what reads are answered from while this server is not the holder; else None."""
        replica = self.replica  # read once: it is let go by another thread
        return None if replica is None or self.standing.refusal() is None else replica

    def lag_ms(self) -> int | None:
        """Returns how old a read here may be; None if it is not answered by a replica."""
        replica = self.followed()
        return None if replica is None else int(replica.replica_lag_ms())

    @contextlib.contextmanager
    def answering(self, name: str) -> Iterator[None]:
        """Surrounds a call: one that is answered by the holder is so until its answer is ready."""
        by_holder = self.replica_for(name) is None
        try:
            yield
        except LaminaError as error:
            self.explain(error)
            raise
        if by_holder:
            self.confirm()

    def role(self) -> dict[str, Any]:
        """Returns the role, for callers that may know no more; nothing without a cluster."""
        return {name: what for name, what in self.standing.told().items() if name == "role"}

    def added_to_health(self, told: dict[str, Any], caller: Caller | None) -> dict[str, Any]:
        """Adds the role, and what is wrong with it, to what is told of a server."""
        problems = self.standing.problems()
        told = told | {"status": "degraded"} if problems else told
        if caller is None:
            return told | self.role()
        cluster = self.role() if caller.prefix else self.standing.told()
        if caller.prefix and problems:  # they may name topics
            problems = ["something is wrong with this server's part in its cluster"]
        told = told | {"problems": [*told["problems"], *problems]}
        return told | ({"cluster": cluster} if cluster else {})
