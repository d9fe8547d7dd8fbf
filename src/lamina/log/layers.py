"""The layer: a run of offsets that lies in one place. A partition is a pile of them, oldest first.

    archived objects ── cold directory ── sealed segments ── active segment ── write-ahead log

Every format and every kind of store returns its pile from `layers()`. Retention, lag, the archiver,
counts, `topic describe --segments`, the console's picture and Spark's planner all call it, and none
of them looks at files. What no layer holds is a gap, and the ledger has its reason.

Rules.
1. Layers are in order and do not overlap. They reach from the earliest offset that can be read, or
   below it where a layer was removed in part, to the written end; the last one may be empty.
2. Local layers win: an archived object counts as far as nothing local holds its records.
3. What is archived is in the pile also before the archive has been asked: as the ranges that the
   ledger names, whose sizes are not known yet.
4. Making a layer reads no file. Its times may: a sealed segment's index is loaded when asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from lamina.api import SegmentFacts
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.ledger import Ledger
from lamina.formats.ranges import Span
from lamina.log.directory import Place
from lamina.storage.paths import ObjectKey

if TYPE_CHECKING:
    from lamina.log.cold import Cold

NOT_ASKED = "the archive, which has not been asked yet"


class Kind(Enum):
    """The kind of place that a layer lies in."""

    OBJECT = "archived object"
    DIRECTORY = "cold directory"
    SEALED = "sealed segment"
    ACTIVE = "active segment"
    WAL = "write-ahead log"


class Source(Protocol):
    """What a layer's records are read from, as far as the pile needs to know it."""

    @property
    def where(self) -> str:
        """The path of its file, or the key of its object."""

    @property
    def oldest_ms(self) -> int | None:
        """About the time of its first record; None if that is not known."""

    @property
    def newest_ms(self) -> int | None:
        """The greatest time of its records; None if that is not known."""


class Known(NamedTuple):
    """A source whose name and times are known beforehand."""

    where: str = ""
    oldest_ms: int | None = None
    newest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectSource:
    """An archived object."""

    entry: ArchivedObject
    where: str

    @property
    def oldest_ms(self) -> int | None:
        """The least time of its records."""
        return self.entry.min_timestamp_ms if is_timed(self.entry) else None

    @property
    def newest_ms(self) -> int | None:
        """The greatest time of its records."""
        return self.entry.max_timestamp_ms if is_timed(self.entry) else None


class Layer(NamedTuple):
    """Offsets from `base_offset` up to `next_offset`, exclusive, that lie in one place.

    `removed` counts those of its offsets that have no record any more: deleted singly, or trimmed.
    `archived` is set for a local layer if the archive has all of it as well.
    """

    kind: Kind
    base_offset: int
    next_offset: int
    size_bytes: int
    source: Source
    removed: int = 0
    archived: bool = False

    @property
    def oldest_ms(self) -> int | None:
        """About the time of its first record; None if that is not known."""
        return self.source.oldest_ms

    @property
    def newest_ms(self) -> int | None:
        """The greatest time of its records; None if that is not known."""
        return self.source.newest_ms

    @property
    def where(self) -> str:
        """The path of its file, or the key of its object."""
        return self.source.where

    @property
    def is_sealed(self) -> bool:
        """Whether it never changes again."""
        return self.kind not in (Kind.ACTIVE, Kind.WAL)

    @property
    def is_cold(self) -> bool:
        """Whether it lies in the archive alone, or in the cold directory."""
        return self.kind in (Kind.OBJECT, Kind.DIRECTORY)

    @property
    def records(self) -> int:
        """How many records a cap counts."""
        return self.next_offset - self.base_offset - self.removed

    def cut(self, first: int, end: int) -> Layer:
        """Returns the part that holds some offsets, with its share of the bytes."""
        first, end = max(first, self.base_offset), min(end, self.next_offset)
        whole = self.next_offset - self.base_offset
        if end - first == whole:
            return self
        share = max(0, end - first) / whole
        return self._replace(
            base_offset=first, next_offset=end, size_bytes=int(self.size_bytes * share)
        )

    def described(self) -> SegmentFacts:
        """Returns it as the public API describes it."""
        return SegmentFacts(
            self.base_offset,
            self.next_offset,
            self.size_bytes,
            self.newest_ms,
            sealed=self.is_sealed,
            cold=self.is_cold,
            removed=self.removed,
            least_timestamp_ms=(
                self.source.oldest_ms if isinstance(self.source, ObjectSource) else None
            ),
        )


