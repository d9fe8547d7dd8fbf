"""Where `lamina group seek` moves each partition; planned and shown before anything moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lamina.cli.offsets import parse, resolve
from lamina.errors import InvalidRequest, UnknownGroup

if TYPE_CHECKING:
    from lamina.api import StoreApi

Place: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Goal:
    """Finds the wanted offset of a partition (None: leave it), and the topics it names."""

    offset_of: Callable[[Place], int | None]
    topics: frozenset[str] = frozenset()


def goal_of(store: StoreApi, to: str | None, to_group: str | None, to_file: str | None) -> Goal:
    """Reads the one of the three options that is given."""
    if to is not None:
        from lamina.storage.files import wall_clock_ms

        asked = parse(to, wall_clock_ms())
        if asked.end is not None:
            raise InvalidRequest(f"--to takes one place, not a range: {to!r}")
        return Goal(lambda place: resolve(asked.start, store, *place))
    if to_group is not None:
        found = _places_of_group(store, to_group)
        if not found:
            raise UnknownGroup(f"there is no group {to_group!r}")
    else:
        assert to_file is not None
        found = _places_of_file(to_file)
    return Goal(found.get, frozenset(topic for topic, _ in found))


def _places_of_group(store: StoreApi, group: str) -> dict[Place, int]:
    return {
        (topic, part.partition): part.committed
        for topic, name in store.groups()
        if name == group
        for part in store.describe_group(topic, name).partitions
    }


def _places_of_file(path: str) -> dict[Place, int]:
    found = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            words = line.split()
            if not words:
                continue
            whole = len(words) == 3 and words[1].isdecimal() and words[2].isdecimal()
            if not whole:
                raise InvalidRequest(f"{path}: line {number} is not TOPIC PARTITION OFFSET")
            found[words[0], int(words[1])] = int(words[2])
    return found


def plan(store: StoreApi, group: str, goal: Goal, topics: list[str]) -> list[dict[str, Any]]:
    """Returns from and to where each partition moves, never beyond what the log holds."""
    rows = []
    known = set(store.groups())
    for topic in topics:
        described = store.describe_group(topic, group) if (topic, group) in known else None
        count = len(store.describe_topic(topic).partitions)
        for partition in range(count):
            wanted = goal.offset_of((topic, partition))
            if wanted is None:
                continue
            earliest = store.earliest_offset(topic, partition)
            target = min(max(wanted, earliest), store.latest_offset(topic, partition))
            before = None if described is None else described.partitions[partition].committed
            row: dict[str, Any] = {"topic": topic, "partition": partition}
            rows.append(row | {"prior_offset": before, "current_offset": target})
    return rows


def move(store: Any, group: str, row: dict[str, Any]) -> None:
    """Moves one partition as planned."""
    if row["prior_offset"] is None:
        store.group(row["topic"], group)
    here = {"to": row["current_offset"], "partitions": [row["partition"]]}
    store.reset_group(row["topic"], group, **here, execute=True)
