"""What a caller is told: answers and errors without the topics that its key is not for.

Rules.
1. Everything that leaves for a caller passes here, also what goes wrong half-way through an answer.
2. A text is never searched for names: what it speaks of is known where it is made
   (`LaminaError.speaks_of`). Searching would tell which names there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from lamina.errors import LaminaError, UnknownTopic
from lamina.server.auth import Caller
from lamina.server.health import topic_of

_TOPICS_OF: dict[str, Callable[[Any], tuple[str, ...]]] = {
    "topics": lambda name: (name,),
    "groups": lambda pair: (pair[0],),
    "routers": lambda router: (router.source, router.target),
    "tier_status": lambda status: (status.topic,),
    "failures": lambda item: (topic_of(item[0]),),
}
"""Of what is told for all topics: the names of its topics, or what begins with them."""


def visible(caller: Caller, name: str, result: Any) -> Any:
    """Leaves out of an answer what belongs to topics that the caller may not know of."""
    topics_of = _TOPICS_OF.get(name)
    if topics_of is None or not caller.prefix:
        return result

    def is_covered(each: Any) -> bool:
        return all(topic.startswith(caller.prefix) for topic in topics_of(each))

    if isinstance(result, dict):
        return dict(filter(is_covered, result.items()))
    return [each for each in result if is_covered(each)]


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
