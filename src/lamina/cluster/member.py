"""A member's part in its cluster, turn by turn: it watches, takes over, holds, hands over.

                nobody holds, or an operator asks
      STANDBY ────────────────────────────────────▶ OPENING ──opened──▶ HOLDER
        ▲ ▲ ▲                                          │                  │  │
        │ │ └──── fenced, or it cannot be opened ──────┘                  │  │ to end, or asked to
        │ └────── fenced: another one has taken over ─────────────────────┘  ▼
        └──────── released, and for a ttl it takes nothing ─────────────── LEAVING

A turn (`turn`) is what is due now: a look at the lease, a takeover, or a renewal. Whoever runs the
member gives it turns, opens a store when it has become OPENING, closes it when it is STANDBY again,
and asks it before each answer.

Rules.
1. It answers as HOLDER only, and only until its time by the lease is up (`Holding.may_answer`). If
   a later renewal succeeds, it answers again: nobody has held the cluster in between.
2. It also renews while a store is being opened or closed: either may take longer than a ttl.
3. The object store may fail in any turn, which ends the turn. The next one begins by reading the
   lease: it shows what became of a takeover whose answer was lost.
4. A lease that names this very process, which does not hold it, is taken again at once: it was
   taken in a turn that failed, and nobody answers by it. The same for one of an epoch whose process
   is known to have ended (`ended_epoch`), at our address: elsewhere may be a copy of its directory.
   Nobody has served in an epoch that was taken in a turn that failed (`vain_epoch`).
5. A member that has handed over waits for a ttl before it takes the cluster back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from lamina.cluster.lease import RENEWALS_A_TTL, Clock, Holding, Identity, Watch
from lamina.cluster.steps import Steps
from lamina.cluster.tails import Takeover, take_over
from lamina.errors import Fenced, LaminaError, NotPrimary, Unavailable

LOOKS_A_TTL = 10
"""How often a standby looks at the lease; it learns of a release within such a part of the ttl."""
HISTORY_MAX = 100


class Role(Enum):
    """What a member is."""

    STANDBY = "standby"
    OPENING = "opening"
    HOLDER = "holder"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Change:
    """Somebody held the cluster from a moment on, as this member saw it, by its own clock."""

    epoch: int
    holder: str
    url: str
    seen_ms: int


@dataclass(slots=True)
class Member:
    """One process in a cluster."""

    me: Identity
    clock: Clock
    role: Role = Role.STANDBY
    watch: Watch = field(default_factory=Watch)
    taken: Takeover | None = None
    """What the last takeover found; there while the member is anything but STANDBY."""
    trouble: str = ""
    """Why the last turn failed; empty when it did not."""
    ended_epoch: int = 0
    """In which epoch a process that is known to have ended served our directory; 0 for none."""
    vain_epoch: int = 0
    """From which epoch on all were taken by this process in turns that failed; 0 for none."""
    history: list[Change] = field(default_factory=list)
    _last_epoch: int = 0
    _is_promoted: bool = False
    _may_finish: bool = False
    """Whether calls that were begun before it left are still answered."""
    _not_before_ms: int = 0
    _next_ms: int = 0

    # ------------------------------------------------------------------ may it answer

    @property
    def holding(self) -> Holding | None:
        """The lease in our hands; None while it is not."""
        return None if self.taken is None else self.taken.holding

    @property
    def epoch(self) -> int:
        """The epoch of the lease that was last seen, or that is ours; 0 before the first look."""
        if self.holding is not None:
            return self.holding.epoch
        return self.watch.lease.epoch if self.watch.lease is not None else 0

    def refusal(self, *, was_begun: bool = False) -> NotPrimary | None:
        """Returns why this member does not answer now, and who would; None if it does.

        What was begun by a holder it may finish while it leaves.
        """
        taken = self.taken  # read once: doors ask from other threads
        is_finishing = was_begun and self._may_finish and self.role is Role.LEAVING
        if (self.role is Role.HOLDER or is_finishing) and taken is not None:
            if taken.holding.may_answer(self.clock()):
                return None
            return NotPrimary("the lease of the cluster could not be renewed in time")
        if self.role is not Role.STANDBY:
            return NotPrimary(f"the holder of the cluster is {self.role.value} it: try again")
        lease = self.watch.lease
        if lease is None or lease.is_released or lease.holder == self.me.holder:
            return NotPrimary("nobody holds the cluster just now: try again")
        if self.watch.may_take(self.clock()):
            return NotPrimary("the holder of the cluster has not been heard of: try again")
        return NotPrimary(
            f"the cluster is held by {lease.url or lease.holder} in epoch {lease.epoch}", lease.url
        )

    # ------------------------------------------------------------------ what is due

    def due_ms(self) -> int:
        """When the next turn is due."""
        return self._next_ms

    def turn(self) -> Steps[None]:
        """Does what is due. Never raises for what the object store, or another member, did."""
        pause_ms = self.me.ttl_ms // LOOKS_A_TTL
        try:
            if self.holding is not None:
                pause_ms = self.me.ttl_ms // RENEWALS_A_TTL
                yield from self.holding.renew(self.clock)
            else:
                yield from self._watch()
        except Fenced as error:
            self.lost(error)
        except Unavailable as error:
            self.trouble = str(error)
            pause_ms = self.me.ttl_ms // LOOKS_A_TTL
        except LaminaError as error:  # a damaged lease or window: a person has to look
            self.trouble = str(error)
            self._not_before_ms = self.clock() + self.me.ttl_ms
        else:
            self.trouble = ""
        self._next_ms = self.clock() + pause_ms

    def _watch(self) -> Steps[None]:
        yield from self.watch.look(self.clock)
        if self.watch.lease is not None:
            self.me.check_cluster(self.watch.lease)
        self._note()
        self._note_vain()
        if not self._is_to_take():
            return
        taken = yield from take_over(self.watch, self.me, self.clock)
        self._last_epoch = epoch = taken.holding.epoch
        self.taken = replace(taken, vain=epoch - self.vain_epoch if self.vain_epoch else 0)
        self.role = Role.OPENING
        self._is_promoted = False
        self._note()

    def _is_to_take(self) -> bool:
        if self._is_promoted:
            return True
        if self.clock() < self._not_before_ms:
            return False
        lease = self.watch.lease
        is_ours = lease is not None and (
            lease.holder == self.me.holder
            or (lease.epoch, lease.url) == (self.ended_epoch, self.me.url)
        )
        return is_ours or self.watch.may_take(self.clock())

    def _note_vain(self) -> None:
        lease = self.watch.lease
        if lease is None or lease.holder != self.me.holder or lease.epoch <= self._last_epoch:
            self.vain_epoch = 0
        elif not self.vain_epoch:
            self.vain_epoch = lease.epoch

    def _note(self) -> None:
        lease = self.watch.lease if self.holding is None else self.holding.lease
        if lease is None or (self.history and self.history[-1].epoch == lease.epoch):
            return
        self.history.append(Change(lease.epoch, lease.holder, lease.url, self.clock()))
        del self.history[:-HISTORY_MAX]

    # ------------------------------------------------------------------ what is decided elsewhere

    def opened(self) -> None:
        """The store is open: from now on calls are answered, as long as the lease says so."""
        if self.role is Role.OPENING:
            self.role = Role.HOLDER

    def lost(self, why: LaminaError) -> None:
        """The cluster is another's, or cannot be served from here: back to watching."""
        self.taken, self.role, self.trouble = None, Role.STANDBY, str(why)
        self.watch = Watch()
        self._next_ms = self.clock()

    def promote(self) -> None:
        """A person says that the holder is gone, or may be fenced: the next turn takes over."""
        if self.role is Role.STANDBY:
            self._is_promoted = True
            self.hasten()

    def hasten(self) -> None:
        """A person says that the cluster was released, and is to be ours: the next turn begins."""
        self._not_before_ms = self._next_ms = self.clock()

    def leave(self) -> bool:
        """Takes no calls any more, to hand over; returns whether there is anything to hand over."""
        if self.role in (Role.HOLDER, Role.OPENING):
            self._may_finish = self.role is Role.HOLDER
            self.role = Role.LEAVING
        return self.role is Role.LEAVING

    def release(self) -> Steps[None]:
        """Lets the next one take over at once; the store is closed, and all of it is shipped.

        Raises what the object store raises: then the others wait for the ttl.
        """
        holding = self.holding
        assert holding is not None, "it has left what it held"
        self._may_finish = False  # whoever reads the release answers from then on
        try:
            yield from holding.release(self.clock)
        finally:
            self._not_before_ms = self.clock() + self.me.ttl_ms
            self.lost(NotPrimary("the cluster was handed over"))
