"""The producers' journal of a partition (`producers.log`): which producer appended what, and where.

Truth for idempotence: without it a retry may store a batch twice; records are never affected.
A plain run of entries, little-endian, each written and synced before the records it describes.

    | at | size | field       | type | meaning                                             |
    |----|------|-------------|------|-----------------------------------------------------|
    |  0 |    8 | producer_id | u64  | chosen by the producer                              |
    |  8 |    8 | sequence    | u64  | of the batch's first record, counted by the producer |
    | 16 |    8 | base_offset | i64  | where the batch went                                |
    | 24 |    4 | count       | u32  | records in the batch                                |
    | 28 |    4 | epoch       | u32  | a higher one fences the lower                       |
    | 32 |    4 | crc32c      | u32  | over the 32 bytes before it                         |

Zeros behind the last entry are space that was prepared for more: no entry is all zeros.

An entry whose records are not in the log (a crash came between) does not count: recovery drops
those that reach beyond the log's end before anything new is appended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamina.formats.kernels.binary import Layout
from lamina.formats.kernels.crc import crc32c_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

ENTRY = Layout(
    "<",
    producer_id="u64",
    sequence="u64",
    base_offset="i64",
    count="u32",
    epoch="u32",
    crc32c="u32",
)
_CHECKED_BYTES = ENTRY.at("crc32c")


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch of one producer."""

    producer_id: int
    sequence: int
    base_offset: int
    count: int
    epoch: int


def encode(entries: list[Entry]) -> bytes:
    """Encodes entries; the bytes of several runs may be joined."""
    return b"".join(_encode(entry) for entry in entries)


def _encode(entry: Entry) -> bytes:
    body = ENTRY.pack(
        producer_id=entry.producer_id,
        sequence=entry.sequence,
        base_offset=entry.base_offset,
        count=entry.count,
        epoch=entry.epoch,
        crc32c=0,
    )[:_CHECKED_BYTES]
    return body + crc32c_of(body).to_bytes(4, "little")


def walk(buffer: Buffer) -> Iterator[tuple[int, Entry | None]]:
    """Yields each entry with its position, up to prepared space; None for an unsound or cut one.

    A damaged entry costs only itself: all have the same size.
    """
    view = memoryview(buffer).cast("B")
    used = len(bytes(view).rstrip(b"\0"))  # behind it is prepared space, and zeros are no entry
    for position in range(0, used, ENTRY.size):
        entry = bytes(view[position : position + ENTRY.size])
        yield position, _entry(entry) if len(entry) == ENTRY.size else None


def _entry(data: bytes) -> Entry | None:
    fields = ENTRY.unpack(data, 0)
    sound = fields.pop("crc32c") == crc32c_of(data[:_CHECKED_BYTES])
    return Entry(**fields) if sound and fields["base_offset"] >= 0 else None


def decode(buffer: Buffer) -> list[Entry]:
    """Reads all sound entries."""
    return [entry for _, entry in walk(buffer) if entry is not None]
