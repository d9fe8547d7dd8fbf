"""What can be done from the console, each by its name, with the scope that it needs.

Rules.
1. What cannot be undone is done only when the body repeats the name of what it is done to: the page
   has a person type it.
2. The same checks as everywhere: scope and prefix of the key, then the store's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lamina.errors import InvalidRequest
from lamina.server import jsonrows, telling
from lamina.server.auth import Caller
from lamina.server.console import asked
from lamina.server.console.long_work import Jobs
from lamina.server.shared_groups import OpenGroups
from lamina.store.store import Store
from lamina.wire.operations import Scope
from lamina.wire.values import to_plain


@dataclass(frozen=True, slots=True)
class Doing:
    """One action on its way: by whom, on what, with which arguments."""

    store: Store
    jobs: Jobs
    caller: Caller
    given: Mapping[str, Any]
    groups: OpenGroups


@dataclass(frozen=True, slots=True)
class Action:
    """Something that can be done. `topic` names the argument that holds the topic, if one does."""

    scope: Scope
    run: Callable[[Doing], Any]
    topic: str | None = "topic"
    final: bool = False


def _config(given: Mapping[str, Any]) -> dict[str, Any]:
    config = given.get("config") or {}
    if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise InvalidRequest("config must be an object of settings")
    return config


def _create_topic(doing: Doing) -> None:
    given = doing.given
    doing.store.create_topic(
        asked.text(given, "topic"),
        partitions=asked.number(given, "partitions", 1),
        format=asked.text(given, "format", "keratin"),
        config=_config(given),
    )


def _alter_topic(doing: Doing) -> None:
    doing.store.alter_topic(asked.text(doing.given, "topic"), _config(doing.given))


def _delete_topic(doing: Doing) -> None:
    topic = asked.text(doing.given, "topic")
    doing.store.delete_topic(topic)
    doing.groups.forget(topic, None)


def _produce(doing: Doing) -> dict[str, Any]:
    """Appends one record, durably: its fields are those of the HTTP API's records."""
    topic, partition = asked.text(doing.given, "topic"), doing.given.get("partition")
    number = None if partition is None else asked.number(doing.given, "partition")
    rows = jsonrows.parse([doing.given.get("record")])
    appended = doing.store.append(topic, rows, partition=number)
    return {
        "partition": appended.partition,
        "offset": appended.base_offset,
        "durability": appended.durability,
    }


def _trim(doing: Doing) -> dict[str, Any]:
    topic, partition = asked.text(doing.given, "topic"), asked.number(doing.given, "partition", 0)
    before = asked.number(doing.given, "before_offset")
    return {"earliest": doing.store.trim(topic, partition, before)}


def _plan_trim(doing: Doing) -> dict[str, Any]:
    """Returns what a trim would remove: whole layers, and for wal topics also parts of one."""
    topic, partition = asked.text(doing.given, "topic"), asked.number(doing.given, "partition", 0)
    before = asked.number(doing.given, "before_offset")
    going = [
        each
        for each in doing.store.layers(topic, partition)
        if each.state != "gone" and each.base_offset < each.next_offset <= before
    ]
    records = sum(each.next_offset - each.base_offset for each in going)
    if doing.store.format_of(topic)[0] == "wal":
        end = min(before, doing.store.latest_offset(topic, partition))
        records = max(0, end - doing.store.earliest_offset(topic, partition))
    return {"layers": len(going), "records": records}


def _delete_by_tag(doing: Doing) -> dict[str, Any]:
    topic, partition = asked.text(doing.given, "topic"), asked.number(doing.given, "partition", 0)
    tag = asked.text(doing.given, "tag")
    if not tag:
        raise InvalidRequest("name the tag whose records are to be deleted")
    return {"deleted": doing.store.delete(topic, partition, tag=tag.encode())}


def _seek_group(doing: Doing) -> dict[str, Any]:
    """Moves a group; without `execute` it only returns what it would do."""
    given = doing.given
    to: int | str | None = None
    time_ms = asked.optional_number(given, "time_ms")
    if time_ms is None:
        word = given.get("to")
        to = word if word in ("earliest", "latest") else asked.number(given, "to")
    topic, group = asked.text(given, "topic"), asked.text(given, "group")
    telling.require_group(doing.caller, doing.store, topic, group)
    moves = doing.store.reset_group(
        topic,
        group,
        to=to,
        timestamp_ms=time_ms,
        execute=given.get("execute") is True,
    )
    return {"moves": [to_plain(move) for move in moves]}


def _roll(doing: Doing) -> None:
    doing.store.roll(asked.text(doing.given, "topic"), asked.number(doing.given, "partition", 0))


def _archive(doing: Doing) -> dict[str, Any]:
    if doing.store.tier is None:
        raise InvalidRequest("the server has no archive; set `archive` and start it again")
    return doing.jobs.archive(doing.store, doing.caller.name).as_row()


def _verify(doing: Doing) -> dict[str, Any]:
    topic = asked.text(doing.given, "topic")
    return doing.jobs.verify(doing.store, topic, doing.caller.name).as_row()


def _cancel(doing: Doing) -> None:
    job = doing.jobs.get(asked.number(doing.given, "job"))
    doing.caller.require("admin", job.topic, "ending a job")
    doing.jobs.cancel(job.number)


ACTIONS: dict[str, Action] = {
    "create_topic": Action("admin", _create_topic),
    "alter_topic": Action("admin", _alter_topic),
    "delete_topic": Action("admin", _delete_topic, final=True),
    "produce": Action("write", _produce),
    "plan_trim": Action("read", _plan_trim),
    "trim": Action("admin", _trim, final=True),
    "delete_by_tag": Action("admin", _delete_by_tag, final=True),
    "seek_group": Action("admin", _seek_group),
    "roll": Action("admin", _roll),
    "archive": Action("admin", _archive, topic=None),
    "verify": Action("admin", _verify),
    "cancel": Action("admin", _cancel, topic=None),
}
"""Every action by its name in the path."""


def check_confirmed(action: Action, given: Mapping[str, Any]) -> None:
    """Refuses a final action whose body does not repeat the topic's name."""
    if action.final and given.get("confirm") != given.get(action.topic or ""):
        raise InvalidRequest("this cannot be undone: `confirm` must repeat the topic's name")
