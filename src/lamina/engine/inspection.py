"""Looks into any file that Lamina writes: what kind it is, what it holds, where it is damaged.

`KINDS` has one `FileKind` for each on-disk structure; all of them are thin policies over the
formats' own `scan` and `decode`. Used by `lamina dump`, `lamina verify` and the bulk jobs.

Rules.
1. Nothing here changes a file, and no damage raises: damage is what this module reports.
2. Verifying never decodes records; dumping decodes a bounded number at a time.
3. Space that was prepared but never written (zeros to the end) is not damage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from lamina.engine.rendering import Row, render_batch, render_value
from lamina.errors import CorruptData, InvalidRequest
from lamina.formats.binary import as_bytes
from lamina.formats.frame import log as frame_log
from lamina.formats.keratin import delta
from lamina.formats.keratin import log as keratin_log
from lamina.formats.scan import Limit, Scan, Stop
from lamina.formats.strm import segment as strm_segment
from lamina.formats.wal import control
from lamina.formats.wal import headers as wal_headers
from lamina.formats.wal import log as wal_log
from lamina.formats.wal.layout import SEGMENT_FRAME, FrameType
from lamina.storage import paths
from lamina.storage.files import LocalFiles

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

_STEP = Limit(max_records=1000, max_bytes=16 << 20)


@dataclass(frozen=True, slots=True)
class Finding:
    """A damaged spot: where it begins, what is wrong, and where sound data goes on, if it does."""

    path: str
    position: int
    problem: str
    resumes_at: int | None = None


class FileKind(Protocol):
    """How one kind of file is looked into."""

    name: str

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Yields every damaged spot."""

    def dump(self, path: str, data: Buffer, first: int) -> Iterator[Row]:
        """Yields the contents from an offset (or entry number) on; damaged spots as rows too."""


class LogFormat(Protocol):
    """A log of numbered records, as `LogFile` walks it.

    `expected` is the number after the last sound record, None before the first one. A record that
    `resync` finds is one that `scan` takes: so a sound record is reported, never skipped.
    """

    header_bytes: int

    def base_offset(self, header: Buffer) -> int | None:
        """Checks the file's header; returns the number it names, if it names one."""

    def scan(self, data: Buffer, start: int, expected: int | None, limit: Limit) -> Scan:
        """Walks sound records, of which the first is the expected one."""

    def resync(self, data: Buffer, start: int, expected: int | None) -> int | None:
        """Finds the next sound record that is not below the expected one."""

    def number_at(self, data: Buffer, position: int) -> int | None:
        """Returns the number of a sound record; None if the log is not ordered by one."""

    def decode(self, data: Buffer, found: Scan) -> pa.RecordBatch:
        """Decodes what a scan found."""


