"""Brings a partition back into a state that can be served: it and `removal` alone cut records.

As documents 000, 003 and 004 order it: finish deletions, check sealed segments cheaply, walk the
tail of the last one, cut what is torn, rebuild what is derived. What each stop means is decided
here and nowhere else, by one number: the durable watermark, up to which an fsync is known to have
succeeded.

    above the watermark   torn tail: cut (and kept aside unless it is provably a torn record or
                          space that was prepared)
    below the watermark   damage: kept aside, entered as lost, what follows it is served
    a newer format        refused: the store does not open, and nothing of the file is changed

Before that, files that are no segments and segments that overlap are settled (`arrangement`).

Rules.
1. Bytes are kept aside durably before they are cut. Nothing else is ever removed, except files
   whose tombstone says so. A sealed segment loses only what lies behind its last record: the zeros
   of a roll that did not finish, once.
2. What was recovered is fsynced before it is served: a page cache may have survived what a disk
   did not. What lies above the watermark is written once more for that: an fsync that failed may
   have left it in the cache, marked as clean.
3. Doing it again, also after being killed inside it, changes nothing more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from lamina.api import Gap, RecoveryReport
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents.ledger import ARCHIVED, LOST, Ledger
from lamina.formats.keratin import manifest
from lamina.formats.log_format import Codec
from lamina.formats.scan import OFFSET_MAX, Budget, Limit, Stop, Timed
from lamina.log import tombstones
from lamina.log.active_segment import ActiveSegment
from lamina.log.directory import Place
from lamina.log.quick_check import CheapCheck, holds
from lamina.log.removal import remove_files
from lamina.log.segment import (
    INDEX_ENTRY_BYTES,
    Bound,
    SealedSegment,
    load_entries,
    newer_record,
)
from lamina.log.segment_index import SegmentIndex
from lamina.log.settling import Settling, cut_behind
from lamina.log.stops import describe_stop, is_prepared_space
from lamina.storage.files import TEMPORARY_SUFFIX, File
from lamina.storage.paths import SegmentFile, segment_file

if TYPE_CHECKING:
    from typing_extensions import Buffer

REWRITE_BYTES = 4 << 20


@dataclass(slots=True)
class Recovered:
    """A partition that can be served."""

    sealed: list[SealedSegment]
    active: ActiveSegment
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Walked:
    """Where the records that are kept end, and those below the watermark; what ended the walk.

    `resumes` says that a sound record follows the end: it is no torn tail.
    """

    end: Bound
    known: int
    why: str = ""
    resumes: bool = False


@dataclass(slots=True)
class Recovery:
    """One recovery of one partition; `watermark` is the offset up to which data was durable.

    `recorded` are the sealed segments of a sound manifest, by their first offset; `vouched` the
    first offsets of all segments that a manifest or the checkpoint knows.
    """

    place: Place
    codec: Codec
    watermark: int
    report: RecoveryReport
    recorded: Mapping[int, manifest.SealedSegment] = field(default_factory=dict)
    vouched: Collection[int] = ()
    ledger: Ledger = field(default_factory=Ledger)
    _settling: Settling = field(init=False)
    _may_recall: bool = False
    """Whether a copy of the ledger is worth asking for: it has no entry, and one is missing."""

    def run(self) -> Recovered:
        """Recovers the partition and returns it ready to be served."""
        names = self._durable_names()
        self.ledger = self.place.read_ledger(self.report)
        self._may_recall = not self.ledger.gaps
        self._settling = Settling(
            CheapCheck(self.place, self.codec, self.recorded, self._explained_from),
            self.report,
            self.vouched,
        )
        bases = self._settling.settle(_bases(self._finish_deletions(names)))
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
                reason = tombstones.reason_at(self.place.files, path)
                end = self._end_of_segment(parsed.base_offset, _bases(left))
                known = self.ledger.at(parsed.base_offset)
                if end is not None and end > (known.end if known else parsed.base_offset):
                    self._enter(Gap(parsed.base_offset, end, reason, self.place.now_ms()))
                remove_files(self.place, self.codec, parsed.base_offset)
                self.report.add("deletion finished", path, f"a tombstone was left: {reason}")
                left = self.place.files.list(self.place.segments)
        return left

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
        # A file's name tells what was there before it.
        known = max(self.watermark, self._settling.dropped, self._last_gap_end())
        if known > 0:
            self._lose(0, known, self.place.segments)
        return max(known, self._last_gap_end())

    def _last_gap_end(self) -> int:
        return max((gap.end for gap in self.ledger.gaps), default=0)

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
        whole = self._settling.whole.get(base_offset)
        if whole is not None and whole.next_offset == following:
            return whole
        segment = self._as_sealed(base_offset, Bound(following, 0))
        path = segment.path("log")
        buffer = self._map(path)
        created_ms = self._check_header(path, buffer, base_offset)
        index = SegmentIndex(self.codec, base_offset)
        position, offset = load_entries(segment, index)
        walked = self._walk(
            path,
            buffer,
            Bound(offset, position),
            index,
            durable_to=following,
            end_offset=following,
        )
        end = walked.end
        if end.next_offset < self._explained_from(following):
            self._lose(end.next_offset, following, path)
        elif end.next_offset >= following or is_prepared_space(buffer, end.position):
            with contextlib.suppress(OSError):  # a disk that takes nothing: read as it is
                cut_behind(self.place, path, end.position, walked.why, self.report)
        sealed = self._as_sealed(base_offset, Bound(following, end.position), index)
        self._restore_index(sealed, created_ms or 0)
        return sealed

    def _restore_index(self, segment: SealedSegment, created_ms: int) -> None:
        """Writes the index files of a sealed segment again if they are not what they should be."""
        files, index = self.place.files, segment.index
        headers = self.codec.index_headers(segment.base_offset, created_ms)
        for suffix, header, entries in zip(
            ("idx", self.codec.time_suffix), headers, index.all_bytes(), strict=True
        ):
            path, right = segment.path(suffix), header + entries
            is_there = files.exists(path) and files.size(path) == len(right)
            if not is_there or (index.trusted and not holds(files, path, right)):
                with contextlib.suppress(OSError):  # without it, the next open walks the log again
                    files.replace(path, right)
                self.report.add("rebuilt", path, "the index was not what the log says")

    def _explained_from(self, following: int) -> int:
        """Returns where the range begins, before an offset, of which the ledger knows all."""
        while following and (gap := self.ledger.at(following - 1)) is not None:
            following = gap.first
        return following

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
        buffer = file.load()
        if memoryview(buffer).nbytes < self.codec.header_bytes or (
            self.codec.header_bytes and is_prepared_space(buffer, 0)
        ):
            self._rewrite_header(file, path, base_offset, created_ms)
            buffer = file.load()
        segment.created_ms = self._check_header(path, buffer, base_offset) or created_ms
        index = SegmentIndex(self.codec, base_offset)
        position, offset = load_entries(segment, index, durable_to=self.watermark)
        waits = self._has_no_more_entries(segment, len(index.offsets()) + 1)
        start = Bound(offset, position)
        walked = self._walk(path, buffer, start, index, durable_to=self.watermark)
        end = walked.end
        if end.position < memoryview(buffer).nbytes:
            self._cut(path, buffer, walked)
            file.truncate(end.position)
        for first in range(walked.known, end.position, REWRITE_BYTES):
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
        """Refuses a newer format; writes a damaged header again: records speak for themselves."""
        head = memoryview(buffer)[: self.codec.header_bytes]
        try:
            return self.codec.check_log_header(buffer, base_offset)
        except NewerFormat as error:
            raise error.at_path(path) from error
        except CorruptData as error:
            kept = self.place.set_aside(path, bytes(head), 0)
            why = f"the file header was damaged: {error.problem}"
            self.report.add("rebuilt", path, why, byte_range=(0, len(head)), kept_in=kept)
            return self._restore_header(path, base_offset)

    def _created_by_index(self, path: str) -> int:
        """When a segment was created, as its index says; when it was last changed without one."""
        try:
            head = self.place.files.read(path.removesuffix("log") + "idx")
            created_ms = self.codec.created_by_index(head)
        except (OSError, CorruptData):
            created_ms = None
        return self.place.files.modified_ms(path) if created_ms is None else created_ms

    def _restore_header(self, path: str, base_offset: int) -> int:
        """Writes a damaged header again: the name tells all of it but when it was created."""
        created_ms = self._created_by_index(path)
        with contextlib.suppress(OSError):  # a disk that takes nothing: the records are served
            file = self.place.files.open(path)
            try:
                file.write_at(0, self.codec.log_header(base_offset, created_ms))
                file.sync()
            finally:
                file.close()
        return created_ms

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
    ) -> Walked:
        """Walks records to the last that is kept, indexing them; judges every stop on the way.

        Behind damage, records from `end_offset` on do not count: the next segment begins there.
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
            if found.stop is Stop.BAD_VERSION:
                raise newer_record(path, position)
            following = None
            if not is_prepared_space(buffer, position):
                following = self.codec.resync(
                    buffer, position + 1, minimum_offset=offset + 1, budget=budget
                )
            if following is not None and self.codec.offset_at(buffer, following) >= end_offset:
                following = None  # a misplaced file must not speak for its neighbours' records
            why = describe_stop(found.stop)
            if offset >= durable_to:
                resumes = following is not None
                return Walked(Bound(offset, position), known, why, resumes)
            if following is None:
                if not is_prepared_space(buffer, position):
                    self._quarantine(path, buffer, (position, size), why, offset)
                break
            sound = self.codec.offset_at(buffer, following)
            self._quarantine(path, buffer, (position, following), why, offset)
            self._lose(offset, sound, path)
            offset, position = sound, following
        return Walked(Bound(offset, position), known)

    def _cut(self, path: str, buffer: Buffer, walked: Walked) -> None:
        """Reports a cut; keeps what is no record that was being written, nor prepared space."""
        offset, position = walked.end
        size = memoryview(buffer).nbytes
        if is_prepared_space(buffer, position):
            self.report.add("cut", path, "prepared space", byte_range=(position, size))
            return
        if not walked.why:
            return  # damage below the watermark, kept aside and reported as such
        is_torn = not walked.resumes and self.codec.begins_record(buffer, position, offset)
        kept = None if is_torn else self._copy(path, buffer, (position, size))
        self.report.add("cut", path, walked.why, byte_range=(position, size), kept_in=kept)

    def _quarantine(
        self, path: str, buffer: Buffer, byte_range: tuple[int, int], why: str, offset: int
    ) -> None:
        """Keeps damaged bytes aside, and reports them, unless that was done when it was found."""
        known = self.ledger.at(offset)
        if known is not None and known.reason in (LOST, ARCHIVED):
            return
        kept = self._copy(path, buffer, byte_range)
        self.report.add("quarantined", path, why, byte_range=byte_range, kept_in=kept)

    def _copy(self, path: str, buffer: Buffer, byte_range: tuple[int, int]) -> str:
        first, end = byte_range
        return self.place.set_aside(path, bytes(memoryview(buffer)[first:end]), first)

    def _lose(self, first: int, end: int, path: str) -> None:
        """Enters what is not here any more: as lost, or as archived where the archive has it."""
        if self._may_recall:
            self._recall_ledger()
        gap = Gap(first, end, LOST, self.place.now_ms(), f"damage in {path}")
        for each in self.place.losses(self.ledger, gap):
            self._enter(each)
            became = "are lost" if each.reason == LOST else "are read from the archive"
            why = f"offsets {each.first} to {each.end} were durable and {became}"
            self.report.add("gap", path, why)

    def _recall_ledger(self) -> None:
        """Takes a copy of a ledger that is gone, where there is one; asked for once."""
        self._may_recall = False
        copy = self.place.copies.ledger() if self.place.copies is not None else None
        if copy is not None and copy.gaps:
            self.ledger = copy.with_gaps(self.ledger.gaps)
            self.place.write_ledger(self.ledger)
            self.report.add("rebuilt", self.place.ledger_path, "it was gone; a copy was found")

    def _enter(self, gap: Gap) -> None:
        self.ledger = self.place.enter_gap(self.ledger, gap)

    def _name_missing_ranges(self, segments: list[SealedSegment | ActiveSegment]) -> None:
        """Enters ranges before and between segments that no reason is known for."""
        expected = 0
        for segment in segments:
            if expected < segment.base_offset:
                self._lose(expected, segment.base_offset, self.place.segments)
            if isinstance(segment, SealedSegment):
                expected = segment.next_offset

    def _map(self, path: str) -> Buffer:
        file = self.place.files.open_read_only(path)
        try:
            return file.load()
        finally:
            file.close()


def _bases(names: list[str]) -> list[int]:
    """The first offsets of the logs among files."""
    parsed = map(segment_file, names)
    return sorted(name.base_offset for name in parsed if name and name.suffix == "log")
