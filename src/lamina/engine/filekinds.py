"""Which kind of file this is, by content and name, and the kinds that are read as a whole.

A name that only the WAL uses decides (its bytes may look like any magic number), then a magic
number, then the name (`storage.paths` parses it).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from lamina.engine import inspection
from lamina.engine.inspection import FileKind, Finding, files_below, map_file
from lamina.engine.rendering import Row, render_value
from lamina.errors import CorruptData, InvalidRequest
from lamina.formats import ledger, topic
from lamina.formats.frame import broker, checkpoint, tomb
from lamina.formats.frame import index as frame_index
from lamina.formats.frame import timeindex as frame_times
from lamina.formats.keratin import index as keratin_index
from lamina.formats.keratin import manifest, snapshot
from lamina.formats.keratin import timeindex as keratin_times
from lamina.formats.sparse import Entries
from lamina.formats.wal import current
from lamina.formats.wal import headers as wal_headers
from lamina.formats.wal import index as wal_index
from lamina.formats.wal import log as wal_log
from lamina.formats.wal import snapshot as wal_snapshot
from lamina.storage import paths

if TYPE_CHECKING:
    from typing_extensions import Buffer


class WholeFile:
    """A small file that is decoded at once: JSON documents, manifests, snapshots."""

    def __init__(self, name: str, decode: Callable[[bytes], Any]) -> None:
        self.name = name
        self._decode = decode

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Decodes strictly; what is not exact is damage."""
        try:
            self._decode(bytes(data))
        except CorruptData as error:
            yield Finding(path, error.position, _described(error))

    def dump(self, path: str, data: Buffer, first: int) -> Iterator[Row]:
        """Yields the one value that the file holds."""
        try:
            value = render_value(self._decode(bytes(data)))
            yield value if isinstance(value, dict) else {"value": value}
        except CorruptData as error:
            yield {"position": error.position, "checksum": "bad", "problem": _described(error)}


def _described(error: CorruptData) -> str:
    """The problem without its position, which a finding has beside it."""
    return str(error).removeprefix(f"byte {error.position}: ")


