"""Searching the raw bytes of every tier for keys and tags that were erased.

A hit is judged by what it lies in. Inside a sound record of another key or tag it is a mention: the
record is somebody else's and stays. A record that has the key or the tag itself, and bytes that are
no sound record, are what should be gone.

Rules.
1. Everything is searched as it lies there, and what is compressed also as it reads.
2. Indexes are not: they hold offsets, places and times, and a short key would be found in them by
   chance.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import Buffer

from lamina.errors import CorruptData, InvalidRequest, ObjectMissing
from lamina.formats.log_format import CODECS
from lamina.formats.scan import Limit, Scan
from lamina.formats.strm import segment as strm_segment
from lamina.formats.wal import headers as wal_headers
from lamina.formats.wal import log as wal_log
from lamina.formats.wal.layout import FrameType
from lamina.inspect import documents, kinds, logs
from lamina.inspect.findings import load_file
from lamina.spark.jobs.bulk_lane import Descriptor
from lamina.spark.jobs.credentials import Access
from lamina.spark.jobs.object_rewrite import Spares
from lamina.storage import machine, paths

_STEP = Limit(max_records=1 << 16, max_bytes=8 << 20)


@dataclass(frozen=True, slots=True)
class Found:
    """What a search of one file or object gave."""

    remains: int = 0
    mentions: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Searching:
    """The work of a task; `what` of a descriptor says in which tier a thing lies."""

    spares: Spares
    access: Access | None

    def __call__(self, each: Descriptor[str]) -> Found:
        """Searches one file, or one object of the archive."""
        if each.what == "cold":
            return self._object(each.path)
        try:
            data = load_file(each.path)
        except InvalidRequest as error:
            gone = not machine.entry_exists(each.path)
            return Found() if gone else Found(1, problem=str(error))
        return self._file(each.path, data, is_set_aside=each.what == "quarantine")

    def _file(self, path: str, data: Buffer, *, is_set_aside: bool) -> Found:
        kind = kinds.kind_of(path, data)
        if isinstance(kind, kinds.IndexFile) or paths.base_name(path) == paths.MANIFEST:
            return Found()
        hits = self.hits(data)
        if not len(hits):
            return Found()
        if is_set_aside or kind is None:
            return Found(len(hits))
        if documents.recognise(path) is not None:
            return Found(mentions=len(hits))
        if not isinstance(kind, logs.LogFile):
            return Found(len(hits))
        return self._log(path, data, kind, hits)

    def hits(self, data: Buffer) -> NDArray[np.int64]:
        """Returns where the needles are, each as its first and its end byte."""
        needles = sorted({*self.spares.keys, *self.spares.tags}, key=len, reverse=True)
        if memoryview(data).nbytes == 0:
            return np.empty((0, 2), dtype=np.int64)
        pattern = re.compile(b"|".join(map(re.escape, needles)), re.DOTALL)
        found = [match.span() for match in pattern.finditer(data)]
        return np.array(found, dtype=np.int64).reshape(-1, 2)

    def _log(self, path: str, data: Buffer, kind: logs.LogFile, hits: NDArray[np.int64]) -> Found:
        """Counts the hits inside sound records of others, and all the rest."""
        mentions = 0
        for step in kind.walk(path, data, _STEP):
            if not isinstance(step, Scan):
                continue
            starts, ends, batch = _records(kind, data, step)
            if not len(starts):
                continue
            stays = self.spares(batch)
            rows = np.searchsorted(starts, hits[:, 0], side="right") - 1
            inside = (rows >= 0) & (hits[:, 1] <= ends[np.maximum(rows, 0)])
            mentions += int(np.count_nonzero(inside & stays[np.maximum(rows, 0)]))
        return Found(len(hits) - mentions, mentions)

    def _object(self, key: str) -> Found:
        assert self.access is not None, "objects are in an archive"
        objects = self.access.open()
        try:
            data = objects.read(key).data
        except ObjectMissing:
            return Found()
        if paths.object_key(key) is None:
            hits = len(self.hits(data))
            is_document = key.rpartition("/")[2] in _DOCUMENTS
            return Found(mentions=hits) if is_document else Found(hits)
        remains = mentions = 0
        try:
            for batch in strm_segment.read_from(data):
                remains += int(np.count_nonzero(~self.spares(batch)))
                mentions += sum(len(self.hits(part)) for part in _contents(batch))
        except CorruptData as error:
            return Found(remains + 1, mentions, f"{key} cannot be searched: {error}")
        return Found(remains, 0 if remains else mentions)


_DOCUMENTS = (paths.ARCHIVE_MANIFEST, paths.LEDGER, paths.TOPIC_SETTINGS, paths.TOPIC_SCHEMAS)


def _records(
    kind: logs.LogFile, data: Buffer, found: Scan
) -> tuple[NDArray[np.int64], NDArray[np.int64], pa.RecordBatch]:
    """Returns where the records of a run begin and end, with their keys or tags."""
    ends = np.append(found.positions[1:], found.end)
    if kind is logs.WAL_LOG:
        columns = wal_headers.headers(data, found)
        chosen = columns.types == FrameType.APPEND
        appends = wal_headers.select(found, columns, chosen)
        return found.positions[chosen], ends[chosen], wal_log.decode(data, appends)
    if kind is logs.WAL_DATA:
        return found.positions, ends, wal_log.decode_segment(data, found)
    if kind is logs.GROUP_DELTA:
        nothing = np.empty(0, dtype=np.int64)
        return nothing, nothing, pa.record_batch({"key": pa.array([], pa.binary())})
    codec = CODECS["frame" if kind is logs.FRAME_LOG else "keratin"]
    return found.positions, ends, codec.decode(data, found, ("key",))


def _contents(batch: pa.RecordBatch) -> list[Buffer]:
    """The bytes of keys, values, tags and nodes, as they read."""
    found: list[Buffer] = []
    for name in ("key", "value", "tag", "node"):
        if name in batch.schema.names:
            column = batch.column(name).cast(pa.large_binary())
            _, ends, buffer = column.buffers()
            if buffer is not None and len(column):
                edges = np.frombuffer(ends, np.int64)[
                    column.offset : column.offset + len(column) + 1
                ]
                found.append(memoryview(buffer)[int(edges[0]) : int(edges[-1])])
    return found
