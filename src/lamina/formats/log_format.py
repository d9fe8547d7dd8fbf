"""The interface of a segmented format, implemented once for frame and once for keratin.

Code above it does not know which format a partition has; code below it knows nothing of files.
`CODECS` is the closed set of formats.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.errors import CorruptData
from lamina.formats.frame import index as frame_index
from lamina.formats.frame import log as frame_log
from lamina.formats.frame import time_index as frame_times
from lamina.formats.keratin import index as keratin_index
from lamina.formats.keratin import log as keratin_log
from lamina.formats.keratin import time_index as keratin_times
from lamina.formats.kernels.arrow import Encoded, PlainValues
from lamina.formats.offset_log import LogModule
from lamina.formats.scan import Budget, Limit, Scan
from lamina.formats.sparse_choice import Entries, Stride

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Codec(Protocol):
    """A segmented format: how its three files are written and read."""

    name: str
    time_suffix: str
    header_bytes: int
    index_header_bytes: int
    has_manifest: bool
    stride: Stride
    log: LogModule
    """The format's own `log` module: what `OffsetLog` walks a buffer with."""

    def log_header(self, base_offset: int, created_ms: int) -> bytes:
        """Returns what a new `.log` begins with."""

    def check_log_header(self, head: Buffer, base_offset: int) -> int | None:
        """Checks the beginning of a `.log`; returns when it was created, if it records that."""

    def begins_record(self, buffer: Buffer, position: int, offset: int) -> bool:
        """Returns whether the bytes there, as many as there are, begin a record of this offset.

        So does what is left of one that was being written; its soundness is not checked.
        """

    def begins_log(self, head: Buffer, base_offset: int) -> bool:
        """Returns whether a file's first bytes, as many as there are, are those of a `.log`."""

    def encode(
        self, batch: pa.RecordBatch, base_offset: int, out: NDArray[np.uint8] | None = None
    ) -> Encoded:
        """Encodes a batch; see the formats' own `encode`."""

    def encode_values(
        self,
        values: PlainValues,
        base_offset: int,
        out: NDArray[np.uint8] | None = None,
    ) -> Encoded:
        """Encodes plain values; see the formats' own `encode_values`."""

    def scan(
        self, buffer: Buffer, start: int, *, expected_offset: int | None, limit: Limit
    ) -> Scan:
        """Walks records; see the formats' own `scan`."""

    def decode(
        self, buffer: Buffer, found: Scan, columns: Collection[str] | None = None
    ) -> pa.RecordBatch:
        """Gathers the columns of scanned records, or only some of them."""

    def resync(
        self,
        buffer: Buffer,
        start: int,
        *,
        minimum_offset: int,
        budget: Budget | None = None,
    ) -> int | None:
        """Finds the next sound record after damage; a walk over damage shares one budget."""

    def offset_at(self, buffer: Buffer, position: int) -> int:
        """Reads the offset of a sound record."""

    def timestamps_at(self, buffer: Buffer, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Reads the timestamps of scanned records."""

    def encode_indexes(
        self, offsets: Entries, times: Entries, base_offset: int
    ) -> tuple[bytes, bytes]:
        """Encodes entries of the two indexes, without file headers."""

    def index_headers(self, base_offset: int, created_ms: int) -> tuple[bytes, bytes]:
        """Returns what the two index files begin with."""

    def created_by_index(self, head: Buffer) -> int | None:
        """Reads from an index when its segment was created, if it records that."""

    def decode_entry(self, raw: bytes, base_offset: int) -> tuple[int, int]:
        """Reads one entry of the offset index: (offset, position)."""

    def decode_indexes(
        self, offsets: Buffer, times: Buffer, base_offset: int
    ) -> tuple[Entries, Entries]:
        """Reads two whole index files; raises CorruptData if one cannot be used."""


class FrameCodec:
    """Documents 000 and 004: `.log .idx .timeidx`, no file headers."""

    name = "frame"
    time_suffix = "timeidx"
    header_bytes = 0
    index_header_bytes = 0
    has_manifest = False
    stride = frame_index.STRIDE
    log: LogModule = frame_log
    encode = staticmethod(frame_log.encode)
    encode_values = staticmethod(frame_log.encode_values)
    scan = staticmethod(frame_log.scan)
    decode = staticmethod(frame_log.decode)
    resync = staticmethod(frame_log.resync)
    timestamps_at = staticmethod(frame_times.timestamps_at)

    def log_header(self, base_offset: int, created_ms: int) -> bytes:
        """Returns nothing: a frame log begins with its first frame."""
        return b""

    def check_log_header(self, head: Buffer, base_offset: int) -> int | None:
        """Accepts anything: there is no header."""
        return None

    def begins_record(self, buffer: Buffer, position: int, offset: int) -> bool:
        """Compares magic, version, flags and offset."""
        expected = frame_log.HEADER.pack(
            magic=frame_log.MAGIC,
            version=frame_log.VERSION,
            flags=0,
            offset=offset,
            timestamp_ms=0,
            key_len=0,
            value_len=0,
        )
        return _begins(buffer, position, expected, (0, frame_log.HEADER.at("timestamp_ms")))

    def begins_log(self, head: Buffer, base_offset: int) -> bool:
        """A frame log begins with its first frame."""
        return self.begins_record(head, 0, base_offset)

    def offset_at(self, buffer: Buffer, position: int) -> int:
        """Reads the offset of a sound frame."""
        return int(frame_log.HEADER.unpack(buffer, position)["offset"])

    def encode_indexes(
        self, offsets: Entries, times: Entries, base_offset: int
    ) -> tuple[bytes, bytes]:
        """Encodes entries of both indexes."""
        return frame_index.encode(offsets), frame_times.encode(times)

    def index_headers(self, base_offset: int, created_ms: int) -> tuple[bytes, bytes]:
        """Returns nothing: the indexes are plain entries."""
        return b"", b""

    def created_by_index(self, head: Buffer) -> int | None:
        """Returns nothing: the indexes are plain entries."""
        return None

    def decode_entry(self, raw: bytes, base_offset: int) -> tuple[int, int]:
        """Reads one entry of the offset index."""
        entry = np.frombuffer(raw, dtype=frame_index.ENTRY)[0]
        return int(entry["offset"]), int(entry["position"])

    def decode_indexes(
        self, offsets: Buffer, times: Buffer, base_offset: int
    ) -> tuple[Entries, Entries]:
        """Reads both indexes; a partial last entry is dropped, as a crash may leave one."""
        return (
            frame_index.decode(_whole(offsets, frame_index.ENTRY.itemsize)),
            frame_times.decode(_whole(times, frame_times.ENTRY.itemsize)),
        )


def _begins(buffer: Buffer, position: int, expected: bytes, *spans: tuple[int, int]) -> bool:
    """Compares spans of the bytes at a position with those expected, as far as there are any."""
    found = bytes(memoryview(buffer).cast("B")[position : position + len(expected)])
    return all(found[start:end] == expected[start:end][: max(0, len(found) - start)]
               for start, end in spans)  # fmt: skip


def _whole(buffer: Buffer, entry_bytes: int) -> memoryview:
    view = memoryview(buffer).cast("B")
    return view[: view.nbytes - view.nbytes % entry_bytes]


class KeratinCodec:
    """Document 003: `.log .idx .tidx`, each with a checked header."""

    name = "keratin"
    time_suffix = "tidx"
    header_bytes = keratin_log.FILE_HEADER_BYTES
    index_header_bytes = keratin_index.FILE_HEADER_BYTES
    has_manifest = True
    stride = keratin_index.STRIDE
    log: LogModule = keratin_log
    encode = staticmethod(keratin_log.encode)
    encode_values = staticmethod(keratin_log.encode_values)
    scan = staticmethod(keratin_log.scan)
    decode = staticmethod(keratin_log.decode)
    resync = staticmethod(keratin_log.resync)
    timestamps_at = staticmethod(keratin_times.timestamps_at)

    def log_header(self, base_offset: int, created_ms: int) -> bytes:
        """Returns the 68-byte header."""
        return keratin_log.encode_header(base_offset, created_ms)

    def check_log_header(self, head: Buffer, base_offset: int) -> int | None:
        """Checks the header against the file's name."""
        header = keratin_log.decode_header(head)
        if header.base_offset != base_offset:
            raise CorruptData(
                "the header does not belong to this file",
                position=keratin_log.FILE_HEADER.at("base_offset"),
                expected=str(base_offset),
                found=str(header.base_offset),
            )
        return header.created_ms

    def begins_record(self, buffer: Buffer, position: int, offset: int) -> bool:
        """Compares magic, version and offset."""
        head = keratin_log.HEADER
        expected = head.pack(
            magic=keratin_log.MAGIC,
            version=keratin_log.VERSION,
            flags=0,
            reserved0=0,
            header_len=0,
            payload_len=0,
            timestamp_ms=0,
            offset=offset,
        )
        return _begins(
            buffer, position, expected, (0, head.at("flags")), (head.at("offset"), head.size)
        )

    def begins_log(self, head: Buffer, base_offset: int) -> bool:
        """Compares the magic; a header that its own checksum vouches for names its file, too."""
        try:
            return keratin_log.decode_header(head).base_offset == base_offset
        except CorruptData:  # torn, damaged, or newer: what follows it decides
            magic = keratin_log.FILE_MAGIC
            return _begins(head, 0, magic, (0, len(magic)))

    def offset_at(self, buffer: Buffer, position: int) -> int:
        """Reads the offset of a sound record."""
        return int(keratin_log.HEADER.unpack(buffer, position)["offset"])

    def encode_indexes(
        self, offsets: Entries, times: Entries, base_offset: int
    ) -> tuple[bytes, bytes]:
        """Encodes entries of both indexes, relative to the segment's base."""
        return (
            keratin_index.encode(offsets, base_offset=base_offset),
            keratin_times.encode(times, base_offset=base_offset),
        )

    def index_headers(self, base_offset: int, created_ms: int) -> tuple[bytes, bytes]:
        """Returns the two 72-byte headers."""
        return (
            keratin_index.encode_header(base_offset, created_ms),
            keratin_times.encode_header(base_offset, created_ms),
        )

    def created_by_index(self, head: Buffer) -> int | None:
        """Reads it from the header, which has a checksum."""
        return keratin_index.decode_header(head).created_ms

    def decode_entry(self, raw: bytes, base_offset: int) -> tuple[int, int]:
        """Reads one entry of the offset index; its offset is relative to the segment's base."""
        entry = np.frombuffer(raw, dtype=keratin_index.ENTRY)[0]
        return base_offset + int(entry["rel_offset"]), int(entry["file_pos"])

    def decode_indexes(
        self, offsets: Buffer, times: Buffer, base_offset: int
    ) -> tuple[Entries, Entries]:
        """Reads both indexes and checks that they are this segment's."""
        index, time_index = keratin_index.decode(offsets), keratin_times.decode(times)
        for found in (index, time_index):
            if found.base_offset != base_offset:
                raise CorruptData(
                    "the index does not belong to this segment",
                    expected=str(base_offset),
                    found=str(found.base_offset),
                )
        return index.entries, time_index.entries


CODECS: dict[str, Codec] = {"frame": FrameCodec(), "keratin": KeratinCodec()}
