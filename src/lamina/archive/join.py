"""Joins small neighbours in the archive into one object, and puts it into the list in their place.

    choose ──▶ read ──▶ encode and check ──▶ create ──▶ read back ──▶ exchange in the list

The same for a store, between its uploads, and for a job that rewrites whole archives.

Rules.
1. Until the exchange nothing has changed for readers, and after it they read the same records: a
   crash at any step leaves an orphan, the new object or the old ones.
2. The old objects are not removed here: a reader may still hold the list that names them.
3. The key of the first object is taken, so the new one is of a later generation.
4. What was removed on purpose is left out: joining is also what erases it from the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from lamina.archive.encode import EncodedObject, Naming, encode_object
from lamina.archive.object_list import Shelf
from lamina.archive.uploader import reads_back
from lamina.errors import CorruptData, ObjectConflict
from lamina.formats.documents.archive_manifest import ArchivedObject, Objects
from lamina.formats.documents.ledger import REMOVED, Ledger
from lamina.formats.ranges import Ranges
from lamina.formats.strm import segment as strm_segment
from lamina.formats.strm.layout import Compression
from lamina.formats.strm.write import MapBlocks

OBJECT_BYTES_MIN = 64 << 20
JOINED_MIN = 16
"""How many neighbours are joined before they fill an object: so few rewrites, so few objects."""
GENERATION_TRIES = 16


@dataclass(frozen=True, slots=True)
class Policy:
    """How objects are made: compression, and the size at which one is full."""

    compression: Compression = Compression.LZ4
    target_bytes: int = 128 << 20

    @property
    def small_bytes(self) -> int:
        """Below this an object is small."""
        return min(OBJECT_BYTES_MIN, self.target_bytes)


def choose(objects: Objects, policy: Policy) -> Objects:
    """Returns neighbours that should be one object; none where that is not worth it.

    Small ones that would fill an object, or many of about the same size: then each byte is written
    again only as often as the object around it doubles.
    """
    run: list[ArchivedObject] = []
    size = 0
    for each in objects:
        is_small = each.size_bytes < policy.small_bytes
        if not is_small or size + each.size_bytes > policy.target_bytes:
            if len(run) > 1 and (chosen := _worth_it(run, policy)):
                return chosen
            run, size = [], 0
        if is_small:
            run.append(each)
            size += each.size_bytes
    return _worth_it(run, policy) if len(run) > 1 else ()


def _worth_it(run: list[ArchivedObject], policy: Policy) -> Objects:
    """Returns the newest of small neighbours that are worth joining, as many as can be."""
    if sum(each.size_bytes for each in run) >= policy.small_bytes:
        return tuple(run)
    newer_bytes, taken = 0, 0
    for count, each in enumerate(reversed(run), start=1):
        if count >= JOINED_MIN and each.size_bytes <= 2 * newer_bytes:
            taken = count
        newer_bytes += each.size_bytes
    return tuple(run[len(run) - taken :]) if taken else ()


def join(
    shelf: Shelf,
    old: Objects,
    removed: Ledger,
    policy: Policy,
    now_ms: int,
    *,
    map_blocks: MapBlocks = map,
) -> Objects:
    """Makes one object of neighbours and lists it in their place; returns what is listed now.

    `removed` is what is left out: ranges whose `Ledger` reason is a decision. Nothing is listed if
    all of it was removed. Raises ObjectConflict when the list has changed, CorruptData when an old
    object cannot be read; in either case the list is as it was.
    """
    encoded = encode_object(
        lambda _: _records(shelf, old, removed),
        (old[0].base_offset, old[-1].next_offset),
        Naming(shelf.about.name, shelf.partition, now_ms),
        policy.compression,
        target_bytes=1 << 62,
        map_blocks=map_blocks,
    )
    new = () if encoded is None else (put(shelf, encoded, _generation(old)),)
    shelf.exchange(old, new)
    return new


def put(shelf: Shelf, encoded: EncodedObject, generation: int) -> ArchivedObject:
    """Uploads an object under a key of its own and reads it back; returns its entry.

    For one that takes others' place, and for every object of a cluster's broker. A key that is
    taken by other bytes, which an earlier run left, is passed by, and never made free.
    """
    for later in range(generation, generation + GENERATION_TRIES):
        entry = replace(encoded.entry, generation=later, epoch=shelf.epoch)
        key = shelf.key_of(entry)
        try:
            shelf.objects.create(key, encoded.data)
        except ObjectConflict:
            if not reads_back(shelf.objects, key, encoded.data, tries=1):
                continue
        if reads_back(shelf.objects, key, encoded.data):
            return entry
    raise CorruptData(
        "the object store does not return what was uploaded; the list is as it was",
        path=f"{shelf.objects.url}/{key}",
        expected=f"{len(encoded.data)} bytes as sent",
        found="other bytes",
    )


def _generation(old: Objects) -> int:
    return 1 + max(each.generation for each in old)


def _records(shelf: Shelf, old: Objects, removed: Ledger) -> Iterator[pa.RecordBatch]:
    """Yields the records of some objects, each checked as a whole, without what was removed."""
    for entry in old:
        raw = shelf.objects.read(shelf.key_of(entry)).data
        segment = strm_segment.verify(raw)
        if (segment.header.base_offset, segment.header.record_count) != (
            *(entry.base_offset, entry.record_count),
        ):
            raise CorruptData(
                "the object is not the one in the list",
                path=f"{shelf.objects.url}/{shelf.key_of(entry)}",
            )
        for batch in strm_segment.read_from(raw):
            yield without(batch, removed)


def without(batch: pa.RecordBatch, removed: Ledger) -> pa.RecordBatch:
    """Takes out of a batch what was removed on purpose."""
    offsets = batch.column("offset").to_numpy()
    touching = removed.between(int(offsets[0]), int(offsets[-1]) + 1) if len(offsets) else ()
    gone = Ranges.of((gap.first, gap.end) for gap in touching if gap.reason in REMOVED)
    return batch.filter(pa.array(~gone.contains(offsets))) if len(gone) else batch
