"""A partition read without a writer's lock: beside a live writer, or with none.

Beside a live writer the durable end is what the writer last published (`checkpoint.json`, at most a
tick old). Without one, the files do not change: the sound records of the tail are synced and count
as durable up to where recovery would cut, so that none of them vanishes when a writer opens it.
Nothing is cut, rebuilt on disk, or entered in the ledger: what recovery would enter as missing is
named in memory.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from lamina.api import Gap, Isolation, RecoveryReport
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents.ledger import LOST, TRIM, Ledger
from lamina.formats.keratin.header import HEADER_BYTES_MAX
from lamina.formats.log_format import Codec
from lamina.formats.scan import Timed
from lamina.log import manifest_file
from lamina.log.directory import Place
from lamina.log.partition_reader import PartitionReader
from lamina.log.producers import Producers
from lamina.log.quick_check import CheapCheck
from lamina.log.removal import reason_at
from lamina.log.sealed_segment import SealedSegment, extend_index, load_entries
from lamina.log.segment import Bound, Damaged
from lamina.log.segment_files import Arranger, Extent
from lamina.log.segment_index import SegmentIndex
from lamina.log.segment_pile import Layout
from lamina.log.settling import extent_of
from lamina.storage import paths
from lamina.storage.files import GROWING, File
from lamina.storage.paths import SegmentFile, segment_file

if TYPE_CHECKING:
    from typing_extensions import Buffer

REFRESH_ATTEMPTS = 10
_NEVER = 1 << 62
_HEAD = HEADER_BYTES_MAX, Bound(0, HEADER_BYTES_MAX)


class TailView(SealedSegment):
    """The last segment, as it was when it was looked at. Its file may grow."""

    def _identify(self, file: File) -> tuple[int, ...]:
        return file.identity()[:GROWING]

    def follow(self, stop: int, *, watermark: int) -> None:
        """Goes on over sound records to an offset, below the watermark over damaged spots.

        A page that the device does not deliver is not the end: raises OSError if nothing sound
        follows it, unless a live writer has published how far the log reaches.
        """
        index = self._index or SegmentIndex(self.codec, self.base_offset)
        end, bound = self.end, Bound(stop, self.file.size())
        for step in self.walk(end, bound, Timed(max_records=1 << 16, max_bytes=1 << 22)):
            if isinstance(step, Damaged):
                sound = step.following
                unread = self.read_error(end.position, (sound or bound).position)
                if unread is not None and sound is None and stop > watermark:
                    raise unread from None  # nobody knows where the log ends
                is_end = unread is None and end.next_offset >= watermark
                if sound is None or sound.next_offset >= stop or is_end:
                    break
                end = sound
                continue
            times = step.found.timestamps
            index.extend(step.found.positions, times, base_offset=step.offset, origin=step.origin)
            end = step.end
        self.end, self._index = end, index

    @property
    def segment(self) -> SealedSegment:
        """Itself."""
        return self

    @property
    def written(self) -> Bound:
        """What is in the file."""
        return self.end

    @property
    def durable(self) -> Bound:
        """The same: a view holds only what is durable."""
        return self.end


def _leave(base_offset: int, winner: int | None) -> None:
    """Changes nothing: a reader only leaves out what another segment serves."""


class PartitionView(PartitionReader):
    """The reading half alone."""

    def __init__(self, place: Place, codec: Codec) -> None:
        empty = TailView(
            codec,
            place.files,
            place.segments,
            base_offset=0,
            end=Bound(0, codec.header_bytes),
            index=SegmentIndex(codec, 0),
        )
        super().__init__(place, codec, Layout((), empty), Ledger())
        self.vouched: set[int] = set()
        """The first offsets of the segments that a checkpoint or a manifest knows."""
        self.floor = 0
        """What a checkpoint knows to be removed on request, in case the ledger is gone."""
        self._named: list[Gap] = []
        """What is missing and has no reason in the ledger file."""
        self._settled: tuple[int, ...] = ()
        self._counted: list[int] = []
        self._reached: dict[int, int] = {}
        """Where the records of a sealed segment end, by its first offset."""

    def refresh(self, published: int, *, live: bool) -> None:
        """Looks at the directory again.

        `published` is the end in the checkpoint: that of a live writer's durable records, or
        (without a writer) the end below which nothing is a torn tail.
        """
        watermark = published
        known = None
        if not live and self.codec.has_manifest:
            known = manifest_file.read(self.place, RecoveryReport())
        if known is not None:
            watermark = max(watermark, known.next_offset)
            self.vouched |= {
                known.active_base_offset,
                *(each.base_offset for each in known.segments),
            }
        for attempt in range(REFRESH_ATTEMPTS):
            try:
                return self._look(watermark, live=live)
            except FileNotFoundError:  # a trim came between listing a segment and opening it
                if attempt == REFRESH_ATTEMPTS - 1:
                    raise
        return None

    def _look(self, watermark: int, *, live: bool) -> None:
        self.ledger, self._named = self.place.peek_ledger(), []
        if not self.ledger.serves_nothing_below(self.floor):
            self.ledger = self.ledger.with_gap(Gap(0, self.floor, TRIM, 0))
        names = [segment_file(name) for name in self.place.files.list(self.place.segments)]
        gone = {name.base_offset for name in names if name and name.suffix == "tomb"}
        bases = sorted(
            name.base_offset
            for name in names
            if name and name.suffix == "log" and name.base_offset not in gone
        )
        self._explain_tombs(gone, [name.base_offset for name in names if name])
        there, bases = bases, bases if live else self._arranged(bases)
        if not bases:
            if not live:  # as recovery: behind all that it ever held
                ends = [gap.end for gap in self.ledger.gaps]
                self._show((), self._empty_tail(max([watermark, *there, *ends])), live=live)
            return
        tail = self._tail(bases[-1], watermark, live=live)
        begun = None if live else Producers(self.place).unfinished(tail.end.next_offset)
        if begun is not None and begun >= watermark:  # recovery will take that append back
            bases = [base for base in bases if base < begun] or bases[:1]
            tail = self._tail(bases[-1], watermark, live=live, stop=begun)
        known = {segment.base_offset: segment for segment in self.layout.sealed}
        sealed = tuple(
            self._still(known.get(base), following) or self._sealed(base, following)
            for base, following in pairwise(bases)
        )
        if tail.end.next_offset < watermark:  # it was durable, and is gone or out of reach
            spans = self._sealed(tail.base_offset, watermark)
            if not live and spans.read_error(tail.end.position, spans.end.position) is None:
                self._miss(tail.end.next_offset, watermark)
            sealed, tail = (*sealed, spans), self._empty_tail(watermark)
        self._show(sealed, tail, live=live)

    def _show(self, sealed: tuple[SealedSegment, ...], tail: TailView, *, live: bool) -> None:
        """Shows the segments, and without a writer names what is in none of them as recovery would.

        A live writer has named it, or is about to: it removes a file before readers see why.
        """
        self.layout = Layout(sealed, tail)
        if not live:
            self._name_missing()
        self._doubt_front()

    def _name_missing(self) -> None:
        """Names, in memory, the ranges in no segment, or at the end of one, that have no reason."""
        expected = 0
        for segment in self.layout.sealed:
            self._miss(expected, segment.base_offset)
            expected = self._reached.get(segment.base_offset, segment.next_offset)
        self._miss(expected, self.layout.active.base_offset)

    def _empty_tail(self, offset: int) -> TailView:
        return TailView(
            self.codec,
            self.place.files,
            self.place.segments,
            base_offset=offset,
            end=Bound(offset, self.codec.header_bytes),
            index=SegmentIndex(self.codec, offset),
        )

    def _miss(self, first: int, end: int) -> None:
        if first >= end:
            return
        found = self.place.suspicions(self.ledger, Gap(first, end, LOST, 0, "in no segment"))
        self._named += found
        self.ledger = self.ledger.with_gaps(found)

    def _doubt_front(self) -> None:
        """Takes a missing front without a reason for archived, until the archive has answered."""
        if self.place.copies is not None:
            self.ledger = self.ledger.with_archived(0, self.layout.earliest_offset, 0)

    def _arranged(self, bases: list[int]) -> list[int]:
        """Leaves out what recovery would set aside; a live writer has done so already."""
        if tuple(bases) == self._settled:
            return self._counted

        def extent(base: int, following: int | None, before: int) -> Extent:
            if following is not None and check.take(base, following) is not None:
                found = Extent(base, following)
            else:
                found = extent_of(self.codec, self.place, base, following, before)
            if following is not None:
                self._reached[base] = found.next_offset
            return found

        self._reached.clear()
        check = CheapCheck(self.place, self.codec, {}, lambda following: following)
        counted = Arranger(self.vouched, extent, _leave, _leave).arrange(bases)
        self._settled, self._counted = tuple(bases), counted
        return counted

    def _still(self, known: SealedSegment | None, following: int) -> SealedSegment | None:
        """Returns a segment that was seen before, unless an erasure has replaced its file since."""
        if known is None or known.end.next_offset != following:
            return None
        return known if known.is_unchanged() else None

    def _explain_tombs(self, gone: set[int], bases: list[int]) -> None:
        """Takes the reason from a tombstone whose writer was killed before it entered it."""
        for base in sorted(gone):
            following = min((each for each in bases if each > base), default=base)
            if following > base and self.ledger.at(base) is None:
                reason = self._tomb_reason(base)
                self.ledger = self.ledger.with_gap(Gap(base, following, reason, 0))

    def _tomb_reason(self, base_offset: int) -> str:
        path = paths.join(self.place.segments, SegmentFile(base_offset, "tomb").name)
        return reason_at(self.place.files, path)

    def _sealed(self, base_offset: int, following: int) -> SealedSegment:
        files, folder = self.place.files, self.place.segments
        segment = SealedSegment(
            self.codec, files, folder, base_offset=base_offset, end=Bound(following, 0)
        )
        path = segment.path("log")
        self._refuse_newer(path, segment.window(0, *_HEAD), base_offset)
        index = SegmentIndex(self.codec, base_offset)
        position = extend_index(segment, index, load_entries(segment, index))
        size = segment.file.size()
        if segment.read_error(position, size) is not None:
            position = size  # it may hold more than can be seen now
        return SealedSegment(
            self.codec,
            files,
            folder,
            base_offset=base_offset,
            end=Bound(following, position),
            index=index,
        )

    def _refuse_newer(self, path: str, head: Buffer, base_offset: int) -> None:
        """Refuses a newer format; with a damaged header the records themselves decide."""
        try:
            self.codec.check_log_header(head, base_offset)
        except NewerFormat as error:
            raise error.at_path(path) from error
        except CorruptData:
            return

    def _tail(
        self, base_offset: int, watermark: int, *, live: bool, stop: int = _NEVER
    ) -> TailView:
        """Walks the last segment up to where it is durable, from where the last look ended."""
        files, folder = self.place.files, self.place.segments
        end, index = Bound(base_offset, self.codec.header_bytes), None
        before = self.layout.active
        if isinstance(before, TailView) and before.base_offset == base_offset and stop == _NEVER:
            end, index = before.end, before.index  # durable then, so still there
        view = TailView(self.codec, files, folder, base_offset=base_offset, end=end, index=index)
        head = view.window(0, *_HEAD)
        self._refuse_newer(view.path("log"), head, base_offset)
        if not live:  # what a killed writer left in the page cache: once served, it must not vanish
            view.file.sync()
        view.follow(watermark if live else stop, watermark=watermark)
        return view

    def reread_ledger(self) -> None:
        """Reads the reasons that the writer has entered since."""
        self.ledger, named = self.place.peek_ledger(), self._named
        self._named = []
        for gap in named:
            self._miss(gap.first, gap.end)
        self._doubt_front()

    def end_offset(self, isolation: Isolation = "durable") -> int:
        """One past the last offset that was durable when the view was refreshed."""
        return self.layout.end(isolation).next_offset
