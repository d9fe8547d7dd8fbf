"""What can be asked of a served store: one row per method, with the scope that it needs.

Server, client, HTTP and its OpenAPI page are all made from this table; a new method of `StoreApi`
is served by one more row. Arguments and results are described by the method's own annotations.
Appending and reading carry Arrow and have their own messages (`wire.messages`). Methods of a
consumer group are rows, too: named `group.ack`, they take the topic and the group first.

Rules.
1. An operation's name is its method's name, on the store and on the client.
2. `topic` names the argument that holds a topic: keys with a prefix are checked against it. Of a
   classic group, which may read any topics, it is the group's own name that must have the prefix.
3. `repeatable` says that doing it twice is the same as once: only then is it retried by itself.
4. What changes something that lasts needs more than `read`: consuming with a group does.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from lamina.api import GroupApi, GroupInfo, StoreApi

Scope: TypeAlias = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "write", "admin")


@dataclass(frozen=True, slots=True)
class Named:
    """A record as one who holds it names it: what a poll said of it."""

    offset: int
    partition: int | None = None
    epoch: int | None = None


_HINTS: dict[str, Any] = {"held": list[int] | list[Named], "acks": int | str}
"""What JSON has for arguments that take more in Python."""
_NAMING = tuple(
    inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str)
    for name in ("topic", "group")
)


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
    def is_of_group(self) -> bool:
        """Whether it is a method of a consumer group."""
        return self.name.startswith("group.")

    @property
    def method(self) -> Callable[..., Any]:
        """The store's or the group's own method."""
        found = getattr(GroupApi if self.is_of_group else StoreApi, self.name.split(".")[-1])
        method: Callable[..., Any] = getattr(found, "fget", found)
        return method

    @cached_property
    def signature(self) -> inspect.Signature:
        """The method's parameters, without the store or group itself."""
        whole = inspect.signature(self.method)
        naming = _NAMING if self.is_of_group else ()
        return whole.replace(parameters=[*naming, *list(whole.parameters.values())[1:]])

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The types of the parameters; of the result under `return`."""
        found = typing.get_type_hints(self.method)
        if self.is_of_group:
            found |= {"topic": str, "group": str}
        found |= {name: hint for name, hint in _HINTS.items() if name in found}
        return found | ({"return": GroupInfo} if found["return"] is GroupApi else {})


_PARTITION = "/v1/topics/{topic}/partitions/{partition}"
_GROUP = "/v1/topics/{topic}/groups/{group}"
_CLASSIC = "/v1/groups/{group}"

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("topics", "read", "GET", "/v1/topics", topic=None),
        Operation("describe_topic", "read", "GET", "/v1/topics/{name}", topic="name"),
        Operation("create_topic", "admin", "POST", "/v1/topics", topic="name", repeatable=False),
        Operation("alter_topic", "admin", "PATCH", "/v1/topics/{name}", topic="name"),
        Operation(
            "add_partitions", "admin", "POST", "/v1/topics/{topic}/partitions", repeatable=False
        ),
        Operation(
            "delete_topic", "admin", "DELETE", "/v1/topics/{name}", topic="name", repeatable=False
        ),
        Operation("schema", "read", "GET", "/v1/topics/{topic}/schema"),
        Operation("schemas", "read", "GET", "/v1/topics/{topic}/schemas"),
        Operation("set_schema", "admin", "POST", "/v1/topics/{topic}/schemas"),
        Operation("routers", "read", "GET", "/v1/routers", topic=None),
        Operation("create_router", "admin", "POST", "/v1/routers", topic=None, repeatable=False),
        Operation("alter_router", "admin", "PATCH", "/v1/routers/{name}", topic=None),
        Operation(
            "delete_router", "admin", "DELETE", "/v1/routers/{name}", topic=None, repeatable=False
        ),
        Operation("format_of", "read", "GET", "/v1/topics/{topic}/format"),
        Operation("earliest_offset", "read", "GET", f"{_PARTITION}/earliest"),
        Operation("latest_offset", "read", "GET", f"{_PARTITION}/latest"),
        Operation("offset_for_time", "read", "GET", f"{_PARTITION}/offset_for_time"),
        Operation("gaps", "read", "GET", f"{_PARTITION}/gaps"),
        Operation("segments", "read", "GET", f"{_PARTITION}/segments"),
        Operation("trim", "admin", "POST", f"{_PARTITION}/trim"),
        Operation("delete_records", "admin", "POST", f"{_PARTITION}/delete_records"),
        Operation("delete", "admin", "POST", f"{_PARTITION}/delete", repeatable=False),
        Operation("explain_retention", "read", "GET", f"{_PARTITION}/retention"),
        Operation("apply_retention", "admin", "POST", f"{_PARTITION}/retention"),
        Operation("roll", "admin", "POST", f"{_PARTITION}/roll"),
        Operation("producer_position", "read", "GET", f"{_PARTITION}/producers/{{producer_id}}"),
        Operation("flush", "admin", "POST", "/v1/flush", topic=None),
        Operation("maintain", "admin", "POST", "/v1/maintain", topic=None),
        Operation("archive", "admin", "POST", "/v1/archive", topic=None),
        Operation("tier_status", "read", "GET", "/v1/tier", topic=None),
        Operation("failures", "read", "GET", "/v1/failures", topic=None),
        Operation("groups", "read", "GET", "/v1/groups"),
        Operation("group", "write", "POST", "/v1/topics/{topic}/groups"),
        Operation("describe_group", "read", "GET", _GROUP),
        Operation("reset_group", "admin", "POST", f"{_GROUP}/reset", repeatable=False),
        Operation("delete_group", "admin", "DELETE", _GROUP, repeatable=False),
        Operation("join_group", "write", "POST", f"{_CLASSIC}/join", topic="group"),
        Operation("sync_group", "write", "POST", f"{_CLASSIC}/sync", topic="group"),
        Operation("heartbeat", "write", "POST", f"{_CLASSIC}/heartbeat", topic="group"),
        Operation("leave_group", "write", "POST", f"{_CLASSIC}/leave", topic="group"),
        Operation("commit_offsets", "write", "POST", f"{_CLASSIC}/offsets", topic="group"),
        Operation("committed_offsets", "read", "GET", f"{_CLASSIC}/offsets", topic="group"),
        Operation("describe_members", "read", "GET", f"{_CLASSIC}/members", topic="group"),
        Operation("group.ack", "write", "POST", f"{_GROUP}/ack"),
        Operation("group.release", "write", "POST", f"{_GROUP}/release", repeatable=False),
        Operation("group.extend", "write", "POST", f"{_GROUP}/extend"),
        Operation("group.reject", "write", "POST", f"{_GROUP}/reject", repeatable=False),
        Operation("group.commit", "write", "POST", f"{_GROUP}/commit"),
        Operation("group.committed", "read", "GET", f"{_GROUP}/committed"),
        Operation("group.lag", "read", "GET", f"{_GROUP}/lag"),
        Operation("group.skipped", "read", "GET", f"{_GROUP}/skipped"),
    )
}
"""Every operation by name."""
