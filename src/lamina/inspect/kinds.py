"""Which kind of file this is, by content and name, and the kinds that are indexes.

A name that only the WAL, a document or an object uses decides (its bytes may look like any magic
number), then a magic number that a file of this name may have, then the name (`storage.paths`
parses it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lamina.errors import CorruptData, InvalidRequest
from lamina.formats.frame import index as frame_index
from lamina.formats.frame import time_index as frame_times
from lamina.formats.keratin import index as keratin_index
from lamina.formats.keratin import manifest, snapshot
from lamina.formats.keratin import time_index as keratin_times
from lamina.formats.scan import Scan, Stop
from lamina.formats.sparse_choice import Entries
from lamina.formats.wal import headers as wal_headers
from lamina.formats.wal import index as wal_index
from lamina.formats.wal import log as wal_log
from lamina.formats.wal import snapshot as wal_snapshot
from lamina.inspect import documents, logs, object_files
from lamina.inspect.documents import WholeFile
from lamina.inspect.findings import (
    FileKind,
    Finding,
    Named,
    Row,
    described,
    load_file,
    named,
    salvage_file,
    with_holes,
)
from lamina.inspect.journal_files import OffsetsJournal, ProducersJournal
from lamina.inspect.transaction_files import TailSections, TransactionEntries
from lamina.storage import machine, paths

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class Contents:
    """What an index holds: entries, the segment that its header names, bytes after the entries."""

    entries: Entries
    base_offset: int | None = None
    cut_bytes: int = 0


def _no_check(_: Entries) -> None:
    """For an index whose `decode` checks all that can be checked without its log."""


@dataclass
class IndexFile:
    """An index: entries that must agree with its log as it is now.

    `rebuild` takes the log, the facts in its name, and the entries to compare with. `check` raises
    CorruptData for entries that contradict each other.
    """

    name: str
    decode: Callable[[Buffer], Contents]
    rebuild: Callable[[Buffer, Named, Entries], Entries]
    log_suffix: str = "log"
    header_bytes: int = 0
    entry_bytes: int = 16
    check: Callable[[Entries], None] = _no_check

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Compares the entries with those of the log beside it; missing last ones are no damage."""
        log = paths.beside(path, self.log_suffix)

        def recomputed(entries: Entries, facts: Named) -> Entries | None:
            if not machine.exists(log):
                return None
            try:
                return self.rebuild(load_file(log), facts, entries)
            except InvalidRequest:  # no index can be made of this log: its own findings tell why
                return None

        return self.compare(path, data, recomputed, lambda: not verify_file(log))

    def compare(
        self,
        path: str,
        data: Buffer,
        recomputed: Callable[[Entries, Named], Entries | None],
        is_log_sound: Callable[[], bool],
    ) -> Iterator[Finding]:
        """Compares the entries with those of a log; None is no log to compare with."""
        facts = named(path)
        try:
            contents = self.decode(data)
            self.check(contents.entries)
        except CorruptData as error:
            yield Finding(path, error.position, described(error))
            return
        if contents.cut_bytes:
            position = memoryview(data).nbytes - contents.cut_bytes
            yield Finding(path, position, "the index ends inside an entry")
        base_offset = _base_offset(contents, facts)
        if facts.number not in (None, base_offset):
            yield Finding(path, 0, f"the index is of segment {base_offset}, its name says another")
            return
        entries = contents.entries
        made = recomputed(entries, facts)
        if made is None:
            return
        made = made[: len(entries)]
        agreeing = entries[: len(made)] == made
        row = len(made) if agreeing.all() else int(np.argmin(agreeing))
        # An index of a log that was damaged later is still right: the log is what is reported.
        if row < len(entries) and is_log_sound():
            problem = f"entry {row} does not agree with the log; the index can be rebuilt"
            yield Finding(path, self._position_of(row), problem)

    def _position_of(self, row: int) -> int:
        return self.header_bytes + row * self.entry_bytes

    def dump(self, path: str, data: Buffer, first: int) -> Iterator[Row]:
        """Yields the entries from a number on; entries have no checksum, a header may have one."""
        try:
            entries = self.decode(data).entries
        except CorruptData as error:
            yield Finding(path, error.position, described(error)).as_row()
            return
        names = [name for name in entries.dtype.names or () if name != "padding"]
        for number, entry in enumerate(entries[first:], start=first):
            about: Row = {"entry": number, "position": self._position_of(number)}
            about |= {"size": self.entry_bytes, "checksum": "none"}
            # An entry's own field of that name is a byte of the log, not of this file.
            shown = {f"{self.log_suffix}_position" if name == "position" else name: int(entry[name])
                     for name in names}  # fmt: skip
            yield about | shown


