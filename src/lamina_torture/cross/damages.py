"""What happens to a file, and whose bytes it touches.

Spots are drawn so that the few bytes of a header, an index and a footer are hit as often as the
many of the records between them. A newer version has checksums that fit: nothing but the version,
type or flag tells it from a sound file.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from lamina.formats.documents import strict_json
from lamina.formats.frame import log as frame_log
from lamina.formats.keratin import log as keratin_log
from lamina.formats.kernels.crc import crc32c_of
from lamina.formats.kernels.xxh3 import xxh3_of
from lamina.formats.scan import Scan
from lamina.formats.strm import layout as strm_layout
from lamina.formats.wal import log as wal_log
from lamina.formats.wal.layout import SEGMENT_FRAME, TRAILER
from lamina.records import prepare
from lamina_torture.cross.templates import Copy, Template

EDGE_BYTES = 72
PAGE_BYTES = 4096
DERIVED = (".idx", ".timeidx", ".tidx", "manifest.bin", "manifest.json", "groups.json", "CURRENT")
"""Files that can be made again from others: damage to one costs nothing, whatever it says."""
IDENTITY = "broker.id"
UNKNOWN_FLAG = 0x40
LOGS = (".log", ".data", ".seg")
"""How files of records end; the journal of committed offsets holds none."""


@dataclass(frozen=True)
class Damaged:
    """One damaged file: its new bytes (None where it is gone), and the copies that it touches."""

    path: str
    kind: str
    data: bytes | None
    hurt: frozenset[Copy]
    position: int = 0

    @property
    def is_derived(self) -> bool:
        """Whether the file can be made again from others."""
        return self.path.endswith(DERIVED)

    @property
    def is_identity(self) -> bool:
        """Whether it is the file by which a store knows that the directory is its own."""
        return self.path.endswith(IDENTITY)


def draw(template: Template, tier: str, kind: str, luck: random.Random) -> Damaged | None:
    """Damages a file of a tier; None where no file of the tier can be damaged so."""
    candidates = list(template.tiers.get(tier, ()))
    if kind == "newer":
        candidates = [path for path in candidates if newer(path, template.files[path]) is not None]
    if kind in ("bit", "cut", "eio"):
        candidates = [path for path in candidates if template.files[path]]
    if not candidates:
        return None
    logs = [path for path in candidates if path.endswith(LOGS) and tier != "metadata"]
    path = luck.choice(logs if logs and luck.random() < 0.7 else candidates)
    return _DAMAGES[kind](template, path, luck)


def _spot(data: bytes, luck: random.Random) -> int:
    """A byte of a file: in its head, in its tail, or anywhere, each as likely."""
    size = len(data.rstrip(b"\0")) or len(data)
    edge = min(EDGE_BYTES, size)
    way = luck.randrange(3)
    if way == 0:
        return luck.randrange(edge)
    return size - 1 - luck.randrange(edge) if way == 1 else luck.randrange(size)


def _bit(template: Template, path: str, luck: random.Random) -> Damaged:
    data = bytearray(template.files[path])
    at = _spot(bytes(data), luck)
    data[at] ^= 1 << luck.randrange(8)
    return Damaged(path, "bit", bytes(data), frozenset(template.touched(path, at, at + 1)), at)


def _cut(template: Template, path: str, luck: random.Random) -> Damaged:
    data = template.files[path]
    at = 0 if luck.random() < 0.2 else _spot(data, luck)
    hurt = frozenset(template.touched(path, at, len(data)))
    return Damaged(path, "cut", data[:at], hurt, at)


def _gone(template: Template, path: str, _: random.Random) -> Damaged:
    return Damaged(path, "gone", None, frozenset(template.touched(path, 0, 1 << 40)))


def _foreign(template: Template, path: str, luck: random.Random) -> Damaged:
    """Text, noise, a picture's beginning, or a whole file of another format."""
    way = luck.randrange(4)
    data = (
        b"Dear reader, this is a letter and no log.\n" * 40,
        b"\x89PNG\r\n\x1a\n" + luck.randbytes(700),
        luck.randbytes(1500),
        _other_log(template.format),
    )[way]
    return Damaged(path, "foreign", data, frozenset(template.touched(path, 0, 1 << 40)))


def _other_log(format_name: str) -> bytes:
    """Sound records, of a format that the topic does not have."""
    other = "keratin" if format_name == "frame" else "frame"
    batch = prepare([b"foreign %d" % number for number in range(20)], other, now_ms=0)
    if other == "keratin":
        return keratin_log.encode_header(0, 0) + bytes(keratin_log.encode(batch, 0)[0])
    return bytes(frame_log.encode(batch, 0)[0])


def _newer(template: Template, path: str, luck: random.Random) -> Damaged:
    made = newer(path, template.files[path], luck)
    assert made is not None, "only files with a version are drawn"
    data, at = made
    # The whole file may be refused for it: whatever it holds is excused until it can be read.
    return Damaged(path, "newer", data, frozenset(template.touched(path, 0, 1 << 40)), at)


