"""A partition read without a writer's lock: beside a live writer, or with none.

Beside a live writer the durable end is what the writer last published (`checkpoint.json`, at most a
tick old). Without one, nobody will change the files: the sound records of the tail are synced and
count as durable up to where recovery would cut, so that none of them vanishes when a writer comes.
Nothing is cut, rebuilt on disk, or entered in the ledger.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING

from lamina.api import Gap, Isolation, RecoveryReport
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents.ledger import Ledger
from lamina.formats.keratin.header import HEADER_BYTES_MAX
from lamina.formats.log_format import Codec
from lamina.formats.scan import Limit
from lamina.log import manifest_file, tombstones
from lamina.log.directory import Place
from lamina.log.partition_reader import PartitionReader
from lamina.log.producers import Producers
from lamina.log.quick_check import CheapCheck
from lamina.log.segment import (
    Bound,
    Damaged,
    SealedSegment,
    extend_index,
    load_entries,
)
from lamina.log.segment_files import Arranger, Extent
from lamina.log.segment_index import SegmentIndex
from lamina.log.segment_pile import Layout
from lamina.log.settling import extent_of
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

    def walk(self, stop: int, *, watermark: int) -> None:
        """Walks on over sound records to an offset, below the watermark over damaged spots."""
        index = self._index or SegmentIndex(self.codec, self.base_offset)
        offset, position = self.end.next_offset, self.end.position
        bound = Bound(stop, self.file.size())
        while position < bound.position and offset < stop:
            limit = Limit(max_records=min(1 << 16, stop - offset), max_bytes=1 << 22)
            try:
                found, shift, buffer = self.scan(position, offset, limit, bound)
            except Damaged:
                sound = self.sound_after(position, offset, bound) if offset < watermark else None
                if sound is None or sound[0] >= stop:
                    break
                offset, position = sound
                continue
            timestamps = self.codec.timestamps_at(buffer, found.positions)
            index.extend(found.positions, timestamps, base_offset=offset, origin=shift)
            offset, position = offset + len(found), found.end + shift
        self.end, self._index = Bound(offset, position), index

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
        self._settled: tuple[int, ...] = ()
        self._counted: list[int] = []

    def refresh(self, published: int, *, live: bool) -> None:
        """Looks at the directory again.

        `published` is the end that the checkpoint gives: of a live writer's durable records, or
        (without one) of those that are not a torn tail.
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
        self.ledger = self.place.peek_ledger()
        names = [segment_file(name) for name in self.place.files.list(self.place.segments)]
        gone = {name.base_offset for name in names if name and name.suffix == "tomb"}
        bases = sorted(
            name.base_offset
            for name in names
            if name and name.suffix == "log" and name.base_offset not in gone
        )
        if not bases:
            return
        self._explain_tombs(gone, [name.base_offset for name in names if name])
        bases = bases if live else self._arranged(bases)
        if not bases:
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
        self.layout = Layout(sealed, tail)
        self._doubt_front()

    def _doubt_front(self) -> None:
        """Calls a front without a reason archived: no loss before the archive has said so."""
        if self.place.copies is not None:
            self.ledger = self.ledger.with_archived(0, self.layout.earliest_offset, 0)

    def _arranged(self, bases: list[int]) -> list[int]:
        """Leaves out what recovery would set aside; a live writer has done so already."""
        if tuple(bases) == self._settled:
            return self._counted

        def extent(base: int, following: int | None, before: int) -> Extent:
            if following is not None and check.take(base, following) is not None:
                return Extent(base, following)
            return extent_of(self.codec, self.place, base, following, before)

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
        path = os.path.join(self.place.segments, SegmentFile(base_offset, "tomb").name)
        return tombstones.reason_at(self.place.files, path)

    def _sealed(self, base_offset: int, following: int) -> SealedSegment:
        files, folder = self.place.files, self.place.segments
        segment = SealedSegment(
            self.codec, files, folder, base_offset=base_offset, end=Bound(following, 0)
        )
        path = segment.path("log")
        self._refuse_newer(path, segment.window(0, *_HEAD), base_offset)
        index = SegmentIndex(self.codec, base_offset)
        position = extend_index(segment, index, load_entries(segment, index))
        return SealedSegment(
            self.codec,
            files,
            folder,
            base_offset=base_offset,
            end=Bound(following, position),
            index=index,
        )

    def _refuse_newer(self, path: str, head: Buffer, base_offset: int) -> None:
        """Refuses a newer format; of a damaged header the records speak for themselves."""
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
        if not live:
            view.file.sync()
        view.walk(watermark if live else stop, watermark=watermark)
        return view

    def reread_ledger(self) -> None:
        """Reads the reasons that the writer has entered since."""
        self.ledger = self.place.peek_ledger()
        self._doubt_front()

    def end_offset(self, isolation: Isolation = "durable") -> int:
        """One past the last offset that was durable when the view was refreshed."""
        return self.layout.end(isolation).next_offset
