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
from typing import TYPE_CHECKING, NamedTuple

from lamina.errors import CorruptData, InvalidRequest, NewerFormat
from lamina.formats.keratin import header
from lamina.formats.keratin.delta import FILE_HEADER
from lamina.formats.kernels.binary import Layout
from lamina.formats.kernels.crc import crc32c_of

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
    data = bytes(memoryview(buffer).cast("B"))
    used = len(data.rstrip(b"\0"))
    position = start
    while position < used:
        found = _at(data, position)
        if found is None:
            following = _next_sound(data, position + 1)
            # Prepared zeros behind a torn entry are no part of it.
            yield Piece(position, used if following is None else following, None)
            if following is None:
                return
            position = following
        else:
            yield Piece(position, found[1], found[0])
            position = found[1]
        used = max(used, position)


def check(buffer: Buffer) -> None:
    """Raises CorruptData, or NewerFormat, for what is not a whole and sound file."""
    decode_header(buffer)
    for piece in walk(buffer):
        if piece.entry is None:
            raise CorruptData("bytes that are no entries", position=piece.position)


def _next_sound(data: bytes, position: int) -> int | None:
    while (position := data.find(_START, position)) >= 0:
        if _at(data, position) is not None:
            return position
        position += 1
    return None


def _at(data: bytes, position: int) -> tuple[Entry, int] | None:
    """Returns the sound entry at a position and where it ends; None for anything else."""
    texts = position + ENTRY.size
    if data[position : position + 2] != _START or texts > len(data):
        return None
    fields = ENTRY.unpack(data, position)
    lengths = fields["group_len"], fields["topic_len"], fields["metadata_len"]
    end = texts + sum(lengths) + _CHECKSUM_BYTES
    checked = data[position + _CHECKED_FROM : end - _CHECKSUM_BYTES]
    if end > len(data) or int.from_bytes(data[end - 4 : end], "big") != crc32c_of(checked):
        return None
    if not _is_known(fields):
        raise NewerFormat(
            "an entry of an unknown kind",
            position=position,
            expected=f"version {VERSION}, kinds 1 to {max(Kind)}",
            found=f"version {fields['version']}, kind {fields['kind']}",
        )
    return _entry(data, texts, fields), end


def _is_known(fields: dict[str, int]) -> bool:
    """Whether an entry is one of this version: of a newer one nothing is guessed."""
    kind = fields["kind"]
    if fields["version"] != VERSION or kind not in Kind._value2member_map_:
        return False
    return kind != Kind.PRODUCER or fields["partition"] in Standing._value2member_map_


def _entry(data: bytes, position: int, fields: dict[str, int]) -> Entry:
    texts = []
    for name in ("group_len", "topic_len", "metadata_len"):
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
