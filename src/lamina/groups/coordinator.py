"""The coordinator of a store: all classic groups, their members' timers, their committed offsets.

One coordinator serves every door: Kafka's, a served `lamina.Consumer` and an embedded one are
members of the same groups and commit to the same place.

    join, sync ─────────────────▶ a future, resolved when the meeting is over
    heartbeat, leave, commit ───▶ an answer at once

Rules.
1. Memberships live in memory: after a restart members are unknown, and join again. Offsets are
   durable.
2. One lock guards the state of all groups, and nothing slow happens under it: futures are resolved
   and offsets are written outside.
3. One thread watches the deadlines, while there is a member; it ends with the last one.
4. What a client can make is bounded: groups, members, and the bytes that members leave here.
5. A name stands for one kind of group: the members of share groups are in `share`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future

from lamina.api.memberships import (
    Assigned,
    Committed,
    Identity,
    Joined,
    JoinRequest,
    Membership,
    Refusal,
)
from lamina.errors import Closed, InvalidRequest, LaminaError
from lamina.groups.member_list import weight_of
from lamina.groups.membership import ClassicGroup, Headcount, MembershipSettings
from lamina.groups.offset_journal import METADATA_BYTES_MAX, CommittedOffsets, Queued
from lamina.groups.settings_book import SettingsBook
from lamina.groups.share_coordinator import ShareCoordinator

GROUPS_MAX = 10_000
NAME_BYTES_MAX = 1024
MEMBER_BYTES_MAX = 1 << 20
ALL_MEMBERS_BYTES_MAX = 64 << 20
"""What the members of all groups may take in memory: some 50,000 of usual size."""
OFFSETS_RETENTION_MS = 7 * 24 * 3600 * 1000
"""How long offsets of a group without members are kept: as long as Kafka keeps them."""
PRESENCE_MS = 3600 * 1000
"""So often it is written down that a group has members: they need not commit to be there."""


def monotonic_ms() -> int:
    """The clock of sessions: one that does not jump."""
    return time.monotonic_ns() // 1_000_000


class Coordinator:
    """All classic groups of a store."""

    def __init__(
        self,
        offsets: CommittedOffsets,
        is_shared: Callable[[str], bool] = lambda _: False,
        *,
        settings: MembershipSettings = MembershipSettings(),
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self.offsets = offsets
        self.share = ShareCoordinator(self.is_known, clock_ms)
        """The members of share groups."""
        self.share_settings = SettingsBook(offsets.boot)
        self._is_shared = is_shared
        self._settings = settings
        self._clock_ms = clock_ms
        self._groups: dict[str, ClassicGroup] = {}
        self._weights: dict[str, int] = {}
        self._weight_bytes = 0
        self._opened_ms = offsets.boot.steady()
        self._changed = threading.Condition()
        self._watcher: threading.Thread | None = None
        self._closed = False

    # ------------------------------------------------------------------ members

    def join(self, group: str, request: JoinRequest) -> Future[Joined]:
        """Joins a group; the future has the answer when the group's members have met."""
        answer: Future[Joined] = Future()
        if not _is_name(group):
            answer.set_result(Joined(Refusal.INVALID_GROUP_ID, member_id=request.member_id))
            return answer
        if weight_of(request) > MEMBER_BYTES_MAX:
            raise InvalidRequest(f"a member's metadata has at most {MEMBER_BYTES_MAX} bytes")
        with self._changed:
            self._require_open()
            if self._is_another_kind(group):
                refusal = Refusal.INCONSISTENT_GROUP_PROTOCOL
                answer.set_result(Joined(refusal, member_id=request.member_id))
                return answer
            found = self._groups.get(group)
            if found is None:
                if len(self._groups) >= GROUPS_MAX and not self._drop_an_empty_group():
                    raise InvalidRequest(f"there are {GROUPS_MAX} groups with members already")
                found = ClassicGroup(group, self._settings)
            self._refuse_too_much(found.growth_bytes(request))
            self._groups[group] = found
            found.join(request, _resolver(answer), self._clock_ms())
            deliver = self._settled(found)
        _deliver(deliver)
        return answer

    def sync(
        self,
        group: str,
        who: Identity,
        assignments: Mapping[str, bytes],
        *,
        protocol: tuple[str | None, str | None] = (None, None),
    ) -> Future[Assigned]:
        """Asks for a member's share; the leader brings everybody's."""
        answer: Future[Assigned] = Future()
        size = sum(len(name) + len(share) for name, share in assignments.items())
        if size > MEMBER_BYTES_MAX:
            raise InvalidRequest(f"assignments have at most {MEMBER_BYTES_MAX} bytes")
        with self._changed:
            self._require_open()
            found = self._groups.get(group)
            if found is None:
                answer.set_result(Assigned(Refusal.UNKNOWN_MEMBER_ID))
                return answer
            if size:
                self._refuse_too_much(size)
            reply = _resolver(answer)
            found.sync(who, assignments, reply, self._clock_ms(), protocol=protocol)
            deliver = self._settled(found)
        _deliver(deliver)
        return answer

    def heartbeat(self, group: str, who: Identity) -> Refusal | None:
        """Notes that a member is alive; returns why it is not a member, or that it must rejoin."""
        with self._changed:
            self._require_open()
            found = self._groups.get(group)
            if found is None:
                return Refusal.UNKNOWN_MEMBER_ID
            return found.heartbeat(who, self._clock_ms())

    def leave(self, group: str, members: Sequence[tuple[str, str | None]]) -> list[Refusal | None]:
        """Ends memberships, each named by its id, its instance, or both."""
        with self._changed:
            self._require_open()
            found = self._groups.get(group)
            if found is None:
                return [Refusal.UNKNOWN_MEMBER_ID] * len(members)
            answers = [found.leave(*each, self._clock_ms()) for each in members]
            deliver = self._settled(found)
        _deliver(deliver)
        return answers

    # ------------------------------------------------------------------ offsets

    def commit(
        self, group: str, offsets: Sequence[Committed], who: Identity = Identity("", -1)
    ) -> Refusal | None:
        """Commits offsets durably, if the group takes them from this member."""
        begun = self.begin_commit(group, offsets, who)
        if isinstance(begun, Refusal):
            return begun
        self.offsets.settle(begun)
        return None

    def begin_commit(
        self, group: str, offsets: Sequence[Committed], who: Identity = Identity("", -1)
    ) -> Refusal | Queued:
        """Queues a commit, which takes no time; `offsets.settle` has it written.

        Callers that commit twice without waiting in between keep the order of these calls.
        """
        if not _is_name(group):
            return Refusal.INVALID_GROUP_ID
        for each in offsets:
            if len(each.metadata.encode()) > METADATA_BYTES_MAX:
                raise InvalidRequest(
                    f"{each.topic}-{each.partition}: a note beside an offset has at most"
                    f" {METADATA_BYTES_MAX} bytes"
                )
        with self._changed:
            self._require_open()
            found = self._groups.get(group)
            refusal: Refusal | None
            if self._is_another_kind(group):
                refusal = Refusal.GROUP_ID_NOT_FOUND
            elif found is not None:
                refusal = found.may_commit(who, self._clock_ms())
            else:  # without members anybody may, unless it names a membership that has ended
                refusal = None if who.generation < 0 else Refusal.UNKNOWN_MEMBER_ID
            if refusal is not None:
                return refusal
            # Queued under the lock: behind it comes whatever the next generation commits.
            return self.offsets.enqueue(group, offsets)

    def may_commit(self, group: str, who: Identity) -> Refusal | None:
        """Decides whether a transaction may commit offsets of a group.

        A producer that does not say for which member is believed: it is held by its own epoch.
        """
        if not _is_name(group):
            return Refusal.INVALID_GROUP_ID
        with self._changed:
            self._require_open()
            if self._is_another_kind(group):
                return Refusal.GROUP_ID_NOT_FOUND
            if who.generation < 0 and not who.member_id and who.instance_id is None:
                return None
            found = self._groups.get(group)
            if found is None:
                return Refusal.UNKNOWN_MEMBER_ID
            return found.may_commit(who, self._clock_ms())

    def forget_offsets(self, group: str, places: Iterable[tuple[str, int]]) -> Refusal | None:
        """Forgets offsets of partitions; refused while the group has members."""
        with self._changed:  # so that nobody joins and commits between the check and the entry
            refusal = self._refuses_removal(group)
            if refusal is not None:
                return refusal
            queued = self.offsets.enqueue_forget(group, places)
        self.offsets.settle(queued)
        return None

    def _refuses_removal(self, group: str) -> Refusal | None:
        if not self._is_known(group):
            return Refusal.GROUP_ID_NOT_FOUND
        return Refusal.NON_EMPTY_GROUP if self.has_members(group) else None

    def delete(self, group: str) -> Refusal | None:
        """Deletes a group with all that it committed; refused while it has members."""
        with self._changed:
            refusal = self._refuses_removal(group)
            if refusal is not None:
                return refusal
            queued = self.offsets.enqueue_delete(group)
        self.offsets.settle(queued)
        with self._changed:
            found = self._groups.get(group)
            if found is not None and found.is_empty:
                del self._groups[group]
        return None

    def expire(self, now_ms: int) -> list[str]:
        """Deletes groups that were without members for long; returns their names.

        Members of a quiet topic commit nothing: that they were there is written down, so that a
        restart, of theirs or ours, does not make their group look old. After an opening nobody is
        there yet, and nothing is deleted.
        """
        newest_ms = {name: self.offsets.newest_ms(name) for name in self.offsets.groups()}
        quiet = [name for name, at_ms in newest_ms.items() if at_ms < now_ms - PRESENCE_MS]
        with contextlib.suppress(LaminaError):  # a full disk, say: the next time
            self.offsets.renew([name for name in quiet if self.has_members(name)])
        if now_ms < self._opened_ms + PRESENCE_MS:
            return []
        old = [name for name in quiet if newest_ms[name] < now_ms - OFFSETS_RETENTION_MS]
        return [name for name in old if self.delete(name) is None]

    # ------------------------------------------------------------------ looking

    def failures(self) -> dict[str, str]:
        """Returns why offsets cannot be committed any more, if that is so."""
        failure = self.offsets.failure
        return {} if failure is None else {"committed offsets": str(failure)}

    def has_members(self, group: str) -> bool:
        """Returns whether a group has a member, or one that is about to join."""
        with self._changed:
            found = self._groups.get(group)
            return found is not None and not found.is_empty

    def member_of(self, group: str, instance_id: str) -> str:
        """Returns the id of the member that holds an instance; empty if there is none."""
        with self._changed:
            found = self._groups.get(group)
            return found.member_of(instance_id) if found is not None else ""

    def is_known(self, group: str) -> bool:
        """Whether a classic group of a name has members, or has committed offsets."""
        with self._changed:
            return self._is_known(group)

    def _is_known(self, group: str) -> bool:
        return group in self._groups or bool(self.offsets.of(group))

    def is_share(self, group: str) -> bool:
        """Whether a name is that of a share group, with members or without."""
        with self._changed:
            return self._is_another_kind(group) or (
                not self._is_known(group) and self._is_shared(group)
            )

    def _is_another_kind(self, group: str) -> bool:
        """Whether a share group has members: a name stands for one kind of group.

        One without any may go on as a classic group, as those of earlier releases do.
        """
        return not self._is_known(group) and self.share.has_members(group)

    def groups(self) -> list[str]:
        """Lists every group that has members or committed offsets."""
        with self._changed:
            joined = set(self._groups)
        return sorted(joined | set(self.offsets.groups()))

    def headcounts(self) -> list[Headcount]:
        """Counts the members of every group that was joined since the start, by name."""
        with self._changed:
            counted = [Headcount(name, g.state, g.size) for name, g in self._groups.items()]
        return sorted(counted)

    def describe(self, group: str) -> Membership | None:
        """Describes a group's members; None for a group that is not known."""
        with self._changed:
            found = self._groups.get(group)
            if found is not None:
                return found.describe()
        if self.offsets.of(group):
            return Membership(group, "Empty", "", "", 0, ())
        return None

    # ------------------------------------------------------------------ time

    def _settled(self, group: ClassicGroup) -> Iterable[Callable[[], None]]:
        """Takes a group's answers, and has its deadlines watched."""
        self._weigh(group)
        if not group.is_empty:
            if self._watcher is None:
                self._watcher = threading.Thread(
                    target=self._watch, name="lamina-coordinator", daemon=True
                )
                self._watcher.start()
            self._changed.notify_all()
        return group.take_answers()

    def _weigh(self, group: ClassicGroup) -> None:
        """Notes what a group takes in memory, after each change of its members."""
        weight = 0 if group.is_empty else group.weight_bytes
        self._weight_bytes += weight - self._weights.pop(group.name, 0)
        if weight:
            self._weights[group.name] = weight

    def _refuse_too_much(self, growth_bytes: int) -> None:
        if growth_bytes > 0 and self._weight_bytes + growth_bytes > ALL_MEMBERS_BYTES_MAX:
            raise InvalidRequest(
                f"the members of all groups take {self._weight_bytes} bytes; at most"
                f" {ALL_MEMBERS_BYTES_MAX} are allowed: wait until some have left"
            )

    def _watch(self) -> None:
        while True:
            deliver: list[Callable[[], None]] = []
            with self._changed:
                next_ms = self._next_deadline_ms()
                if self._closed or next_ms is None:
                    self._watcher = None
                    return
                wait_ms = next_ms - self._clock_ms()
                if wait_ms > 0:
                    self._changed.wait(wait_ms / 1000)
                now_ms = self._clock_ms()
                for group in self._groups.values():
                    due_ms = group.next_deadline_ms()
                    if due_ms is not None and due_ms <= now_ms:
                        group.advance(now_ms)
                        self._weigh(group)
                        deliver += group.take_answers()
            _deliver(deliver)

    def _next_deadline_ms(self) -> int | None:
        found = (group.next_deadline_ms() for group in self._groups.values())
        return min((each for each in found if each is not None), default=None)

    def _drop_an_empty_group(self) -> bool:
        for name, group in self._groups.items():
            if group.is_empty:
                del self._groups[name]
                return True
        return False

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

    def close(self) -> None:
        """Refuses all waiting members; they join again when the store is back."""
        self.share.close()
        deliver: list[Callable[[], None]] = []
        with self._changed:
            self._closed = True
            for group in self._groups.values():
                group.close()
                deliver += group.take_answers()
            self._changed.notify_all()
            watcher = self._watcher
        _deliver(deliver)
        if watcher is not None:
            watcher.join()


def _is_name(group: str) -> bool:
    try:
        return 0 < len(group.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


def _resolver(answer: Future[Joined] | Future[Assigned]) -> Callable[[Joined | Assigned], None]:
    def resolve(result: Joined | Assigned) -> None:
        if answer.set_running_or_notify_cancel():  # a client that hung up waits no more
            answer.set_result(result)  # type: ignore[arg-type]

    return resolve


def _deliver(answers: Iterable[Callable[[], None]]) -> None:
    for answer in answers:
        answer()
