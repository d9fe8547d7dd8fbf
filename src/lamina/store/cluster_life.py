"""The life of a process in a cluster: its turns as a member; opening and closing the store.

    thread lamina-member   looks at the lease, takes it, renews it            `cluster.member`
    thread lamina-keeper   opens the store, closes it, sets aside what diverged, keeps the replica
              │
            doors          serve(store) · drain() · retract() · follow(replica)

Rules.
1. The member's thread never waits for a disk or a door, and for the object store only a part of the
   ttl: a holder that waits too long loses its lease. Any other change of the member is an order,
   which this thread carries out between two turns.
2. The store is served before the member answers as holder, and closed before the lease is released:
   everything that was accepted is shipped by then, or is known not to be.
3. If a store cannot be opened here, another machine gets its chance: the lease is released, and
   this process does not take it for a ttl. The same goes for a store whose disk has failed.
4. A directory that another broker has served since is set aside before anything else is done here.
   One that nobody has served since goes on at once: its lock says that its last process has ended.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lamina.archive.location import is_path
from lamina.archive.open_archive import open_archive
from lamina.archive.proof import refuse_unfit
from lamina.cluster.lease import Clock, Identity
from lamina.cluster.member import Member, Role
from lamina.cluster.steps import Request, Steps, run_by
from lamina.cluster.tails import Takeover
from lamina.errors import (
    ArchiveRefused,
    ArchiveUnavailable,
    InvalidRequest,
    LaminaError,
    NotPrimary,
    Unavailable,
    typed_errors,
)
from lamina.storage import paths
from lamina.storage.files import Files, boot_clock_ms, wall_clock_ms
from lamina.storage.objects import Objects, open_hasty
from lamina.store.seat import TAIL_MS, Seat, replaced_by
from lamina.store.seat_directory import ended_epoch, kept_apart, part_from

if TYPE_CHECKING:
    from lamina.store.store import Store

TTL_MS = 15_000
_PATIENCE_SHARE = (3, 20)
"""The part of the ttl that one request about the lease may take; the margin is longer."""
_LOOK_S = 0.5
"""How often the keeper checks the disk, and retries what has failed."""
_log = logging.getLogger(__name__)


class Replica(Protocol):
    """A store for reading that follows the holder, by the archive and the windows."""

    problem: str
    """Why its last try to follow failed; empty if it succeeded."""

    def start(self, poll_ms: int) -> None:
        """Begins to follow."""

    def close(self) -> None:
        """Ends."""

    def replica_lag_ms(self) -> int:
        """Returns how far behind the holder it may be."""


class Doors(Protocol):
    """The doors through which calls come."""

    def serve(self, store: Store) -> None:
        """Takes the store: calls are answered from it as soon as the member is the holder."""

    def drain(self) -> None:
        """Waits until calls that were begun have ended; new ones are refused by now."""

    def retract(self) -> None:
        """Forgets the store, which is going to be closed."""

    def follow(self, replica: Replica | None) -> None:
        """Takes the replica, which answers reads while another process holds the cluster."""


@dataclass(frozen=True, slots=True)
class Charter:
    """What a process is in which cluster."""

    name: str
    """The cluster's: all its brokers have the same one, and no other cluster in the archive has."""
    url: str
    """Where clients find this process: an address for each door, with commas between them."""
    data: str
    archive: str | Objects
    ttl_ms: int = TTL_MS
    tail_ms: int = TAIL_MS


