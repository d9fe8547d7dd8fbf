"""Share sessions: what each share consumer looks at, and what it holds.

    epoch 0 opens ──▶ 1, 2, 3, … one per request ──▶ -1 closes
                        └── closed as well when the connection or the membership ends

Rules.
1. A session belongs to a member of a group, and to the connection that opened it. When either ends,
   the session ends, and the records that it holds are released.
2. A member can settle only records that its session holds.
3. If a session ends while records are being acquired for it, the thread that acquired them releases
   them: `hold` returns False.
4. The number of sessions is bounded.
"""

from __future__ import annotations

import contextlib
import threading

from lamina.errors import LaminaError
from lamina.groups.holding import Holding
from lamina.groups.state import Chosen
from lamina.store.store import Store
from lamina.wire.kafka.error_codes import ErrorCode

SESSIONS_MAX = 2_000
EPOCH_MAX = (1 << 31) - 1
OPENS, CLOSES = 0, -1
Place = tuple[str, int]


class ShareSession:
    """One session. The pool's threads change it, one at a time."""

    def __init__(self, group: str, member_id: str, owner: object) -> None:
        self.group = group
        self.member_id = member_id
        self.owner = owner
        self.epoch = 1
        """The epoch that the next request must have."""
        self.partitions: dict[tuple[bytes, int], None] = {}
        """The partitions that are fetched, by topic id and number, in order of arrival."""
        self.turn = 0
        self.settling = threading.Lock()
        """Held while acknowledgements are settled: two requests may be at work at once."""
        self._held: dict[Place, Holding] = {}
        self._changing = threading.Lock()
        self._is_over = False

    def hold(self, place: Place, chosen: Chosen, deadline_ms: int, now_ms: int) -> bool:
        """Notes acquired records; returns False if the session has ended meanwhile."""
        with self._changing:
            if not self._is_over:
                known = self._held.get(place, Holding())
                self._held[place] = known.with_more(chosen, deadline_ms, now_ms)
            return not self._is_over

    def held(self, place: Place) -> Holding:
        """Returns what is held of a partition."""
        with self._changing:
            return self._held.get(place, Holding())

    def settled(self, place: Place, done: Chosen, renewed: Chosen, deadline_ms: int) -> None:
        """Notes which records are no longer held, and which leases were extended."""
        with self._changing:
            known = self._held.get(place)
            if known is None:
                return
            left = known.renewed(renewed, deadline_ms).without(done)
            self._held[place] = left
            if not len(left.offsets):
                del self._held[place]

    def end(self) -> dict[Place, Holding]:
        """Ends the session; returns what it held."""
        with self._changing:
            self._is_over = True
            held, self._held = self._held, {}
            return held


class ShareSessions:
    """All sessions of the door."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._changing = threading.Lock()

    def open(
        self, group: str, member_id: str, owner: object
    ) -> tuple[ShareSession | ErrorCode, ShareSession | None]:
        """Opens a session; returns it, and the one that it replaces, which is to be released."""
        with self._changing:
            before = self._sessions.get((group, member_id))
            if before is None and len(self._sessions) >= SESSIONS_MAX:
                return ErrorCode.SHARE_SESSION_LIMIT_REACHED, None
            made = self._sessions[group, member_id] = ShareSession(group, member_id, owner)
            return made, before

    def find(self, group: str, member_id: str, epoch: int) -> ShareSession | ErrorCode:
        """Returns the session that a request names, and counts its epoch up."""
        with self._changing:
            found = self._sessions.get((group, member_id))
            if found is None:
                return ErrorCode.SHARE_SESSION_NOT_FOUND
            if epoch == CLOSES:
                del self._sessions[group, member_id]
            elif epoch != found.epoch:
                return ErrorCode.INVALID_SHARE_SESSION_EPOCH
            else:
                found.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
            return found

    def take_of_member(self, group: str, member_id: str) -> list[ShareSession]:
        """Takes the session of a member out."""
        with self._changing:
            found = self._sessions.pop((group, member_id), None)
            return [] if found is None else [found]

    def take_of_owner(self, owner: object) -> list[ShareSession]:
        """Takes the sessions of a connection out."""
        with self._changing:
            found = [each for each in self._sessions.values() if each.owner is owner]
            for each in found:
                del self._sessions[each.group, each.member_id]
            return found


def release(store: Store, sessions: list[ShareSession]) -> None:
    """Ends sessions and gives back what they hold; what cannot be given back ends by itself."""
    for session in sessions:
        with session.settling:  # what is being settled is not given back
            held = session.end()
        for (topic, number), holding in held.items():
            with contextlib.suppress(LaminaError):
                group = store.group(topic, session.group, start="none")
                group.partition(number).release(holding.offsets, holding.epochs)