def _base_offset(contents: Contents, facts: Named) -> int | None:
    """The segment that an index belongs to: by its header, or as far as its entries show it."""
    if contents.base_offset is not None:
        return contents.base_offset
    entries = contents.entries
    if "offset" in (entries.dtype.names or ()) and len(entries) and facts.number is not None:
        # Where the first records are damaged, a rebuilt index begins later; never earlier.
        return min(facts.number, int(entries["offset"][0]))
    return facts.number


def _frame_contents(decode: Callable[[Buffer], Entries]) -> Callable[[Buffer], Contents]:
    return lambda data: Contents(decode(data))


def _keratin_contents(
    decode: Callable[[Buffer], keratin_index.Index],
) -> Callable[[Buffer], Contents]:
    def contents(data: Buffer) -> Contents:
        found = decode(data)
        return Contents(found.entries, found.base_offset, found.cut_bytes)

    return contents


def _check_wal_entries(entries: Entries) -> None:
    wal_index.check(entries, wal_index.DATA_BYTES_MAX)


def _rebuilt_wal_entries(buffer: Buffer, facts: Named, entries: Entries) -> Entries:
    """Rebuilds as many entries; deleted flags, which the data cannot know, are the file's."""
    found = _whole_segment(buffer)
    sequences = wal_headers.headers_segment(buffer, found).sequences
    first = facts.number if facts.number is not None else int(next(iter(sequences), 1))
    kept = int(np.searchsorted(sequences, first + len(entries)))
    covered = Scan(found.positions[:kept], found.end, found.stop)
    recomputed = wal_index.build(buffer, covered, first_sequence=first)
    if kept < len(found):  # a hole before the next frame, which may be a wide one
        hole = np.zeros(max(0, len(entries) - len(recomputed)), dtype=wal_index.ENTRY)
        hole["position"] = found.positions[kept]
        hole["timestamp_ms"] = recomputed["timestamp_ms"][-1] if kept else wal_index.TIMESTAMP_MIN
        recomputed = np.concatenate([recomputed, hole])
    compared = min(len(recomputed), len(entries))
    recomputed["flags"][:compared] |= entries["flags"][:compared] & np.uint8(wal_index.DELETED)
    return recomputed


def _whole_segment(buffer: Buffer) -> Scan:
    """Walks a `.data` up to its end or the first damage, however many frames it has."""
    found = wal_log.scan_segment(buffer)
    parts = [found.positions]
    while found.stop is Stop.LIMIT:
        found = wal_log.scan_segment(buffer, found.end)
        parts.append(found.positions)
    return Scan(np.concatenate(parts), found.end, found.stop)


def _other_group(value: snapshot.Snapshot, facts: Named) -> str | None:
    if facts.topic is None or facts.partition is None or facts.group is None:
        return None
    if value.tp_hash != snapshot.hash_topic_partition(facts.topic, facts.partition):
        return "the snapshot is of another partition than its name says"
    if value.group_hash != snapshot.hash_group(facts.group):
        return "the snapshot is of another group than its name says"
    return None


_KERATIN_HEADER = keratin_index.FILE_HEADER.size
_BY_MAGIC: dict[bytes, FileKind] = {
    b"KLOG\0\0\0\0": logs.KERATIN_LOG,
    b"KIDX\0\0\0\0": IndexFile(
        "keratin index",
        _keratin_contents(keratin_index.decode),
        lambda log, *_: keratin_index.rebuild(log),
        header_bytes=_KERATIN_HEADER,
    ),
    b"KTIX\0\0\0\0": IndexFile(
        "keratin time index",
        _keratin_contents(keratin_times.decode),
        lambda log, *_: keratin_times.rebuild(log),
        header_bytes=_KERATIN_HEADER,
    ),
    b"KERATIN\0": WholeFile("keratin manifest", manifest.decode, checksum="ok"),
    b"KSNAP\0\0\0": WholeFile("group snapshot", snapshot.decode, _other_group, checksum="ok"),
    b"KDELTA\0\0": logs.GROUP_DELTA,
    b"LAMSNAP\0": WholeFile("metadata snapshot", wal_snapshot.decode, checksum="ok"),
    b"STRM": object_files.STRM,
    b"\x01\x5e\x0b\xb1": logs.FRAME_LOG,
}
_BY_SUFFIX: dict[str, FileKind] = {
    "idx": IndexFile(
        "frame index",
        _frame_contents(frame_index.decode),
        lambda log, *_: frame_index.rebuild(log),
    ),
    "timeidx": IndexFile(
        "frame time index",
        _frame_contents(frame_times.decode),
        lambda log, *_: frame_times.rebuild(log),
    ),
    "tidx": _BY_MAGIC[b"KTIX\0\0\0\0"],
}
_WAL_INDEX = IndexFile(
    "wal segment index",
    _frame_contents(wal_index.decode),
    _rebuilt_wal_entries,
    log_suffix="data",
    entry_bytes=wal_index.ENTRY.itemsize,
    check=_check_wal_entries,
)
_JOURNALS: dict[str, FileKind] = {
    paths.PRODUCERS: ProducersJournal(),
    paths.base_name(paths.COMMITTED_OFFSETS): OffsetsJournal(),
}
_TRANSACTION = TransactionEntries()
_TAIL = TailSections()
_MAGIC_BYTES_MAX = 8