def _page(template: Template, path: str, luck: random.Random) -> Damaged:
    data = template.files[path]
    at = luck.randrange(max(1, -(-len(data) // PAGE_BYTES))) * PAGE_BYTES
    hurt = frozenset(template.touched(path, at, at + PAGE_BYTES))
    return Damaged(path, "eio", data, hurt, at)


_DAMAGES: dict[str, Callable[[Template, str, random.Random], Damaged]] = {
    "bit": _bit,
    "cut": _cut,
    "gone": _gone,
    "foreign": _foreign,
    "newer": _newer,
    "eio": _page,
}


# ---------------------------------------------------------------- versions to come


def newer(path: str, data: bytes, luck: random.Random | None = None) -> tuple[bytes, int] | None:
    """Returns a file of the next version and where it says so; None for one without a version."""
    drawn = luck or random.Random(0)  # noqa: S311
    if data[:1] == b"{" and not path.endswith((*LOGS, ".idx", ".timeidx")):
        return _newer_document(data)
    if path.endswith(".seg"):
        return _newer_object(data)
    if data.startswith(b"KLOG") and drawn.random() < 0.5:
        return _newer_keratin_record(data, drawn)
    if data.startswith((b"KLOG", b"KIDX", b"KTIX", b"KSNAP", b"KDELTA", b"KOFFSET", b"KTXN")):
        return _newer_header(data)
    if data.startswith(b"KERATIN\0") or data.startswith(b"LAMSNAP\0"):
        return _newer_whole(data)
    if data[:4] == frame_log.MAGIC.to_bytes(4, "little"):
        return _newer_frame(data, drawn)
    if path.endswith((".data", ".log")):
        return _newer_wal(path, data, drawn)
    return None


def _newer_document(data: bytes) -> tuple[bytes, int] | None:
    told = json.loads(data)
    if "version" not in told:
        return None
    told["version"] += 1
    if told.pop(strict_json.SEAL, None) is not None:
        told[strict_json.SEAL] = strict_json.seal(told)
    return json.dumps(told).encode(), 0


def _newer_object(data: bytes) -> tuple[bytes, int]:
    at = strm_layout.HEADER.at("version")
    changed = bytearray(data)
    changed[at : at + 2] = b"\0\2"
    crc_at = len(data) - strm_layout.FOOTER.size + strm_layout.FOOTER.at("file_crc")
    changed[crc_at : crc_at + 4] = zlib.crc32(bytes(changed[:crc_at])).to_bytes(4, "big")
    return bytes(changed), at


def _newer_header(data: bytes) -> tuple[bytes, int]:
    """A keratin file: the version, and the header's checksum in its last four bytes."""
    size = int.from_bytes(data[12:16], "big")
    head = data[:8] + b"\0\2" + data[10 : size - 4]
    return head + crc32c_of(head).to_bytes(4, "big") + data[size:], 8


def _newer_whole(data: bytes) -> tuple[bytes, int]:
    """A manifest or a snapshot: their checksums leave the version out."""
    return data[:8] + (b"\0\2" if data.startswith(b"KERATIN") else b"\2\0") + data[10:], 8


def _some_record(found: Scan, luck: random.Random) -> tuple[int, int]:
    row = luck.randrange(len(found))
    ends = [*found.positions.tolist()[1:], found.end]
    return int(found.positions[row]), int(ends[row])


def _newer_frame(data: bytes, luck: random.Random) -> tuple[bytes, int] | None:
    found = frame_log.scan(data)
    if not len(found):
        return None
    start, end = _some_record(found, luck)
    body = bytearray(data[start : end - 8])
    at = luck.choice((4, 6))  # the version, or the flags
    body[at] += 1
    record = bytes(body) + zlib.crc32(body).to_bytes(4, "little") + data[end - 4 : end]
    return data[:start] + record + data[end:], start + at


def _newer_keratin_record(data: bytes, luck: random.Random) -> tuple[bytes, int] | None:
    found = keratin_log.scan(data)
    if not len(found):
        return None
    start, end = _some_record(found, luck)
    body = data[start + 2 : end - 4]
    body = b"\0\2" + body[2:]
    record = data[start : start + 2] + body + crc32c_of(body).to_bytes(4, "big")
    return data[:start] + record + data[end:], start + 2


def _newer_wal(path: str, data: bytes, luck: random.Random) -> tuple[bytes, int] | None:
    """A frame with a flag, or in the WAL of a type, that nobody knows yet."""
    is_segment = path.endswith(".data")
    found = wal_log.scan_segment(data) if is_segment else wal_log.scan(data)
    if not len(found):
        return None
    start, end = _some_record(found, luck)
    frame = bytearray(data[start:end])
    prefix = 0 if is_segment else 1
    kind = 0 if is_segment else frame[0]
    at = prefix + SEGMENT_FRAME.at("flags")
    if is_segment or luck.random() < 0.5:
        frame[at] |= UNKNOWN_FLAG
    else:
        at, kind = 0, 200
        frame[0] = kind
    seed = 0 if kind in (0, 1) else kind
    checked = bytes(frame[prefix + 4 : -TRAILER.size])
    frame[-TRAILER.size :] = xxh3_of(checked, seed).to_bytes(8, "little")
    return data[:start] + bytes(frame) + data[end:], start + at