class IndexFile:
    """An index: entries that must agree with what its log would give anew."""

    def __init__(
        self,
        name: str,
        decode: Callable[[Buffer], Entries],
        rebuild: Callable[[Buffer], Entries],
        log_suffix: str = "log",
        header_bytes: int = 0,
    ) -> None:
        self.name = name
        self._header_bytes = header_bytes
        self._decode = decode
        self._rebuild = rebuild
        self._log_suffix = log_suffix

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Compares the entries with those of the log beside it; missing last ones are no damage."""
        try:
            entries = self._decode(data)
        except CorruptData as error:
            yield Finding(path, error.position, error.problem)
            return
        log = os.path.splitext(path)[0] + "." + self._log_suffix
        if not os.path.exists(log):
            return
        try:
            anew = self._rebuild(map_file(log))[: len(entries)]
        except InvalidRequest:  # no index can be made of this log: its own findings say why
            return
        agreeing = entries[: len(anew)] == anew
        row = len(anew) if agreeing.all() else int(np.argmin(agreeing))
        # An index of a log that was damaged later is still right: the log is what is reported.
        if row < len(entries) and not verify_file(log):
            width = (memoryview(data).nbytes - self._header_bytes) // len(entries)
            problem = f"entry {row} does not agree with the log; the index can be rebuilt"
            yield Finding(path, self._header_bytes + row * width, problem)

    def dump(self, path: str, data: Buffer, first: int) -> Iterator[Row]:
        """Yields the entries from a number on."""
        try:
            entries = self._decode(data)
        except CorruptData as error:
            yield {"position": error.position, "checksum": "bad", "problem": error.problem}
            return
        names = [name for name in entries.dtype.names or () if name != "padding"]
        for number, entry in enumerate(entries[first:], start=first):
            yield {"entry": number, **{name: int(entry[name]) for name in names}}


def _wal_entries(buffer: Buffer) -> Entries:
    """Entries without their deleted flags, which a rebuild from the data cannot know."""
    entries = wal_index.decode(buffer).copy()
    entries["flags"] &= np.uint8(0xFF ^ wal_index.DELETED)
    return entries


def _rebuilt_wal_entries(buffer: Buffer) -> Entries:
    found = wal_log.scan_segment(buffer)
    sequences = wal_headers.headers_segment(buffer, found).sequences
    first_sequence = int(sequences[0]) if len(sequences) else 1
    return wal_index.build(buffer, found, first_sequence=first_sequence)


_BY_MAGIC: dict[bytes, FileKind] = {
    b"KLOG\0\0\0\0": inspection.KERATIN_LOG,
    b"KIDX\0\0\0\0": IndexFile(
        "keratin index",
        lambda data: keratin_index.decode(data).entries,
        keratin_index.rebuild,
        header_bytes=keratin_index.FILE_HEADER.size,
    ),
    b"KTIX\0\0\0\0": IndexFile(
        "keratin time index",
        lambda data: keratin_times.decode(data).entries,
        keratin_times.rebuild,
        header_bytes=keratin_index.FILE_HEADER.size,
    ),
    b"KERATIN\0": WholeFile("keratin manifest", manifest.decode),
    b"KSNAP\0\0\0": WholeFile("group snapshot", snapshot.decode),
    b"KDELTA\0\0": inspection.GROUP_DELTA,
    b"LAMSNAP\0": WholeFile("metadata snapshot", wal_snapshot.decode),
    b"STRM": inspection.STRM,
    b"\x01\x5e\x0b\xb1": inspection.FRAME_LOG,
}
_BY_NAME: dict[str, FileKind] = {
    "broker.id": WholeFile("broker identity", broker.decode),
    "checkpoint.json": WholeFile("checkpoint", checkpoint.decode),
    paths.TOPIC_SETTINGS: WholeFile("topic settings", topic.decode),
    paths.LEDGER: WholeFile("ledger of gaps", ledger.decode),
    paths.CURRENT: WholeFile("current WAL file", current.decode),
    paths.MANIFEST: WholeFile("keratin manifest", manifest.decode),
}
_BY_SUFFIX: dict[str, FileKind] = {
    "idx": IndexFile("frame index", frame_index.decode, frame_index.rebuild),
    "timeidx": IndexFile("frame time index", frame_times.decode, frame_times.rebuild),
    "tidx": _BY_MAGIC[b"KTIX\0\0\0\0"],
    "tomb": WholeFile("tombstone", tomb.decode),
}
_WAL_INDEX = IndexFile("wal segment index", _wal_entries, _rebuilt_wal_entries, "data")
_MAGIC_BYTES_MAX = 8


def recognise(path: str, head: bytes) -> FileKind | None:
    """Tells the kind of a file from its first bytes and its name; None if it is not Lamina's."""
    name = os.path.basename(path)
    if paths.wal_file_index(name) is not None:
        return inspection.WAL_LOG
    if wal_segment := paths.wal_segment_file(name):
        return inspection.WAL_DATA if wal_segment.suffix == "data" else _WAL_INDEX
    for magic, kind in _BY_MAGIC.items():
        if head.startswith(magic):
            return kind
    if name in _BY_NAME:
        return _BY_NAME[name]
    if segment := paths.segment_file(name):
        return _segment_kind(path, segment.suffix)
    if group := paths.group_file(name):
        return _BY_MAGIC[b"KSNAP\0\0\0" if group.suffix == "snap" else b"KDELTA\0\0"]
    if paths.snapshot_number(name) is not None:
        return _BY_MAGIC[b"LAMSNAP\0"]
    return inspection.STRM if name.endswith(".seg") else None


def _segment_kind(path: str, suffix: str) -> FileKind | None:
    """A segment's file without a magic number: its neighbours say which format it has."""
    stem = os.path.splitext(path)[0]
    keratin = os.path.exists(stem + ".tidx") or os.path.exists(
        os.path.join(os.path.dirname(os.path.dirname(path)), paths.MANIFEST)
    )
    if suffix == "log":
        return inspection.KERATIN_LOG if keratin else inspection.FRAME_LOG
    if suffix == "idx" and keratin:
        return _BY_MAGIC[b"KIDX\0\0\0\0"]
    return _BY_SUFFIX[suffix]


def open_file(path: str) -> tuple[FileKind | None, Buffer]:
    """Maps a file and tells its kind."""
    data = map_file(path)
    return recognise(path, bytes(memoryview(data)[:_MAGIC_BYTES_MAX])), data


def verify_file(path: str) -> list[Finding] | None:
    """Returns every damaged spot of a file; None if the file is not Lamina's."""
    kind, data = open_file(path)
    return None if kind is None else list(kind.verify(path, data))


__all__ = ["files_below", "open_file", "recognise", "verify_file"]
