"""Objects of the archive, rewritten: joined, or without some of their records.

Objects never change. A task reads some neighbours, leaves out what is to go, and uploads one object
of a new generation, which nobody lists yet. The driver then enters why offsets are missing, first
in the ledger and then in its archived copy, and replaces the list: from there on readers have the
new objects, and the old ones belong to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lamina.api import Gap
from lamina.archive.archiver import Archiver
from lamina.archive.encode import Naming, encode_object
from lamina.archive.object_list import Shelf
from lamina.archive.tier import policy_of
from lamina.errors import CorruptData, ObjectMissing
from lamina.formats.documents.archive_manifest import ArchivedObject, Manifest
from lamina.formats.documents.ledger import ARCHIVED, Ledger
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.ranges import Ranges, Span
from lamina.formats.strm import segment as strm_segment
from lamina.formats.strm.layout import Compression
from lamina.log.layers import Layer
from lamina.log.sealed import Archivable
from lamina.spark.jobs.archive import UNLIMITED, require_claim
from lamina.spark.jobs.bulk_lane import Descriptor
from lamina.spark.jobs.credentials import Access
from lamina.storage.objects import Objects
from lamina.store.store import Store

GAPS_MAX = 4096
"""So many of the longest new gaps are entered: the ledger is one document, read and written whole.
The others are holes inside of the span of an object that was rewritten; readers know it by that.
What is in no object's span any more is entered in any case."""


