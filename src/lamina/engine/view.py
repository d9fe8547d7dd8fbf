"""A partition read without a writer's lock: beside a live writer, or with none.

Beside a live writer the durable end is what the writer last published (`checkpoint.json`, at most a
tick old). Without one, nobody will change the files: the sound records of the tail are synced and
all of them count as durable. Nothing is cut, rebuilt on disk, or entered in the ledger.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from lamina.engine.codec import Codec
from lamina.engine.index import SegmentIndex
from lamina.engine.place import Place
from lamina.engine.reading import Isolation, Layout, PartitionReader
from lamina.engine.segment import Bound, SealedSegment
from lamina.formats.ledger import Ledger
from lamina.formats.scan import Limit
from lamina.storage.paths import segment_file

if TYPE_CHECKING:
    from typing_extensions import Buffer

_NEVER = 1 << 62


class TailView(SealedSegment):
    """The last segment, as it was when it was looked at."""

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


class PartitionView(PartitionReader):
    """The reading half alone. `durable_to` None means that no writer is at work."""

    def __init__(self, place: Place, codec: Codec) -> None:
        empty = TailView(
            codec, place.files, place.segments, base_offset=0, end=Bound(0, codec.header_bytes)
        )
        super().__init__(place, codec, Layout((), empty), Ledger())

    def refresh(self, durable_to: int | None) -> None:
        """Looks at the directory again."""
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
        known = {segment.base_offset: segment for segment in self.layout.sealed}
        sealed = tuple(
            known.get(base) or self._sealed(base, following) for base, following in pairwise(bases)
        )
        self.layout = Layout(sealed, self._tail(bases[-1], durable_to))

    def _sealed(self, base_offset: int, following: int) -> SealedSegment:
        files, folder = self.place.files, self.place.segments
        segment = SealedSegment(
            self.codec, files, folder, base_offset=base_offset, end=Bound(following, 0)
        )
        segment.end = Bound(following, files.size(segment.path("log")))
        return segment

    def _tail(self, base_offset: int, durable_to: int | None) -> TailView:
        """Walks the last segment up to where it is durable."""
        files, folder = self.place.files, self.place.segments
        start = Bound(base_offset, self.codec.header_bytes)
        view = TailView(self.codec, files, folder, base_offset=base_offset, end=start)
        file = files.open_read_only(view.path("log"))
        try:
            buffer = file.map()
            if durable_to is None:
                file.sync()
        finally:
            file.close()
        index = SegmentIndex(self.codec, base_offset)
        end = self._index_up_to(durable_to, buffer, start, index)
        return TailView(self.codec, files, folder, base_offset=base_offset, end=end, index=index)

    def _index_up_to(
        self, durable_to: int | None, buffer: Buffer, start: Bound, index: SegmentIndex
    ) -> Bound:
        """Walks sound records, over damaged spots, to the durable end."""
        offset, position = start.next_offset, start.position
        size = memoryview(buffer).nbytes
        stop = _NEVER if durable_to is None else durable_to
        while position < size and offset < stop:
            limit = Limit(max_records=min(1 << 20, stop - offset))
            found = self.codec.scan(buffer, position, expected_offset=offset, limit=limit)
            timestamps = self.codec.timestamps_at(buffer, found.positions)
            index.extend(found.positions, timestamps, base_offset=offset, origin=0)
            offset, position = offset + len(found), found.end
            if found.stop.is_damage:
                sound = self.codec.resync(buffer, position + 1, minimum_offset=offset + 1)
                if sound is None or self.codec.offset_at(buffer, sound) >= stop:
                    break
                offset, position = self.codec.offset_at(buffer, sound), sound
        return Bound(offset, position)

    def end_offset(self, isolation: Isolation = "durable") -> int:
        """One past the last offset that was durable when the view was refreshed."""
        return self.layout.end(isolation).next_offset
