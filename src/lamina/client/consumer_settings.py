"""What a consumer may be told, under confluent-kafka's names; an unknown name is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lamina.arguments import count, mapping, text
from lamina.client.assignors import ASSIGNORS
from lamina.client.group_member import MemberSettings
from lamina.errors import InvalidRequest

DEFAULTS: dict[str, Any] = {
    "group.id": "",
    "group.instance.id": None,
    "client.id": "lamina",
    "session.timeout.ms": 45_000,
    "heartbeat.interval.ms": 3_000,
    "max.poll.interval.ms": 300_000,
    "partition.assignment.strategy": "range,roundrobin",
    "auto.offset.reset": "none",
    "enable.auto.commit": False,
    "auto.commit.interval.ms": 5000,
    "max.poll.records": 500,
    "fetch.max.bytes": 1 << 20,
}
_RESETS = ("earliest", "latest", "none")


def settings_of(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns every setting, by default or as given; raises InvalidRequest for an unknown one."""
    settings = DEFAULTS | dict(mapping("config", config or {}))
    for key in settings:
        if key not in DEFAULTS:
            raise InvalidRequest(f"unknown consumer setting {key!r}; known: {', '.join(DEFAULTS)}")
    if settings["auto.offset.reset"] not in _RESETS:
        raise InvalidRequest(f"auto.offset.reset must be one of {', '.join(_RESETS)}")
    return settings


def member_settings(settings: Mapping[str, Any]) -> MemberSettings:
    """Reads how a member of a group behaves."""
    instance = settings["group.instance.id"]
    return MemberSettings(
        text("client.id", settings["client.id"]),
        None if instance is None else text("group.instance.id", instance),
        count("session.timeout.ms", settings["session.timeout.ms"]),
        count("heartbeat.interval.ms", settings["heartbeat.interval.ms"]),
        count("max.poll.interval.ms", settings["max.poll.interval.ms"]),
        _assignors(settings["partition.assignment.strategy"]),
    )


def commit_interval_s(settings: Mapping[str, Any]) -> float | None:
    """Reads how often to commit by itself; None for never."""
    asked = settings["enable.auto.commit"]
    if asked not in (True, False, "true", "false"):
        raise InvalidRequest(f"enable.auto.commit is true or false, not {asked!r}")
    interval_ms = count("auto.commit.interval.ms", settings["auto.commit.interval.ms"], 0)
    return interval_ms / 1000 if asked in (True, "true") else None


def _assignors(asked: object) -> tuple[str, ...]:
    """Reads the names of assignors, preferred first."""
    names = text("partition.assignment.strategy", asked).replace(" ", "").split(",")
    for each in names:
        if each not in ASSIGNORS:
            raise InvalidRequest(
                f"partition.assignment.strategy knows no {each!r}, only {', '.join(ASSIGNORS)}"
            )
    if len({ASSIGNORS[each].is_cooperative for each in names}) > 1:
        raise InvalidRequest(
            "partition.assignment.strategy cannot have cooperative-sticky beside an assignor by"
            " which members give all up: name one kind"
        )
    return tuple(dict.fromkeys(names))
