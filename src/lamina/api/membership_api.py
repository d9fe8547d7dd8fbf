"""What members of classic groups ask a store: to join, to share, to stay, to commit.

`lamina.Consumer` makes these calls by itself, and the Kafka door answers the same questions in
Kafka's words. Refusals are values here, because the protocol goes on after most of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from lamina.api.memberships import (
    RULES,
    Assigned,
    Committed,
    Identity,
    Joined,
    JoinRequest,
    Membership,
    Refusal,
)
from lamina.api.portraits import Shown
from lamina.arguments import TypedCalls
from lamina.errors import InvalidRequest, LaminaError


class MembershipApi(Shown, TypedCalls, rules=RULES):
    """The part of a store that members of classic groups talk to."""

    _CANNOT: ClassVar[str] = "this kind of store cannot do {call}"
    """What a kind says of calls that it does not answer."""

    def _cannot(self, call: str) -> LaminaError:
        """Makes the error of a call that this kind of store does not answer."""
        return InvalidRequest(self._CANNOT.format(call=call))

    def join_group(self, group: str, request: JoinRequest, *, wait_ms: int = 0) -> Joined:
        """Joins a classic group; waits until its members have met, and asks to join again else.

        Refusals are values: `MEMBER_ID_REQUIRED` gives an id to join with, `REBALANCE_IN_PROGRESS`
        says that the time is up. `lamina.Consumer` does all of this by itself.
        """
        raise self._cannot("join_group")

    def sync_group(
        self,
        group: str,
        member: Identity,
        assignments: Mapping[str, bytes],
        *,
        wait_ms: int = 0,
    ) -> Assigned:
        """Asks for a member's share of a classic group; the leader brings everybody's."""
        raise self._cannot("sync_group")

    def heartbeat(self, group: str, member: Identity) -> Refusal | None:
        """Notes that a member of a classic group is alive; returns why it has no share any more."""
        raise self._cannot("heartbeat")

    def leave_group(self, group: str, member_id: str) -> Refusal | None:
        """Ends a membership of a classic group: its share goes to the others."""
        raise self._cannot("leave_group")

    def commit_offsets(
        self, group: str, offsets: Sequence[Committed], member: Identity | None = None
    ) -> Refusal | None:
        """Commits offsets of a classic group; they are durable when this returns None.

        While the group has members, only they may: `member` names the one that commits.
        """
        raise self._cannot("commit_offsets")

    def committed_offsets(self, group: str) -> list[Committed]:
        """Returns what a classic group has committed, by topic and partition."""
        raise self._cannot("committed_offsets")

    def describe_members(self, group: str) -> Membership:
        """Describes the members of a classic group and what each of them reads."""
        raise self._cannot("describe_members")
