"""Sealed segments rewritten without some of their records, and put in place of the old ones.

A segment's offsets have no hole. So what is left of one becomes several: each run of records that
stay is a segment of its own, with the same bytes at the same offsets.

    stage   a copy of each run, with its indexes, below `erasing/`, which is never read
    swap    reason ─▶ later runs into place, last one first ─▶ the first run over the old log
            (or, where the first record goes, a tombstone and the old log removed)

Rules.
1. The ledger has the reason before anything goes.
2. A crash between any two steps leaves every record that stays in a segment that is read, and what
   should go in the old one, whose lowest hole is not in place yet: the next run finds it there.
3. Bytes that are no sound record are not copied: they were lost before, and are in the ledger so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import Buffer

from lamina.api import Gap
from lamina.errors import CorruptData
from lamina.formats.documents import tombstone
from lamina.formats.log_format import CODECS, Codec
from lamina.formats.scan import Scan
from lamina.inspect import logs
from lamina.inspect.findings import Finding, load_file
from lamina.inspect.segment_check import STEP
from lamina.log.partition import Partition
from lamina.log.removal import remove_files
from lamina.log.sealed_segment import SealedSegment
from lamina.log.segment import Bound
from lamina.log.segment_index import SegmentIndex
from lamina.log.segment_pile import Layout
from lamina.storage import paths
from lamina.storage.files import Files, LocalFiles
from lamina.storage.paths import SegmentFile

LOGS = {"frame": logs.FRAME_LOG, "keratin": logs.KERATIN_LOG}


@dataclass(frozen=True, slots=True)
class Run:
    """Records that stay and follow each other: a segment to be."""

    base_offset: int
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Staged:
    """What is left of a segment, below a directory, and the offsets whose records go."""

    directory: str
    runs: tuple[Run, ...]
    gone: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed segment, as it is described to a process other than its writer."""

    format: str
    path: str
    base_offset: int
    next_offset: int
    size_bytes: int


def stage(
    segment: Sealed,
    directory: str | None,
    stays: Callable[[pa.RecordBatch], NDArray[np.bool_]],
    is_tainted: Callable[[bytes], bool],
) -> Staged | None:
    """Copies what stays of a segment; None if all of it does, and nothing needs to be done.

    With `directory=None` nothing is written (dry run). `is_tainted` returns whether
    bytes that are no sound record hold what is to go.
    """
    codec, log = CODECS[segment.format], LOGS[segment.format]
    data = memoryview(load_file(segment.path)).cast("B")
    kept: list[NDArray[np.int64]] = [np.empty((0, 3), dtype=np.int64)]
    gone: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    tainted = False
    for step in log.walk(segment.path, data, STEP):
        if isinstance(step, Finding):
            end = step.resumes_at if step.resumes_at is not None else data.nbytes
            tainted = tainted or is_tainted(bytes(data[step.position : end]))
            continue
        rows, dropped = _split(codec, data, step, stays, segment.next_offset)
        kept.append(rows)
        gone.append(dropped)
    removed = np.concatenate(gone)
    if not len(removed) and not tainted:
        return None
    if directory is None:
        return Staged("", (), tuple(removed.tolist()))
    runs = _write(codec, data, np.concatenate(kept), segment, directory)
    return Staged(directory, runs, tuple(removed.tolist()))