class Membership:
    """One process in its cluster, from `start` to `stop`.

    `opening` opens the store with a seat, `following` makes the replica, which may be None.
    """

    def __init__(
        self,
        charter: Charter,
        doors: Doors,
        files: Files,
        opening: Callable[[Seat], Store],
        following: Callable[[Objects], Replica | None] = lambda objects: None,
        clock: Clock = boot_clock_ms,
    ) -> None:
        self.charter = charter
        self._doors = doors
        self._files = files
        self._opening = opening
        self._following = following
        self._clock = clock
        found = open_archive(charter.archive, files)
        assert found is not None, "a charter names an archive"
        self._objects = found
        self._hasty = self._in_haste()
        holder = f"{charter.name}/{uuid.uuid4().hex[:12]}"
        self.member = Member(Identity(holder, charter.url, charter.ttl_ms), clock)
        self.settled = threading.Event()
        """Set when it is known for the first time who holds the cluster, or why it is not."""
        self.takeovers = 0
        """How many times this process has begun to serve the cluster."""
        self._wrong = {"store": "", "directory": ""}
        """Why the store cannot be served here, and what keeps the directory from following."""
        self.store: Store | None = None
        self._seat: Seat | None = None
        self._taken: Takeover | None = None
        self._tried: Takeover | None = None
        """What an opening was tried for: once, for it lets go of the windows that it was given."""
        self._replica: Replica | None = None
        self._parted_epoch = 0
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._awake = threading.Event()
        self._changed = threading.Event()
        self._released = threading.Condition()
        self._is_ending = self._has_left = False
        self._threads: list[threading.Thread] = []

    def _in_haste(self) -> Objects:
        """Opens the archive for the lease: a request that hangs is given up within the margin."""
        part, whole = _PATIENCE_SHARE
        archive = self.charter.archive
        if not isinstance(archive, str) or is_path(archive) or archive.startswith("memory:"):
            return self._objects
        return open_hasty(archive, self.charter.ttl_ms * part // whole)

    # ------------------------------------------------------------------ what is asked of it

    def refusal(self, *, was_begun: bool = False) -> NotPrimary | None:
        """Returns why this process does not answer as the holder; None if it does."""
        return self.member.refusal(was_begun=was_begun)

    def replica_lag_ms(self) -> int | None:
        """Returns how far the replica may be behind; None where there is none."""
        replica = self._replica
        return None if replica is None else replica.replica_lag_ms()

    def status(self) -> dict[str, Any]:
        """Returns what this process is, who holds the cluster, and what would be lost now."""
        member, seat, now_ms = self.member, self._seat, self._clock()
        holding, lease = member.holding, member.watch.lease
        lease = holding.lease if holding is not None else lease
        wall_ms = wall_clock_ms()
        return {
            "name": self.charter.name,
            "role": member.role.value,
            "epoch": member.epoch,
            "holder": lease.url if lease is not None and not lease.is_released else "",
            "url": self.charter.url,
            "ttl_ms": self.charter.ttl_ms,
            "lease_left_ms": holding.left_ms(now_ms) if holding is not None else 0,
            "takeovers": self.takeovers,
            "tail_age_ms": seat.ship_lag_ms() if seat is not None else 0,
            "unshipped_records": seat.unshipped_records() if seat is not None else 0,
            "replica_lag_ms": self.replica_lag_ms(),
            "history": [
                {"epoch": each.epoch, "url": each.url, "at_ms": wall_ms - (now_ms - each.seen_ms)}
                for each in list(member.history)
            ],
            "diverged": kept_apart(self._files, self.charter.data),
        }

    def problems(self) -> list[str]:
        """Returns what an operator should know about."""
        wrong = (self.member.trouble, *self._wrong.values())
        found = [f"the cluster: {each}" for each in wrong if each]
        replica = self._replica
        if replica is not None and replica.problem:
            found.append(f"the replica: {replica.problem}")
        refusal = self.refusal()
        if refusal is not None and not refusal.holder:
            found.append(f"the cluster: {refusal}")
        return found

    # ------------------------------------------------------------------ what is decided elsewhere

    def promote(self, *, by_force: bool) -> None:
        """Has this process take the cluster: at once if it was released, or else by force.

        By force its holder is fenced, and loses what it has not shipped.
        """
        self._order(self.member.promote if by_force else self.member.hasten)

    def hand_over(self, timeout_s: float) -> None:
        """Lets another one take the cluster; returns when the lease is released.

        Raises NotPrimary if this process does not hold it, and Unavailable when the time is up.
        """
        if self.member.role is Role.STANDBY:
            raise self.refusal() or NotPrimary("this server does not hold the cluster")
        self._leave()
        with self._released:
            if not self._released.wait_for(self._is_out, timeout_s):
                raise Unavailable("handing over is under way, and takes longer than it should")

    def _leave(self) -> None:
        self._order(self._left)

    def _left(self) -> None:
        self.member.leave()
        self._has_left = self._is_ending

    def _is_out(self) -> bool:
        return self.member.role is Role.STANDBY and self.store is None

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Begins to take turns; returns when it is known who holds the cluster, or why not.

        Raises InvalidRequest for an archive that was proved unfit: of several that write there at
        once more than one may win, and a cluster stands on that they do not. Raises Locked if
        another process has the directory.
        """
        with contextlib.suppress(ArchiveUnavailable):  # it is looked at again before it is written
            self._refuse_unfit()
        self.member.ended_epoch = ended_epoch(self._files, self.charter.data)
        for name, run in (("lamina-member", self._take_turns), ("lamina-keeper", self._keep)):
            self._threads.append(threading.Thread(target=run, name=name, daemon=True))
            self._threads[-1].start()
        self.settled.wait()

    def _refuse_unfit(self) -> None:
        try:
            refuse_unfit(self._hasty)
        except ArchiveRefused as error:
            raise InvalidRequest(str(error)) from error

    def stop(self) -> None:
        """Hands over what it holds, and ends."""
        self._is_ending = True
        self._leave()
        self._changed.set()
        for thread in reversed(self._threads):
            thread.join()
            self._awake.set()

    # ------------------------------------------------------------------ the member's thread

    def _order(self, order: Callable[[], None]) -> None:
        self._orders.put(order)
        self._awake.set()

    def _take_turns(self) -> None:
        while not self._has_left or self._threads[1].is_alive():
            self._awake.clear()
            try:
                self._obey()
                is_over = self._has_left and self.member.role is Role.STANDBY
                wait_ms = self.member.due_ms() - self._clock()
                if wait_ms > 0 or is_over:
                    wait_ms = max(wait_ms, 10)
                    self._awake.wait(wait_ms / 1000)
                    continue
                self._carry_out(self.member.turn())
            except Exception:  # whatever it is: the next turn begins with what is there then
                _log.exception("a turn in the cluster failed")
                self._awake.wait(self.charter.ttl_ms / 10_000)
            self._after()

    def _obey(self) -> None:
        while not self._orders.empty():
            self._orders.get()()
            self._after()

    def _after(self) -> None:
        """Wakes the threads that act on the member's role."""
        if self.member.role is Role.STANDBY:
            self.settled.set()
        self._changed.set()

    def _carry_out(self, steps: Steps[None]) -> None:
        run_by(self._way, steps)

    def _way(self, request: Request) -> Objects:
        is_lease = getattr(request, "key", "") == paths.LEASE
        return self._hasty if is_lease else self._objects

    def _release(self) -> None:
        if self.member.role is not Role.LEAVING:
            return
        try:
            self._carry_out(self.member.release())
        except LaminaError as error:
            _log.warning("the lease could not be released, others wait for the ttl: %s", error)

    # ------------------------------------------------------------------ the keeper's thread

    def _keep(self) -> None:
        while not (self._has_left and self._is_out()):
            self._changed.wait(_LOOK_S)
            self._changed.clear()
            try:
                with typed_errors("what the cluster asks of this directory"):
                    while self._keep_once():
                        pass
            except Exception as error:
                if not isinstance(error, LaminaError) or self._wrong["directory"] != str(error):
                    _log.exception("what the cluster asks of this directory failed")
                self._wrong["directory"] = str(error)
            else:
                self._wrong["directory"] = ""
            with self._released:
                self._released.notify_all()
        self._let_replica_go()

    def _keep_once(self) -> bool:
        """Takes one step that the member's role asks for; returns whether there may be more."""
        taken, role = self.member.taken, self.member.role
        if self._taken is not None and taken is not self._taken:
            self._close_fenced()
        elif role is Role.LEAVING:
            self._close_to_release()
        elif role is Role.OPENING and taken is not None and taken is not self._tried:
            self._open(taken)
        else:
            if role is Role.HOLDER:
                self._let_replica_go()  # not before: until now it has answered reads
                self._look_at_disk()
            elif role is Role.STANDBY and not self._is_ending:
                self._set_aside()
                self._follow()
            return False
        return role is not Role.LEAVING

    def _open(self, taken: Takeover) -> None:
        self._tried = taken
        seat = Seat(
            taken,
            self._clock,
            tail_ms=self.charter.tail_ms,
            on_fenced=lambda error: self._order(lambda: self._lost(taken, error)),
        )
        try:
            store = self._opening(seat)
        except BaseException as error:
            self._wrong["store"] = f"the store could not be opened: {error}"
            self._order(lambda: self._give_up(taken))
            raise
        self._taken, self._seat, self.store = taken, seat, store
        self._doors.serve(store)
        self._order(lambda: self._opened(taken))

    def _opened(self, taken: Takeover) -> None:
        if self.member.taken is not taken:
            return
        self.member.opened()
        self.takeovers += 1
        self._wrong["store"] = ""
        _log.info("this server holds the cluster in epoch %d", taken.holding.epoch)
        self.settled.set()

    def _give_up(self, taken: Takeover) -> None:
        if self.member.taken is taken:
            self.member.leave()

    def _lost(self, taken: Takeover, error: LaminaError) -> None:
        if self.member.taken is taken:
            self.member.lost(error)

    def _close_fenced(self) -> None:
        """Closes the store of an epoch that is over."""
        assert self._seat is not None, "it was opened"
        assert self._taken is not None, "it was opened"
        error = NotPrimary("another server holds the cluster", was_begun=True)
        successor = self._taken.holding.successor
        if successor is not None:
            error = replaced_by(successor.holder, successor.url, successor.epoch)
        self._seat.fail(error)
        _log.error("this server holds the cluster no more: %s", self._seat.failure)
        self._close()

    def _close_to_release(self) -> None:
        if self.store is not None:
            self._doors.drain()
            self._close()
        self._order(self._release)

    def _close(self) -> None:
        store, self.store = self.store, None
        self._doors.retract()
        try:
            if store is not None:
                store.close()
        except LaminaError as error:  # of a disk that fails, say: it is closed all the same
            _log.warning("closing the store: %s", error)
        self._seat = self._taken = None

    def _look_at_disk(self) -> None:
        failures = self.store.failures() if self.store is not None else {}
        if failures:
            name, why = sorted(failures.items())[0]
            self._wrong["store"] = f"{name}: {why}"
            _log.error("this server hands the cluster over, as it cannot write: %s: %s", name, why)
            self._leave()

    # ------------------------------------------------------------------ while it is a standby

    def _set_aside(self) -> None:
        lease = self.member.watch.lease
        if lease is None or lease.epoch == self._parted_epoch:
            return
        if lease.holder == self.member.me.holder:
            return
        diverged = part_from(self._files, self.charter.data, self._objects, lease.epoch)
        self._parted_epoch = lease.epoch
        for each in diverged:
            _log.error("set aside what was never shipped: %s", asdict(each))

    def _follow(self) -> None:
        if self._replica is None:
            made = self._following(self._objects)
            if made is not None:
                made.start(self.charter.tail_ms)
            self._replica = made
            self._doors.follow(made)

    def _let_replica_go(self) -> None:
        replica, self._replica = self._replica, None
        if replica is not None:
            self._doors.follow(None)
            replica.close()
