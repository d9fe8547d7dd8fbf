"""Where a cell happens: a root with one damaged file, and how its users open and read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from lamina.errors import LaminaError, NewerFormat, RecordsMissing, Unavailable
from lamina.store.store import Store
from lamina_torture.cross.damages import Damaged
from lamina_torture.cross.templates import NEIGHBOUR, TOPIC, Record, Template, open_store
from lamina_torture.rows import demand

EVERYWHERE = ("data", "cold", "archive")
"""The places whose copies a user may fall back on."""
LOCAL = ("data", "cold")
IN_ARCHIVE = ("archive",)
STEPS_MAX = 4096


@dataclass
class Saw:
    """What a user saw: records, the ranges it was told are missing, an exit code, a refusal.

    `served` is None for a user that reads no records. `reach` names the places whose copies it
    could have read. `removed` are offsets that it was asked to remove.
    """

    served: dict[Record, bytes] | None = None
    told: set[Record] = field(default_factory=set)
    postponed: dict[Record, LaminaError] = field(default_factory=dict)
    """Offsets at which it was told to come back: later, or with a newer version."""
    reach: tuple[str, ...] = EVERYWHERE
    topics: tuple[str, ...] = (TOPIC, NEIGHBOUR)
    code: int | None = None
    output: str = ""
    refused: LaminaError | None = None
    removed: Callable[[Record], bool] = lambda record: False
    is_finder: bool = False
    """Whether it looks for damage, and so must have found this one."""


class Scanner(Protocol):
    """What can be scanned: every kind of store."""

    def earliest_offset(self, topic: str, partition: int = 0) -> int:
        """Returns the first offset that can be read."""

    def latest_offset(self, topic: str, partition: int = 0) -> int:
        """Returns one past the last offset."""


@dataclass(frozen=True)
class Ground:
    """A root that is laid out and damaged."""

    root: Path
    template: Template
    damaged: Damaged
    heal: Callable[[], None] = lambda: None
    """Makes a page that could not be read readable again."""

    @property
    def data(self) -> str:
        """The store's directory."""
        return str(self.root / "data")

    @property
    def archive(self) -> str:
        """The archive's directory."""
        return str(self.root / "archive")

    @property
    def where(self) -> Path:
        """The damaged file."""
        return self.root / self.damaged.path

    def open(self) -> Store:
        """Opens the store."""
        return open_store(self.root)

    def expected(self, reach: tuple[str, ...], topics: tuple[str, ...]) -> set[Record]:
        """Returns the records of which a place within reach has a sound copy."""
        return {
            copy.record
            for copy in self.template.copies
            if copy.record[0] in topics
            and copy.path.split("/")[0] in reach
            and copy not in self.damaged.hurt
        }

    def known(self, reach: tuple[str, ...], topics: tuple[str, ...]) -> set[Record]:
        """Returns the records of which a place within reach has any copy."""
        return {
            copy.record
            for copy in self.template.copies
            if copy.record[0] in topics and copy.path.split("/")[0] in reach
        }


Reading = Callable[[str, int], Iterable[pa.RecordBatch]]
"""Reads a topic from an offset on, up to where it is told of something missing, or the end."""


def read_over(store: Scanner, reading: Reading, topics: Iterable[str]) -> Saw:
    """Reads topics to their ends, over every gap that the reader is told of.

    What cannot be read for now (Unavailable), or not by this version, is stepped over one offset at
    a time: whatever lies behind it must be served to those who ask for it.
    """
    saw = Saw(served={})
    for topic in topics:
        for step in _steps(store, reading, topic):
            if isinstance(step, pa.RecordBatch):
                assert saw.served is not None
                saw.served |= rows_of(topic, step)
            elif isinstance(step, range):
                saw.told |= {(topic, offset) for offset in step}
            else:
                saw.told.add((topic, step[0]))
                saw.postponed[topic, step[0]] = step[1]
        saw.told |= given_reasons(store, topic)
    return saw


def rows_of(topic: str, batch: pa.RecordBatch) -> dict[Record, bytes]:
    """Returns a batch's values by their offsets."""
    offsets = batch.column("offset").to_pylist()
    values = batch.column("value").to_pylist()
    return {(topic, offset): value for offset, value in zip(offsets, values, strict=True)}


def _steps(
    store: Scanner, reading: Reading, topic: str
) -> Iterator[pa.RecordBatch | range | tuple[int, LaminaError]]:
    at = store.earliest_offset(topic)
    for _ in range(STEPS_MAX):
        try:
            for batch in reading(topic, at):
                yield batch
                if batch.num_rows:
                    at = int(batch.column("offset")[batch.num_rows - 1].as_py()) + 1
            return
        except RecordsMissing as missing:
            demand(missing.end > at, "I12", f"after offset {at} of {topic} there is no way on")
            yield range(max(at, missing.first), missing.end)
            at = missing.end
        except (Unavailable, NewerFormat) as error:
            if at >= store.latest_offset(topic):
                raise
            yield at, error
            at += 1
    demand(False, "I12", f"reading {topic} never ends")


def given_reasons(store: Any, topic: str) -> set[Record]:
    """Returns the offsets for which a store's ledger gives a reason, where it can be asked."""
    if not hasattr(store, "gaps"):
        return set()
    return {
        (topic, offset)
        for gap in store.gaps(topic)
        for offset in range(gap.first, min(gap.end, gap.first + STEPS_MAX))
    }
