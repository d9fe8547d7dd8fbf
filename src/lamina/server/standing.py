"""Where a server stands in its cluster, as the doors ask it: may I answer, and who else would?

    alone     always                                    no cluster: the store is this server's own
    holder    until its time by the lease is up         the store
    standby   reads, with how old they may be           the replica; everything else is the holder's

Rules.
1. A door asks twice: before a call, and when its answer is ready. What was answered after the time
   was up could contradict what the next holder says.
2. What no row of the operations calls a read is the holder's. Nothing is served by oversight.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

from lamina.errors import NotPrimary
from lamina.server.auth import Caller

READS = frozenset(
    (
        *("topics", "describe_topic", "format_of", "schema", "schemas", "routers"),
        *("earliest_offset", "latest_offset", "offset_for_time", "gaps", "segments"),
        *("scan", "fetch", "diff"),
    )
)
"""The calls that a standby answers."""


class Standing(Protocol):
    """What doors and pages ask of the server's place in a cluster."""

    def refusal(self) -> NotPrimary | None:
        """Returns why this server does not answer as the holder; None if it does."""

    def epoch(self) -> int:
        """Returns the epoch of the cluster as this server knows it; 0 without one."""

    def cluster_id(self) -> str:
        """Returns how Kafka clients know the cluster."""

    def told(self) -> dict[str, Any]:
        """Returns what health, console and `lamina cluster status` show, the role among it."""

    def problems(self) -> list[str]:
        """Returns what a person should know of: /health is degraded by it."""


class Alone:
    """The standing of a server without a cluster."""

    def refusal(self) -> NotPrimary | None:
        """Never refuses."""
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
        """Raises NotPrimary if this server may answer no more for what it has begun."""
        refusal = self.standing.refusal()
        if refusal is not None:
            raise NotPrimary(str(refusal), refusal.holder, was_begun=True)

    def confirm_read(self) -> None:
        """The same for what was read; of a replica nobody expects that it is the newest."""
        if self.replica is None:
            self.confirm()

    def replica_for(self, name: str) -> Any:
        """Returns the replica for a call that it answers; else None."""
        return self.replica if name in READS else None

    @contextlib.contextmanager
    def answering(self, name: str) -> Iterator[None]:
        """Surrounds a call: one that is answered by the holder is so until its answer is ready."""
        by_holder = self.replica_for(name) is None
        yield
        if by_holder:
            self.confirm()

    def role(self) -> dict[str, Any]:
        """Returns the role for those who may know no more; nothing without a cluster."""
        return {name: what for name, what in self.standing.told().items() if name == "role"}

    def added_to_health(self, told: dict[str, Any], caller: Caller | None) -> dict[str, Any]:
        """Adds the role, and what is wrong with it, to what is told of a server."""
        problems = self.standing.problems()
        told = told | {"status": "degraded"} if problems else told
        if caller is None:
            return told | self.role()
        cluster = self.standing.told()
        told = told | {"problems": [*told["problems"], *problems]}
        return told | ({"cluster": cluster} if cluster else {})
