"""Listens to what workers say, and holds the directory that they left against it.

A witness knows of one directory, over many errands: which appends were acknowledged where, what a
group acked, what was asked to be trimmed, and what a reader saw when it last looked.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from lamina.errors import RecordsMissing
from lamina.groups import dead_letters
from lamina.store.store import Store
from lamina_torture.rows import demand, violated
from lamina_torture.worker import GROUP, TOPIC, count_of, open_store, value_of

DEAD = TOPIC + dead_letters.SUFFIX
"""Where records go that were given out too often without an ack."""


@dataclass(repr=False)
class Witness:
    """What is known of a directory that workers use."""

    format: str
    names: dict[int, str] = field(default_factory=dict)
    """By first offset, the appends that were acknowledged."""
    seen: dict[int, bytes] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    trim_before: int = 0
    end: int = 0
    once: int = 0
    refused: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    """What the last worker counted (`events`), and the status with which it ended (`gone`)."""
    opened: bool = False
    is_there: bool = False
    """Whether the topic's creation was seen to end."""

    def hear(self, words: list[str]) -> None:
        """Takes note of one line."""
        match words:
            case ["open"]:
                self.opened = self.is_there = True
            case ["ack", offset, count, name]:
                demand(int(count) == count_of(name), "I1", f"{name}: {count} were acknowledged")
                known = self.names.setdefault(int(offset), name)
                demand(known == name, "I3", f"{known} and {name} were both given {offset}")
                if name == f"once-{self.once}":
                    self.once += 1
            case ["trim", before]:
                self.trim_before = max(self.trim_before, int(before))
            case ["got", *offsets]:
                again = {int(each) for each in offsets} & self.acked
                demand(not again, "I6", f"{sorted(again)[:5]} were acked and come again")
            case ["asking", *offsets]:
                self.asked |= {int(each) for each in offsets}
            case ["acked", *offsets]:
                self.acked |= {int(each) for each in offsets}
            case ["refused", kind, doing]:
                self.refused.append(f"{kind} {doing}")
            case ["error", *rest]:
                violated("I12", " ".join(rest).encode().decode("unicode_escape")[-1500:])
            case ["events" | "gone" as kind, *_, number]:
                self.numbers[kind] = int(number)
            case ["closed"]:
                pass
            case _:
                violated("I12", f"the worker said {words}")

    def check(self, directory: str) -> None:
        """Opens the directory and holds it against what is known; twice, for recovery."""
        if not os.path.exists(f"{directory}/meta/broker.id"):
            demand(not self.names, "I1", "the whole directory is gone")
            return
        with open_store(directory) as store:
            if TOPIC not in store.topics():
                demand(not self.is_there, "I1", "the topic is gone")
                return
            found = read(store)
            self._check_records(store, found)
            self._check_group(store)
        with open_store(directory) as store:
            again = read(store)
            kept = {
                at: value
                for at, value in found.items()
                if at in again or at >= min(again, default=0)
            }
            demand(kept == again, "I7", "opened once more, the records are others")

    def _check_records(self, store: Store, found: dict[int, bytes]) -> None:
        earliest, end = store.earliest_offset(TOPIC), store.latest_offset(TOPIC)
        demand(end >= self.end, "I5", f"the end moved back from {self.end} to {end}")
        allowed = max(self.trim_before, int(self.format == "wal"))
        demand(earliest <= allowed, "I8", f"it begins at {earliest}; nobody asked beyond {allowed}")
        missing = [at for at in range(earliest, end) if at not in found]
        for first, name in self.names.items():
            for row in range(max(0, earliest - first), count_of(name)):
                value = found.get(first + row)
                demand(
                    value is not None, "I1", f"{first + row} of {name} was acknowledged, is gone"
                )
                demand(value == value_of(name, row), "I1", f"{first + row} has other bytes")
        if self.format != "wal":  # which may number a record that was never durable, and says so
            demand(not missing, "I3", f"offsets {missing[:5]} are missing")
        for at, value in self.seen.items():
            demand(at < earliest or found.get(at) == value, "I5", f"{at} was read and has changed")
        self._check_appended(found)
        self.seen, self.end = found, end

    def _check_appended(self, found: dict[int, bytes]) -> None:
        starts: dict[str, int] = {}
        for at, value in found.items():
            name, _, rest = value.decode().partition("#")
            row = int(rest.partition("#")[0])
            demand(value == value_of(name, row), "I2", f"{at} holds what nobody appended")
            start = starts.setdefault(name, at - row)
            demand(start == at - row, "I2", f"{name} is there twice, at {start} and {at - row}")

    def _check_group(self, store: Store) -> None:
        if (TOPIC, GROUP) not in store.groups():
            demand(not self.acked, "I6", "the group is gone")
            return
        (part,) = store.describe_group(TOPIC, GROUP).partitions
        end = store.latest_offset(TOPIC)
        demand(part.committed <= end, "I6", f"the group is at {part.committed}, the log at {end}")
        earliest = store.earliest_offset(TOPIC)
        not_asked = [at for at in range(earliest, part.committed) if at not in self.asked]
        buried = set(read(store, DEAD).values()) if DEAD in store.topics() else set()
        there = [at for at in not_asked if at in self.seen and self.seen[at] not in buried]
        demand(not there, "I6", f"{there[:5]} count as acked: not asked for, and no dead letters")


def read(store: Store, topic: str = TOPIC) -> dict[int, bytes]:
    """Returns every durable value by its offset, over gaps."""
    found: dict[int, bytes] = {}
    at = store.earliest_offset(topic)
    while True:
        try:
            for batch in store.scan(topic, start=at):
                offsets = batch.column("offset").to_pylist()
                found.update(zip(offsets, batch.column("value").to_pylist(), strict=True))
            return found
        except RecordsMissing as missing:
            demand(missing.end > at, "I12", f"after offset {at} there is no way on")
            at = missing.end
