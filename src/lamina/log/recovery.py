"""Recovers a partition until it can be served. Only this module and `removal` cut records.

The order is that of documents 000, 003 and 004: finish deletions, check sealed segments cheaply,
walk the tail of the last one, cut what is torn, rebuild what is derived. What a bad record means is
decided here and nowhere else, by one number: the durable watermark, the offset up to which an fsync
is known to have succeeded.

    above the watermark   a torn tail: cut, and set aside unless it is provably the beginning of a
                          record or prepared space
    below the watermark   damage: set aside, entered as lost; the records behind it are served
    a newer format        refused: the store does not open, and the file is not changed

Before that, `settling` deals with files that are not segments and with segments that overlap.

Rules.
1. Bytes are set aside durably before they are cut. Nothing else is ever removed, except files
   that have a tombstone. A sealed segment loses only what lies behind its last record: the zeros
   that a roll left if it did not finish.
2. Recovered records are fsynced before they are served: they may be in the page cache and not on
   the disk. Those above the watermark are written again first, because a failed fsync may have left
   them in the cache marked as clean, and another fsync would skip them.
3. Recovery is idempotent, also when it is killed half-way and run again.
4. A page that the device cannot deliver is neither damage nor the end of the log: nothing is cut,
   set aside or entered because of it. If no sound record follows it in the last segment, the store
   does not open.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from lamina.api import Gap, RecoveryReport
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents.ledger import ARCHIVED, LOST, Ledger
from lamina.formats.keratin import manifest
from lamina.formats.keratin.header import HEADER_BYTES_MAX
from lamina.formats.log_format import Codec
from lamina.formats.offset_log import OffsetLog
from lamina.formats.scan import OFFSET_MAX, Run, Stop, Timed, is_prepared_space, runs
from lamina.log.active_segment import ActiveSegment
from lamina.log.directory import Place
from lamina.log.quick_check import CheapCheck, holds
from lamina.log.removal import finish_trim, reason_at, remove_files
from lamina.log.sealed_segment import INDEX_ENTRY_BYTES, SealedSegment, load_entries
from lamina.log.segment import Bound, newer_record
from lamina.log.segment_files import measure
from lamina.log.segment_index import SegmentIndex
from lamina.log.settling import Settling, cut_behind
from lamina.log.stops import describe_stop
from lamina.storage import bad_pages, paths
from lamina.storage.bad_pages import DEVICE_ERROR, OUT_OF_REACH, Salvaged
from lamina.storage.files import File
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
    """How far a walk came: where the records to keep end, and why it ended there.

    `known` is the byte where those below the watermark end. `resumes`: a sound record follows, so
    this is no torn tail. `unread`: the device delivers nothing from here to the end of the file.
    """

    end: Bound
    known: int
    why: str = ""
    resumes: bool = False
    unread: bool = False


@dataclass(slots=True)
class Recovery:
    """One recovery of one partition; `watermark` is the offset up to which data was durable.

    `recorded` are the sealed segments of a sound manifest, by first offset; `vouched` holds the
    first offsets of all segments that the manifest or the checkpoint knows.
    """

    place: Place
    codec: Codec
    watermark: int
    report: RecoveryReport
    recorded: Mapping[int, manifest.SealedSegment] = field(default_factory=dict)
    vouched: Collection[int] = ()
    floor: int = 0
    """What the checkpoint knows to be removed on request: all below it, if the ledger is gone."""
    ledger: Ledger = field(default_factory=Ledger)
    _settling: Settling = field(init=False)
    _may_recall: bool = False
    """Whether to look for a copy of the ledger before a loss is entered: it was empty."""

    def run(self) -> Recovered:
        """Recovers the partition and returns it ready to be served."""
        names = self._durable_names()
        self.ledger = self.place.read_ledger(self.report)
        self._may_recall = not self.ledger.gaps
        if self._may_recall and not self.ledger.serves_nothing_below(self.floor):
            self._recall_ledger()
        self.ledger = self.place.with_floor(self.ledger, self.floor, self.report)
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
            finished = active.finish()  # sealed up to the watermark, even if it holds nothing now
            spans = Bound(self.watermark, finished.end.position)
            sealed.append(self._as_sealed(finished.base_offset, spans, finished.index))
            self._lose(active.tail.next_offset, self.watermark, active.path("log"))
            active = self._start_at(self.watermark)
        self._name_missing_ranges([*sealed, active])
        kept = finish_trim(self.place, self.codec, sealed, self.ledger.floor, self.report)
        return Recovered(kept, active, self.ledger)

    # ------------------------------------------------------------------ names

    def _durable_names(self) -> list[str]:
        """Syncs the directories and removes leftovers; returns the names of the segments' files."""
        files, place = self.place.files, self.place
        files.make_directory(place.segments)
        # A killed process may have created files without syncing their directory: a file that is
        # about to be served must not vanish in the next power cut.
        files.sync_directory(place.directory)
        files.sync_directory(place.segments)
        self._without_leftovers(place.directory)
        return self._without_leftovers(place.segments)

    def _without_leftovers(self, folder: str) -> list[str]:
        """Removes temporary files that a crash has left; returns the other names."""
        names = self.place.files.list(folder)
        for name in names:
            if name.endswith(paths.TEMPORARY_SUFFIX):
                self.place.files.remove(paths.join(folder, name))
        return [name for name in names if not name.endswith(paths.TEMPORARY_SUFFIX)]

    def _finish_deletions(self, names: list[str]) -> list[str]:
        """Finishes the deletion of each segment that has a tombstone; returns the names left.

        The order is document 004's.
        """
        left = names
        for name in names:
            parsed = segment_file(name)
            if parsed and parsed.suffix == "tomb":
                path = paths.join(self.place.segments, name)
                reason = reason_at(self.place.files, path)
                end = self._end_of_segment(parsed.base_offset, _bases(left))
                known = self.ledger.at(parsed.base_offset)
                if end is not None and end > (known.end if known else parsed.base_offset):
                    self._enter(Gap(parsed.base_offset, end, reason, self.place.now_ms()))
                remove_files(self.place, self.codec, parsed.base_offset)
                self.report.add("deletion finished", path, f"a tombstone was left: {reason}")
                left = self.place.files.list(self.place.segments)
        return left

    def _end_of_segment(self, base_offset: int, bases: list[int]) -> int | None:
        """One past the last offset of a segment that is being deleted; None if its log is gone."""
        later = [base for base in bases if base > base_offset]
        if later:
            return later[0]
        path = paths.join(self.place.segments, SegmentFile(base_offset, "log").name)
        if not self.place.files.exists(path):
            return None
        with contextlib.closing(self.place.files.open_read_only(path)) as file:
            return measure(self.codec, file.load(), base_offset, None, path).next_offset

    def _first_offset(self) -> int:
        """Returns where an empty partition continues: above every offset that it ever assigned."""
        # A segment that was set aside proves by its name that all offsets below it were assigned.
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
        """Checks a sealed segment: its last record must end where the next segment begins."""
        whole = self._settling.whole.get(base_offset)
        if whole is not None and whole.next_offset == following:
            return whole
        segment = self._as_sealed(base_offset, Bound(following, 0))
        path = segment.path("log")
        read = self._load(path)
        created_ms = self._check_header(path, read, base_offset)
        index = SegmentIndex(self.codec, base_offset)
        position, offset = load_entries(segment, index)
        walked = self._walk(
            path,
            read,
            Bound(offset, position),
            index,
            durable_to=following,
            end_offset=following,
        )
        end = walked.end
        if read.holes:  # pages are missing: nothing is cut or rebuilt from what is left
            if not walked.unread and end.next_offset < self._explained_from(following):
                self._lose(end.next_offset, following, path)
            return self._as_sealed(base_offset, Bound(following, end.position), index)
        if end.next_offset < self._explained_from(following):
            self._lose(end.next_offset, following, path)
        elif end.next_offset >= following or is_prepared_space(read.data, end.position):
            with contextlib.suppress(OSError):  # the disk takes no writes: serve it as it is
                cut_behind(self.place, path, end.position, walked.why, self.report)
        sealed = self._as_sealed(base_offset, Bound(following, end.position), index)
        self._restore_index(sealed, created_ms or 0)
        return sealed

    def _restore_index(self, segment: SealedSegment, created_ms: int) -> None:
        """Rewrites the index files of a sealed segment if they do not match the log."""
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
                self.report.add("rebuilt", path, "the index did not match the log")

    def _explained_from(self, following: int) -> int:
        """Returns where the unbroken run of explained offsets begins that ends at an offset."""
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
        """Walks the last segment from its last trusted index entry, cuts it and syncs it."""
        files = self.place.files
        created_ms = self.place.now_ms()
        segment = ActiveSegment(
            self.codec, files, self.place.segments, base_offset=base_offset, created_ms=created_ms
        )
        path = segment.path("log")
        file = files.open(path)
        head = bad_pages.salvage(file, 0, HEADER_BYTES_MAX)
        if self._is_blank(file, head):
            self._rewrite_header(file, path, base_offset, created_ms)
            head = bad_pages.salvage(file, 0, HEADER_BYTES_MAX)
        segment.created_ms = self._check_header(path, head, base_offset) or created_ms
        index = SegmentIndex(self.codec, base_offset)
        position, offset = load_entries(segment, index, durable_to=self.watermark)
        whole = bad_pages.load_from(file, position)  # what lies before is not looked at
        waits = self._has_no_more_entries(segment, len(index.offsets()) + 1)
        start = Bound(offset, position)
        walked = self._walk(path, whole, start, index, durable_to=self.watermark)
        end = walked.end
        if walked.unread:  # records may follow unseen: their offsets would be given out again
            file.close()
            first = next(start for start, stop in whole.holes if stop > walked.known)
            at = f"{DEVICE_ERROR} at byte {first}"
            raise OSError(errno.EIO, f"where the log ends cannot be seen: {at}", path)
        if end.position < memoryview(whole.data).nbytes:
            self._cut(path, whole.data, walked)
            file.truncate(end.position)
        for begin, stop in whole.read_parts(walked.known, end.position):
            for first in range(begin, stop, REWRITE_BYTES):
                part = memoryview(whole.data)[first : min(first + REWRITE_BYTES, stop)]
                file.write_at(first, bytes(part))
        file.sync()
        # Only now may it be served: what a killed process had not synced is durable.
        segment.resume(file, end, index, indexes_wait=waits)
        return segment

    def _has_no_more_entries(self, segment: ActiveSegment, taken: int) -> bool:
        """Returns whether the index files hold no more than the entries that were taken.

        Further ones may point to records that are lost. The first entry does not count: it points
        to where a walk without an index starts.
        """
        most = self.codec.index_header_bytes + taken * INDEX_ENTRY_BYTES
        suffixes = ("idx", self.codec.time_suffix)
        try:
            return all(segment.files.size(segment.path(each)) <= most for each in suffixes)
        except OSError:
            return False

    def _is_blank(self, file: File, head: Salvaged) -> bool:
        """Returns whether a log has no header yet, and nothing behind it."""
        needed, found = self.codec.header_bytes, memoryview(head.data).nbytes
        if not needed or found < needed:
            return found < needed
        return is_prepared_space(head.data, 0) and is_prepared_space(bad_pages.load(file).data, 0)

    def _rewrite_header(self, file: File, path: str, base_offset: int, created_ms: int) -> None:
        """Writes the header of a segment whose creation was interrupted: it never held a record."""
        self.report.add("rebuilt", path, "the segment's creation had not finished")
        file.truncate(0)
        file.write_at(0, self.codec.log_header(base_offset, created_ms))
        file.sync()  # before records follow it, as when a segment is created

    def _check_header(self, path: str, whole: Salvaged, base_offset: int) -> int | None:
        """Refuses a newer format; rewrites a damaged header, as no record depends on it."""
        if whole.misses(0, self.codec.header_bytes):
            return self._created_by_index(path)
        head = memoryview(whole.data)[: self.codec.header_bytes]
        try:
            return self.codec.check_log_header(whole.data, base_offset)
        except NewerFormat as error:
            raise error.at_path(path) from error
        except CorruptData as error:
            kept = self.place.set_aside(path, bytes(head), 0)
            why = f"the file header was damaged: {error.problem}"
            self.report.add("rebuilt", path, why, byte_range=(0, len(head)), kept_in=kept)
            return self._restore_header(path, base_offset)

    def _created_by_index(self, path: str) -> int:
        """When a segment was created: by its index, or else by when the file was last changed."""
        try:
            head = self.place.files.read(paths.beside(path, "idx"))
            created_ms = self.codec.created_by_index(head)
        except (OSError, CorruptData):
            created_ms = None
        return self.place.files.modified_ms(path) if created_ms is None else created_ms

    def _restore_header(self, path: str, base_offset: int) -> int:
        """Rewrites a damaged header: all but the time of creation follows from the name."""
        created_ms = self._created_by_index(path)
        with contextlib.suppress(OSError):  # the disk takes no writes: records are served anyway
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
        whole: Salvaged,
        start: Bound,
        index: SegmentIndex,
        *,
        durable_to: int,
        end_offset: int = OFFSET_MAX,
    ) -> Walked:
        """Walks and indexes records up to the last one to keep; judges every stop on the way.

        Behind damage, records from `end_offset` on do not count: the next segment begins there.
        """
        buffer, offset, position = whole.data, *start
        known = position
        log = OffsetLog(self.codec.log, buffer)
        for step in runs(log, position, offset, limit=Timed(), end_number=end_offset):
            if isinstance(step, Run):
                found = step.found
                index.extend(found.positions, found.timestamps, base_offset=offset, origin=0)
                below = durable_to - offset
                if below >= len(found):
                    known = found.end
                elif below > 0:
                    known = int(found.positions[below])
                offset, position = step.end, found.end
                continue
            if step.stop is Stop.BAD_VERSION:
                raise newer_record(path, position)
            why = describe_stop(step.stop)
            if whole.misses(position, step.end):
                self.report.add("note", path, OUT_OF_REACH, byte_range=(position, step.end))
                if step.following is None:
                    return Walked(Bound(offset, step.end), known, why, unread=True)
                offset, position = step.following, step.end
                continue
            # Nothing from the watermark on was promised to be durable: this is where the log ends.
            if offset >= durable_to:
                resumes = step.following is not None
                return Walked(Bound(offset, position), known, why, resumes)
            # Below it this was durable: the damage costs its own records, and the walk goes on.
            if not step.is_blank:
                self._quarantine(path, buffer, (position, step.end), why, offset)
            if step.following is not None:
                if step.following > offset:  # otherwise leftovers only stood before it
                    self._lose(offset, step.following, path)
                offset, position = step.following, step.end
        return Walked(Bound(offset, position), known)

    def _cut(self, path: str, buffer: Buffer, walked: Walked) -> None:
        """Reports a cut; sets the bytes aside unless they are a torn record or prepared space."""
        offset, position = walked.end
        size = memoryview(buffer).nbytes
        if is_prepared_space(buffer, position):
            self.report.add("cut", path, "prepared space", byte_range=(position, size))
            return
        if not walked.why:
            return  # damage below the watermark: set aside and reported already
        is_torn = not walked.resumes and self.codec.begins_record(buffer, position, offset)
        kept = None if is_torn else self._copy(path, buffer, (position, size))
        self.report.add("cut", path, walked.why, byte_range=(position, size), kept_in=kept)

    def _quarantine(
        self, path: str, buffer: Buffer, byte_range: tuple[int, int], why: str, offset: int
    ) -> None:
        """Sets damaged bytes aside and reports them, unless the ledger knows of them already."""
        known = self.ledger.at(offset)
        if known is not None and known.reason in (LOST, ARCHIVED):
            return
        kept = self._copy(path, buffer, byte_range)
        self.report.add("quarantined", path, why, byte_range=byte_range, kept_in=kept)

    def _copy(self, path: str, buffer: Buffer, byte_range: tuple[int, int]) -> str:
        first, end = byte_range
        return self.place.set_aside(path, bytes(memoryview(buffer)[first:end]), first)

    def _lose(self, first: int, end: int, path: str) -> None:
        """Enters a range that is gone: as lost, or as archived where the archive has it."""
        if self._may_recall:
            self._recall_ledger()
        gap = Gap(first, end, LOST, self.place.now_ms(), f"damage in {path}")
        for each in self.place.losses(self.ledger, gap):
            self._enter(each)
            became = "are lost" if each.reason == LOST else "are read from the archive"
            why = f"offsets {each.first} to {each.end} were durable and {became}"
            self.report.add("gap", path, why)

    def _recall_ledger(self) -> None:
        """Restores a lost ledger from a copy, if there is one; looks only once."""
        self._may_recall = False
        copy = self.place.copies.ledger() if self.place.copies is not None else None
        if copy is not None and copy.gaps:
            self.ledger = copy.with_gaps(self.ledger.gaps)
            self.place.write_ledger(self.ledger)
            self.report.add("rebuilt", self.place.ledger_path, "it was gone; a copy was found")

    def _enter(self, gap: Gap) -> None:
        self.ledger = self.place.enter_gap(self.ledger, gap)

    def _name_missing_ranges(self, segments: list[SealedSegment | ActiveSegment]) -> None:
        """Enters ranges before and between segments that have no known reason."""
        expected = 0
        for segment in segments:
            if expected < segment.base_offset:
                self._lose(expected, segment.base_offset, self.place.segments)
            if isinstance(segment, SealedSegment):
                expected = segment.next_offset

    def _load(self, path: str) -> Salvaged:
        with contextlib.closing(self.place.files.open_read_only(path)) as file:
            return bad_pages.load(file)


def _bases(names: list[str]) -> list[int]:
    """The first offsets of the logs among files."""
    parsed = map(segment_file, names)
    return sorted(name.base_offset for name in parsed if name and name.suffix == "log")
