"""Derived: rebuilt from the .log files. Broker checkpoint (`checkpoint.json`), where each log ends.

A hint that makes opening fast: what the logs prove wins. Without it every active segment is scanned
from its start.

    {"version": 1, "partitions": [
    {"topic": "orders", "partition": 0, "log_end_offset": 2, "active_segment_base_offset": 0,
     "active_segment_size_bytes": 86, "last_flushed_offset": 2}
    ]}

`log_end_offset` and `last_flushed_offset` are one past the last record; the latter is optional.
An entry of a partition whose first records were removed on request also has `floor`, below which
nothing is served, and `floor_crc32`: a second copy of the ledger's entry, in case it is gone.
The bytes are a function of the contents: partitions are sorted, one on each line.

Awkward cases. Before the first topic the list is empty. A field that is not listed is refused, not
kept: a file of version 1 with more fields was not written by a version 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1

_FILE = {"version": int, "partitions": list}
_REQUIRED = {
    "topic": str,
    "partition": int,
    "log_end_offset": int,
    "active_segment_base_offset": int,
    "active_segment_size_bytes": int,
}
_OPTIONAL = {"last_flushed_offset": int}
_FLOOR = {"floor": int, "floor_crc32": str}
_MARK = {"broker": str, "broker_crc32": str}


@dataclass(frozen=True, slots=True)
class PartitionCheckpoint:
    """Where one partition's log ended; `last_flushed_offset` None is unknown."""

    topic: str
    partition: int
    log_end_offset: int
    active_segment_base_offset: int
    active_segment_size_bytes: int
    last_flushed_offset: int | None = None
    floor: int = 0
    """Below it everything was removed on request. Sealed on disk: a flipped bit hides nothing."""

    def __post_init__(self) -> None:
        if not self.topic:
            raise ValueError("a topic has a name")
        if min(self.partition, self.active_segment_base_offset, self.active_segment_size_bytes) < 0:
            raise ValueError(f"partition, offsets and sizes count from 0, got {self}")
        if self.log_end_offset < self.active_segment_base_offset:
            raise ValueError(f"a log cannot end before its last segment begins, got {self}")
        flushed = self.last_flushed_offset
        if not 0 <= self.floor <= self.log_end_offset:
            raise ValueError(f"no more can be removed than was written, got {self}")
        if flushed is not None and not 0 <= flushed <= self.log_end_offset:
            raise ValueError(f"no more can be flushed than was written, got {self}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All partitions, each once, sorted by topic and partition.

    `broker` is the uuid of the `broker.id` that the directory had; None if not known. On
    disk it has a checksum of its own, because opening refuses a directory by it.
    """

    partitions: tuple[PartitionCheckpoint, ...] = ()
    broker: str | None = None

    def __post_init__(self) -> None:
        names = [(entry.topic, entry.partition) for entry in self.partitions]
        if any(before >= after for before, after in pairwise(names)):
            raise ValueError("partitions must be sorted, each once")


def checkpoint_of(
    partitions: Iterable[PartitionCheckpoint], broker: str | None = None
) -> Checkpoint:
    """Makes a checkpoint of partitions in any order; raises ValueError if one is there twice."""
    ordered = sorted(partitions, key=lambda entry: (entry.topic, entry.partition))
    return Checkpoint(tuple(ordered), broker)


def encode(checkpoint: Checkpoint) -> bytes:
    """Encodes a checkpoint; equal checkpoints give equal bytes."""
    lines = []
    for entry in checkpoint.partitions:
        told = {name: getattr(entry, name) for name in (*_REQUIRED, *_OPTIONAL)}
        if entry.last_flushed_offset is None:
            del told["last_flushed_offset"]
        if entry.floor:
            told |= {"floor": entry.floor, "floor_crc32": _floor_crc32_of(told, entry.floor)}
        lines.append(json.dumps(told))
    body = "\n" + ",\n".join(lines) + "\n" if lines else ""
    owner = "".join(f"{json.dumps(key)}: {json.dumps(told)}, " for key, told in _mark(checkpoint))
    return f'{{"version": {VERSION}, {owner}"partitions": [{body}]}}\n'.encode()


def _mark(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """The broker's uuid with a checksum: a flipped bit must not make it another store's."""
    if checkpoint.broker is None:
        return []
    return [("broker", checkpoint.broker), ("broker_crc32", _crc32_of(checkpoint.broker))]


def _floor_crc32_of(told: dict[str, Any], floor: int) -> str:
    return strict_json.seal({key: told[key] for key in ("topic", "partition")} | {"floor": floor})


def _crc32_of(broker: str) -> str:
    return strict_json.seal({"broker": broker})


def decode(buffer: Buffer) -> Checkpoint:
    """Decodes a checkpoint in any order; raises CorruptData or NewerFormat if it is not exact."""
    document = strict_json.parse(buffer)
    strict_json.check_version(document, VERSION)
    strict_json.check_fields(document, "the checkpoint", _FILE, _MARK)
    owner, seal = (document.get(key) for key in _MARK)
    if seal != (None if owner is None else _crc32_of(owner)):
        raise CorruptData("the broker's uuid does not match its checksum")
    try:
        partitions = [
            _partition(value, f"partition entry {number}")
            for number, value in enumerate(document["partitions"])
        ]
        return checkpoint_of(partitions, owner)
    except ValueError as error:
        raise CorruptData(f"the checkpoint contradicts itself: {error}") from error


def _partition(value: object, where: str) -> PartitionCheckpoint:
    fields = strict_json.as_object(value, where)
    strict_json.check_fields(fields, where, _REQUIRED, _OPTIONAL | _FLOOR)
    floor, seal = fields.get("floor"), fields.pop("floor_crc32", None)
    if seal != (None if floor is None else _floor_crc32_of(fields, floor)):
        raise CorruptData(f"the floor of {where} does not match its checksum")
    return PartitionCheckpoint(**fields)
