"""One partition of a replica: what the archive lists, and above it what windows hold.

    │ object │ object │ object │        the list, read when it is needed
                    │ stretch │ stretch │   of windows, cut where the list ends
                                        └ the end: it only grows

A record passes from a window into an object of the list. Both hold the same record at the same
offset, so it does not matter which one a reader gets; what it gets is one value, replaced whole.

Rules.
1. Only what the bucket holds is shown: the end is that of a list or of a window.
2. The end never goes back, and what is shown has no hole. Where that cannot be kept, readers go on
   seeing what was shown last, and CorruptData says what is wrong.
3. The list is read before the first answer, and again before windows are dropped. Reads below the
   windows renew a list that is older than `LIST_MS`: objects get joined and rewritten.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa

from lamina.api import Isolation
from lamina.archive.object_reader import BlockCache
from lamina.errors import CorruptData, InvalidRequest, LaminaError, NotPrimary
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.archive_manifest import Objects as Listed
from lamina.formats.documents.ledger import Ledger
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.scan import Limit
from lamina.log.layers import Layer, ObjectSource
from lamina.storage import paths
from lamina.storage.objects import Objects
from lamina.store.archive_store import ArchivedPartition, gaps_in
from lamina.store.following import Following, life_of
from lamina.store.mounting import explained, known_gaps
from lamina.store.window_objects import HeldWindows, ReplicaCold, Shipped, Stretch

LIST_MS = 10_000
"""The greatest age of a list that reads below the windows may use."""


class ReplicaPartition(ArchivedPartition):
    """One partition, read from the archive and from windows."""

    def __init__(
        self,
        objects: Objects,
        held: HeldWindows,
        about: TopicFile,
        partition: int,
        cache: BlockCache,
        *,
        now_ms: Callable[[], int],
        elsewhere: Callable[[str], NotPrimary],
    ) -> None:
        super().__init__(objects, about, partition, cache)
        self.cold = self._cold = ReplicaCold(
            *(held, about.name, partition, self._cold.schema, cache), ask=self._asked
        )
        self._life = life_of(about)
        self._url = objects.url
        self._now_ms = now_ms
        self._elsewhere = elsewhere
        self._changing = threading.RLock()
        self._stretches: tuple[Stretch, ...] = ()
        self._shipped = Ledger()
        self._listed: Listed = ()
        self._listed_end = 0
        self._archived = Ledger()
        self._listed_ms: int | None = None
        self._is_wrong = False
        """Whether the list and the windows contradicted each other the last time."""
        self.is_shown = False
        """Whether there is something to show: a list that was read, and that fits the windows."""

    # ------------------------------------------------------------------ what there is

    def follow(self, windows: Following) -> None:
        """Adopts what the windows hold now, and wakes waiting readers."""
        key = self._life, self.place.partition
        with self._changing:
            stretches, shipped = windows.stretches(*key), windows.ledger(*key)
            if (stretches, shipped) == (self._stretches, self._shipped) and not self._is_wrong:
                return
            self._stretches, self._shipped = stretches, shipped
            if self._is_wrong:  # perhaps the list is mended
                self.refresh()
            elif self._listed_ms is not None:
                self._merge()
        self.announce()

    def refresh(self) -> None:
        """Reads the list and the ledger as they are now."""
        with self._changing:
            begun_ms = self._now_ms()
            try:
                found = self._shelf.load()
                archived = self._shelf.read_ledger()
            except InvalidRequest:  # of a topic that had this name before
                self._listed, self._listed_end, self._archived = (), 0, Ledger()
            else:
                self._listed, self._listed_end = found.objects, found.end_offset
                self._archived = archived
            self._listed_ms = begun_ms
            self._merge()
        self.announce()

    def require_shown(self) -> None:
        """Reads the list if nothing was shown yet; raises the error that prevents it."""
        if not self.is_shown:
            with self._changing:
                if not self.is_shown:
                    self.refresh()

    def _asked(self) -> Listed:
        """Reads the list again for a reader that found an object gone."""
        self.refresh()
        return self._cold.entries

    def _merge(self) -> None:
        """Shows the list and the windows as one pile."""
        self._is_wrong, end = True, self._listed_end
        entries: list[ArchivedObject] = list(self._listed)
        for each in self._stretches:
            if each.next_offset <= end:
                continue
            if each.first_offset > end:
                raise CorruptData(
                    f"offsets {end} to {each.first_offset} of {self.place.name} are neither in the"
                    " archive nor in a window",
                    path=f"{self._url}/{paths.TAILS}",
                    expected=f"records from {end}",
                    found=f"records from {each.first_offset}",
                )
            if each.records is not None and each.records.next_offset > end:
                entries.append(each.records.cut(end))
            end = each.next_offset
        if end < self.end_offset():
            place = paths.archive_partition(self.place.topic, self.place.partition)
            raise CorruptData(
                f"{self.place.name} ends before what was shown of it",
                path=f"{self._url}/{place}",
                expected=f"records up to {self.end_offset()}",
                found=f"up to {end}",
            )
        gaps = gaps_in(known_gaps(self._shipped, self._archived, end), entries)
        gaps = explained(gaps, [], (self._listed_end, end), 0)
        self.show(tuple(entries), gaps, end)
        self.is_shown, self._is_wrong = True, False

    # ------------------------------------------------------------------ reading

    def scan(
        self, start: int, limit: Limit, *, isolation: Isolation = "durable", end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields batches as every reader does; what is beyond the end, the holder may have."""
        self.require_within(start)
        if not self._stretches or start < self._stretches[0].first_offset:
            self._renew_list()
        return super().scan(start, limit, isolation=isolation, end=end)

    def require_within(self, start: int) -> None:
        """Raises NotPrimary for an offset that is not here yet: the holder may have it."""
        if start > self.end_offset():
            raise self._elsewhere(
                f"{self.place.name}: this replica has offsets below {self.end_offset()}, not"
                f" {start}"
            )

    def _renew_list(self) -> None:
        """Reads an old list again; while that fails, keeps using the one it has."""
        if self._is_list_old():
            with self._changing, contextlib.suppress(LaminaError):
                if self._is_list_old():  # and nobody else has read it meanwhile
                    self.refresh()

    def _is_list_old(self) -> bool:
        return self._listed_ms is not None and self._now_ms() - self._listed_ms >= LIST_MS

    def layers(self, isolation: Isolation = "written") -> list[Layer]:
        """Returns the pile; a section of a window is named by where it lies."""
        return [_named(each) for each in super().layers(isolation)]


def _named(layer: Layer) -> Layer:
    source = layer.source
    if isinstance(source, ObjectSource) and isinstance(source.entry, Shipped):
        return layer._replace(source=ObjectSource(source.entry, source.entry.where))
    return layer
