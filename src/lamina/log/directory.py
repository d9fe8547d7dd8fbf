"""Where a partition lives and what it needs: the files, the clock, its directories, the ledger.

Shared by recovery and by the running partition, so that both keep reasons and set damage aside in
the same way.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lamina.api import Gap, RecoveryReport
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents import ledger
from lamina.formats.documents.flips import one_flip_away
from lamina.formats.documents.ledger import Ledger
from lamina.formats.ranges import Span
from lamina.log.spares import Copies, losses
from lamina.storage import paths
from lamina.storage.files import Files


@dataclass(frozen=True, slots=True)
class Place:
    """A partition's surroundings. `now_ms` is the clock, `steady_ms` one that does not jump."""

    files: Files
    data: str
    topic: str
    partition: int
    now_ms: Callable[[], int]
    steady_ms: Callable[[], int] | None = None
    copies: Copies | None = None
    """Where copies of its ledger and its records are; only archived topics have any."""

    def aging_ms(self) -> int:
        """Returns the time by which records grow old: a clock that jumps ahead makes none older."""
        now_ms = self.now_ms()
        return now_ms if self.steady_ms is None else min(now_ms, self.steady_ms())

    def steady(self) -> int:
        """Returns the time by which spans are measured: no jump of the clock changes them."""
        return self.now_ms() if self.steady_ms is None else self.steady_ms()

    @property
    def directory(self) -> str:
        """The partition's directory."""
        return paths.join(self.data, paths.TOPICS, self.topic, str(self.partition))

    @property
    def segments(self) -> str:
        """The directory of its segment files."""
        return paths.segments_directory(self.data, self.topic, self.partition)

    @property
    def ledger_path(self) -> str:
        """The file of its ledger."""
        return paths.join(self.directory, paths.LEDGER)

    @property
    def name(self) -> str:
        """The partition's name in messages."""
        return f"{self.topic}/{self.partition}"

    def read_ledger(self, report: RecoveryReport) -> Ledger:
        """Reads the ledger; a damaged one is set aside, and the ledger starts empty."""
        path = self.ledger_path
        if not self.files.exists(path):
            return Ledger()
        raw = self.files.read(path)
        try:
            return ledger.decode(raw)
        except NewerFormat as error:
            raise error.at_path(path) from error
        except CorruptData as error:
            kept = self.set_aside(path, raw, 0)
            why = f"the ledger is damaged: {error.problem}"
            found = self._spare_ledger(raw)
            if found is None:
                report.add("quarantined", path, why, kept_in=kept)
                return Ledger()
            self.write_ledger(found)
            report.add("rebuilt", path, f"{why}; a sound copy was found", kept_in=kept)
            return found

    def with_floor(self, known: Ledger, floor: int, report: RecoveryReport) -> Ledger:
        """Returns the ledger with what was removed on request, if it has lost that entry.

        A segment that reaches over the floor would serve it, and nothing else would notice.
        """
        if known.serves_nothing_below(floor):
            return known
        why = f"the entry that all below {floor} was removed is missing; the checkpoint has it"
        report.add("rebuilt", self.ledger_path, why)
        detail = "known to the checkpoint"
        return self.enter_gap(known, Gap(0, floor, ledger.TRIM, self.now_ms(), detail))

    def peek_ledger(self) -> Ledger:
        """Reads the ledger without changing anything; a damaged one counts as empty."""
        try:
            raw = self.files.read(self.ledger_path)
        except OSError:
            return Ledger()
        try:
            return ledger.decode(raw)
        except NewerFormat:
            return Ledger()
        except CorruptData:
            return self._spare_ledger(raw) or Ledger()

    def _spare_ledger(self, damaged: bytes) -> Ledger | None:
        """Restores a damaged ledger: by flipping one bit back, or from a copy elsewhere."""
        found = one_flip_away(damaged, ledger.decode)
        if found is None and self.copies is not None:
            found = self.copies.ledger()
        return found

    def losses(self, known: Ledger, gap: Gap) -> list[Gap]:
        """Returns what to enter of a range that no file here holds any more; asks the archive.

        Ranges that have a reason in the ledger keep it. Nothing of an archived topic counts as lost
        before the archive has answered that it does not have it either.
        """
        is_doubtful = gap.reason == ledger.LOST and known.unexplained(gap.first, gap.end)
        spans = self.copies.spans() if self.copies is not None and is_doubtful else None
        return self.suspicions(known, gap, spans)

    def suspicions(self, known: Ledger, gap: Gap, spans: list[Span] | None = None) -> list[Gap]:
        """Returns the same without asking: `spans` is what the archive has, None if not known."""
        found = _parts(known, gap)
        if self.copies is None or gap.reason != ledger.LOST:
            return found
        return [each for part in found for each in losses(part, spans)]

    def enter_gap(self, known: Ledger, gap: Gap) -> Ledger:
        """Writes one more gap durably and returns the ledger with it."""
        if gap.reason == ledger.ARCHIVED:  # a loss inside an archived range stays one
            grown = known.with_archived(gap.first, gap.end, gap.at_ms)
        else:
            grown = known.with_gap(gap)
        self.write_ledger(grown)
        return grown

    def write_ledger(self, known: Ledger) -> None:
        """Replaces the ledger, durably."""
        self.files.replace(self.ledger_path, ledger.encode(known))

    def enter_gaps(self, known: Ledger, gaps: Sequence[Gap]) -> Ledger:
        """Writes many more gaps durably, at once, and returns the ledger with them."""
        grown = known.with_gaps(gaps)
        self.write_ledger(grown)
        return grown

    def move_aside(self, path: str) -> str:
        """Moves a whole file under `quarantine/`, durably: it needs no space for a copy."""
        folder = paths.join(self.data, paths.QUARANTINE, self.topic, str(self.partition))
        self.files.make_directory(folder)
        target = free = paths.join(folder, paths.base_name(path))
        number = 0
        while self.files.exists(free):
            number += 1
            free = f"{target}.{number}"
        self.files.rename(path, free)
        # Both ends: the file is in quarantine for good before its old name may be used again.
        self.files.sync_directory(folder)
        self.files.sync_directory(paths.parent(path))
        return free

    def set_aside(self, path: str, data: bytes, position: int) -> str:
        """Keeps a copy of bytes under `quarantine/`, durably, before anything happens to them."""
        folder = paths.join(self.data, paths.QUARANTINE, self.topic, str(self.partition))
        self.files.make_directory(folder)
        name = f"{paths.base_name(path)}.{position}.{zlib.crc32(data):08x}"
        kept = paths.join(folder, name)
        if not self.files.exists(kept):
            self.files.replace(kept, data)
        return kept


def _parts(known: Ledger, gap: Gap) -> list[Gap]:
    """Returns what of a gap no other one explains yet."""
    return [
        Gap(first, end, gap.reason, gap.at_ms, gap.detail)
        for first, end in known.unexplained(gap.first, gap.end)
    ]
