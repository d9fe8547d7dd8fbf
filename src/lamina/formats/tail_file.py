"""One window of a cluster's log as an object (`tail/<seq>.tail`): what all partitions got in it.

Creating the object is what commits the window. All integers are big-endian.

    | at | size | field    | type     | meaning                                      |
    |----|------|----------|----------|----------------------------------------------|
    |  0 |    8 | magic    | bytes[8] | "LAMTAIL" and a zero byte                    |
    |  8 |    2 | version  | u16      | 1                                            |
    | 10 |    2 | flags    | u16      | 0                                            |
    | 12 |    4 | sections | u32      | how many follow; a window of none is a fence |
    | 16 |    8 | seq      | u64      | the slot, as in the object's key             |
    | 24 |    8 | epoch    | u64      | of the lease under which it was made         |
    | 32 |    8 | length   | u64      | bytes of the whole object                    |

    followed by the sections, each one

    | at | size | field       | type | meaning                                                   |
    |----|------|-------------|------|-----------------------------------------------------------|
    |  0 |    2 | kind        | u16  | 1 records, 2 copy, 3 producers                            |
    |  2 |    2 | name_len    | u16  | bytes of the name                                         |
    |  4 |    4 | partition   | u32  | 0 for a copy                                              |
    |  8 |    8 | first       | u64  | of records: the first offset; else 0                      |
    | 16 |    8 | next        | u64  | of records: one past the last offset; else 0              |
    | 24 |    8 | body_len    | u64  | bytes of the body                                         |

    and its name (UTF-8) and body; behind the last one crc32c u32 over everything before it

Records are named by their topic, and their body is a STRM segment (`formats.strm`), as in the
archive. A copy is named by the key that it has in the archive, and its body is what would be there:
a topic's file, its schemas, a ledger, a group's state, committed offsets. Producers are named by
their topic, and their body is entries of the journal of producers (`formats.producer_journal`).

Awkward cases. An object is whole or it is damaged: a window is one commit, and none of it is used
where a byte of it is wrong. What a newer version wrote under a checksum that fits is NewerFormat.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from lamina.errors import CorruptData, InvalidRequest, NewerFormat
from lamina.formats.kernels.binary import Layout
from lamina.formats.kernels.crc import crc32c_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC = b"LAMTAIL\0"
VERSION = 1
HEADER = Layout(
    ">",
    magic="bytes[8]",
    version="u16",
    flags="u16",
    sections="u32",
    seq="u64",
    epoch="u64",
    length="u64",
)
SECTION = Layout(
    ">", kind="u16", name_len="u16", partition="u32", first="u64", next="u64", body_len="u64"
)
CHECKSUM_BYTES = 4
BYTES_MIN = HEADER.size + CHECKSUM_BYTES
NAME_BYTES_MAX = 0xFFFF
_NUMBER_END = 1 << 63


class Kind(IntEnum):
    """What a section holds."""

    RECORDS = 1
    COPY = 2
    PRODUCERS = 3


@dataclass(frozen=True, slots=True)
class Section:
    """What one partition, or one small file, got in a window."""

    kind: Kind
    name: str
    body: bytes
    partition: int = 0
    first_offset: int = 0
    next_offset: int = 0

    def __post_init__(self) -> None:
        is_records = self.kind == Kind.RECORDS
        if not 0 <= self.first_offset <= self.next_offset < _NUMBER_END:
            raise ValueError(f"offsets {self.first_offset} to {self.next_offset} are not a range")
        if is_records != (self.first_offset < self.next_offset):
            raise ValueError("records have offsets, and nothing else has")
        if not self.name or (self.kind == Kind.COPY and self.partition):
            raise ValueError("a section has a name, and a copy is of no partition")


@dataclass(frozen=True, slots=True)
class Tail:
    """One window: its slot, the epoch of its maker, and what it holds; nothing if it is a fence."""

    seq: int
    epoch: int
    sections: tuple[Section, ...] = ()

    @property
    def is_fence(self) -> bool:
        """Whether it only takes the slot, so that nobody of an earlier epoch can."""
        return not self.sections


def encode(tail: Tail) -> bytes:
    """Encodes a window; raises InvalidRequest for a name that is too long."""
    parts: list[bytes] = []
    for each in tail.sections:
        name = each.name.encode()
        if len(name) > NAME_BYTES_MAX:
            raise InvalidRequest(f"a name in a tail has at most {NAME_BYTES_MAX} bytes")
        head = SECTION.pack(
            kind=each.kind,
            name_len=len(name),
            partition=each.partition,
            first=each.first_offset,
            next=each.next_offset,
            body_len=len(each.body),
        )
        parts += [head, name, each.body]
    length = HEADER.size + sum(map(len, parts)) + CHECKSUM_BYTES
    head = HEADER.pack(
        magic=MAGIC,
        version=VERSION,
        flags=0,
        sections=len(tail.sections),
        seq=tail.seq,
        epoch=tail.epoch,
        length=length,
    )
    covered = b"".join([head, *parts])
    return covered + crc32c_of(covered).to_bytes(CHECKSUM_BYTES, "big")


def positions(tail: Tail) -> list[int]:
    """Returns where in the object the body of each section begins."""
    found, at = [], HEADER.size
    for each in tail.sections:
        at += SECTION.size + len(each.name.encode())
        found.append(at)
        at += len(each.body)
    return found


def decode(buffer: Buffer) -> Tail:
    """Decodes a window; raises CorruptData or NewerFormat for what is not exactly one."""
    raw = memoryview(buffer).cast("B")
    if len(raw) < BYTES_MIN:
        raise CorruptData("the tail is cut off", expected=f"{BYTES_MIN} bytes", found=f"{len(raw)}")
    head = HEADER.unpack(raw)
    if head["magic"] != MAGIC:
        raise CorruptData("it is not a tail", position=0, expected=repr(MAGIC))
    at = len(raw) - CHECKSUM_BYTES
    stored = int.from_bytes(raw[at:], "big")
    found = crc32c_of(raw[:at])
    if stored != found:
        raise CorruptData(
            "the checksum does not fit", position=at, expected=f"{stored:08x}", found=f"{found:08x}"
        )
    if head["version"] != VERSION or head["flags"]:
        if not head["version"]:
            raise CorruptData("the version is unknown", position=HEADER.at("version"), found="0")
        raise NewerFormat("the tail was written by a newer version", found=str(head["version"]))
    if head["length"] != len(raw) or max(head["seq"], head["epoch"]) >= _NUMBER_END:
        raise CorruptData("the tail's header contradicts it", position=0, found=str(head))
    return Tail(head["seq"], head["epoch"], _sections(raw[:at], head["sections"]))


def _sections(raw: memoryview, count: int) -> tuple[Section, ...]:
    """Takes the sections out of bytes whose checksum fits: a contradiction was written as one."""
    found, at = [], HEADER.size
    for number in range(count):
        if at + SECTION.size > len(raw):
            raise CorruptData(f"section {number} is not whole", position=at)
        head = SECTION.unpack(raw, at)
        name_at = at + SECTION.size
        body_at = name_at + head["name_len"]
        end = body_at + head["body_len"]
        if end > len(raw):
            raise CorruptData(f"section {number} is longer than the tail", position=at)
        if head["kind"] not in _KINDS:
            raise NewerFormat(f"section {number} is of a kind that a newer version wrote")
        found.append(_section(head, raw[name_at:body_at], raw[body_at:end], at))
        at = end
    if at != len(raw):
        raise CorruptData("bytes follow the last section", position=at)
    return tuple(found)


def _section(head: dict[str, int], name: memoryview, body: memoryview, at: int) -> Section:
    try:
        return Section(
            Kind(head["kind"]),
            bytes(name).decode(),
            bytes(body),
            head["partition"],
            head["first"],
            head["next"],
        )
    except ValueError as error:  # UnicodeDecodeError is one
        raise CorruptData(f"a section contradicts itself: {error}", position=at) from error


_KINDS = frozenset(Kind)
