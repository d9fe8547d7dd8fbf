"""The members of all share groups of a store, and the clock that ends silent memberships.

What a share group has done is durable, in `registry`, one group per topic; its members are kept
here, in memory. After a restart members are unknown and come again.

Rules.
1. One lock guards the members of all groups, and nothing slow happens under it: callbacks at a
   member's end run outside.
2. A name stands for one kind of group. Of a classic and a share group that are made at the same
   moment one is refused: this one looks for the other after it has entered its member, and the
   other looks for members here before it enters its own.
3. One thread watches the deadlines, while there is a member; it ends with the last one.
4. What clients can make is bounded: groups, members, topics of a member.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from lamina.api.memberships import Refusal
from lamina.errors import Closed, InvalidRequest
from lamina.groups.membership import Headcount
from lamina.groups.share_membership import (
    JOINS,
    LEAVES,
    Counts,
    ShareAnswer,
    ShareBeat,
    ShareGroup,
    ShareMembers,
)

GROUPS_MAX = 10_000
TOPICS_MAX = 1_000
"""What one member may subscribe to."""


class ShareCoordinator:
    """The members of all share groups."""

    def __init__(self, is_classic: Callable[[str], bool], clock_ms: Callable[[], int]) -> None:
        self._is_classic = is_classic
        self._clock_ms = clock_ms
        self._groups: dict[str, ShareGroup] = {}
        self._endings: dict[tuple[str, str], Callable[[], None]] = {}
        self._changed = threading.Condition()
        self._watcher: threading.Thread | None = None
        self._closed = False

    # ------------------------------------------------------------------ members

    def heartbeat(
        self,
        group: str,
        beat: ShareBeat,
        counts: Counts,
        *,
        session_ms: int,
        on_end: Callable[[], None],
    ) -> ShareAnswer:
        """Makes a consumer a member, keeps it one, or lets it go.

        `on_end` is called when the membership is over, whatever ends it: from this call, from
        another one or from the watching thread.
        """
        if len(beat.topics or ()) > TOPICS_MAX:
            raise InvalidRequest(f"a member subscribes to at most {TOPICS_MAX} topics")
        if beat.epoch == LEAVES:
            return ShareAnswer(self.leave(group, beat.member_id), LEAVES)
        with self._changed:
            self._require_open()
            found = self._groups.get(group) or ShareGroup(group)
            if group not in self._groups and beat.epoch == JOINS:
                if len(self._groups) >= GROUPS_MAX:
                    raise InvalidRequest(f"there are {GROUPS_MAX} share groups with members")
                self._groups[group] = found
            now_ms = self._clock_ms()
            answer = found.heartbeat(beat, counts, now_ms=now_ms, session_ms=session_ms)
            if answer.refusal is None:
                self._endings[group, beat.member_id] = on_end
                self._watch_over()
            self._drop_if_empty(group)
        if answer.refusal is None and self._is_classic(group):
            self.leave(group, beat.member_id)
            return ShareAnswer(Refusal.GROUP_ID_NOT_FOUND)
        return answer

    def leave(self, group: str, member_id: str) -> Refusal | None:
        """Ends a membership at once."""
        with self._changed:
            found = self._groups.get(group)
            if found is None:
                return Refusal.UNKNOWN_MEMBER_ID
            refusal = found.leave(member_id)
            ending = self._endings.pop((group, member_id), None)
            self._drop_if_empty(group)
        if ending is not None:
            ending()
        return refusal

    def _drop_if_empty(self, group: str) -> None:
        if group in self._groups and self._groups[group].is_empty:
            del self._groups[group]

    # ------------------------------------------------------------------ looking

    def has_members(self, group: str) -> bool:
        """Whether a group has a member."""
        with self._changed:
            return group in self._groups

    def groups(self) -> list[str]:
        """Lists the groups that have members."""
        with self._changed:
            return sorted(self._groups)

    def headcounts(self) -> list[Headcount]:
        """Counts the members of every group that has any, by name."""
        with self._changed:
            counted = [Headcount(name, "Stable", g.size) for name, g in self._groups.items()]
        return sorted(counted)

    def describe(self, group: str) -> ShareMembers:
        """Describes the members of a group; one without any is empty, if there is one at all."""
        with self._changed:
            found = self._groups.get(group)
            return ShareMembers(group, "Empty", 0, ()) if found is None else found.describe()

    # ------------------------------------------------------------------ time

    def _watch_over(self) -> None:
        if self._watcher is None:
            self._watcher = threading.Thread(
                target=self._watch, name="lamina-share-coordinator", daemon=True
            )
            self._watcher.start()
        self._changed.notify_all()

    def _watch(self) -> None:
        while True:
            with self._changed:
                deadlines = [each.next_deadline_ms() for each in self._groups.values()]
                next_ms = min((each for each in deadlines if each is not None), default=None)
                if self._closed or next_ms is None:
                    self._watcher = None
                    return
                wait_ms = next_ms - self._clock_ms()
                if wait_ms > 0:
                    self._changed.wait(wait_ms / 1000)
                endings = self._expired(self._clock_ms())
            for ending in endings:
                ending()

    def _expired(self, now_ms: int) -> list[Callable[[], None]]:
        gone = [
            (name, member)
            for name, group in self._groups.items()
            for member in group.advance(now_ms)
        ]
        for name, _ in gone:
            self._drop_if_empty(name)
        return [self._endings.pop(key) for key in gone]

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

    def close(self) -> None:
        """Forgets all members; they come again when the store is back."""
        with self._changed:
            self._closed = True
            self._groups.clear()
            self._endings.clear()
            self._changed.notify_all()
            watcher = self._watcher
        if watcher is not None:
            watcher.join()