# ---------------------------------------------------------------------- the archived part


def spans_of(cold: Cold | None) -> list[Span] | None:
    """Returns which offsets the objects span; None where the archive has not been asked yet."""
    if cold is None or not cold.is_loaded:
        return None
    return [(each.base_offset, each.next_offset) for each in cold.entries]


def only_archived(
    entries: Iterable[ArchivedObject], earliest: int, local: int
) -> list[ArchivedObject]:
    """Returns the objects that hold offsets from `earliest` on and below the local ones."""
    return [each for each in entries if earliest < each.next_offset and each.base_offset < local]


def is_timed(entry: ArchivedObject) -> bool:
    """Returns whether the list knows the times of an object's records."""
    return (entry.min_timestamp_ms, entry.max_timestamp_ms) != (0, 0)


def key_of(topic: str, partition: int, entry: ArchivedObject) -> str:
    """Returns the key of a listed object."""
    base, generation, epoch = entry.base_offset, entry.generation, entry.epoch
    return ObjectKey(topic, partition, base, generation, epoch).name


def object_layer(topic: str, partition: int, entry: ArchivedObject) -> Layer:
    """Returns the layer that an archived object is."""
    source = ObjectSource(entry, key_of(topic, partition, entry))
    return Layer(
        Kind.OBJECT, entry.base_offset, entry.next_offset, entry.size_bytes, source, archived=True
    )


def archived_layers(
    place: Place, cold: Cold | None, ledger: Ledger, bounds: tuple[int, int]
) -> list[Layer]:
    """Returns what only the archive holds between the earliest offset and the local ones."""
    earliest, local = bounds
    if cold is not None and cold.entries:
        found = only_archived(cold.entries, earliest, local)
        every = (object_layer(place.topic, place.partition, each) for each in found)
        return [each.cut(each.base_offset, local) for each in every]
    if cold is not None and cold.is_loaded:
        return []
    spans = [(max(gap.first, earliest), min(gap.end, local)) for gap in ledger.archived()]
    return [
        Layer(Kind.OBJECT, first, end, 0, Known(NOT_ASKED), archived=True)
        for first, end in spans
        if first < end
    ]


def below(floor: int, first: int, end: int) -> int:
    """Returns how many offsets of a range lie below the floor, where all was deleted."""
    return max(0, min(floor, end) - first)


def archived_end(cold: Cold | None) -> int:
    """One past the last archived offset; 0 where nothing is known to be archived."""
    return cold.entries[-1].next_offset if cold is not None and cold.entries else 0


# ---------------------------------------------------------------------- questions to a pile


def objects_of(pile: Iterable[Layer]) -> list[Layer]:
    """Returns the archived objects of a pile that are known."""
    return [each for each in pile if isinstance(each.source, ObjectSource)]


def sealed_of(pile: Iterable[Layer]) -> list[Layer]:
    """Returns what lies locally and never changes again, oldest first."""
    return [each for each in pile if each.kind in (Kind.DIRECTORY, Kind.SEALED)]


def bytes_from(pile: Sequence[Layer], offset: int, before: Callable[[Layer, int], int]) -> int:
    """Returns about how many bytes there are from an offset on.

    `before` returns how many bytes of a layer do not count: those of records before the offset, and
    a header.
    """
    above = [each for each in pile if offset < each.next_offset]
    return sum(max(0, each.size_bytes - before(each, offset)) for each in above)
