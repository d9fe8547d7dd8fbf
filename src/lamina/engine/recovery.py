"""Brings a partition back into a state that can be served: it and `removal` alone cut records.

As documents 000, 003 and 004 order it: finish deletions, check sealed segments cheaply, walk the
tail of the last one, cut what is torn, rebuild what is derived. What each stop means is decided
here and nowhere else, by one number: the durable watermark, up to which an fsync is known to have
succeeded.

    above the watermark   torn tail: cut (and kept aside if a sound record follows the cut)
    below the watermark   damage: kept aside, entered as lost, what follows it is served

Rules.
1. Bytes are kept aside durably before they are cut. Nothing else is ever removed, except files
   whose tombstone says so.
2. What was recovered is fsynced before it is served: a page cache may have survived what a disk
   did not. What lies above the watermark is written once more for that: an fsync that failed may
   have left it in the cache, marked as clean.
3. Doing it again, also after being killed inside it, changes nothing more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from lamina.engine.active import ActiveSegment
from lamina.engine.codec import Codec
from lamina.engine.index import SegmentIndex
from lamina.engine.place import Place
from lamina.engine.removal import remove_files
from lamina.engine.report import RecoveryReport
from lamina.engine.segment import INDEX_ENTRY_BYTES, Bound, SealedSegment, load_entries
from lamina.engine.stops import describe_stop, is_prepared_space
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.frame import tomb
from lamina.formats.keratin import manifest
from lamina.formats.ledger import Gap, Ledger
from lamina.formats.scan import OFFSET_MAX, Budget, Limit, Stop, Timed
from lamina.storage.files import TEMPORARY_SUFFIX, File, Files
from lamina.storage.paths import SegmentFile, segment_file

if TYPE_CHECKING:
    from typing_extensions import Buffer

REWRITE_BYTES = 4 << 20


CHEAP_CHECK_BYTES = 4 << 20
"""How much of a sealed segment's end an open reads at most before it looks at all of it."""


@dataclass(slots=True)
class Recovered:
    """A partition that can be served."""

    sealed: list[SealedSegment]
    active: ActiveSegment
    ledger: Ledger