def _split(
    codec: Codec,
    data: Buffer,
    found: Scan,
    stays: Callable[[pa.RecordBatch], NDArray[np.bool_]],
    next_offset: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns (offset, first byte, end byte) of the records that stay, and the others' offsets."""
    first = codec.offset_at(data, int(found.positions[0]))
    offsets = np.arange(first, first + len(found), dtype=np.int64)
    ends = np.append(found.positions[1:], found.end)
    mine = offsets < next_offset  # what follows is in segments of its own already
    keeps = stays(codec.decode(data, found, ("key",))) & mine
    rows = np.stack([offsets, found.positions, ends], axis=1)[keeps]
    return rows, offsets[mine & ~keeps]


def _write(
    codec: Codec, data: memoryview, rows: NDArray[np.int64], segment: Sealed, directory: str
) -> tuple[Run, ...]:
    """Writes each run as a segment with its indexes, durably."""
    if not len(rows):
        return ()
    files = LocalFiles()
    try:
        created_ms = codec.check_log_header(data[: codec.header_bytes], segment.base_offset) or 0
    except CorruptData:
        created_ms = 0
    edges = np.flatnonzero((np.diff(rows[:, 0]) != 1) | (rows[1:, 1] != rows[:-1, 2])) + 1
    runs = []
    for part in np.split(rows, edges):
        start, end = int(part[0, 1]), int(part[-1, 2])
        named = int(part[0, 0]), created_ms
        body, positions = bytes(data[start:end]), part[:, 1] - start
        runs.append(write_run(codec, (files, directory), named, body, positions))
    return tuple(runs)


def write_run(
    codec: Codec,
    where: tuple[Files, str],
    named: tuple[int, int],
    body: bytes,
    positions: NDArray[np.int64],
) -> Run:
    """Writes frames that follow each other as a segment with its indexes, durably.

    `named` is its base offset and when it was made, `positions` where in `body` its frames begin.
    """
    base, created_ms = named
    header = codec.log_header(base, created_ms)
    index = SegmentIndex(codec, base)
    times = codec.timestamps_at(body, positions)
    index.extend(positions, times, base_offset=base, origin=len(header))
    headers = codec.index_headers(base, created_ms)
    where[0].make_directory(where[1])
    _put(*where, SegmentFile(base, "log").name, header + body)
    for suffix, head, entries in zip(
        ("idx", codec.time_suffix), headers, index.all_bytes(), strict=True
    ):
        _put(*where, SegmentFile(base, suffix).name, head + entries)
    return Run(base, base + len(positions), len(header) + len(body))


def _put(files: Files, directory: str, name: str, data: bytes) -> None:
    files.replace(paths.join(directory, name), data)


def swap(partition: Partition, base_offset: int, staged: Staged, gaps: list[Gap]) -> None:
    """Puts the runs in the place of a sealed segment. For the leader."""
    place, codec = partition.place, partition.codec
    old = next(each for each in partition.layout.sealed if each.base_offset == base_offset)
    partition.enter_gaps(gaps)
    suffixes = ("idx", codec.time_suffix, "log")
    for run in reversed(staged.runs):
        if run.base_offset == base_offset:
            for suffix in suffixes[:2]:  # they are rebuilt from the log if a crash comes between
                if place.files.exists(old.path(suffix)):
                    place.files.remove(old.path(suffix))
            # Old indexes are gone for good before another log takes their segment's name.
            place.files.sync_directory(place.segments)
        for suffix in suffixes:
            name = SegmentFile(run.base_offset, suffix).name
            place.files.rename(paths.join(staged.directory, name), paths.join(place.segments, name))
        # In place for good before the run in front of it: until then the old log has its records.
        place.files.sync_directory(place.segments)
    new = tuple(
        SealedSegment(
            *(codec, place.files, place.segments),
            base_offset=run.base_offset,
            end=Bound(run.next_offset, run.size_bytes),
        )
        for run in staged.runs
    )
    before = [each for each in partition.layout.sealed if each.base_offset < base_offset]
    after = [each for each in partition.layout.sealed if each.base_offset > base_offset]
    partition.layout = Layout((*before, *new, *after), partition.layout.active)
    if not staged.runs or staged.runs[0].base_offset != base_offset:
        marker = tombstone.Tomb(base_offset, "delete", place.now_ms())
        path = paths.join(place.segments, SegmentFile(base_offset, "tomb").name)
        place.files.replace(path, tombstone.encode(marker))
        remove_files(place, codec, base_offset)
