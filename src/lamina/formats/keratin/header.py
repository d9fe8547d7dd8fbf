"""The header that begins every keratin file but the manifest: the same first and last fields.

    | at | size | field         | type     | meaning                                        |
    |----|------|---------------|----------|------------------------------------------------|
    |  0 |    8 | magic         | bytes[8] | the kind of file, as ASCII, filled with zeros  |
    |  8 |    2 | version       | u16      | 1                                              |
    | 10 |    2 | flags         | u16      | written as 0, ignored                          |
    | 12 |    4 | header_len    | u32      | bytes of the whole header                      |

    then each file's own fields, then

    |    |    4 | header_crc32c | u32      | CRC-32C of everything before it                |

Rules.
1. The checksum is judged first, where our header has it or where `header_len` puts it: another
   version or another header_len under a good one is a newer format, NewerFormat. Without it, it is
   damage.
2. Everything else that is wrong is CorruptData. A header is never repaired here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.kernels.binary import Layout
from lamina.formats.kernels.crc import crc32c_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = 1
HEADER_BYTES_MAX = 4096
"""What even a newer header may not exceed; a larger length is damage."""
_CHECKSUM_BYTES = 4


def encode(layout: Layout, magic: bytes, **fields: Any) -> bytes:
    """Encodes a header from its own fields; the fields that all headers share are filled in."""
    values: dict[str, Any] = {"reserved": b""} if "reserved" in layout.fields else {}
    values |= {"magic": magic, "version": VERSION, "flags": 0, "header_len": layout.size}
    packed = layout.pack(**values, **fields, header_crc32c=0)
    checked = packed[: layout.at("header_crc32c")]
    return checked + crc32c_of(checked).to_bytes(4, "big")


def decode(buffer: Buffer, layout: Layout, magic: bytes) -> dict[str, Any]:
    """Checks the header at the start of a file and returns all its fields.

    Raises NewerFormat for another version or length under a good checksum, CorruptData for anything
    else but a header. A longer header is known as one where the buffer holds all of it.
    """
    whole = memoryview(buffer)
    data = bytes(whole[: layout.size])
    if data[: len(magic)] != magic:
        raise CorruptData("not this kind of file", expected=repr(magic), found=repr(data[:8]))
    refuse_short(data, layout.size, "the file ends inside its header")
    fields = layout.unpack(data)
    position = layout.at("header_crc32c")
    computed = crc32c_of(data[:position])
    if computed == fields["header_crc32c"] or _is_sound(whole[: fields["header_len"]]):
        refuse_newer(layout, fields)
    refuse_mismatch(position, computed, fields["header_crc32c"])
    return fields


def _is_sound(head: memoryview) -> bool:
    """Returns whether the last bytes of a header, as long as it claims to be, are its checksum."""
    if not _CHECKSUM_BYTES < head.nbytes <= HEADER_BYTES_MAX:
        return False
    stored = int.from_bytes(head[-_CHECKSUM_BYTES:], "big")
    return crc32c_of(bytes(head[:-_CHECKSUM_BYTES])) == stored


def refuse_short(data: Buffer, size: int, problem: str) -> None:
    """Raises CorruptData unless there are `size` bytes."""
    found = memoryview(data).nbytes
    if found < size:
        raise CorruptData(problem, position=found, expected=f"{size} bytes", found=f"{found} bytes")


def refuse_newer(layout: Layout, fields: dict[str, Any]) -> None:
    """Raises NewerFormat for a version or a header length that is not ours."""
    for name, known in (("version", VERSION), ("header_len", layout.size)):
        if fields[name] != known:
            raise NewerFormat(
                f"unknown {name}",
                position=layout.at(name),
                expected=str(known),
                found=str(fields[name]),
            )


def refuse_mismatch(position: int, computed: int, stored: int) -> None:
    """Raises CorruptData unless the checksum that is stored at `position` is the computed one."""
    if computed != stored:
        raise CorruptData(
            "the checksum does not match",
            position=position,
            expected=f"{computed:#010x}",
            found=f"{stored:#010x}",
        )


def refuse_negative(layout: Layout, fields: dict[str, Any], *names: str, start: int = 0) -> None:
    """Raises CorruptData for an offset or a size of 2^63 or more, which no file can have."""
    for name in names:
        if fields[name] < 0:
            raise CorruptData(
                f"{name} is out of range",
                position=start + layout.at(name),
                expected="below 2^63",
                found=str(fields[name] & ((1 << 64) - 1)),
            )
