"""Looks into the logs that Lamina writes: what they hold, where they are damaged.

Thin policies over `formats.scan.runs` and the formats' own `decode`. Used by `lamina dump`,
`lamina verify` and the bulk jobs; `inspect.kinds` recognises which kind a file is.

Rules.
1. Nothing here changes a file, and no damage raises: damage is what this module reports.
2. Verifying never decodes records; dumping decodes a bounded number at a time.
3. Space that was prepared but never written (zeros to the end) is no damage in a partition's last
   segment, nor in one whose records end where the next one begins (sealing it had not finished), a
   WAL file or a group's journal. Anywhere else it is records that are gone.
4. A newer format is reported and left alone: its records are not walked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.frame import log as frame_log
from lamina.formats.keratin import delta
from lamina.formats.keratin import log as keratin_log
from lamina.formats.offset_log import OffsetLog
from lamina.formats.scan import Limit, Run, Scan, Walkable, runs
from lamina.formats.wal import control
from lamina.formats.wal import headers as wal_headers
from lamina.formats.wal import log as wal_log
from lamina.formats.wal.layout import SEGMENT_FRAME, FrameType
from lamina.formats.wal.walks import SegmentFrames, WalFrames
from lamina.inspect.findings import Finding, Named, Row, described, named
from lamina.inspect.render import render_batch, render_value
from lamina.log.stops import describe_stop

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

_STEP = Limit(max_records=1000, max_bytes=16 << 20)
_ONE = Limit(max_records=1)


@dataclass(frozen=True, slots=True)
class Begun:
    """A log that is about to be walked: its records, and the number of the first; None is any.

    `is_numbered` is False if no number shows the order of records.
    """

    records: Walkable
    number: int | None = None
    is_numbered: bool = True
    findings: tuple[Finding, ...] = ()


class LogFormat(Protocol):
    """A log as `LogFile` looks into it."""

    header_bytes: int

    def begin(self, facts: Named, data: Buffer) -> Begun:
        """Checks the header and the first record against the name; returns what to expect first.

        Where they differ, a sound first record is believed: a dump of a misnamed file shows it.
        Raises NewerFormat for a header that is not ours.
        """

    def decode(self, data: Buffer, found: Scan) -> pa.RecordBatch:
        """Decodes what a scan found."""


class LogFile:
    """A log of records: `.log`, `.data`, `.delta`, WAL."""

    def __init__(self, name: str, log_format: LogFormat) -> None:
        self.name = name
        self._format = log_format

    def walk(self, path: str, data: Buffer, limit: Limit) -> Iterator[Scan | Finding]:
        """Yields runs of sound records and the damaged spots between them."""
        facts = named(path)
        try:
            begun = self._format.begin(facts, data)
        except NewerFormat as error:
            yield Finding(path, error.position, f"a newer format: {described(error)}")
            return
        yield from (replace(finding, path=path) for finding in begun.findings)
        for step in runs(begun.records, self._format.header_bytes, begun.number, limit=limit):
            if isinstance(step, Run):
                yield step.found
                continue
            last = facts.following()
            if step.is_blank and last in (None, step.expected):
                return  # never written: of the last segment, or of an unfinished roll
            resumes_at = None if step.following is None else step.end
            problem = _ZEROS if step.is_blank else describe_stop(step.stop, resumes_at=resumes_at)
            number = last if step.following is None else step.following
            offsets = _lost(step.expected, number) if begun.is_numbered else None
            yield Finding(path, step.position, problem, resumes_at, offsets=offsets)

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Yields every damaged spot."""
        return (step for step in self.walk(path, data, Limit()) if isinstance(step, Finding))

    def dump(self, path: str, data: Buffer, first: int) -> Iterator[Row]:
        """Yields records from an offset on, and damaged spots."""
        for step in self.walk(path, data, _STEP):
            if isinstance(step, Finding):
                yield step.as_row()
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

    def begin(self, facts: Named, data: Buffer) -> Begun:
        findings: list[Finding] = []
        number = facts.number
        if self.header_bytes:
            number, findings = self._check_header(facts, data)
        records = OffsetLog(self._module, data)
        start = min(self.header_bytes, records.data.nbytes)
        if len(records.scan(start, None, _ONE)):
            first = records.number_at(start)
            if number not in (None, first):
                findings.append(
                    _misnamed(facts.path, start, f"the file begins with offset {first}")
                )
            number = first
        return Begun(records, number, findings=tuple(findings))

    def _check_header(self, facts: Named, data: Buffer) -> tuple[int | None, list[Finding]]:
        try:
            header = self._module.decode_header(data)
        except NewerFormat:
            raise
        except CorruptData as error:
            return facts.number, [Finding(facts.path, error.position, described(error))]
        if facts.number in (None, header.base_offset):
            return header.base_offset, []
        about = f"the file is of the segment at offset {header.base_offset}"
        return header.base_offset, [_misnamed(facts.path, 0, about, self.header_bytes)]


