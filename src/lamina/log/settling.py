"""Carries out what `segment_files` decides about a partition's files, before it is recovered.

Rules.
1. What loses is moved or copied under `quarantine/`, durably, and reported, before anything of it
   goes. Whole files are moved: that needs no space.
2. Segments that are as they should be are taken by the cheap check, and nothing of them is walked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lamina.api import RecoveryReport
from lamina.formats.keratin.header import HEADER_BYTES_MAX
from lamina.formats.log_format import Codec
from lamina.formats.scan import is_prepared_space
from lamina.log.directory import Place
from lamina.log.quick_check import CheapCheck
from lamina.log.sealed_segment import SealedSegment
from lamina.log.segment_files import Arranger, Extent, measure, position_of
from lamina.storage import bad_pages, paths
from lamina.storage.files import Files
from lamina.storage.paths import SegmentFile

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(slots=True)
class Settling:
    """One settling of one partition. `whole` are the segments that passed the cheap check.

    `dropped` is the greatest first offset in the names of files that were moved aside.
    """

    check: CheapCheck
    report: RecoveryReport
    vouched: Collection[int]
    whole: dict[int, SealedSegment] = field(default_factory=dict)
    dropped: int = 0

    @property
    def _place(self) -> Place:
        return self.check.place

    def settle(self, bases: list[int]) -> list[int]:
        """Returns the first offsets of the segments that count, having set all others aside."""
        arranger = Arranger(self.vouched, self._extent, self._drop, self._cut)
        return arranger.arrange(bases)

    def _extent(self, base_offset: int, following: int | None, before: int) -> Extent:
        """Measures a segment, by a walk only where it is not what it should be."""
        if following is not None:
            whole = self.check.take(base_offset, following)
            if whole is not None:
                self.whole[base_offset] = whole
                return Extent(base_offset, following)
        return extent_of(self.check.codec, self._place, base_offset, following, before)

    def _drop(self, base_offset: int, winner: int | None) -> None:
        """Moves a segment's files aside: it is none, or others serve what it holds."""
        why = "no record of this partition is in it"
        if winner is not None:
            why = f"it overlaps {SegmentFile(winner, 'log').name}, which serves its offsets"
        self.dropped = max(self.dropped, base_offset)
        files, path = self._place.files, log_path(self._place, base_offset)
        kept = self._place.move_aside(path)
        for suffix in ("idx", self.check.codec.time_suffix):
            if files.exists(path.removesuffix("log") + suffix):
                self._place.move_aside(path.removesuffix("log") + suffix)
        self.report.add("quarantined", path, why, kept_in=kept)

    def _cut(self, base_offset: int, winner: int) -> None:
        """Cuts off a segment what a later one serves, having kept it aside."""
        path = log_path(self._place, base_offset)
        buffer = _map(self._place.files, path)
        position = position_of(self.check.codec, buffer, base_offset, winner)
        del buffer  # what is cut off a mapped file must not be touched
        why = f"{SegmentFile(winner, 'log').name} serves offsets from {winner} on"
        cut_behind(self._place, path, position, why, self.report)


def log_path(place: Place, base_offset: int) -> str:
    """Returns the path of a segment's `.log`."""
    return paths.join(place.segments, SegmentFile(base_offset, "log").name)


def extent_of(
    codec: Codec, place: Place, base_offset: int, following: int | None, before: int
) -> Extent:
    """Measures a segment by a walk; the last one only if it does not begin as one, or overlaps."""
    path = log_path(place, base_offset)
    if following is None and before <= base_offset and _begins_as_ours(codec, place, base_offset):
        return Extent(base_offset, base_offset)  # it will be walked as the last one
    with contextlib.closing(place.files.open_read_only(path)) as file:
        whole = bad_pages.load(file)
    found = measure(codec, whole.data, base_offset, following, path)
    if not whole.holes:
        return found
    # What was not read may be a record, and reach as far as the next segment.
    end = max(found.next_offset, found.next_offset if following is None else following)
    return replace(found, next_offset=end, has_records=True)


def _begins_as_ours(codec: Codec, place: Place, base_offset: int) -> bool:
    """Returns whether a log begins as a segment does; True for one that cannot be read."""
    with contextlib.closing(place.files.open_read_only(log_path(place, base_offset))) as file:
        whole = bad_pages.salvage(file, 0, HEADER_BYTES_MAX)
    head = whole.data
    return bool(whole.holes) or is_prepared_space(head, 0) or codec.begins_log(head, base_offset)


def cut_behind(place: Place, path: str, position: int, why: str, report: RecoveryReport) -> None:
    """Cuts off what lies behind a sealed segment's last record, once; other than zeros is kept."""
    if position >= place.files.size(path):
        return
    data = place.files.read(path)
    kept, span = None, (position, len(data))
    if is_prepared_space(data, position):
        why = "prepared space: sealing it had not finished"
    else:
        kept = place.set_aside(path, data[position:], position)
    file = place.files.open(path)
    try:
        file.truncate(position)
        file.sync()  # the cut must not come undone under records that are appended behind it
    finally:
        file.close()
    report.add("cut", path, why or "bytes behind the last record", byte_range=span, kept_in=kept)


def _map(files: Files, path: str) -> Buffer:
    file = files.open_read_only(path)
    try:
        return file.load()
    finally:
        file.close()
