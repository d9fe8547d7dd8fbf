"""Gives changed bytes the checksums that fit them, so that what is behind the checksum is reached.

Lengths are believed as far as the bytes go: where a walk meets a length that leads nowhere, it ends
and the rest stays as it is.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable

from lamina.formats import committed_offsets, producer_journal, transaction_file
from lamina.formats.documents import strict_json
from lamina.formats.frame import log as frame_log
from lamina.formats.keratin import delta, manifest, snapshot
from lamina.formats.keratin import log as keratin_log
from lamina.formats.kernels.binary import Layout
from lamina.formats.kernels.crc import crc32c_of
from lamina.formats.kernels.xxh3 import xxh3_of
from lamina.formats.strm import layout as strm
from lamina.formats.wal import snapshot as wal_snapshot
from lamina.formats.wal.layout import PREFIX, SEGMENT_FRAME


def put(out: bytearray, at: int, number: int, order: str) -> None:
    struct.pack_into(f"{order}I", out, at, number)


def frames(data: bytes) -> bytes:
    """Seals the records of a frame log."""
    out, at, head = bytearray(data), 0, frame_log.HEADER
    while at + frame_log.OVERHEAD_BYTES <= len(out):
        fields = head.unpack(out, at)
        body = head.size + fields["key_len"] + fields["value_len"]
        if at + body + frame_log.TRAILER.size > len(out):
            break
        put(out, at + body, zlib.crc32(out[at : at + body]), "<")
        put(out, at + body + 4, body + frame_log.TRAILER.size, "<")
        at += body + frame_log.TRAILER.size
    return bytes(out)


def header_of(layout: Layout) -> Callable[[bytes], bytes]:
    """Seals the header that begins a keratin file, if it is all there."""

    def sealed(data: bytes) -> bytes:
        position = layout.at("header_crc32c")
        if len(data) < layout.size:
            return data
        return data[:position] + _big(crc32c_of(data[:position])) + data[position + 4 :]

    return sealed


def _big(number: int) -> bytes:
    return number.to_bytes(4, "big")


def keratin_records(data: bytes) -> bytes:
    """Seals the header and the records of a keratin log."""
    out = bytearray(header_of(keratin_log.FILE_HEADER)(data))
    at, head = keratin_log.FILE_HEADER_BYTES, keratin_log.HEADER
    while at + keratin_log.OVERHEAD_BYTES <= len(out):
        fields = head.unpack(out, at)
        end = at + head.size + fields["header_len"] + fields["payload_len"]
        if end + 4 > len(out):
            break
        put(out, end, crc32c_of(bytes(out[at + 2 : end])), ">")
        at = end + 4
    return bytes(out)


def events(data: bytes) -> bytes:
    """Seals the header and the events of a group's delta log."""
    out = bytearray(header_of(delta.FILE_HEADER)(data))
    at, head = delta.FILE_HEADER_BYTES, delta.HEADER
    while at + delta.OVERHEAD_BYTES <= len(out):
        end = at + head.size + head.unpack(out, at)["len"]
        if end + 4 > len(out):
            break
        put(out, end, crc32c_of(bytes(out[at + 2 : end])), ">")
        at = end + 4
    return bytes(out)


def group_snapshot(data: bytes) -> bytes:
    """Seals the header and the payload of a group's snapshot."""
    sealed = header_of(snapshot.FILE_HEADER)(data)
    size = snapshot.FILE_HEADER.size
    if len(sealed) < size + 4:
        return sealed
    return sealed[:-4] + _big(crc32c_of(sealed[size:-4]))


def partition_manifest(data: bytes) -> bytes:
    """Seals a keratin manifest."""
    head = manifest.HEADER
    if len(data) < head.size:
        return data
    at = head.at("crc32c")
    return data[:at] + _big(crc32c_of(data[head.size :])) + data[at + 4 :]


