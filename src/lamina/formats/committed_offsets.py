"""The journal of committed offsets (`groups/offsets.log`): where classic groups stand.

Truth: without it consumers begin where `auto.offset.reset` puts them; records are not affected.
The file begins with keratin's header (`keratin.header`), whose magic is `KOFFSET` and a zero byte;
entries follow, all integers big-endian. The last entry for a (group, topic, partition) counts.

    | at | size | field        | type | meaning                                              |
    |----|------|--------------|------|------------------------------------------------------|
    |  0 |    2 | magic        | u16  | 0x4B4F, "KO"                                         |
    |  2 |    2 | version      | u16  | 1                                                    |
    |  4 |    2 | kind         | u16  | 1 commit, 2 forget a partition, 3 a group, 4 and 5 below |
    |  6 |    2 | flags        | u16  | written as 0, ignored                                |
    |  8 |    2 | group_len    | u16  | bytes of the group's name                            |
    | 10 |    2 | topic_len    | u16  | bytes of the topic's name                            |
    | 12 |    2 | metadata_len | u16  | bytes of the consumer's own note                     |
    | 14 |    4 | topic_epoch  | u32  | the topic's life: the next one of its name has another |
    | 18 |    4 | partition    | u32  |                                                      |
    | 22 |    8 | offset       | i64  | the next one to read                                 |
    | 30 |    4 | leader_epoch | i32  | as the consumer gave it, -1 for none                 |
    | 34 |    8 | time_ms      | i64  | when it was committed, or its group last seen |

    followed by: group, topic, metadata (UTF-8), crc32c u32 over everything from version on

Kind 5 forgets a transactional id. An entry of kind 4 says where the transactions of a producer
stand: group is the transactional id, offset the producer's id, leader_epoch its epoch, topic_epoch
its timeout in milliseconds, partition a `Standing`, and metadata the number of the last
transaction, in decimal digits. It is written here so that the offsets of a transaction and the note
that it is done are one write.

The archive keeps one such file per partition, with the last entry of each group; the time in its
header is when the topic was created (see `groups.offset_copies`).

Zeros behind the last entry are space that was prepared for more.

Awkward cases. A damaged entry costs itself: the next sound one is found by its magic and checksum.
An entry of an unknown version or kind with a good checksum is a newer format: refused, never cut.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lamina.errors import CorruptData, InvalidRequest, NewerFormat
from lamina.formats.keratin import header
from lamina.formats.keratin.delta import FILE_HEADER
from lamina.formats.kernels.binary import Layout
from lamina.formats.kernels.crc import crc32c_of
from lamina.formats.scan import SMALL_BYTES, Budget, Limit, Run, Scan, Stop, runs

if TYPE_CHECKING:
    from typing_extensions import Buffer

ENTRY = Layout(
    ">",
    magic="u16",
    version="u16",
    kind="u16",
    flags="u16",
    group_len="u16",
    topic_len="u16",
    metadata_len="u16",
    topic_epoch="u32",
    partition="u32",
    offset="i64",
    leader_epoch="i32",
    time_ms="i64",
)
FILE_MAGIC = b"KOFFSET\0"
FILE_HEADER_BYTES = FILE_HEADER.size
MAGIC = 0x4B4F
VERSION = 1
NAME_BYTES_MAX = 0xFFFF
_START = struct.pack(">H", MAGIC)
_CHECKED_FROM = ENTRY.at("version")
_CHECKSUM_BYTES = 4
_TEXTS = ("group_len", "topic_len", "metadata_len")


class Kind(IntEnum):
    """What an entry records."""

    COMMIT = 1
    FORGET_PARTITION = 2
    FORGET_GROUP = 3
    PRODUCER = 4
    FORGET_PRODUCER = 5


class Standing(IntEnum):
    """Where the last transaction of a transactional id stands, as far as it is written down."""

    NONE = 0
    ONGOING = 1
    COMMITTED = 2
    ABORTED = 3


class Entry(NamedTuple):
    """One entry; fields that its kind does not need are empty or 0."""

    kind: Kind
    group: str
    topic: str = ""
    partition: int = 0
    topic_epoch: int = 0
    offset: int = 0
    leader_epoch: int = -1
    metadata: str = ""
    time_ms: int = 0


class Piece(NamedTuple):
    """A part of the file: an entry, or bytes that are none."""

    position: int
    end: int
    entry: Entry | None


def encode_header(created_ms: int) -> bytes:
    """Encodes the header that begins the file."""
    return header.encode(FILE_HEADER, FILE_MAGIC, created_ts_ms=created_ms)


def decode_header(buffer: Buffer) -> int:
    """Returns when the file was begun; raises CorruptData, or NewerFormat for a header not ours."""
    created_ms: int = header.decode(buffer, FILE_HEADER, FILE_MAGIC)["created_ts_ms"]
    return created_ms


def encode(entries: Iterable[Entry]) -> bytes:
    """Encodes entries, without a file header; raises InvalidRequest for a text that is too long."""
    return b"".join(_encode(entry) for entry in entries)


def _encode(entry: Entry) -> bytes:
    texts = [text.encode() for text in (entry.group, entry.topic, entry.metadata)]
    if max(map(len, texts)) > NAME_BYTES_MAX:
        raise InvalidRequest(f"a group, a topic and a note have at most {NAME_BYTES_MAX} bytes")
    packed = ENTRY.pack(
        magic=MAGIC,
        version=VERSION,
        kind=entry.kind,
        flags=0,
        group_len=len(texts[0]),
        topic_len=len(texts[1]),
        metadata_len=len(texts[2]),
        topic_epoch=entry.topic_epoch,
        partition=entry.partition,
        offset=entry.offset,
        leader_epoch=entry.leader_epoch,
        time_ms=entry.time_ms,
    )
    whole = packed + b"".join(texts)
    return whole + crc32c_of(whole[_CHECKED_FROM:]).to_bytes(_CHECKSUM_BYTES, "big")


def walk(buffer: Buffer, start: int = FILE_HEADER_BYTES) -> Iterator[Piece]:
    """Yields the entries from `start` on, and the bytes between them that are none.

    Space that was prepared with zeros is not yielded. Raises NewerFormat for a sound entry that
    this version does not know.
    """
    journal = _Journal(bytes(memoryview(buffer).cast("B")))
    for step in runs(journal, start):
        if isinstance(step, Run):
            positions = step.found.positions.tolist()
            for position, end in pairwise([*positions, step.found.end]):
                yield Piece(position, end, _entry(journal.raw, position))
        elif not step.is_blank:
            # Prepared zeros behind a torn entry are no part of it.
            used = len(journal.raw.rstrip(b"\0"))
            yield Piece(step.position, used if step.following is None else step.end, None)


def check(buffer: Buffer) -> None:
    """Raises CorruptData, or NewerFormat, for what is not a whole and sound file."""
    decode_header(buffer)
    for piece in walk(buffer):
        if piece.entry is None:
            raise CorruptData("bytes that are not entries", position=piece.position)


class _Journal:
    """The entries of a buffer as `scan.runs` walks them: no number orders them."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.data = memoryview(raw)

    def scan(self, start: int, number: int | None, limit: Limit) -> Scan:
        """Walks entries."""
        positions: list[int] = []
        position = start
        while len(positions) < limit.max_records and position < start + limit.max_bytes:
            end = self._end_of_sound(position, limit.budget)
            if end is None:
                break
            positions.append(position)
            position = end
        else:
            return Scan(np.array(positions, dtype=np.int64), position, Stop.LIMIT)
        stop = Stop.END if position == len(self.raw) else Stop.BAD_CHECKSUM
        return Scan(np.array(positions, dtype=np.int64), position, stop)

    def resync(self, damage: Scan, number: int | None, budget: Budget) -> int | None:
        """Finds the next entry by its magic."""
        position = damage.end
        while (position := self.raw.find(_START, position + 1)) >= 0:
            if self._end_of_sound(position, budget) is not None:
                return position
        return None

    def number_at(self, position: int) -> int:
        """Returns 0."""
        return 0

    def _end_of_sound(self, position: int, budget: Budget | None) -> int | None:
        """Returns where the sound entry at a position ends; None for anything else."""
        texts = position + ENTRY.size
        if self.raw[position : position + 2] != _START or texts > len(self.raw):
            return None
        fields = ENTRY.unpack(self.raw, position)
        end = texts + sum(fields[name] for name in _TEXTS) + _CHECKSUM_BYTES
        claimed_bytes = end - position
        if end > len(self.raw) or not _may_check(claimed_bytes, budget):
            return None
        body = self.data[position + _CHECKED_FROM : end - _CHECKSUM_BYTES]
        if int.from_bytes(self.data[end - _CHECKSUM_BYTES : end], "big") != crc32c_of(body):
            if budget is not None:
                budget.spend(claimed_bytes)
            return None
        return int(end)


