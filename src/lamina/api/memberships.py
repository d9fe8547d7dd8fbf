"""Who reads what in a consumer group of the classic kind: what members ask, and what they get.

These are Kafka's groups, under Kafka's words: members join, one of them (the leader) assigns the
partitions, and everybody syncs to learn its share. Numbers of refusals are Kafka's error codes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Literal, TypeAlias

from lamina.arguments import Rule, many, raw, rule_of, text
from lamina.errors import InvalidRequest

MembershipState: TypeAlias = Literal[
    "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"
]


class Refusal(IntEnum):
    """Why a group refuses a member; the numbers are those of Kafka's protocol."""

    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    GROUP_ID_NOT_FOUND = 69
    NON_EMPTY_GROUP = 68
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    FENCED_MEMBER_EPOCH = 110


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What a consumer that wants to be a member says of itself.

    `protocols` are the assignors that it knows, preferred first, each with its own metadata.
    With `must_know_id` a consumer without an id is given one and has to join again with it; with
    `may_skip` a leader that comes back understands that its group needs no new assignment.
    """

    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    must_know_id: bool = False
    may_skip: bool = False


@dataclass(frozen=True, slots=True)
class Joiner:
    """A member as the leader sees it: what it subscribed to is in its metadata."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a join; `members` are for the leader only, which assigns the partitions."""

    refusal: Refusal | None = None
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    member_id: str = ""
    members: tuple[Joiner, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Assigned:
    """The answer to a sync: the share of one member, in its assignor's own bytes."""

    refusal: Refusal | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Identity:
    """How a member of a certain generation names itself."""

    member_id: str
    generation: int
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member as administrators see it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a group at one moment."""

    group: str
    state: MembershipState
    protocol_type: str
    protocol: str
    generation: int
    members: tuple[MemberInfo, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset: the next one to read, and what the consumer noted beside it."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


# ---------------------------------------------------------------------- checked arguments


def _protocols(name: str, value: Any) -> tuple[tuple[str, bytes], ...]:
    """Checks assignors with their metadata."""
    if isinstance(value, str | bytes) or not isinstance(value, tuple | list):
        raise InvalidRequest(f"{name} must be pairs of a name and bytes")
    for each in value:
        if not isinstance(each, tuple | list) or len(each) != 2:
            raise InvalidRequest(f"an item of {name} must be a name and bytes")
    return tuple((text(f"a name in {name}", each[0]), raw(name, each[1])) for each in value)


def _of_kind(kind: type) -> Rule:
    """Makes the rule of a dataclass: the right one, and each field of its type."""
    more = {"tuple[tuple[str, bytes], ...]": _protocols}
    rules = {each.name: rule_of(each.type, more) for each in fields(kind)}

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise InvalidRequest(f"{name} must be a {kind.__name__}, not a {type(value).__name__}")
        checked = {
            each: rule(f"{name}.{each}", getattr(value, each))
            for each, rule in rules.items()
            if rule is not None
        }
        return replace(value, **checked)  # type: ignore[type-var]

    return check


def _assignments(name: str, value: Any) -> dict[str, bytes]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name} must be bytes by member, not a {type(value).__name__}")
    return {text(f"a member in {name}", key): raw(name, share) for key, share in value.items()}


RULES: dict[str, Rule] = {
    "JoinRequest": _of_kind(JoinRequest),
    "Identity": _of_kind(Identity),
    "Sequence[Committed]": many(_of_kind(Committed)),
    "Mapping[str, bytes]": _assignments,
}
"""What the annotations of calls about memberships ask of an argument."""