@dataclass(slots=True)
class Recovery:
    """One recovery of one partition; `watermark` is the offset up to which data was durable.

    `recorded` are the sealed segments of a sound manifest, by their first offset.
    """

    place: Place
    codec: Codec
    watermark: int
    report: RecoveryReport
    recorded: Mapping[int, manifest.SealedSegment] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)

    def run(self) -> Recovered:
        """Recovers the partition and returns it ready to be served."""
        names = self._durable_names()
        self.ledger = self.place.read_ledger(self.report)
        bases = _bases(self._finish_deletions(names))
        sealed = [self._sealed(base, following) for base, following in pairwise(bases)]
        if not bases:
            return Recovered([], self._start_at(self._first_offset()), self.ledger)
        active = self._active(bases[-1])
        if active.tail.next_offset < self.watermark:
            finished = active.finish()  # it may hold nothing; it spans what it held
            spans = Bound(self.watermark, finished.end.position)
            sealed.append(self._as_sealed(finished.base_offset, spans, finished.index))
            self._lose(active.tail.next_offset, self.watermark, active.path("log"))
            active = self._start_at(self.watermark)
        self._name_missing_ranges([*sealed, active])
        return Recovered(sealed, active, self.ledger)

    # ------------------------------------------------------------------ names

    def _durable_names(self) -> list[str]:
        """Syncs the directories: a killed process may have left names that power loss undoes.

        Returns the segments' files.
        """
        files, place = self.place.files, self.place
        files.make_directory(place.segments)
        files.sync_directory(place.directory)
        files.sync_directory(place.segments)
        self._without_leftovers(place.directory)
        return self._without_leftovers(place.segments)

    def _without_leftovers(self, folder: str) -> list[str]:
        """Lists a directory, having removed what is left of replacements that never happened."""
        names = self.place.files.list(folder)
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX):
                self.place.files.remove(os.path.join(folder, name))
        return [name for name in names if not name.endswith(TEMPORARY_SUFFIX)]

    def _finish_deletions(self, names: list[str]) -> list[str]:
        """Finishes the deletion of each segment that has a tombstone, in document 004's order.

        Returns the names that are left.
        """
        left = names
        for name in names:
            parsed = segment_file(name)
            if parsed and parsed.suffix == "tomb":
                path = os.path.join(self.place.segments, name)
                reason = self._tomb_reason(path)
                end = self._end_of_segment(parsed.base_offset, _bases(left))
                known = self.ledger.at(parsed.base_offset)
                if end is not None and end > (known.end if known else parsed.base_offset):
                    self._enter(Gap(parsed.base_offset, end, reason, self.place.now_ms()))
                remove_files(self.place, self.codec, parsed.base_offset)
                self.report.add("deletion finished", path, f"a tombstone was left: {reason}")
                left = self.place.files.list(self.place.segments)
        return left

    def _tomb_reason(self, path: str) -> str:
        try:
            reason = tomb.decode(self.place.files.read(path)).reason or "retention"
            return "deleted" if reason == "delete" else reason
        except CorruptData:
            return "retention"

    def _end_of_segment(self, base_offset: int, bases: list[int]) -> int | None:
        """One past the last offset of a segment that is going, if its log is still there."""
        later = [base for base in bases if base > base_offset]
        if later:
            return later[0]
        path = os.path.join(self.place.segments, SegmentFile(base_offset, "log").name)
        if not self.place.files.exists(path):
            return None
        buffer = self._map(path)
        offset = base_offset
        position = self.codec.header_bytes
        while position < memoryview(buffer).nbytes:
            found = self.codec.scan(buffer, position, expected_offset=offset, limit=Limit())
            offset += len(found)
            position = found.end
            if len(found) == 0:
                break
        return offset

    def _first_offset(self) -> int:
        """Where an empty partition goes on: behind all that it ever held."""
        gone = max((gap.end for gap in self.ledger.gaps), default=0)
        if gone < self.watermark:
            self._lose(gone, self.watermark, self.place.segments)
        return max(gone, self.watermark)

    def _start_at(self, offset: int) -> ActiveSegment:
        return ActiveSegment.create(
            self.codec,
            self.place.files,
            self.place.segments,
            base_offset=offset,
            created_ms=self.place.now_ms(),
        )

    # ------------------------------------------------------------------ sealed segments

    def _sealed(self, base_offset: int, following: int) -> SealedSegment:
        """Checks a sealed segment: its last records must end where the next one begins."""
        segment = self._as_sealed(base_offset, Bound(following, 0))
        if self._is_as_recorded(segment, following):
            return segment
        path = segment.path("log")
        whole = self._ends_where_indexed(segment, following)
        if whole is not None:
            return self._as_sealed(base_offset, whole)
        buffer = self._map(path)
        created_ms = self._check_header(path, buffer, base_offset)
        index = SegmentIndex(self.codec, base_offset)
        position, offset = load_entries(segment, index, buffer)
        end, _ = self._walk(
            path,
            buffer,
            Bound(offset, position),
            index,
            durable_to=following,
            end_offset=following,
        )
        if end.next_offset < following:
            self._lose(end.next_offset, following, path)
        sealed = self._as_sealed(base_offset, Bound(following, end.position), index)
        self._restore_index(sealed, created_ms or 0)
        return sealed

    def _is_as_recorded(self, segment: SealedSegment, following: int) -> bool:
        """Takes a segment whose files are as long as the manifest says: it was durable by then.

        A manifest is written behind the sync of all that it names, and has a checksum. What bytes
        have become since is found by whoever reads them, as everywhere else in a segment.
        """
        known = self.recorded.get(segment.base_offset)
        if known is None or known.next_offset != following:
            return False
        files, log = self.place.files, segment.path("log")
        stem = log.removesuffix("log")
        try:
            for suffix in ("idx", self.codec.time_suffix):
                if files.size(stem + suffix) != known.idx_bytes:
                    return False
            size, head = _beginning(files, log, self.codec.header_bytes)
            if size != known.log_bytes:
                return False
            self.codec.check_log_header(head, segment.base_offset)
        except (OSError, CorruptData, NewerFormat):
            return False
        segment.end = Bound(following, known.log_bytes)
        segment.recorded = known
        return True

    def _ends_where_indexed(self, segment: SealedSegment, following: int) -> Bound | None:
        """Looks only at the last index entry and the records behind it, whatever the size.

        None sends the segment to the full check: something is missing, damaged or merely odd.
        """
        files = self.place.files
        log, index, times = (
            segment.path(suffix) for suffix in ("log", "idx", self.codec.time_suffix)
        )
        try:
            index_bytes, size = files.size(index), files.size(log)
            if index_bytes != files.size(times) or index_bytes < INDEX_ENTRY_BYTES:
                return None
            raw = _read(files, index, index_bytes - INDEX_ENTRY_BYTES, INDEX_ENTRY_BYTES)
            offset, position = self.codec.decode_entry(raw, segment.base_offset)
            if not self.codec.header_bytes <= position < size <= position + CHEAP_CHECK_BYTES:
                return None
            head = _read(files, log, 0, self.codec.header_bytes)
            self.codec.check_log_header(head, segment.base_offset)
            buffer = _read(files, log, position, size - position)
        except (OSError, CorruptData):
            return None
        found = self.codec.scan(buffer, 0, expected_offset=offset, limit=Limit())
        if found.stop is not Stop.END or offset + len(found) != following:
            return None
        return Bound(following, size)

    def _restore_index(self, segment: SealedSegment, created_ms: int) -> None:
        """Writes the index files of a sealed segment again if they are not what they should be."""
        files, index = self.place.files, segment.index
        headers = self.codec.index_headers(segment.base_offset, created_ms)
        for suffix, header, entries in zip(
            ("idx", self.codec.time_suffix), headers, index.all_bytes(), strict=True
        ):
            path, right = segment.path(suffix), header + entries
            is_there = files.exists(path) and files.size(path) == len(right)
            if not is_there or (index.trusted and files.read(path) != right):
                with contextlib.suppress(OSError):  # without it, the next open walks the log again
                    files.replace(path, right)
                self.report.add("rebuilt", path, "the index was not what the log says")

    def _as_sealed(
        self, base_offset: int, end: Bound, index: SegmentIndex | None = None
    ) -> SealedSegment:
        return SealedSegment(
            self.codec,
            self.place.files,
            self.place.segments,
            base_offset=base_offset,
            end=end,
            index=index,
        )

    # ------------------------------------------------------------------ the last segment

    def _active(self, base_offset: int) -> ActiveSegment:
        """Walks the last segment from what is known to be durable, cuts it and syncs it."""
        files = self.place.files
        created_ms = self.place.now_ms()
        segment = ActiveSegment(
            self.codec, files, self.place.segments, base_offset=base_offset, created_ms=created_ms
        )
        path = segment.path("log")
        file = files.open(path)
        buffer = file.map()
        if memoryview(buffer).nbytes < self.codec.header_bytes or (
            self.codec.header_bytes and is_prepared_space(buffer, 0)
        ):
            self._rewrite_header(file, path, base_offset, created_ms)
            buffer = file.map()
        segment.created_ms = self._check_header(path, buffer, base_offset) or created_ms
        index = SegmentIndex(self.codec, base_offset)
        position, offset = load_entries(segment, index, buffer, durable_to=self.watermark)
        waits = self._has_no_more_entries(segment, len(index.offsets()) + 1)
        start = Bound(offset, position)
        end, known = self._walk(path, buffer, start, index, durable_to=self.watermark)
        size = memoryview(buffer).nbytes
        if end.position < size:
            file.truncate(end.position)
        for first in range(known, end.position, REWRITE_BYTES):
            part = memoryview(buffer)[first : min(first + REWRITE_BYTES, end.position)]
            file.write_at(first, bytes(part))
        file.sync()
        segment.resume(file, end, index, indexes_wait=waits)
        return segment

    def _has_no_more_entries(self, segment: ActiveSegment, taken: int) -> bool:
        """Tells whether the index files hold no more than was taken: others may be of lost records.

        The first entry does not count: it leads where a walk without an index starts.
        """
        most = self.codec.index_header_bytes + taken * INDEX_ENTRY_BYTES
        suffixes = ("idx", self.codec.time_suffix)
        try:
            return all(segment.files.size(segment.path(each)) <= most for each in suffixes)
        except OSError:
            return False

    def _rewrite_header(self, file: File, path: str, base_offset: int, created_ms: int) -> None:
        """A segment whose creation was cut short never held a record: its header is made again."""
        self.report.add("rebuilt", path, "the segment's creation had not finished")
        file.truncate(0)
        file.write_at(0, self.codec.log_header(base_offset, created_ms))
        file.sync()

    def _check_header(self, path: str, buffer: Buffer, base_offset: int) -> int | None:
        """Refuses a newer format; a damaged header is reported, records speak for themselves."""
        head = memoryview(buffer)[: self.codec.header_bytes]
        try:
            return self.codec.check_log_header(head, base_offset)
        except NewerFormat as error:
            raise error.at_path(path) from error
        except CorruptData as error:
            kept = self.place.set_aside(path, bytes(head), 0)
            self.report.add(
                "quarantined",
                path,
                f"the file header is damaged: {error.problem}",
                byte_range=(0, len(head)),
                kept_in=kept,
            )
            return None

    # ------------------------------------------------------------------ walking and judging

    def _walk(
        self,
        path: str,
        buffer: Buffer,
        start: Bound,
        index: SegmentIndex,
        *,
        durable_to: int,
        end_offset: int = OFFSET_MAX,
    ) -> tuple[Bound, int]:
        """Walks records to the last that is kept, indexing them; judges every stop on the way.

        Behind damage, records from `end_offset` on do not count: the next segment begins there.
        Returns where they end, and where those end that are below `durable_to`.
        """
        offset, position = start.next_offset, start.position
        known = position
        size = memoryview(buffer).nbytes
        budget = Budget(size)
        limit = Timed(budget=budget)
        while position < size:
            found = self.codec.scan(buffer, position, expected_offset=offset, limit=limit)
            index.extend(found.positions, found.timestamps, base_offset=offset, origin=0)
            below = durable_to - offset
            if below >= len(found):
                known = found.end
            elif below > 0:
                known = int(found.positions[below])
            offset, position = offset + len(found), found.end
            if not found.stop.is_damage:
                continue
            following = None
            if not is_prepared_space(buffer, position):
                following = self.codec.resync(
                    buffer, position + 1, minimum_offset=offset + 1, budget=budget
                )
            if following is not None and self.codec.offset_at(buffer, following) >= end_offset:
                following = None  # a misplaced file must not speak for its neighbours' records
            why = describe_stop(found.stop)
            if offset >= durable_to:
                self._cut(path, buffer, position, why, keep=following is not None)
                break
            if following is None:
                if not is_prepared_space(buffer, position):
                    self._quarantine(path, buffer, (position, size), why)
                break
            sound = self.codec.offset_at(buffer, following)
            self._quarantine(path, buffer, (position, following), why)
            self._lose(offset, sound, path)
            offset, position = sound, following
        return Bound(offset, position), known

    def _cut(self, path: str, buffer: Buffer, position: int, why: str, *, keep: bool) -> None:
        size = memoryview(buffer).nbytes
        if is_prepared_space(buffer, position):
            self.report.add("cut", path, "prepared space", byte_range=(position, size))
            return
        kept = self._copy(path, buffer, (position, size)) if keep else None
        self.report.add("cut", path, why, byte_range=(position, size), kept_in=kept)

    def _quarantine(self, path: str, buffer: Buffer, byte_range: tuple[int, int], why: str) -> None:
        kept = self._copy(path, buffer, byte_range)
        self.report.add("quarantined", path, why, byte_range=byte_range, kept_in=kept)

    def _copy(self, path: str, buffer: Buffer, byte_range: tuple[int, int]) -> str:
        first, end = byte_range
        return self.place.set_aside(path, bytes(memoryview(buffer)[first:end]), first)

    def _lose(self, first: int, end: int, path: str) -> None:
        if self.ledger.at(first) is not None and self.ledger.at(end - 1) is not None:
            return
        self._enter(Gap(first, end, "lost", self.place.now_ms(), f"damage in {path}"))
        self.report.add("gap", path, f"offsets {first} to {end} were durable and are lost")

    def _enter(self, gap: Gap) -> None:
        self.ledger = self.place.enter_gap(self.ledger, gap)

    def _name_missing_ranges(self, segments: list[SealedSegment | ActiveSegment]) -> None:
        """Enters ranges before and between segments that no reason is known for."""
        expected = 0
        for segment in segments:
            while expected < segment.base_offset:
                known = self.ledger.at(expected)
                if known is None:
                    later = [gap.first for gap in self.ledger.gaps if gap.first > expected]
                    end = min([segment.base_offset, *later])
                    self._lose(expected, end, self.place.segments)
                    expected = end
                else:
                    expected = known.end
            if isinstance(segment, SealedSegment):
                expected = segment.next_offset

    def _map(self, path: str) -> Buffer:
        file = self.place.files.open_read_only(path)
        try:
            return file.map()
        finally:
            file.close()


def _bases(names: list[str]) -> list[int]:
    """The first offsets of the logs among files."""
    parsed = map(segment_file, names)
    return sorted(name.base_offset for name in parsed if name and name.suffix == "log")


def _beginning(files: Files, path: str, length: int) -> tuple[int, bytes]:
    """Returns a file's size and its first bytes."""
    file = files.open_read_only(path)
    try:
        return file.size(), file.read_at(0, length)
    finally:
        file.close()


def _read(files: Files, path: str, position: int, length: int) -> bytes:
    file = files.open_read_only(path)
    try:
        return file.read_at(position, length)
    finally:
        file.close()
