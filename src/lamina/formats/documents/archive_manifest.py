"""Derived: rebuilt from the objects' headers. A partition's list of archived segments.

One small object (`manifest.json`), replaced as a whole on the condition that it was not replaced
since it was read. What is not listed is not served; listing an object is what archives its records.

    {"version": 1, "topic": "orders", "partition": 0, "topic_epoch": 1, "topic_created_ms": …,
     "fencing_epoch": 3, "writer": "…", "end_offset": 4096, "objects": [
      {"base_offset": 0, "max_offset": 4095, "record_count": 4096, "min_timestamp_ms": …,
       "max_timestamp_ms": …, "size_bytes": …, "flags": 1, "index_offset": …, "index_crc32": …,
       "marks": [[0, …], …]}, …], "crc32": "…"}

| field         | meaning                                                                    |
|---------------|----------------------------------------------------------------------------|
| topic_epoch, topic_created_ms | which topic of that name it is, for a name can be used again |
| fencing_epoch | grows whenever a store takes the partition's archive over                  |
| writer        | which store it was: only it may replace the list                           |
| end_offset    | everything below it that exists is archived                                |
| flags         | the object's header field: compression, envelopes                          |
| index_offset  | where the object's index and footer start: one range gives both            |
| index_crc32   | CRC-32 of that range, which nothing else protects when it is read alone    |
| marks         | [block, largest timestamp up to its end]: where a search by time may start |
| generation    | how often objects that begin there were replaced; missing for 0            |
| epoch         | of the lease under which a cluster's broker made it; missing for 0         |

Objects are sorted and do not overlap. `marks` may be missing (a list rebuilt from headers has
none): a search by time then starts at the object's first block. A list that names an epoch is of
version 2, so that a release that knows none refuses it; any other is of version 1, and a list of
version 2 without an epoch is from a release that means something else by it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents import strict_json
from lamina.formats.documents.ledger import Ledger

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 2
WITHOUT_EPOCHS = 1
MARKS_MAX = 32

_FILE = {
    "version": int,
    "topic": str,
    "partition": int,
    "topic_epoch": int,
    "topic_created_ms": int,
    "fencing_epoch": int,
    "writer": str,
    "end_offset": int,
    "objects": list,
}
_OBJECT = {
    "base_offset": int,
    "max_offset": int,
    "record_count": int,
    "size_bytes": int,
    "flags": int,
    "index_offset": int,
    "index_crc32": int,
    "marks": list,
}
_NUMBERS = {"generation": int, "epoch": int}
_TIMES = ("min_timestamp_ms", "max_timestamp_ms")
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class ArchivedObject:
    """One object of the list."""

    base_offset: int
    max_offset: int
    record_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    size_bytes: int
    flags: int
    index_offset: int
    index_crc32: int
    marks: tuple[tuple[int, int], ...] = ()
    generation: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.record_count <= self.max_offset - self.base_offset + 1:
            raise ValueError(f"record count and offsets contradict: {self}")
        if not 0 < self.index_offset < self.size_bytes:
            raise ValueError(f"the index is not in the object: {self}")

    @property
    def next_offset(self) -> int:
        """One past the last offset."""
        return self.max_offset + 1

    @property
    def is_dense(self) -> bool:
        """Whether it holds a record for every offset of its span."""
        return self.record_count == self.next_offset - self.base_offset


Objects: TypeAlias = tuple[ArchivedObject, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """All archived objects of a partition, and the store that may add to them."""

    topic: str
    partition: int
    topic_epoch: int
    topic_created_ms: int
    fencing_epoch: int = 0
    writer: str = ""
    end_offset: int = 0
    objects: tuple[ArchivedObject, ...] = ()

    def __post_init__(self) -> None:
        if any(before.max_offset >= after.base_offset for before, after in pairwise(self.objects)):
            raise ValueError("objects must be sorted and must not overlap")
        if self.objects and self.objects[-1].next_offset > self.end_offset:
            raise ValueError(f"an object lies above the end {self.end_offset}")

    def with_object(self, new: ArchivedObject, end_offset: int) -> Manifest:
        """Returns the list with one more object behind the others; as it is if it has it."""
        if new.next_offset <= self.end_offset:
            return self
        return replace(self, objects=(*self.objects, new), end_offset=end_offset)

    def exchanged(self, old: Objects, new: Objects) -> Manifest | None:
        """Returns the list with some neighbours replaced by others in their span.

        It is the same list if that has been done; None if the neighbours are not there.
        """
        if not old or (new and not _spans(old, new)):
            raise ValueError("objects are replaced by others that hold no more than they do")
        row = next((row for row, each in enumerate(self.objects) if each == old[0]), None)
        if row is not None and self.objects[row : row + len(old)] == old:
            rest = self.objects[row + len(old) :]
            return replace(self, objects=(*self.objects[:row], *new, *rest))
        return self if new and set(new) <= set(self.objects) else None

    @property
    def size_bytes(self) -> int:
        """The bytes of all objects."""
        return sum(each.size_bytes for each in self.objects)


def _spans(old: Objects, new: Objects) -> bool:
    return old[0].base_offset <= new[0].base_offset and new[-1].max_offset <= old[-1].max_offset


def without_overlap(found: Iterable[ArchivedObject]) -> Objects:
    """Chooses objects that do not overlap and span the most offsets, as few of them as can be.

    Objects that were joined may still be there beside the one that took their place.
    """
    entries = sorted(
        found, key=lambda each: (each.max_offset, each.base_offset, each.epoch, each.generation)
    )
    ends = [each.next_offset for each in entries]
    best: list[tuple[int, int]] = [(0, 0)]
    chosen: list[int | None] = [None]
    for row, each in enumerate(entries):
        before = bisect_right(ends, each.base_offset, hi=row)
        spanned, count = best[before]
        mine = spanned + each.next_offset - each.base_offset, count - 1
        taken = mine >= best[row]
        best.append(mine if taken else best[row])
        chosen.append(before if taken else None)
    kept, row = [], len(entries)
    while row:
        before_it = chosen[row]
        if before_it is not None:
            kept.append(entries[row - 1])
        row = row - 1 if before_it is None else before_it
    return tuple(reversed(kept))


def covers(objects: tuple[ArchivedObject, ...], gaps: Ledger, first: int, end: int) -> bool:
    """Returns whether every offset of a range is in the span of an object or has its reason."""
    spans = [(each.base_offset, each.next_offset) for each in objects]
    spans += [(gap.first, gap.end) for gap in gaps.between(first, end)]
    for start, after in sorted(spans):
        if start > first:
            break
        first = max(first, after)
    return first >= end


def encode(manifest: Manifest) -> bytes:
    """Encodes a list; equal lists give equal bytes."""
    has_epochs = any(each.epoch for each in manifest.objects)
    fields = {"version": VERSION if has_epochs else WITHOUT_EPOCHS, **asdict(manifest)}
    objects = [_plain(each) for each in fields.pop("objects")]
    seal = strict_json.seal({**fields, "objects": objects})
    lines = ",\n".join(json.dumps(each) for each in objects)
    head = json.dumps(fields)[:-1]
    return f'{head}, "objects": [\n{lines}\n], "{strict_json.SEAL}": "{seal}"}}\n'.encode()


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value or name not in _NUMBERS}


def decode(buffer: Buffer) -> Manifest:
    """Decodes a list; raises CorruptData or NewerFormat for what is not exactly one."""
    document = strict_json.parse(buffer)
    is_plain = document.get("version") == WITHOUT_EPOCHS
    document = strict_json.check_sealed(document, WITHOUT_EPOCHS if is_plain else VERSION)
    strict_json.check_fields(document, "the archive's manifest", _FILE)
    del document["version"]
    try:
        objects = [_object(number, each) for number, each in enumerate(document.pop("objects"))]
        if not is_plain and not any(each.epoch for each in objects):
            raise NewerFormat("a list of this version names an epoch", found="none")
        return Manifest(**document, objects=tuple(objects))
    except ValueError as error:
        raise CorruptData(f"the archive's manifest contradicts itself: {error}") from error


def _object(number: int, value: object) -> ArchivedObject:
    where = f"object {number}"
    fields = dict(strict_json.as_object(value, where))
    times = {name: _time(fields.pop(name, None), where) for name in _TIMES}
    strict_json.check_fields(fields, where, _OBJECT, _NUMBERS)
    marks = tuple((_time(block, where), _time(time, where)) for block, time in _pairs(fields))
    return ArchivedObject(**{**fields, **times, "marks": marks})


def _pairs(fields: dict[str, Any]) -> list[list[Any]]:
    marks: list[list[Any]] = fields["marks"]
    if any(type(mark) is not list or len(mark) != 2 for mark in marks):
        raise ValueError("marks are pairs of a block and a time")
    return marks


def _time(value: Any, where: str) -> int:
    if type(value) is not int or value not in _INT64:
        raise ValueError(f"{where} has a wrong time or block: {value!r}")
    return value
