"""What can be asked of a served store: one row a method, with the scope that it needs.

Server, client, HTTP and its OpenAPI page are all made from this table; a new method of `Store`
is served by one more row. Arguments and results are described by the method's own annotations.
Appending and reading carry Arrow and have their own messages (`wire.messages`).

Rules.
1. An operation's name is its method's name, on the store and on the client.
2. `topic` names the argument that holds a topic: keys with a prefix are checked against it.
3. `repeatable` says that doing it twice is the same as once: only then is it retried by itself.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from lamina.engine.store import Store

Scope: TypeAlias = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "write", "admin")


@dataclass(frozen=True)
class Operation:
    """A method of the store that can be called from elsewhere, and its place in HTTP."""

    name: str
    scope: Scope
    verb: str
    path: str
    topic: str | None = "topic"
    repeatable: bool = True

    @property
    def method(self) -> Callable[..., Any]:
        """The store's own method."""
        found: Callable[..., Any] = getattr(Store, self.name)
        return found

    @cached_property
    def signature(self) -> inspect.Signature:
        """The method's parameters, without the store itself."""
        whole = inspect.signature(self.method)
        return whole.replace(parameters=list(whole.parameters.values())[1:])

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The types of the parameters; of the result under `return`."""
        return typing.get_type_hints(self.method)


_PARTITION = "/v1/topics/{topic}/partitions/{partition}"

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("topics", "read", "GET", "/v1/topics", topic=None),
        Operation("describe_topic", "read", "GET", "/v1/topics/{name}", topic="name"),
        Operation("create_topic", "admin", "POST", "/v1/topics", topic="name", repeatable=False),
        Operation("alter_topic", "admin", "PATCH", "/v1/topics/{name}", topic="name"),
        Operation(
            "delete_topic", "admin", "DELETE", "/v1/topics/{name}", topic="name", repeatable=False
        ),
        Operation("earliest_offset", "read", "GET", f"{_PARTITION}/earliest"),
        Operation("latest_offset", "read", "GET", f"{_PARTITION}/latest"),
        Operation("offset_for_time", "read", "GET", f"{_PARTITION}/offset_for_time"),
        Operation("gaps", "read", "GET", f"{_PARTITION}/gaps"),
        Operation("segments", "read", "GET", f"{_PARTITION}/segments"),
        Operation("trim", "admin", "POST", f"{_PARTITION}/trim"),
        Operation("explain_retention", "read", "GET", f"{_PARTITION}/retention"),
        Operation("apply_retention", "admin", "POST", f"{_PARTITION}/retention"),
        Operation("roll", "admin", "POST", f"{_PARTITION}/roll"),
        Operation("flush", "admin", "POST", "/v1/flush", topic=None),
        Operation("maintain", "admin", "POST", "/v1/maintain", topic=None),
    )
}
"""Every operation by name."""