def wal_frames(prefix: int) -> Callable[[bytes], bytes]:
    """Seals the frames of a WAL, or of a segment, which has no prefix."""

    def sealed(data: bytes) -> bytes:
        out, at, head = bytearray(data), 0, SEGMENT_FRAME
        while at + prefix + head.size + 8 <= len(out):
            fields = head.unpack(out, at + prefix)
            body = at + prefix + head.at("flags")
            end = body + fields["frame_len"] - 8
            if end < body or end + 8 > len(out):
                break
            seed = out[at] if prefix and out[at] != 1 else 0
            out[end : end + 8] = xxh3_of(bytes(out[body:end]), seed).to_bytes(8, "little")
            at = end + 8
        return bytes(out)

    return sealed


WAL_LOG, WAL_SEGMENT = wal_frames(PREFIX.size), wal_frames(0)


def metadata(data: bytes) -> bytes:
    """Seals a metadata snapshot of wal topics."""
    head = wal_snapshot.HEADER
    if len(data) < head.size:
        return data
    out, payload = bytearray(data), data[head.size :]
    struct.pack_into("<Q", out, head.at("xxh3"), xxh3_of(payload))
    if len(data) % 4:  # one in four keeps a length that lies
        width = {"u32": "<I", "u64": "<Q"}[head.fields["payload_len"]]
        struct.pack_into(width, out, head.at("payload_len"), len(payload))
    return bytes(out)


def strm_object(data: bytes) -> bytes:
    """Seals the blocks and the file of a STRM object."""
    out, at = bytearray(data), strm.HEADER.size
    end = len(out) - strm.FOOTER.size
    if end < at:
        return data
    limit = min(strm.FOOTER.unpack(out, end)["index_offset"], end)
    while at + strm.BLOCK.size <= limit:
        after = at + strm.BLOCK.size + strm.BLOCK.unpack(out, at)["compressed_size"]
        if after > limit:
            break
        checked = out[at + strm.BLOCK.size : after]
        put(out, at + strm.BLOCK.at("crc32"), zlib.crc32(checked), ">")
        at = after
    put(out, end + strm.FOOTER.at("file_crc"), zlib.crc32(out[: -strm.UNCOVERED_BYTES]), ">")
    return bytes(out)


def journal(data: bytes) -> bytes:
    """Seals the entries of a producers' journal."""
    out, size = bytearray(data), producer_journal.ENTRY.size
    for at in range(0, len(out) - size + 1, size):
        put(out, at + size - 4, crc32c_of(bytes(out[at : at + size - 4])), "<")
    return bytes(out)


def offsets(data: bytes) -> bytes:
    """Seals the entries of the journal of committed offsets, as far as their lengths lead."""
    out, at = bytearray(data), committed_offsets.FILE_HEADER_BYTES
    size = committed_offsets.ENTRY.size
    while at + size + 4 <= len(out):
        fields = committed_offsets.ENTRY.unpack(bytes(out), at)
        end = at + size + fields["group_len"] + fields["topic_len"] + fields["metadata_len"]
        if end + 4 > len(out):
            break
        out[end : end + 4] = crc32c_of(bytes(out[at + 2 : end])).to_bytes(4, "big")
        at = end + 4
    return bytes(out)


def transaction(data: bytes) -> bytes:
    """Seals the entries of a transaction's file, as far as their lengths lead."""
    out, at = bytearray(data), transaction_file.FILE_HEADER_BYTES
    size = transaction_file.ENTRY.size
    while at + size + 4 <= len(out):
        fields = transaction_file.ENTRY.unpack(bytes(out), at)
        end = at + size + fields["name_len"] + fields["body_len"]
        if end + 4 > len(out):
            break
        out[end : end + 4] = crc32c_of(bytes(out[at + 2 : end])).to_bytes(4, "big")
        at = end + 4
    return bytes(out)


def kafka_batch(data: bytes) -> bytes:
    """Seals a record batch of Kafka: its length, and the checksum behind it."""
    out = bytearray(data)
    if len(out) > 21:
        out[8:12] = (len(out) - 12).to_bytes(4, "big")
        out[17:21] = crc32c_of(bytes(out[21:])).to_bytes(4, "big")
    return bytes(out)


def document(data: bytes) -> bytes:
    """Seals a JSON document."""
    try:
        fields = json.loads(data)
        fields.pop(strict_json.SEAL, None)
        fields[strict_json.SEAL] = strict_json.seal(fields)
        return json.dumps(fields).encode()
    except (ValueError, AttributeError, TypeError, RecursionError):
        return data