class Choice(Protocol):
    """Which records stay."""

    def __call__(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Returns for each record of a batch whether it stays."""


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbours that become one object, and what the worker has to know."""

    about: TopicFile
    partition: int
    entries: tuple[ArchivedObject, ...]
    generation: int
    writer: str
    epoch: int
    compression: Compression
    created_ms: int
    lease_epoch: int = 0
    """Under which a cluster's broker writes; `epoch` is that of the list."""
    is_listed: bool = True


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a task made of a group.

    `entry` is None if no record is left. `starts` and `ends` are the runs of offsets that were left
    out. With a `problem` nothing was written, and the group stays as it is.
    """

    entry: ArchivedObject | None = None
    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    records: int = 0
    is_changed: bool = True
    problem: str = ""


def described(
    shelf: Shelf, groups: Sequence[Sequence[ArchivedObject]], partition: Archivable, now_ms: int
) -> list[Descriptor[Group]]:
    """Describes groups of neighbours to the workers; all of them get one new generation."""
    if not groups:
        return []
    generation = shelf.next_generation()
    return [
        Descriptor(
            shelf.key_of(entries[0]),
            shelf.name,
            entries[0].base_offset,
            sum(entry.size_bytes for entry in entries),
            Group(
                shelf.about,
                shelf.partition,
                tuple(entries),
                generation,
                shelf.writer,
                shelf.manifest.fencing_epoch,
                policy_of(partition.settings).compression,
                now_ms,
                shelf.epoch,
            ),
        )
        for entries in groups
    ]


# ---------------------------------------------------------------- in the workers


@dataclass(frozen=True, slots=True)
class Rewriting:
    """The work of a task. Without `always`, a group of which every record stays is left alone."""

    access: Access
    choice: Choice | None = None
    always: bool = True
    only_counts: bool = False
    """A dry run: says how many records would go, and writes nothing."""

    def __call__(self, each: Descriptor[Group]) -> Rewritten:
        """Reads, leaves out, encodes, uploads and reads back."""
        group, objects = each.what, self.access.open()
        shelf = Shelf(objects, group.about, group.partition, group.writer, group.lease_epoch)
        if not self.only_counts:
            require_claim(shelf.load(), group.writer, group.epoch, shelf.name)
        try:
            gone = self._gone(shelf, group)
            if self.only_counts or not (self.always or len(gone)):
                return Rewritten(records=len(gone), is_changed=False)
            naming = Naming(group.about.name, group.partition, group.created_ms)
            span = group.entries[0].base_offset, group.entries[-1].next_offset
            encoded = encode_object(
                lambda _: self._kept(shelf, group),
                span,
                naming,
                group.compression,
                target_bytes=UNLIMITED,
            )
        except (CorruptData, ObjectMissing) as error:
            return Rewritten(problem=str(error))
        entry = None
        if encoded is not None:
            rewritten = replace(encoded.entry, generation=group.generation)
            entry = Archiver(shelf, _Nothing()).store(replace(encoded, entry=rewritten))
        bounds = Ranges.of_sequences(gone).bounds.tolist()
        return Rewritten(entry, tuple(bounds[::2]), tuple(bounds[1::2]), len(gone))

    def _gone(self, shelf: Shelf, group: Group) -> NDArray[np.int64]:
        """The offsets of the records that do not stay."""
        if self.choice is None:
            return np.empty(0, dtype=np.int64)
        parts = [np.empty(0, dtype=np.int64)]
        for batch in batches_of(shelf, group.entries):
            parts.append(batch.column("offset").to_numpy()[~self.choice(batch)])
        return np.concatenate(parts)

    def _kept(self, shelf: Shelf, group: Group) -> Iterator[pa.RecordBatch]:
        for batch in batches_of(shelf, group.entries):
            if self.choice is None:
                yield batch
                continue
            stays = self.choice(batch)
            if stays.any():
                yield batch if stays.all() else batch.filter(pa.array(stays))


def batches_of(shelf: Shelf, entries: Sequence[ArchivedObject]) -> Iterator[pa.RecordBatch]:
    """Yields the records of some objects, one object in memory at a time."""
    for entry in entries:
        yield from strm_segment.read_from(shelf.objects.read(shelf.key_of(entry)).data)


class _Nothing:
    """A source without records: an object that is there is ours to the byte, or no match."""

    def sealed(self) -> list[Layer]:
        return []

    def records(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        return iter(())

    def gone_from(self, offset: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Stays:
    """Keeps the records at some offsets, and those without a key."""

    offsets: NDArray[np.int64]

    def __call__(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Looks the offsets up."""
        offsets = batch.column("offset").to_numpy()
        rows = np.searchsorted(self.offsets, offsets)
        rows[rows == len(self.offsets)] = 0
        found = self.offsets[rows] == offsets if len(self.offsets) else np.zeros(len(offsets), bool)
        keyless: NDArray[np.bool_] = pc.is_null(batch.column("key")).to_numpy(zero_copy_only=False)
        return found | keyless


@dataclass(frozen=True, slots=True)
class Spares:
    """Keeps the records that have none of some keys and none of some tags."""

    keys: tuple[bytes, ...] = ()
    tags: tuple[bytes, ...] = ()

    def __call__(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Compares keys and tags, where the batch has such columns."""
        stays: NDArray[np.bool_] = np.ones(batch.num_rows, dtype=np.bool_)
        for name, wanted in (("key", self.keys), ("tag", self.tags)):
            if wanted and name in batch.schema.names:
                column = batch.column(name)
                found = pc.is_in(column, value_set=pa.array(wanted, column.type))
                stays &= ~found.to_numpy(zero_copy_only=False)
        return stays


# ---------------------------------------------------------------- in the driver


def commit(
    store: Store,
    partition: Archivable,
    shelf: Shelf,
    made: Sequence[tuple[Group, Rewritten]],
    reason: str,
) -> list[ArchivedObject]:
    """Enters why records are gone, then replaces the list, once; returns what is replaced."""
    done = [(group, each) for group, each in made if not each.problem and each.is_changed]
    if not done:
        return []
    now_ms = partition.place.now_ms()
    found = [pair for _, each in done for pair in zip(each.starts, each.ends, strict=True)]
    longest = sorted(Ranges.of(found).pairs(), key=lambda pair: pair[0] - pair[1])[:GAPS_MAX]
    beyond = [
        pair
        for group, each in done
        if group.is_listed
        for pair in _beyond(partition.published, group, each.entry)
    ]
    entered = Ranges.of([*longest, *beyond]).pairs()
    partition.enter_gaps([Gap(*pair, reason, now_ms) for pair in entered])
    assert store.tier is not None, "the archive is held"
    store.tier.metadata.save(shelf, partition.published)
    going = {entry for group, _ in done if group.is_listed for entry in group.entries}
    new = [each.entry for group, each in done if group.is_listed and each.entry is not None]

    def exchanged(now: Manifest) -> Manifest:
        left = [entry for entry in now.objects if entry not in going]
        return replace(now, objects=tuple(sorted([*left, *new], key=lambda each: each.base_offset)))

    shelf.commit(exchanged)
    return [entry for group, _ in done for entry in group.entries]


def _beyond(gaps: Ledger, group: Group, new: ArchivedObject | None) -> tuple[Span, ...]:
    """Returns what the old objects span and the new one does not, where no reason is known."""
    old = Ranges.of((each.base_offset, each.next_offset) for each in group.entries)
    if new is not None:
        old = old.minus(Ranges.between(new.base_offset, new.next_offset))
    return old.minus(gaps.ranges_but(ARCHIVED)).pairs()


def delete(objects: Objects, shelf: Shelf, entries: Sequence[ArchivedObject]) -> None:
    """Deletes objects that the list does not name any more."""
    for entry in entries:
        objects.delete(shelf.key_of(entry))