def _is_tail(name: str) -> bool:
    return paths.tail_seq(f"{paths.TAILS}/{name}") is not None


def recognise(path: str, head: bytes) -> FileKind | None:
    """Returns the kind of a file by its first bytes and its name; None if it is not Lamina's."""
    name = paths.base_name(path)
    if paths.wal_file_index(name) is not None:
        return logs.WAL_LOG
    if wal_segment := paths.wal_segment_file(name):
        return logs.WAL_DATA if wal_segment.suffix == "data" else _WAL_INDEX
    if document := _TAIL if _is_tail(name) else documents.recognise(path):
        return document
    if name in _JOURNALS:
        return _JOURNALS[name]
    if paths.transaction_file(name) is not None:
        return _TRANSACTION
    if paths.suffix_of(name) == "seg":
        return object_files.STRM
    for magic, kind in _BY_MAGIC.items():
        if head.startswith(magic) and _may_be(path, kind):
            return kind
    if name == paths.MANIFEST:
        return _BY_MAGIC[b"KERATIN\0"]
    if segment := paths.segment_file(name):
        return _segment_kind(path, segment.suffix)
    if group := paths.group_file(name):
        return _BY_MAGIC[b"KSNAP\0\0\0" if group.suffix == "snap" else b"KDELTA\0\0"]
    if paths.snapshot_number(name) is not None:
        return _BY_MAGIC[b"LAMSNAP\0"]
    return None


def every_kind() -> tuple[FileKind, ...]:
    """Returns every kind of file that there is."""
    logs_of_wal = (logs.WAL_LOG, logs.WAL_DATA, _WAL_INDEX)
    others = (*_JOURNALS.values(), _TRANSACTION, _TAIL, *logs_of_wal, *documents.every_kind())
    return (*_BY_MAGIC.values(), *_BY_SUFFIX.values(), *others)


def _may_be(path: str, kind: FileKind) -> bool:
    """Returns whether a file of this name may be of a kind: a log is neither index nor object."""
    segment = paths.segment_file(paths.base_name(path))
    if segment is None:
        return True
    is_log = kind in (logs.KERATIN_LOG, logs.FRAME_LOG)
    return is_log == (segment.suffix == "log")


def _segment_kind(path: str, suffix: str) -> FileKind | None:
    """A segment's file without a magic number: its neighbours show which format it has."""
    keratin = machine.exists(paths.beside(path, "tidx")) or machine.exists(
        paths.join(paths.parent(paths.parent(path)), paths.MANIFEST)
    )
    if suffix == "log":
        return logs.KERATIN_LOG if keratin else logs.FRAME_LOG
    if suffix == "idx" and keratin:
        return _BY_MAGIC[b"KIDX\0\0\0\0"]
    return _BY_SUFFIX[suffix]


def kind_of(path: str, data: Buffer) -> FileKind | None:
    """Returns the kind of a file that is mapped."""
    return recognise(path, bytes(memoryview(data)[:_MAGIC_BYTES_MAX]))


def verify_file(path: str) -> list[Finding] | None:
    """Returns every damaged spot of a file; None if the file is not Lamina's.

    Raises InvalidRequest when it cannot be read.
    """
    found = salvage_file(path)
    kind = kind_of(path, found.data)
    return None if kind is None else with_holes(path, found, kind.verify(path, found.data))


__all__ = ["kind_of", "recognise", "verify_file"]
