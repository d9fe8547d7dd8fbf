"""Who holds a cluster: taken, renewed and released by replacing one object.

      standby                                       holder
    Watch.saw ── a full ttl without a change ──▶ take ──▶ Holding.renew every third of the ttl
                                                   Holding.may_answer, until ttl less a margin

Rules.
1. Each side measures by its own monotonic clock, and no two clocks are compared. The holder counts
   from the moment at which it *began* its last successful write: nobody can have seen that write
   earlier. A standby counts from the moment at which it *received* an answer with a changed lease:
   the write cannot have happened later.
2. The margin allows for clocks that run at different speeds, and for answers on their way.
3. No content is written twice, not even by a renewal whose outcome is unknown: the next one has a
   higher number. A holder that finds its own earlier try in place has proved nothing by the later
   one, and writes again.
4. The lease is never deleted, and its epoch only grows: everything else is compared with it. If it
   is lost all the same, the next epoch is above every epoch that left a trace (`floor`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from lamina.cluster.steps import Read, Replace, Steps
from lamina.errors import CorruptData, Fenced, InvalidRequest, ObjectConflict, ObjectMissing
from lamina.formats.documents import lease_file
from lamina.formats.documents.lease_file import Lease
from lamina.storage import paths
from lamina.storage.objects import Stored

Clock: TypeAlias = Callable[[], int]
"""Milliseconds by a clock that only goes forward."""
RENEWALS_A_TTL = 3
MARGIN_SHARE = 5
"""The margin is the ttl divided by this."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A broker as the lease names it; `holder` is different each time the process starts.

    What precedes its first slash is the cluster's name, which all brokers of a cluster share.
    """

    holder: str
    url: str
    ttl_ms: int

    def check_cluster(self, lease: Lease) -> None:
        """Raises InvalidRequest if a lease is of a cluster of another name."""
        ours, theirs = (name.partition("/")[0] for name in (self.holder, lease.holder))
        if "/" in self.holder and "/" in lease.holder and ours != theirs:
            raise InvalidRequest(
                f"the archive belongs to the cluster {theirs!r}, not to {ours!r}: each cluster has"
                " an archive, or a prefix in it, of its own"
            )


@dataclass(slots=True)
class Watch:
    """What a broker has seen of the lease, and when it last saw it change, by its own clock."""

    lease: Lease | None = None
    etag: str | None = None
    changed_ms: int | None = None

    def saw(self, found: Stored | None, now_ms: int) -> None:
        """Notes an answer, and when it arrived."""
        etag = None if found is None else found.etag
        if self.changed_ms is None or etag != self.etag:
            self.changed_ms = now_ms
        self.etag = etag
        self.lease = None if found is None else _decoded(found.data)

    def look(self, clock: Clock) -> Steps[None]:
        """Reads the lease once."""
        try:
            found: Stored | None = yield Read(paths.LEASE)
        except ObjectMissing:
            found = None
        self.saw(found, clock())

    def may_take(self, now_ms: int) -> bool:
        """Returns whether the holder has certainly stopped answering."""
        if self.changed_ms is None:
            return False
        if self.lease is None or self.lease.is_released:
            return True
        return now_ms - self.changed_ms >= self.lease.ttl_ms


@dataclass(slots=True)
class Holding:
    """The lease that we hold: how long we may answer by it, and how to renew it."""

    lease: Lease
    etag: str
    proven_ms: int
    """When the last write that succeeded was begun."""
    written: int = 0
    """The number of the last content that was sent, whatever became of it."""
    successor: Lease | None = None
    """The lease of the broker that replaced us: from then on we neither answer nor write."""

    @property
    def epoch(self) -> int:
        """The epoch of our lease."""
        return self.lease.epoch

    def renewal_due_ms(self) -> int:
        """When the next renewal is due."""
        return self.proven_ms + self.lease.ttl_ms // RENEWALS_A_TTL

    def may_answer(self, now_ms: int) -> bool:
        """Returns whether it is still certain that nobody else holds the lease."""
        return self.left_ms(now_ms) > 0

    def left_ms(self, now_ms: int) -> int:
        """Returns for how long that stays certain without another renewal; 0 if it no longer is."""
        margin_ms = self.lease.ttl_ms // MARGIN_SHARE
        if self.successor is not None:
            return 0
        return max(0, self.lease.ttl_ms - margin_ms - (now_ms - self.proven_ms))

    def renew(self, clock: Clock) -> Steps[None]:
        """Renews the lease; raises Fenced if another broker holds it."""
        yield from self._write(clock, is_released=False)

    def release(self, clock: Clock) -> Steps[None]:
        """Lets another broker take over at once. The caller has stopped answering."""
        yield from self._write(clock, is_released=True)

    def _write(self, clock: Clock, *, is_released: bool) -> Steps[None]:
        while self.successor is None:
            self.written += 1
            wanted = replace(self.lease, renewals=self.written, is_released=is_released)
            begun_ms = clock()
            found = yield from _replaced(wanted, self.etag)
            there = _decoded(found.data)
            if (there.epoch, there.holder) != (self.lease.epoch, self.lease.holder):
                self.successor = there  # and its tag is never ours to write with
                break
            self.etag = found.etag
            if there == wanted:
                self.lease, self.proven_ms = wanted, begun_ms
                return
        assert self.successor is not None
        raise taken_by(self.successor)


def take(watch: Watch, me: Identity, clock: Clock, floor: int = 0) -> Steps[Holding]:
    """Takes the lease, in the epoch after the last one seen; raises Fenced if another was faster.

    `floor` is the highest epoch known from elsewhere. The caller decides whether the lease may be
    taken (`Watch.may_take`): an operator may know that the holder is gone.
    """
    last = max(floor, watch.lease.epoch if watch.lease is not None else 0)
    wanted = Lease(last + 1, me.holder, me.url, me.ttl_ms)
    begun_ms = clock()
    found = yield from _replaced(wanted, watch.etag)
    if found.data != lease_file.encode(wanted):
        raise taken_by(_decoded(found.data))
    return Holding(wanted, found.etag, begun_ms)


def _replaced(wanted: Lease, etag: str | None) -> Steps[Stored]:
    """Replaces the lease that has a tag; returns the one that is there then, ours or not."""
    data = lease_file.encode(wanted)
    try:
        return Stored(data, (yield Replace(paths.LEASE, data, etag)))
    except ObjectConflict:
        pass
    try:
        found: Stored = yield Read(paths.LEASE)
    except ObjectMissing as error:
        raise Fenced("the lease of the cluster is gone: somebody has deleted it") from error
    return found


def taken_by(lease: Lease) -> Fenced:
    """Returns the error of a broker that does not hold the cluster; it names the one that does."""
    return Fenced(
        f"the cluster is held by {lease.holder} at {lease.url or 'no address'} in epoch"
        f" {lease.epoch}"
    )


def _decoded(data: bytes) -> Lease:
    try:
        return lease_file.decode(data)
    except CorruptData as error:
        raise error.at_path(paths.LEASE) from error