class LogFile:
    """A log of records: `.log`, `.data`, `.delta`, WAL."""

    def __init__(self, name: str, log_format: LogFormat) -> None:
        self.name = name
        self._format = log_format

    def walk(self, path: str, data: Buffer, limit: Limit) -> Iterator[Scan | Finding]:
        """Yields runs of sound records and the damaged spots between them."""
        yield from self._check_start(path, data)
        size = memoryview(data).nbytes
        position: int | None = min(self._format.header_bytes, size)
        expected: int | None = None
        while position is not None and position < size:
            found = self._format.scan(data, position, expected, limit)
            if len(found):
                yield found
                last = self._format.number_at(data, int(found.positions[-1]))
                expected = None if last is None else last + 1
            position = found.end
            if found.stop.is_damage:
                if is_prepared_space(data, found.end):
                    return
                position = self._format.resync(data, found.end, expected)
                yield Finding(path, found.end, describe_stop(found.stop), position)
                if position is not None:
                    expected = self._format.number_at(data, position)

    def _check_start(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Checks the header, and that the file begins with the offset that its name says."""
        start = self._format.header_bytes
        base_offset = None
        try:
            base_offset = self._format.base_offset(memoryview(data)[:start])
        except CorruptData as error:
            yield Finding(path, error.position, str(error.problem))
        if not start and len(self._format.scan(data, 0, None, Limit(max_records=1))):
            base_offset = self._format.number_at(data, 0)
        named = paths.segment_file(os.path.basename(path))
        if named and base_offset is not None and named.base_offset != base_offset:
            problem = f"the file begins with offset {base_offset}, its name says another"
            yield Finding(path, 0, problem, start)

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Yields every damaged spot."""
        return (step for step in self.walk(path, data, Limit()) if isinstance(step, Finding))

    def dump(self, path: str, data: Buffer, first: int) -> Iterator[Row]:
        """Yields records from an offset on, and damaged spots."""
        for step in self.walk(path, data, _STEP):
            if isinstance(step, Finding):
                yield _damage_row(step)
            else:
                yield from self.rows(data, step, first)

    def rows(self, data: Buffer, found: Scan, first: int) -> Iterator[Row]:
        """Renders the records of a run."""
        sizes = np.diff(found.positions, append=found.end)
        batch = self._format.decode(data, found)
        for position, size, row in zip(
            found.positions.tolist(), sizes.tolist(), render_batch(batch), strict=True
        ):
            if row["offset"] >= first:
                yield {"position": position, "size": size, "checksum": "ok", **row}


class _OffsetLog:
    """A `.log` of frame or keratin: offsets go up by one."""

    def __init__(self, module: Any, header_bytes: int) -> None:
        self._module = module
        self.header_bytes = header_bytes
        self.decode = module.decode

    def base_offset(self, header: Buffer) -> int | None:
        return int(self._module.decode_header(header).base_offset) if self.header_bytes else None

    def scan(self, data: Buffer, start: int, expected: int | None, limit: Limit) -> Scan:
        found: Scan = self._module.scan(data, start, expected_offset=expected, limit=limit)
        return found

    def resync(self, data: Buffer, start: int, expected: int | None) -> int | None:
        found: int | None = self._module.resync(data, start, minimum_offset=expected or 0)
        return found

    def number_at(self, data: Buffer, position: int) -> int | None:
        return int(self._module.HEADER.unpack(data, position)["offset"])


class _Unnumbered:
    """A log whose order no number tells: the base of the WAL's and of the group journal's."""

    header_bytes = 0

    def base_offset(self, header: Buffer) -> int | None:
        return None

    def number_at(self, data: Buffer, position: int) -> int | None:
        return None


class _Wal(_Unnumbered):
    """A file of the WAL: topics are mixed, and each has its own sequence."""

    decode = staticmethod(wal_log.decode)

    def scan(self, data: Buffer, start: int, expected: int | None, limit: Limit) -> Scan:
        return wal_log.scan(data, start, limit=limit)

    def resync(self, data: Buffer, start: int, expected: int | None) -> int | None:
        return wal_log.resync(data, start)


class _SegmentData(_Unnumbered):
    """A wal segment's `.data`: one topic, sequences go up."""

    decode = staticmethod(wal_log.decode_segment)

    def scan(self, data: Buffer, start: int, expected: int | None, limit: Limit) -> Scan:
        return wal_log.scan_segment(data, start, minimum_sequence=expected or 1, limit=limit)

    def resync(self, data: Buffer, start: int, expected: int | None) -> int | None:
        return wal_log.resync_segment(data, start, minimum_sequence=expected or 1)

    def number_at(self, data: Buffer, position: int) -> int | None:
        return int(SEGMENT_FRAME.unpack(data, position)["sequence"])


class _Delta(_Unnumbered):
    """A `.delta` log; after damage nothing in it can be trusted, so there is no resync."""

    header_bytes = delta.FILE_HEADER_BYTES

    def base_offset(self, header: Buffer) -> int | None:
        delta.decode_header(header)
        return None

    def scan(self, data: Buffer, start: int, expected: int | None, limit: Limit) -> Scan:
        return delta.scan(data, start, limit=limit)

    def resync(self, data: Buffer, start: int, expected: int | None) -> int | None:
        return None

    def decode(self, data: Buffer, found: Scan) -> pa.RecordBatch:
        raise NotImplementedError("events are no records; DeltaFile renders them")


class DeltaFile(LogFile):
    """The state journal of a consumer group."""

    def rows(self, data: Buffer, found: Scan, first: int) -> Iterator[Row]:
        """Renders events; `first` counts the offsets that events speak of."""
        events = delta.decode(data, found)
        columns = (column.tolist() for column in events)
        for position, kind, offset, deadline_ms, epoch in zip(
            found.positions.tolist(), *columns, strict=True
        ):
            if offset >= first or kind == delta.Event.RESET:
                event = delta.Event(kind).name
                yield {
                    "position": position,
                    "checksum": "ok",
                    "event": event,
                    "offset": offset,
                    "deadline_ms": deadline_ms,
                    "epoch": epoch,
                }


class WalFile(LogFile):
    """A file of the write-ahead log: frames of many topics and types."""

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Yields every damaged spot, and every control frame whose body makes no sense."""
        for step in self.walk(path, data, Limit()):
            if isinstance(step, Finding):
                yield step
                continue
            columns = wal_headers.headers(data, step)
            for row in np.flatnonzero(columns.types != FrameType.APPEND).tolist():
                kind = FrameType(int(columns.types[row]))
                problem = _control_row(kind, wal_headers.body_of(data, step, columns, row))
                if "problem" in problem:
                    position = int(step.positions[row])
                    after = position + int(columns.lengths[row])
                    yield Finding(path, position, problem["problem"], after)

    def rows(self, data: Buffer, found: Scan, first: int) -> Iterator[Row]:
        """Renders frames; `first` counts sequences."""
        columns = wal_headers.headers(data, found)
        appends = iter(
            render_batch(
                wal_log.decode(
                    data, wal_headers.select(found, columns, columns.types == FrameType.APPEND)
                )
            )
        )
        for row, position in enumerate(found.positions.tolist()):
            kind = FrameType(int(columns.types[row]))
            length = int(columns.lengths[row])
            out: Row = {"position": position, "size": length, "checksum": "ok", "type": kind.name}
            out["topic_id"] = int(columns.topic_ids[row])
            if kind is FrameType.APPEND:
                out |= next(appends)
            else:
                body = wal_headers.body_of(data, found, columns, row)
                out |= {"sequence": int(columns.sequences[row]), **_control_row(kind, body)}
                if "problem" in out:
                    out["resumes_at"] = position + length
            if int(columns.sequences[row]) >= first:
                yield out


def _control_row(kind: FrameType, body: bytes) -> Row:
    try:
        return {"body": render_value(control.decode(kind, body))}
    except CorruptData as error:
        return {"problem": f"a {kind.name} frame that makes no sense: {error.problem}"}


class ColdFile:
    """A STRM object."""

    name = "strm segment"

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Checks the object as a whole, then says which blocks are damaged, if it is blocks."""
        try:
            strm_segment.verify(data)
        except CorruptData as error:
            whole = Finding(path, error.position, error.problem)
            yield from list(self._bad_blocks(path, data)) or [whole]

    def _bad_blocks(self, path: str, data: Buffer) -> Iterator[Finding]:
        try:
            segment = strm_segment.open_segment(data)
        except CorruptData:
            return
        for number in range(len(segment)):
            start, end = segment.block_range(number)
            try:
                strm_segment.read_block(segment, number, memoryview(data)[start:end])
            except CorruptData as error:
                following = end if number + 1 < len(segment) else None
                yield Finding(path, error.position, error.problem, following)

    def dump(self, path: str, data: Buffer, first: int) -> Iterator[Row]:
        """Yields the header, then the records from an offset on."""
        try:
            segment = strm_segment.open_segment(data)
        except CorruptData as error:
            yield _damage_row(Finding(path, error.position, error.problem))
            return
        yield {"header": render_value(segment.header), "blocks": len(segment)}
        for number in range(segment.block_of(first), len(segment)):
            start, end = segment.block_range(number)
            try:
                batch = strm_segment.read_block(segment, number, memoryview(data)[start:end])
            except CorruptData as error:
                yield _damage_row(Finding(path, error.position, error.problem, end))
                continue
            for row in render_batch(batch):
                if row["offset"] >= first:
                    yield {"block": number, "position": start, "checksum": "ok", **row}


def describe_stop(stop: Stop) -> str:
    """Says in words why a scan stopped."""
    return _STOPS[stop]


_STOPS = {
    Stop.TORN: "the file ends inside a record",
    Stop.BAD_MAGIC: "no record starts here (bad magic)",
    Stop.BAD_VERSION: "an unknown version, type or flag",
    Stop.BAD_LENGTH: "lengths that contradict each other",
    Stop.BAD_CHECKSUM: "the checksum does not fit",
    Stop.BAD_OFFSET: "the record does not continue the ones before it",
    Stop.END: "the end",
    Stop.LIMIT: "the limit of one scan",
}


def is_prepared_space(data: Buffer, position: int) -> bool:
    """Tells whether a file holds only zeros from a position on, as a prepared tail does."""
    tail = as_bytes(data)[position:]
    step = 1 << 20
    return not any(tail[start : start + step].any() for start in range(0, len(tail), step))


def _damage_row(finding: Finding) -> Row:
    row: Row = {"position": finding.position, "checksum": "bad", "problem": finding.problem}
    return row | {"resumes_at": finding.resumes_at}


# ---------------------------------------------------------------- whole files and trees


FRAME_LOG = LogFile("frame log", _OffsetLog(frame_log, 0))
KERATIN_LOG = LogFile("keratin log", _OffsetLog(keratin_log, keratin_log.FILE_HEADER_BYTES))
WAL_LOG = WalFile("write-ahead log", _Wal())
WAL_DATA = LogFile("wal segment", _SegmentData())
GROUP_DELTA = DeltaFile("group journal", _Delta())
STRM = ColdFile()


def map_file(path: str) -> Buffer:
    """Maps a file read-only; raises InvalidRequest when it cannot be opened."""
    try:
        file = LocalFiles().open_read_only(path)
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from error
    try:
        return file.map()
    finally:
        file.close()


def files_below(path: str) -> list[str]:
    """Returns the regular files of a tree (or the one file), sorted, without temporary and lock."""
    if not os.path.isdir(path):
        return [path]
    found = []
    for folder, _, names in os.walk(path):
        found += [os.path.join(folder, name) for name in names]
    ours = (name for name in found if not name.endswith((".tmp", f"/{paths.LOCK}")))
    return sorted(name for name in ours if os.path.isfile(name))
