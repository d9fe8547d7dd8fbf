"""What a caller may see: answers and errors without topics outside of its key's prefix.

A share group belongs to its topic. A classic group, which may read any topics, belongs to whoever
its own name does: for other keys it is not there, not even in the topics that they may read.

Rules.
1. Everything that leaves for a caller passes here, also what goes wrong half-way through an answer.
2. A text is never searched for names: what it speaks of is known where it is made
   (`LaminaError.speaks_of`). Searching would tell which names there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from lamina.errors import LaminaError, UnknownGroup, UnknownTopic
from lamina.server.auth import Caller
from lamina.server.health import topic_of
from lamina.store.group_calls import committed_in
from lamina.store.store import Store
from lamina.wire.operations import Operation

_TOPICS_OF: dict[str, Callable[[Any], tuple[str, ...]]] = {
    "topics": lambda name: (name,),
    "groups": lambda pair: (pair[0],),
    "routers": lambda router: (router.source, router.target),
    "committed_offsets": lambda committed: (committed.topic,),
    "tier_status": lambda status: (status.topic,),
    "failures": lambda item: (topic_of(item[0]),),
}
"""Of what is told for all topics: the names of its topics, or what begins with them."""


def may_know(caller: Caller, store: Store, topic: str, group: str) -> bool:
    """Returns whether a caller that may read a topic may know that a group reads it."""
    if group.startswith(caller.prefix):
        return True
    return not committed_in(store.coordinator.offsets, topic, group)


def require_group(caller: Caller, store: Store, topic: str, group: str) -> None:
    """Raises UnknownGroup for a group of a topic that the caller may not know of."""
    if not may_know(caller, store, topic, group):
        raise UnknownGroup(f"topic {topic!r} has no group {group!r}")


def require_rest(
    caller: Caller, store: Store, operation: Operation, arguments: dict[str, Any]
) -> None:
    """Refuses what the arguments name beyond the one topic that every operation is checked by."""
    if operation.name == "commit_offsets":
        for each in arguments["offsets"]:
            caller.require(operation.scope, each.topic, operation.name)
    if {"topic", "group"} <= arguments.keys() and not operation.is_of_group:
        require_group(caller, store, arguments["topic"], arguments["group"])


def visible(caller: Caller, store: Store, name: str, result: Any) -> Any:
    """Leaves out of an answer what belongs to topics that the caller may not know of."""
    topics_of = _TOPICS_OF.get(name)
    if topics_of is None or not caller.prefix:
        return result

    def is_covered(each: Any) -> bool:
        return all(topic.startswith(caller.prefix) for topic in topics_of(each))

    if isinstance(result, dict):
        return dict(filter(is_covered, result.items()))
    found = [each for each in result if is_covered(each)]
    return found if name != "groups" else [pair for pair in found if may_know(caller, store, *pair)]


def withhold(caller: Caller, error: LaminaError) -> None:
    """Takes out of an error what it tells of topics that the caller may not know of."""
    if isinstance(error, UnknownTopic):
        error.known = tuple(each for each in error.known if each.startswith(caller.prefix))
    if not all(topic.startswith(caller.prefix) for topic in error.speaks_of):
        error.args = ("this depends on topics that the key is not for, and failed there",)
        error.speaks_of = ()


@contextlib.contextmanager
def to(caller: Caller) -> Iterator[None]:
    """Has what goes wrong told as the caller may know it."""
    try:
        yield
    except LaminaError as error:
        withhold(caller, error)
        raise


def anybody(error: LaminaError) -> str:
    """Describes an error to callers that are not known yet."""
    return str(error.args[0]) if isinstance(error, UnknownTopic) else str(error)