def _misnamed(path: str, position: int, about: str, resumes_at: int | None = None) -> Finding:
    after = position if resumes_at is None else resumes_at
    return Finding(path, position, f"{about}, its name says another", after)


class _Wal:
    """A file of the WAL: topics are mixed, and each has its own sequence."""

    header_bytes = 0
    decode = staticmethod(wal_log.decode)

    def begin(self, facts: Named, data: Buffer) -> Begun:
        return Begun(WalFrames(data), is_numbered=False)


class _SegmentData:
    """A wal segment's `.data`: one topic, sequences go up."""

    header_bytes = 0
    decode = staticmethod(wal_log.decode_segment)

    def begin(self, facts: Named, data: Buffer) -> Begun:
        if not len(wal_log.scan_segment(data, limit=_ONE)):
            return Begun(SegmentFrames(data, facts.topic_id), facts.number)
        first = SEGMENT_FRAME.unpack(data, 0)
        sequence, topic_id = int(first["sequence"]), int(first["topic_id"])
        findings = []
        if facts.number not in (None, sequence):
            findings.append(_misnamed(facts.path, 0, f"the file begins with sequence {sequence}"))
        if facts.topic_id not in (None, topic_id):
            problem = f"the file is of topic {topic_id:#x}, its directory says another"
            findings.append(Finding(facts.path, 0, problem, 0))
        return Begun(SegmentFrames(data, topic_id), sequence, findings=tuple(findings))


class _Delta:
    """The `.delta` log of a consumer group."""

    header_bytes = delta.FILE_HEADER_BYTES

    def begin(self, facts: Named, data: Buffer) -> Begun:
        findings: tuple[Finding, ...] = ()
        try:
            delta.decode_header(data)
        except NewerFormat:
            raise
        except CorruptData as error:
            findings = (Finding(facts.path, error.position, described(error)),)
        return Begun(delta.EventLog(data), is_numbered=False, findings=findings)

    def decode(self, data: Buffer, found: Scan) -> pa.RecordBatch:
        raise NotImplementedError("events are not records; DeltaFile renders them")


class DeltaFile(LogFile):
    """The state journal of a consumer group."""

    def rows(self, data: Buffer, found: Scan, first: int) -> Iterator[Row]:
        """Renders events; `first` counts the offsets that events refer to."""
        events = delta.decode(data, found)
        columns = (column.tolist() for column in events)
        sizes = np.diff(found.positions, append=found.end).tolist()
        for position, size, kind, offset, deadline_ms, epoch in zip(
            found.positions.tolist(), sizes, *columns, strict=True
        ):
            if offset >= first or kind == delta.Event.RESET:
                event = delta.Event(kind).name
                yield {
                    "position": position,
                    "size": size,
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


def _lost(first: int | None, end: int | None) -> tuple[int, int] | None:
    """The offsets that a damaged spot may have held, as far as numbers show it."""
    return None if first is None or end is None or end <= first else (first, end)


_ZEROS = "zeros where records should be"
FRAME_LOG = LogFile("frame log", _OffsetLog(frame_log, 0))
KERATIN_LOG = LogFile("keratin log", _OffsetLog(keratin_log, keratin_log.FILE_HEADER_BYTES))
WAL_LOG = WalFile("write-ahead log", _Wal())
WAL_DATA = LogFile("wal segment", _SegmentData())
GROUP_DELTA = DeltaFile("group journal", _Delta())