def _may_check(claimed_bytes: int, budget: Budget | None) -> bool:
    return budget is None or claimed_bytes <= max(budget.left, SMALL_BYTES)


def _is_known(fields: dict[str, int]) -> bool:
    """Whether an entry is one of this version: of a newer one nothing is guessed."""
    kind = fields["kind"]
    if fields["version"] != VERSION or kind not in Kind._value2member_map_:
        return False
    return kind != Kind.PRODUCER or fields["partition"] in Standing._value2member_map_


def _entry(data: bytes, position: int) -> Entry:
    """Decodes the entry at a position, which is sound; raises NewerFormat."""
    fields = ENTRY.unpack(data, position)
    if not _is_known(fields):
        raise NewerFormat(
            "an entry of an unknown kind",
            position=position,
            expected=f"version {VERSION}, kinds 1 to {max(Kind)}",
            found=f"version {fields['version']}, kind {fields['kind']}",
        )
    position += ENTRY.size
    texts = []
    for name in _TEXTS:
        texts.append(data[position : position + fields[name]].decode(errors="replace"))
        position += fields[name]
    group, topic, metadata = texts
    return Entry(
        Kind(fields["kind"]),
        group,
        topic,
        fields["partition"],
        fields["topic_epoch"],
        fields["offset"],
        fields["leader_epoch"],
        metadata,
        fields["time_ms"],
    )
