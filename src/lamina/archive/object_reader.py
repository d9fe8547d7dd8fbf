"""Reading archived records: an object's index by one range, then only the blocks that are needed.

A scan begins with one block, because a fetch may want no more; one that continues reads larger
ranges, several of them ahead of time, decoded by other threads.

Rules.
1. Every block is checked against its checksum, the index and the list before a record is returned.
   Bytes that do not fit are fetched again; if they still do not, the block's offsets are missing
   (RecordsMissing), and what follows it is served. Damage costs the records whose bytes it hit:
   what is read ahead of it is handed out first, and an index is made again from the blocks.
2. The list is an immutable value, replaced as a whole: a scan goes on with the one it began with.
3. Memory is bounded: the cache by its limit, counting the buffers that its blocks keep alive and
   not only their share of them, a scan by `READ_AHEAD` ranges of `CHUNK_BLOCKS`.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lamina.archive.object_index import FETCH_TRIES, header_of, read_index
from lamina.errors import CorruptData, LaminaError, NewerFormat, ObjectMissing, RecordsMissing
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.scan import Limit
from lamina.formats.strm import layout
from lamina.formats.strm import segment as strm_segment
from lamina.formats.strm.block_group import GROUP_BLOCKS, read_group
from lamina.log.layers import key_of
from lamina.storage.objects import Ranges

CACHE_BYTES = 64 << 20
CHUNK_BYTES = 8 << 20
CHUNK_BLOCKS = 16
READ_AHEAD = 3
LOOK_AGAIN_S = 5.0
"""How long callers that only count leave an object store alone that did not answer."""
_THREADS = 4
_ROW_BYTES = 40


@dataclass(frozen=True, slots=True, eq=False)
class _Holding:
    """Values that share memory, and how much of it."""

    values: dict[object, object]
    size_bytes: int


class BlockCache:
    """Decoded blocks and indexes of any partition, the least used ones leaving first.

    Blocks that were decoded together share their buffers: one would keep the memory of all, so they
    are counted together and leave together.
    """

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self.executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="lamina-cold")
        self._held: dict[object, _Holding] = {}
        self._by_use: OrderedDict[_Holding, None] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: object) -> object | None:
        """Returns what is held under a key."""
        with self._lock:
            holding = self._held.get(key)
            if holding is None:
                return None
            self._by_use.move_to_end(holding)
            return holding.values[key]

    def put(self, values: dict[object, object], size_bytes: int) -> None:
        """Holds values that take so much memory together, as long as there is room."""
        with self._lock:
            new = {key: value for key, value in values.items() if key not in self._held}
            if not new or size_bytes > self.limit_bytes:
                return
            holding = _Holding(new, size_bytes)
            self._held.update(dict.fromkeys(new, holding))
            self._by_use[holding] = None
            self.size_bytes += size_bytes
            while self.size_bytes > self.limit_bytes:
                oldest, _ = self._by_use.popitem(last=False)
                self.size_bytes -= oldest.size_bytes
                for key in oldest.values:
                    del self._held[key]

    def close(self) -> None:
        """Releases everything."""
        self.executor.shutdown(cancel_futures=True)
        with self._lock:
            self._held.clear()
            self._by_use.clear()
            self.size_bytes = 0


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Adjacent blocks of one object, fetched by one range."""

    entry: ArchivedObject
    segment: layout.Segment
    first: int
    end: int


_Step: TypeAlias = _Chunk | LaminaError
_Read: TypeAlias = list[pa.RecordBatch | LaminaError]
"""Blocks in order; what cannot be read is an error in its place."""


