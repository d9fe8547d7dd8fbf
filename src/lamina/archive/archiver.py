"""Moves the sealed part of a log into the object store, object by object, in order.

    encode and check ──▶ create ──▶ read back and compare ──▶ list it ──▶ (later) remove locally

Rules.
1. Each step may be the last before a crash; the next run starts from the list and does the rest.
   An object that is there but not listed is not served. If it holds the records of this log (and
   perhaps some that were deleted since) it is listed as it is; if its bytes are damaged it is made
   again; if it is sound and holds anything else, it is left alone and reported to a human.
2. Only durable, sealed records are archived, from where the list ends: no gap, nothing twice.
3. Nothing local is removed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.archive.encode import (
    EncodedObject,
    Naming,
    Source,
    as_strm,
    encode_object,
    examine,
)
from lamina.archive.join import Policy, choose, join, put
from lamina.archive.object_list import Shelf
from lamina.archive.terms import ALONE, Terms
from lamina.archive.uploader import READ_BACK_TRIES, reads_back
from lamina.errors import CorruptData, NewerFormat, ObjectConflict, ObjectMissing
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.ledger import Ledger
from lamina.formats.scan import Limit
from lamina.formats.strm import salvage
from lamina.formats.strm import segment as strm_segment
from lamina.log.gap_walk import records_over
from lamina.log.layers import Layer, sealed_of
from lamina.log.sealed import Archivable

if TYPE_CHECKING:
    from typing_extensions import Buffer


BATCH = Limit(max_records=1 << 18, max_bytes=4 << 20)


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """A partition as the archiver sees it: its sealed layers."""

    partition: Archivable
    terms: Terms = ALONE

    def sealed(self) -> list[Layer]:
        """Returns the sealed local layers that may be archived, oldest first; they are durable."""
        end = self.terms.may_archive(self.partition)
        return [each for each in sealed_of(self.partition.layers()) if each.next_offset <= end]

    def records(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yields the records of some sealed offsets, over gaps, which the ledger explains.

        Raises RecordsMissing at what the device does not deliver just now: whatever is archived
        without it would count as all there was, and the local copy would go.
        """
        return records_over(lambda at: self.partition.scan(at, BATCH, end=end), start, end)

    def gone_from(self, offset: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns which offsets from one on have no record any more."""
        return self.partition.gone_from(offset)


@dataclass(slots=True)
class Archiver:
    """Archives one partition; `executor` compresses blocks on several cores."""

    shelf: Shelf
    source: Source
    executor: Executor | None = None
    ratio: float = 1.0
    """What the last object took of the bytes that its records had before."""

    def pending(self) -> list[Layer]:
        """Returns the sealed layers that are not archived whole, oldest first."""
        end = self.shelf.manifest.end_offset
        return [each for each in self.source.sealed() if each.next_offset > end]

    def pending_bytes(self) -> int:
        """How many local bytes wait to be archived."""
        return sum(each.size_bytes for each in self.pending())

    def is_worthwhile(self, policy: Policy) -> bool:
        """Returns whether what waits would fill an object of a good size."""
        return self.pending_bytes() * self.ratio >= policy.small_bytes

    def archive_next(self, policy: Policy, now_ms: int) -> ArchivedObject | None:
        """Archives one more object; None if nothing sealed was left that holds records."""
        encoded = self.encode_next(policy, now_ms)
        if encoded is None:
            return None
        entry = self.store(encoded)
        # One that was there may hold less than ours would.
        is_ours = replace(entry, generation=0, epoch=0) == encoded.entry
        self.list_it(entry, encoded.next_offset if is_ours else entry.next_offset)
        return entry

    def encode_next(self, policy: Policy, now_ms: int) -> EncodedObject | None:
        """Makes the next object in memory; notes ranges that hold no record as archived."""
        pending = self.pending()
        if not pending:
            return None
        manifest = self.shelf.manifest
        end = pending[-1].next_offset
        start = max(manifest.end_offset, pending[0].base_offset)
        naming = Naming(self.shelf.about.name, self.shelf.partition, now_ms)
        encoded = encode_object(
            lambda offset: self.source.records(offset, end),
            (start, end),
            naming,
            policy.compression,
            target_bytes=policy.target_bytes,
            map_blocks=self.executor.map if self.executor is not None else map,
        )
        if encoded is None:
            self.shelf.commit(lambda now: replace(now, end_offset=max(end, now.end_offset)))
        elif encoded.next_offset == end:
            self.ratio = len(encoded.data) / sum(each.size_bytes for each in pending)
        return encoded

    def join_small(self, policy: Policy, removed: Ledger, now_ms: int) -> bool:
        """Joins small neighbours if that is worth it; returns whether anything was joined."""
        old = choose(self.shelf.manifest.objects, policy)
        if not old:
            return False
        blocks = self.executor.map if self.executor is not None else map
        join(self.shelf, old, removed, policy, now_ms, map_blocks=blocks)
        return True

    def list_it(self, entry: ArchivedObject, next_offset: int) -> None:
        """Adds a verified object to the list: from here on it is archived."""
        end_offset = max(next_offset, entry.next_offset)
        self.shelf.commit(lambda now: now.with_object(entry, end_offset))

    def store_exactly(self, encoded: EncodedObject) -> ArchivedObject:
        """Uploads as `store` does; an unlisted object of other records of this log makes room.

        For a caller that has planned where every object begins and ends, and still has the records.
        """
        entry = self.store(encoded)
        if entry.max_offset == encoded.entry.max_offset:
            return entry
        self._remove_damaged(self.shelf.key_of(entry))
        return self.store(encoded)

    def store(self, encoded: EncodedObject) -> ArchivedObject:
        """Uploads an object and reads it back; returns the entry of what is there.

        That is another one than ours if an earlier run was cut off between upload and list. In a
        cluster it never is: no other broker makes our keys, and none of ours is used twice.
        """
        if self.shelf.epoch:
            return put(self.shelf, encoded, encoded.entry.generation)
        key = self.shelf.key_of(encoded.entry)
        for _ in range(READ_BACK_TRIES):
            try:
                self.shelf.objects.create(key, encoded.data)
            except ObjectConflict:
                if not self._is_ours(key, encoded):
                    entry = self._adopt(key, encoded)
                    if entry is not None:
                        return entry
                    continue
            if reads_back(self.shelf.objects, key, encoded.data):
                return encoded.entry
            self._remove_damaged(key)
        raise CorruptData(
            "the object store does not return what was uploaded; the local copy stays",
            path=f"{self.shelf.objects.url}/{key}",
            expected=f"{len(encoded.data)} bytes as sent",
            found="other bytes",
        )

    def _is_ours(self, key: str, encoded: EncodedObject) -> bool:
        """Returns whether the object that is there is the one we sent (the answer was lost)."""
        return reads_back(self.shelf.objects, key, encoded.data, tries=1)

    def _adopt(self, key: str, encoded: EncodedObject) -> ArchivedObject | None:
        """Takes an object that is there if it holds this log's records; None if it is damaged.

        Raises CorruptData for a sound one that holds anything else.
        """
        try:
            raw = self.shelf.objects.read(key).data
            entry = examine(raw, self.shelf.about.name, self.shelf.partition)
        except ObjectMissing:
            return None
        except NewerFormat as error:  # sound, and not ours to remove
            raise error.at_path(f"{self.shelf.objects.url}/{key}") from error
        except CorruptData as error:
            if salvage.is_sound(raw):  # somebody else's: it is left alone
                raise error.at_path(f"{self.shelf.objects.url}/{key}") from error
            self._remove_damaged(key)
            return None
        if self._holds_our_records(raw, entry, encoded):
            return entry
        raise CorruptData(
            "another object has the key; look at `lamina tier orphans`",
            path=f"{self.shelf.objects.url}/{key}",
            expected="the records of this log",
            found=f"others, offsets {entry.base_offset} to {entry.max_offset}",
        )

    def _holds_our_records(self, raw: Buffer, entry: ArchivedObject, ours: EncodedObject) -> bool:
        sealed_end = max((each.next_offset for each in self.source.sealed()), default=0)
        if entry.base_offset != ours.entry.base_offset or entry.next_offset > sealed_end:
            return False
        local = self.source.records(entry.base_offset, entry.next_offset)
        theirs = _table(strm_segment.read_from(raw))
        gone = np.stack(self.source.gone_from(entry.base_offset), axis=1).ravel()
        offsets = theirs.column("offset").to_numpy()
        kept = theirs.filter(pa.array(np.searchsorted(gone, offsets, side="right") % 2 == 0))
        return bool(_table(map(as_strm, local)).equals(kept.combine_chunks()))

    def _remove_damaged(self, key: str) -> None:
        """Removes an unlisted object that cannot be read, if the archive is still ours."""
        self.shelf.commit(lambda now: now)
        self.shelf.objects.delete(key)


def _table(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches)).combine_chunks()
