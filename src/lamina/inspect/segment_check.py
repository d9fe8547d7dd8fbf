"""A whole segment checked by one walk over its log: every record, and both indexes beside it.

`kinds.verify_file` looks at one file at a time, and for an index it walks the log again. A job that
checks everything looks at the three files together, and walks the log once.

Rules.
1. Nothing here changes a file, and no damage raises.
2. A segment may grow. Its indexes are read before its log, which then has all that they refer to.
"""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import Buffer

from lamina.formats.log_format import CODECS, Codec
from lamina.formats.scan import Scan, Timed
from lamina.inspect import kinds, logs
from lamina.inspect.findings import Finding, named, salvage_file, with_holes
from lamina.log.segment_index import SegmentIndex
from lamina.storage import paths
from lamina.storage.bad_pages import is_unreadable
from lamina.storage.files import LocalFiles

STEP = Timed(max_records=1 << 20, max_bytes=8 << 20)
"""How much is walked before it is indexed: what is noted of so many records is still cached."""
_CODECS = {logs.FRAME_LOG: CODECS["frame"], logs.KERATIN_LOG: CODECS["keratin"]}


@dataclass(frozen=True, slots=True)
class Checked:
    """What a walk over a segment found: damaged spots, and the index rebuilt from its log."""

    codec: Codec
    findings: tuple[Finding, ...]
    index: SegmentIndex
    records: int


def check_segment(path: str) -> Checked | None:
    """Checks the segment of a `.log`, with the indexes beside it; None if it is not Lamina's.

    Raises InvalidRequest when the log cannot be read.
    """
    indexes = {
        suffix: raw
        for suffix in paths.INDEX_SUFFIXES
        if (raw := _read(paths.beside(path, suffix))) is not None
    }
    found = salvage_file(path)
    data = found.data
    kind = kinds.kind_of(path, data)
    codec = _CODECS.get(kind) if isinstance(kind, logs.LogFile) else None
    if codec is None or not isinstance(kind, logs.LogFile):
        return None
    index = SegmentIndex(codec, named(path).number or 0)
    findings: list[Finding] = []
    records = 0
    for step in kind.walk(path, data, STEP):
        if isinstance(step, Scan):
            records += len(step)
            _extend(codec, index, data, step)
        else:
            findings.append(step)
    findings = with_holes(path, found, findings)
    entries = {"idx": index.offsets(), codec.time_suffix: index.times()}
    is_sound = not findings
    for suffix, raw in indexes.items():
        index_path = paths.beside(path, suffix)
        index_kind = kinds.kind_of(index_path, raw)
        if suffix in entries and isinstance(index_kind, kinds.IndexFile):
            made = entries[suffix]
            findings += index_kind.compare(
                index_path, raw, lambda *_, made=made: made, lambda: is_sound
            )
    return Checked(codec, tuple(findings), index, records)


def _extend(codec: Codec, index: SegmentIndex, data: Buffer, found: Scan) -> None:
    first = codec.offset_at(data, int(found.positions[0]))
    index.extend(found.positions, found.timestamps, base_offset=first, origin=0)


def _read(path: str) -> bytes | None:
    try:
        return LocalFiles().read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if not is_unreadable(error):
            raise
        return None  # the file's own check reports it