@dataclass(slots=True)
class ColdLog:
    """The archived part of one partition, as readers see it; `schema` is the topic's."""

    objects: Ranges
    topic: str
    partition: int
    schema: pa.Schema
    cache: BlockCache
    ask: Callable[[], tuple[ArchivedObject, ...]]
    entries: tuple[ArchivedObject, ...] = ()
    is_loaded: bool = False
    ask_after: float = -math.inf
    """When, by the monotonic clock, callers that only count may ask again."""

    def load(self) -> None:
        """Asks the object store for the list; raises ArchiveUnavailable."""
        entries = self.ask()
        if not self.is_loaded:
            self.show(entries)

    def look(self) -> None:
        """Asks once for a list that is not known, for callers that only count; never raises."""
        if self.is_loaded or time.monotonic() < self.ask_after:
            return
        try:
            self.load()
        except (LaminaError, OSError):
            self.ask_after = time.monotonic() + LOOK_AGAIN_S

    def show(self, entries: tuple[ArchivedObject, ...]) -> None:
        """Takes the list as it is now."""
        self.entries = entries
        self.is_loaded = True

    def entry_for(self, offset: int) -> ArchivedObject | None:
        """Returns the object whose span includes an offset."""
        entries = self.entries
        row = bisect_right(entries, offset, key=lambda entry: entry.base_offset) - 1
        return entries[row] if row >= 0 and offset <= entries[row].max_offset else None

    def next_base(self, offset: int) -> int | None:
        """Returns where the first object above an offset begins."""
        entries = self.entries
        row = bisect_right(entries, offset, key=lambda entry: entry.base_offset)
        return entries[row].base_offset if row < len(entries) else None

    # ------------------------------------------------------------------ scanning

    def scan(self, offset: int, stop: int, limit: Limit) -> Iterator[pa.RecordBatch]:
        """Yields records from an offset that an object spans, over adjacent objects, up to `stop`.

        Offsets may have holes. Raises RecordsMissing at what cannot be read. Where an object is
        gone, the list is asked for again: it may have been joined with others.
        """
        while True:
            try:
                for batch in self._scan(offset, stop, limit):
                    offset = int(batch.column("offset")[batch.num_rows - 1].as_py()) + 1
                    yield batch
                return
            except RecordsMissing as missing:
                if not isinstance(missing.__cause__, ObjectMissing) or not self._ask_again():
                    raise

    def _ask_again(self) -> bool:
        """Asks for the list; returns whether it has changed."""
        before, self.entries = self.entries, self.ask()
        return self.entries != before

    def _scan(self, offset: int, stop: int, limit: Limit) -> Iterator[pa.RecordBatch]:
        for batch in self._blocks(offset, stop):
            offsets = batch.column("offset").to_numpy()
            first, end = np.searchsorted(offsets, (offset, stop))
            if first < end:
                offset = int(offsets[end - 1]) + 1  # objects of a replica may overlap
                yield from cut(batch.slice(int(first), int(end - first)), limit)

    def _blocks(self, offset: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yields whole blocks, reading ahead as soon as a second one is asked for.

        What is wrong further on is raised when it is that far, after all that lies before it.
        """
        plan = self._plan(offset, stop)
        ahead: deque[Future[_Read]] = deque()
        try:
            for step in islice(plan, 1):
                yield from _sound(self._take(step))
            while True:
                for step in islice(plan, READ_AHEAD - len(ahead)):
                    ahead.append(self.cache.executor.submit(self._take, step))
                if not ahead:
                    return
                yield from _sound(ahead.popleft().result())
        finally:
            for future in ahead:
                future.cancel()

    def _take(self, step: _Step) -> _Read:
        return [step] if isinstance(step, LaminaError) else self._read(step)

    def _plan(self, offset: int, stop: int) -> Iterator[_Step]:
        """Yields what to fetch, in order: first one block, then twice as many each time.

        Ends with the error at which there is nothing to go on from.
        """
        wanted = 1
        entry = self.entry_for(offset)
        while entry is not None and entry.base_offset < stop:
            try:
                segment = self.segment_of(entry, offset)
            except LaminaError as error:
                yield error
                return
            number = segment.block_of(offset)
            while number < len(segment) and segment.offsets[number] < stop:
                end = number + 1
                start = segment.block_range(number)[0]
                while (
                    end < min(len(segment), number + wanted)
                    and segment.offsets[end] < stop
                    and segment.block_range(end)[1] - start <= CHUNK_BYTES
                ):
                    end += 1
                yield _Chunk(entry, segment, number, end)
                number = end
                wanted = min(2 * wanted, CHUNK_BLOCKS)
            offset = entry.next_offset
            entry = self.entry_for(offset)

    # ------------------------------------------------------------------ objects

    def _key(self, entry: ArchivedObject) -> str:
        return key_of(self.topic, self.partition, entry)

    def segment_of(self, entry: ArchivedObject, offset: int) -> layout.Segment:
        """Returns an object's index: held, by one range, or made again from its blocks.

        Raises RecordsMissing, from an offset on, if none of it can be read.
        """
        key = self._key(entry)
        held = self.cache.get((key, entry))
        if isinstance(held, layout.Segment):
            return held
        try:
            header = header_of(entry, self.topic, self.partition)
            segment = read_index(self.objects, key, entry, header)
        except NewerFormat as error:
            raise error.at_path(f"{self.objects.url}/{key}") from error
        except (CorruptData, ObjectMissing) as error:
            raise self._missing(entry, offset, entry.next_offset, error) from error
        self.cache.put({(key, entry): segment}, 32 * len(segment) + 512)
        return segment

    def _read(self, chunk: _Chunk) -> _Read:
        """Reads blocks: those held, the rest by one range; a bad one is an error in the list."""
        key = self._key(chunk.entry)
        numbers = range(chunk.first, chunk.end)
        found = [self.cache.get((key, chunk.entry, number)) for number in numbers]
        if all(isinstance(each, pa.RecordBatch) for each in found):
            return found
        start = chunk.segment.block_range(chunk.first)[0]
        end = chunk.segment.block_range(chunk.end - 1)[1]
        try:
            raw = memoryview(self.objects.read_range(key, start, end)).cast("B")
        except ObjectMissing as error:
            base = int(chunk.segment.offsets[chunk.first])
            return [self._missing(chunk.entry, base, chunk.entry.next_offset, error)]
        except CorruptData:  # the object ends before the range does
            return [self._block(chunk, number, None) for number in numbers]
        blocks: _Read = []
        for first in range(chunk.first, chunk.end, GROUP_BLOCKS):
            last = min(first + GROUP_BLOCKS, chunk.end)
            blocks += self._together(chunk, (first, last), raw, start) or [
                self._block(chunk, number, raw[slice(*self._within(chunk, number, start))])
                for number in range(first, last)
            ]
        return blocks

    def _together(
        self, chunk: _Chunk, span: tuple[int, int], raw: memoryview, origin: int
    ) -> list[pa.RecordBatch]:
        """Decodes some blocks by one call; nothing where one of them is not sound."""
        first, end = span
        start, stop = chunk.segment.block_range(first)[0], chunk.segment.block_range(end - 1)[1]
        found = read_group(chunk.segment, first, end, raw[start - origin : stop - origin])
        if found is None:
            return []
        batch = found.batch.select(self.schema.names)
        ends = np.cumsum(found.rows).tolist()
        blocks = [
            batch.slice(after - rows, rows)
            for after, rows in zip(ends, found.rows.tolist(), strict=True)
        ]
        key = self._key(chunk.entry)
        names = ((key, chunk.entry, number) for number in range(first, end))
        held: dict[object, object] = dict(zip(names, blocks, strict=True))
        self.cache.put(held, batch.get_total_buffer_size())
        return blocks

    @staticmethod
    def _within(chunk: _Chunk, number: int, origin: int) -> tuple[int, int]:
        start, end = chunk.segment.block_range(number)
        return start - origin, end - origin

    def _block(
        self, chunk: _Chunk, number: int, data: memoryview | None
    ) -> pa.RecordBatch | LaminaError:
        """Decodes one block; fetches it if there are no bytes of it, or if they do not fit."""
        key = self._key(chunk.entry)
        start, end = chunk.segment.block_range(number)
        for _ in range(FETCH_TRIES):
            try:
                if data is None and number not in chunk.segment.unreadable:
                    data = memoryview(self.objects.read_range(key, start, end)).cast("B")
                batch = strm_segment.read_block(chunk.segment, number, data or b"")
            except (CorruptData, ObjectMissing) as error:
                problem, data = error, None
                continue
            batch = batch.select(self.schema.names)
            self.cache.put({(key, chunk.entry, number): batch}, batch.get_total_buffer_size())
            return batch
        base = int(chunk.segment.offsets[number])
        is_last = number + 1 == len(chunk.segment)
        after = chunk.entry.next_offset if is_last else int(chunk.segment.offsets[number + 1])
        return self._missing(chunk.entry, base, after, problem)

    def _missing(
        self, entry: ArchivedObject, first: int, end: int, why: Exception
    ) -> RecordsMissing:
        where = f"{self.objects.url}/{self._key(entry)}"
        problem = why.problem if isinstance(why, CorruptData) else str(why)
        missing = RecordsMissing(problem, first=first, end=end, reason="lost").at_path(where)
        missing.__cause__ = why
        return missing

    # ------------------------------------------------------------------ time

    def offset_before_time(self, entry: ArchivedObject, timestamp_ms: int) -> int:
        """Returns an offset such that all records of an object before it are older than a time."""
        older = [block for block, newest in entry.marks if newest < timestamp_ms]
        if not older:
            return entry.base_offset
        segment = self.segment_of(entry, entry.base_offset)
        following = older[-1] + 1
        return int(segment.offsets[following]) if following < len(segment) else entry.next_offset


def _sound(blocks: _Read) -> Iterator[pa.RecordBatch]:
    for block in blocks:
        if isinstance(block, LaminaError):
            raise block
        yield block


def cut(batch: pa.RecordBatch, limit: Limit) -> Iterator[pa.RecordBatch]:
    """Cuts a batch into pieces within a limit, each of at least one record."""
    if batch.num_rows <= limit.max_records and batch.nbytes <= limit.max_bytes:
        yield batch
        return
    sizes = np.full(batch.num_rows, _ROW_BYTES, dtype=np.int64)
    for name in ("key", "value"):
        if name in batch.schema.names:
            lengths = pc.fill_null(pc.binary_length(batch.column(name)), 0)
            sizes += lengths.to_numpy(zero_copy_only=False)
    ends = np.cumsum(sizes)
    start = 0
    while start < batch.num_rows:
        before = int(ends[start - 1]) if start else 0
        fitting = int(np.searchsorted(ends, before + limit.max_bytes, side="right")) - start
        count = max(1, min(fitting, limit.max_records))
        yield batch.slice(start, count)
        start += count
