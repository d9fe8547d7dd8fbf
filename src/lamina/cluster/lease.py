"""Who holds a cluster: taken, renewed and released by replacing one object.

      standby                                       holder
    Watch.saw ── a full ttl without a change ──▶ take ──▶ Holding.renew every third of the ttl
                                                   Holding.may_answer, until ttl less a margin

Rules.
1. Each side counts by its own clock, which only goes forward, and no two clocks are compared. The
   holder counts from the moment at which it *began* the last write that succeeded: nobody can have
   seen that write earlier. A standby counts from the moment at which it *had* the answer in which
   the lease was another one than before: the write cannot have been later.
2. The margin is what clocks of different speed, and an answer on its way, may take.
3. No content is written twice, also not by a renewal whose outcome is not known: the next one
   counts further. A holder that finds its own earlier try in place has not proved anything by the
   later one, and writes again.
4. The lease is never deleted, and its epoch only grows: it is what everything else is compared by.
   If it is gone all the same, the next epoch is above every one that left a trace (`floor`).
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
"""The margin is one part in so many of the ttl."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A broker as the lease names it; `holder` is another one each time the process starts.

    `cluster/…`: what is before the first slash is the cluster's name, the same for all its brokers.
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
        """Takes note of an answer, at the moment at which it is there."""
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
        """Returns whether whoever holds it has stopped answering for sure."""
        if self.changed_ms is None:
            return False
        if self.lease is None or self.lease.is_released:
            return True
        return now_ms - self.changed_ms >= self.lease.ttl_ms


@dataclass(slots=True)
class Holding:
    """The lease in our hands: until when we may answer, and what renewing it takes."""

    lease: Lease
    etag: str
    proven_ms: int
    """When the last write that succeeded was begun."""
    written: int = 0
    """The number of the last content that was sent, whatever became of it."""
    successor: Lease | None = None
    """Who was found in our place: from then on we neither answer nor write."""

    @property
    def epoch(self) -> int:
        """Ours, as long as we hold it."""
        return self.lease.epoch

    def renewal_due_ms(self) -> int:
        """When the next renewal is to be begun."""
        return self.proven_ms + self.lease.ttl_ms // RENEWALS_A_TTL

    def may_answer(self, now_ms: int) -> bool:
        """Returns whether nobody else can hold the lease yet."""
        return self.left_ms(now_ms) > 0

    def left_ms(self, now_ms: int) -> int:
        """Returns for how long that is so without another renewal; 0 for no longer."""
        margin_ms = self.lease.ttl_ms // MARGIN_SHARE
        if self.successor is not None:
            return 0
        return max(0, self.lease.ttl_ms - margin_ms - (now_ms - self.proven_ms))

    def renew(self, clock: Clock) -> Steps[None]:
        """Renews the lease; raises Fenced if somebody else holds the lease."""
        yield from self._write(clock, is_released=False)

    def release(self, clock: Clock) -> Steps[None]:
        """Lets the next one take over at once. Whoever calls this has stopped answering."""
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
    """Takes the lease that was last seen, in the next epoch; raises Fenced if another is faster.

    `floor` is the highest epoch that is known from elsewhere. Whether it may be taken is for the
    caller to ask (`Watch.may_take`): a person may know that the holder is gone.
    """
    last = max(floor, watch.lease.epoch if watch.lease is not None else 0)
    wanted = Lease(last + 1, me.holder, me.url, me.ttl_ms)
    begun_ms = clock()
    found = yield from _replaced(wanted, watch.etag)
    if found.data != lease_file.encode(wanted):
        raise taken_by(_decoded(found.data))
    return Holding(wanted, found.etag, begun_ms)


def _replaced(wanted: Lease, etag: str | None) -> Steps[Stored]:
    """Puts a lease in the place of what a tag names; returns what is there then, ours or not."""
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
