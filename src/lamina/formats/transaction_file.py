"""What one transaction holds (`transactions/<number>.commit`): records and offsets to be stored.

Truth while it is there: a file of that name is a transaction that was committed and may not be
stored yet. The file begins with keratin's header (`keratin.header`), whose magic is `KTXN` and four
zero bytes; entries follow, all integers big-endian.

    | at | size | field       | type | meaning                                                   |
    |----|------|-------------|------|-----------------------------------------------------------|
    |  0 |    2 | magic       | u16  | 0x4B54, "KT"                                              |
    |  2 |    2 | version     | u16  | 1                                                         |
    |  4 |    2 | kind        | u16  | 1 producer, 2 batch, 3 offsets, 4 end                     |
    |  6 |    2 | flags       | u16  | written as 0, ignored                                     |
    |  8 |    2 | name_len    | u16  | bytes of the name                                         |
    | 10 |    4 | body_len    | u32  | bytes of the body                                         |
    | 14 |    4 | topic_epoch | u32  | of a batch: the topic's life                              |
    | 18 |    4 | partition   | u32  | of a batch; of the producer: its epoch                    |
    | 22 |    8 | number      | i64  | of the producer: its id; of a batch: its first sequence   |

    followed by: name (UTF-8), body, crc32c u32 over everything from version on

The first entry is the producer, named by its transactional id. A batch is named by its topic, and
its body is the record batch as the producer sent it (`formats.kafka.batch`). Offsets are named by
their group, and their body is entries of the journal of offsets (`formats.committed_offsets`). The
end is the last entry, and its number is that of the entries before it: a file without it was never
decided, and is named `.staged`.

Sequences are the log's own, of 31 bits: they count what the producer has stored in a partition, and
not what it has sent, of which aborted transactions are a part.

Awkward cases. A file is whole or it is damaged: all of its entries belong together, so none of them
is used where one is unsound. An entry of an unknown version or kind with a good checksum is a newer
format: refused, never set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    name_len="u16",
    body_len="u32",
    topic_epoch="u32",
    partition="u32",
    number="i64",
)
FILE_MAGIC = b"KTXN\0\0\0\0"
FILE_HEADER_BYTES = FILE_HEADER.size
MAGIC = 0x4B54
VERSION = 1
NAME_BYTES_MAX = 0xFFFF
_CHECKED_FROM = ENTRY.at("version")
_CHECKSUM_BYTES = 4


class Kind(IntEnum):
    """What an entry holds."""

    PRODUCER = 1
    BATCH = 2
    OFFSETS = 3
    END = 4


class Entry(NamedTuple):
    """One entry; fields that its kind does not need are empty or 0."""

    kind: Kind
    name: str = ""
    topic_epoch: int = 0
    partition: int = 0
    number: int = 0
    body: bytes = b""


class Placed(NamedTuple):
    """An entry and where it lies in its file."""

    position: int
    end: int
    entry: Entry


def encode_header(created_ms: int) -> bytes:
    """Encodes the header that begins the file."""
    return header.encode(FILE_HEADER, FILE_MAGIC, created_ts_ms=created_ms)


def encode(entry: Entry) -> bytes:
    """Encodes an entry; raises InvalidRequest for a name that is too long."""
    name = entry.name.encode()
    if len(name) > NAME_BYTES_MAX:
        raise InvalidRequest(f"a name in a transaction has at most {NAME_BYTES_MAX} bytes")
    packed = ENTRY.pack(
        magic=MAGIC,
        version=VERSION,
        kind=entry.kind,
        flags=0,
        name_len=len(name),
        body_len=len(entry.body),
        topic_epoch=entry.topic_epoch,
        partition=entry.partition,
        number=entry.number,
    )
    whole = b"".join((packed, name, entry.body))
    return whole + crc32c_of(whole[_CHECKED_FROM:]).to_bytes(_CHECKSUM_BYTES, "big")


def decode(data: bytes) -> Entry:
    """Decodes one entry that is there whole; raises CorruptData, and NewerFormat."""
    entry, end = _read(lambda position, length: data[position : position + length], 0, len(data))
    if entry is None or end != len(data):
        raise CorruptData("bytes that are not an entry")
    return entry


def entries(
    read_at: Callable[[int, int], bytes], size: int, *, is_decided: bool = True
) -> Iterator[Placed]:
    """Yields the entries of a file, which is read one entry at a time.

    Raises CorruptData for anything that is not one whole transaction, and NewerFormat. Of one that
    `is_decided` is False for, only what is there has to be sound, up to an entry cut short.
    """
    header.decode(read_at(0, FILE_HEADER_BYTES), FILE_HEADER, FILE_MAGIC)
    position, count, kind = FILE_HEADER_BYTES, 0, None
    while position < size and kind is not Kind.END:
        entry, end = _read(read_at, position, size)
        if entry is None:
            if not is_decided:
                return
            raise CorruptData("bytes that are not an entry", position=position)
        _check_order(entry, count, position)
        yield Placed(position, end, entry)
        position, kind, count = end, entry.kind, count + 1
    if is_decided and kind is not Kind.END:
        raise CorruptData("a transaction without its end", position=position)
    if position < size:
        raise CorruptData("bytes behind the end of a transaction", position=position)


def _check_order(entry: Entry, count: int, position: int) -> None:
    if (entry.kind is Kind.PRODUCER) != (count == 0):
        raise CorruptData("a transaction begins with its producer, once", position=position)
    if entry.kind is Kind.END and entry.number != count:
        raise CorruptData(
            "entries are missing",
            position=position,
            expected=f"{entry.number} entries",
            found=str(count),
        )


def walk(buffer: Buffer, *, is_decided: bool = True) -> Iterator[Placed]:
    """Yields the entries of a file that is in memory; raises as `entries` does."""
    data = memoryview(buffer).cast("B")

    def read_at(position: int, length: int) -> bytes:
        return bytes(data[position : position + length])

    return entries(read_at, len(data), is_decided=is_decided)


def check(buffer: Buffer) -> None:
    """Raises CorruptData, or NewerFormat, for what is not one whole and sound transaction."""
    for _ in walk(buffer):
        pass


def _read(
    read_at: Callable[[int, int], bytes], position: int, size: int
) -> tuple[Entry | None, int]:
    """Returns the sound entry at a position and where it ends; None for anything else."""
    head = read_at(position, ENTRY.size)
    if len(head) < ENTRY.size:
        return None, position
    fields = ENTRY.unpack(head)
    texts = fields["name_len"] + fields["body_len"]
    end = position + ENTRY.size + texts + _CHECKSUM_BYTES
    if fields["magic"] != MAGIC or end > size:  # a length is believed within the file only
        return None, position
    rest = read_at(position + ENTRY.size, texts + _CHECKSUM_BYTES)
    checked = head[_CHECKED_FROM:] + rest[:-_CHECKSUM_BYTES]
    if int.from_bytes(rest[-_CHECKSUM_BYTES:], "big") != crc32c_of(checked):
        return None, position
    if fields["version"] != VERSION or fields["kind"] not in Kind._value2member_map_:
        raise NewerFormat(
            "an entry of an unknown kind",
            position=position,
            expected=f"version {VERSION}, kinds 1 to {max(Kind)}",
            found=f"version {fields['version']}, kind {fields['kind']}",
        )
    name, body = rest[: fields["name_len"]], rest[fields["name_len"] : -_CHECKSUM_BYTES]
    where = fields["topic_epoch"], fields["partition"], fields["number"]
    return Entry(Kind(fields["kind"]), name.decode(errors="replace"), *where, body), end
