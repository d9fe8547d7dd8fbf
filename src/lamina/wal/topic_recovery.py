"""Puts a topic together after a restart: its segments, what the WAL holds beyond them, its gaps.

Rules.
1. What the segments hold is skipped in the WAL; what they lack is taken from it.
2. A segment that a CheckpointMark covers is accepted as its index describes it. Bytes of others are
   cut if the WAL still holds what should follow: a checkpoint was under way. If it does not, they
   were durable, and are lost: kept aside, reported, entered as a gap.
3. Every hole gets its reason, once. The end never moves back: an offset that the ledger names was
   assigned once. What the ledger has as archived is not a hole; what it has as deleted stays so.
4. With `repair` off nothing on disk changes: a store that only reads looks, and remembers.
5. Nothing is decided by a page that the device does not deliver (`unread_pages`).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lamina.api import Gap, RecoveryReport
from lamina.config import TopicSettings
from lamina.formats.documents.ledger import DELETED, LOST
from lamina.formats.producer_journal import Entry
from lamina.formats.ranges import Ranges
from lamina.formats.wal import index
from lamina.formats.wal.layout import SEQUENCE_MAX
from lamina.log.directory import Place
from lamina.log.producers import Producers
from lamina.storage import paths
from lamina.storage.bad_pages import OUT_OF_REACH
from lamina.wal import (
    deletes,
    evidence,
    idempotence,
    relocation,
    segments,
    unread_pages,
)
from lamina.wal.evidence import is_torn_copy
from lamina.wal.ground import Ground
from lamina.wal.held import bytes_from, holds, is_durable, runs_from
from lamina.wal.metadata import TopicMetadata
from lamina.wal.reader import TopicReader
from lamina.wal.replay import Frames, Replayed
from lamina.wal.segments import Segment
from lamina.wal.topic import Contents, Sources, TopicLayout

_NO_FRAMES = Frames(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), 0)


class Recovered(NamedTuple):
    """What a topic holds, and the appends of idempotent producers that are stored."""

    contents: Contents
    stored: list[Entry]


@dataclass(frozen=True, slots=True)
class TopicRecovery:
    """Recovers the topics of one directory."""

    ground: Ground
    sources: Sources
    replayed: Replayed
    report: RecoveryReport
    repair: bool
    has_snapshot: bool

    def recover(
        self, place: Place, topic_id: int, settings: TopicSettings, known: TopicMetadata
    ) -> Recovered:
        """Finds everything that is known of a topic."""
        topic = TopicReader(place, topic_id, settings, self.sources)
        stored = self._fill(topic, known)
        self._search(topic, known)
        return Recovered(topic.contents(), stored)

    def _search(self, topic: TopicReader, known: TopicMetadata) -> None:
        """Finds again which records deletes by tag cover; enters the damage that they meet."""
        entered = topic.ledger
        for search in known.searches:
            topic.deleted = topic.deleted.union(deletes.matching(topic, search))
            deletes.refuse_unread(topic)
        if self.repair and topic.ledger is not entered:
            try:
                self.ground.files.make_directory(topic.place.directory)
                topic.place.write_ledger(topic.ledger)
            except OSError:  # on a full disk, the next time
                topic.ledger = entered

    def _fill(self, topic: TopicReader, known: TopicMetadata) -> list[Entry]:
        """Puts all together but deletes by tag; returns the idempotent appends that are stored."""
        frames = self.replayed.frames.get(topic.topic_id, _NO_FRAMES)
        topic.ledger = (
            topic.place.read_ledger(self.report) if self.repair else topic.place.peek_ledger()
        )
        topic.evict_floor, topic.earliest = known.evict_floor, known.earliest
        topic.deleted = known.deleted.union(topic.ledger.ranges(DELETED))
        found = self._segments(topic, frames, marked=known.highest)
        end = found[-1].end_sequence if found else 1
        stored = self._hide_unfinished(topic, frames, max(end, topic.earliest))
        frames = idempotence.without_truncated(frames, topic.ledger)
        topic.layout = TopicLayout(tuple(found), runs_from(frames, max(end, topic.earliest)))
        runs = topic.layout.runs
        head = max(end, runs[-1].end_sequence if runs else 0, topic.earliest)
        if not self.repair:  # a live writer may have handed segments over since it was read
            topic.ledger = topic.place.peek_ledger().with_gaps(topic.ledger.missing())
        entered = max((gap.end for gap in topic.ledger.gaps), default=0)
        written_end = max(topic.written_end, head, known.highest + 1, entered)
        claimed = self.replayed.claimed(topic.topic_id)
        topic.written_end = evidence.end_of_claims(written_end, claimed)
        topic.wal_bytes = bytes_from(frames, max(end, topic.earliest))
        topic.deleted = topic.deleted.from_on(topic.earliest)
        self._explain_holes(topic, head)
        return stored

    def _hide_unfinished(self, topic: TopicReader, frames: Frames, settled_end: int) -> list[Entry]:
        """Hides what is left of idempotent appends that a crash has cut; returns the others."""
        entries = Producers(topic.place).entries()
        claimed = self.replayed.claimed(topic.topic_id)
        judged = idempotence.judge(entries, settled_end, frames, self.replayed, claimed)
        for first, end in judged.left_over:
            why = "an idempotent append had not finished, and was not answered"
            self._gap(topic, first, end, idempotence.TRUNCATED, why)
        return judged.finished

    def _take_flags(self, topic: TopicReader, bare: Segment) -> None:
        """Without any snapshot the flags in `.idx` are what is left of the deleted set."""
        files = self.ground.files
        claimed = bare._replace(
            end_sequence=self._claimed_end(bare),
            data_bytes=files.size(bare.path("data")),
        )
        entries = segments.load_entries(files, claimed)
        if entries is not None:
            rows = np.flatnonzero(entries["flags"] & index.DELETED).astype(np.int64)
            found = Ranges.of_sequences(rows + bare.first_sequence)
            topic.deleted = topic.deleted.union(found)

    # ------------------------------------------------------------------ holes

    def _explain_holes(self, topic: TopicReader, head: int) -> None:
        """Enters a reason for every range that no layer holds."""
        after = topic.earliest
        runs = topic.layout.runs
        spans = [(each.first_sequence, each.end_sequence, -1) for each in topic.layout.segments]
        spans += [(run.first_sequence, run.end_sequence, run.locations[0]) for run in runs]
        for number, (first, end, location) in enumerate(spans):
            if first > after:
                why = "the WAL holds what follows, not this"
                is_archived = number == 0 and topic.place.copies is not None
                reason = LOST if is_archived else self._reason_before(location)
                self._gap(topic, after, first, reason, why)
            after = max(after, end)
        if topic.written_end > head:
            why = "a checkpoint or the head of a damaged frame tells of records that are not there"
            self._gap(topic, max(after, topic.earliest), topic.written_end, LOST, why)

    def _reason_before(self, location: int) -> str:
        """Why something is missing before a frame of the WAL, or before a segment (-1).

        What lies before anything durable was durable. Behind that it was, unless a write was torn.
        """
        replayed = self.replayed
        is_torn = replayed.torn_spots and not replayed.lost_spots
        if location < 0 or replayed.is_synced(location) or not is_torn:
            return LOST
        return idempotence.TRUNCATED

    def _gap(self, topic: TopicReader, first: int, end: int, reason: str, why: str) -> None:
        if first >= end:
            return
        place, missing = topic.place, Gap(first, end, reason, self.ground.now_ms(), why)
        judged = place.losses if self.repair else place.suspicions
        for gap in judged(topic.ledger, missing):
            what = f"offsets {gap.first} to {gap.end}: {gap.reason}; {why}"
            self.report.add("gap", place.name, what)
            topic.ledger = topic.ledger.with_gap(gap)
            if self.repair:
                self.ground.files.make_directory(place.directory)
                place.write_ledger(topic.ledger)

    # ------------------------------------------------------------------ segments

    def _segments(self, topic: TopicReader, frames: Frames, *, marked: int) -> list[Segment]:
        found_ms = self.ground.steady()
        bares = [
            Segment(topic.topic_id, directory, first, first, 0, 0, 0, found_ms, sealed=True)
            for first, directory in self._listed(topic.topic_id, frames, marked)
        ]
        undone = self._undone(bares, frames, marked)
        expected = max(1, topic.earliest)
        found: list[Segment] = []
        for row, bare in enumerate(bares):
            hole = undone[row] and topic.ledger.unexplained(expected, bare.first_sequence)
            if hole and holds(frames, expected):  # of what was archived nothing is missing
                for each in bares[row:] if self.repair else ():
                    self._set_aside_undone(each)
                break
            if not self.has_snapshot:
                self._take_flags(topic, bare)
            loaded = segments.by_index(self.ground.files, bare)
            rest = bares[row + 1 :]
            if loaded is None or not (
                is_durable(loaded, frames, marked) and (rest or self._can_stay(loaded, frames))
            ):
                following = rest[0].first_sequence if rest else None
                may_cut = not rest or bool(undone[row + 1])
                loaded = self._look_closely(
                    topic, bare, frames, following, may_cut=may_cut, marked=marked
                )
            if loaded is None:
                continue
            if found and loaded.first_sequence < found[-1].end_sequence:
                self._settle(topic, found, loaded, {each.first_sequence for each in rest})
            else:
                found.append(loaded)
            expected = max(expected, found[-1].end_sequence)
        if found:
            found[-1] = self._as_last(topic, found[-1])
        return found

    def _settle(
        self, topic: TopicReader, found: list[Segment], later: Segment, starts: set[int]
    ) -> None:
        """Settles which of two segments serves the sequences that both hold; the other goes aside.

        That of the two which ends where another begins, as a topic's own do; else the one that
        reaches further; else the earlier.
        """
        before = found[-1]
        mine, its = ((each.end_sequence in starts, each.end_sequence) for each in (later, before))
        if mine > its:
            found[-1] = self._cut_shared(topic, before, later.first_sequence)
            found.append(later)
            return
        why = f"it overlaps {paths.base_name(before.path('data'))}, which serves its sequences"
        kept = None
        if self.repair:
            kept = self.ground.quarantine(later.path("data"))
            if self.ground.files.exists(later.path("idx")):
                self.ground.quarantine(later.path("idx"))
        self.report.add("quarantined", later.path("data"), why, kept_in=kept)

    def _cut_shared(self, topic: TopicReader, before: Segment, sequence: int) -> Segment:
        """Cuts off a segment what a later one serves, having kept it aside."""
        files, path = self.ground.files, before.path("data")
        whole = segments.walk(files, before, end_sequence=sequence)
        kept, why = None, f"sequences from {sequence} on are in a later segment, too"
        if self.repair:
            data = files.read(path)[whole.end_byte :]
            kept = self.ground.set_aside(path, data, whole.end_byte)
            file = files.open(path)
            try:
                file.truncate(whole.end_byte)
                file.sync()  # or the torn end returns behind frames that are copied again
            finally:
                file.close()
        span = (whole.end_byte, before.data_bytes)
        self.report.add("cut", path, why, byte_range=span, kept_in=kept)
        shorter = before._replace(
            end_sequence=sequence, data_bytes=whole.end_byte, frames=whole.frames
        )
        self._save_index(shorter, whole.entries, topic.flagged())
        return shorter

    def _can_stay(self, last: Segment, frames: Frames) -> bool:
        """Proves what the WAL still holds of the last segment: now it could be copied again."""
        held, end = np.searchsorted(frames.sequences, (last.first_sequence, last.end_sequence))
        if held == end:
            return True
        return segments.is_sound_from(self.ground.files, last, int(frames.sequences[held]))

    def _undone(self, bares: list[Segment], frames: Frames, marked: int) -> NDArray[np.bool_]:
        """Returns per segment whether it and all that follow it may belong to an unfinished copy.

        Power loss may have torn any of them, and taking a copy back may have failed. Behind a hole
        that the WAL fills, they are set aside, and the WAL is copied again: it holds all of them,
        because no mark covers them.
        """
        held = [
            marked < bare.first_sequence
            and holds(frames, bare.first_sequence)
            and holds(frames, max(bare.first_sequence, self._claimed_end(bare) - 1))
            for bare in bares
        ]
        return np.logical_and.accumulate(np.array(held[::-1], dtype=np.bool_))[::-1]

    def _set_aside_undone(self, bare: Segment) -> None:
        for suffix in ("idx", "data"):
            if self.ground.files.exists(bare.path(suffix)):
                kept = self.ground.quarantine(bare.path(suffix))
        why = "a copy that was taken back left it; the WAL holds what is in it"
        self.report.add("quarantined", bare.path("data"), why, kept_in=kept)

    def _listed(self, topic_id: int, frames: Frames, marked: int) -> list[tuple[int, str]]:
        """Returns (first sequence, directory) of every `.data`; a hot one hides its cold copy.

        Where the WAL holds no record that is not marked, a checkpoint has made all names durable.
        """
        found: dict[int, str] = {}
        cold = self.ground.cold(topic_id)
        if self.repair and cold is not None and self.ground.files.is_directory(cold):
            relocation.clear(
                self.ground, topic_id, cold, set(self.ground.files.list(self.ground.hot(topic_id)))
            )
        for directory in (cold, self.ground.hot(topic_id)):
            if directory is None or not self.ground.files.is_directory(directory):
                continue
            if self.repair and len(frames.sequences) and frames.sequences[-1] > marked:
                self.ground.files.sync_directory(directory)  # a killed checkpoint made new names
            for name in self.ground.files.list(directory):
                parsed = paths.wal_segment_file(name)
                if parsed is not None and parsed.suffix == "data":
                    found[parsed.first_sequence] = directory
        return sorted(found.items())

    def _walked(self, topic: TopicReader, bare: Segment, found: segments.Rebuilt) -> Segment | None:
        """Makes a segment of what a walk found, saves its `.idx`, reports damage."""
        if not len(found.entries):
            if self.repair and self.ground.files.size(bare.path("data")):
                kept = self.ground.quarantine(bare.path("data"))
                why = "it holds no sound frame"
                self.report.add("quarantined", bare.path("data"), why, kept_in=kept)
            return None
        size = self.ground.files.size(bare.path("data"))
        loaded = bare._replace(
            end_sequence=bare.first_sequence + len(found.entries),
            data_bytes=size,
            frames=found.frames,
            newest_ms=int(found.entries["timestamp_ms"][-1]),
        )
        self._report_damages(topic, loaded, found)
        self._save_index(loaded, found.entries, topic.flagged())
        return loaded

    def _report_damages(self, topic: TopicReader, loaded: Segment, found: segments.Rebuilt) -> None:
        """Sets damage aside and enters what it cost; a page that was not read is only reported."""
        path = loaded.path("data")
        for damage in found.damages:
            span = (damage.first_byte, damage.end_byte)
            if damage.unread:
                self.report.add("note", path, OUT_OF_REACH, byte_range=span)
                continue
            why = f"{damage.stop.name}; what follows is served"
            kept_in = self._set_aside(loaded, damage) if self.repair else None
            self.report.add("quarantined", path, why, byte_range=span, kept_in=kept_in)
            if damage.end_sequence > damage.first_sequence:
                self._gap(topic, damage.first_sequence, damage.end_sequence, LOST, why)

    def _set_aside(self, segment: Segment, damage: segments.Damage) -> str:
        damaged = segments.damaged_bytes(self.ground.files, segment, damage)
        return self.ground.set_aside(segment.path("data"), damaged, damage.first_byte)

    def _save_index(self, segment: Segment, entries: index.Entries, deleted: Ranges) -> None:
        if not self.repair:
            return
        marked = index.mark_deleted(entries, segment.first_sequence, deleted.pairs())
        with contextlib.suppress(OSError):  # on a full disk it is rebuilt the next time
            files = self.ground.files
            path = segment.path("idx")
            if not files.exists(path) or files.read(path) != index.encode(marked):
                segments.save_entries(files, segment, marked)
                self.report.add("rebuilt", path, "it was missing, stale or wrong")

    def _as_last(self, topic: TopicReader, loaded: Segment) -> Segment:
        """Returns whether the last segment may still grow."""
        settings = self.ground.settings
        full = (
            loaded.frames >= settings.segment_events or loaded.data_bytes >= settings.segment_bytes
        )
        is_cold = loaded.directory != self.ground.hot(topic.topic_id)
        return loaded._replace(sealed=full or is_cold)

    def _look_closely(
        self,
        topic: TopicReader,
        bare: Segment,
        frames: Frames,
        following: int | None,
        *,
        may_cut: bool,
        marked: int,
    ) -> Segment | None:
        """Walks a segment whose index proves nothing, or which a checkpoint was writing to.

        `following` is where the next segment begins, None for the last one, which alone may have
        lost its end before anything of it was acknowledged. `may_cut` means that the WAL holds
        all that follows this segment.
        """
        files, path = self.ground.files, bare.path("data")
        is_last = following is None
        end_sequence = SEQUENCE_MAX if following is None else following
        found = segments.walk_salvaged(files, bare, end_sequence=end_sequence)
        if found.is_unread:
            in_part = unread_pages.taken(files, bare, found, following, marked)
            self._report_damages(topic, in_part, found)
            return in_part
        claimed = self._proven_claim(bare, found.entries) if is_last else bare.first_sequence
        size = files.size(path)
        cut = found.end_byte if is_last else size
        last = bare.first_sequence + len(found.entries) - 1
        for damage in found.damages:
            first = damage.first_sequence
            again = may_cut and holds(frames, first) and holds(frames, max(first, last))
            if again or (is_last and damage.end_byte == size):
                cut = damage.first_byte
                break
        if cut < size:
            found = segments.walk(files, bare, cut, end_sequence=end_sequence)
            missing = bare.first_sequence + len(found.entries)
            is_held = holds(frames, missing) and is_torn_copy(files, bare, cut, missing)
            self._cut(bare, cut, size, is_held=is_held)
        elif self.repair and len(frames.sequences):
            self._sync(path)
        loaded = self._walked(topic, bare, found) if len(found.entries) or not is_last else None
        if loaded is None:
            return self._emptied(topic, bare, claimed, frames) if is_last else None
        loaded = loaded._replace(data_bytes=cut)
        if claimed > loaded.end_sequence and not holds(frames, loaded.end_sequence):
            why = f"{path} ends before its index does"
            self._gap(topic, loaded.end_sequence, claimed, LOST, why)
            topic.written_end = max(topic.written_end, claimed)
        return loaded

    def _cut(self, bare: Segment, end: int, size: int, *, is_held: bool) -> None:
        """Takes back what a checkpoint wrote before it was cut short.

        What the WAL does not hold is no such thing but damage, and is set aside first.
        """
        if not self.repair:
            return
        path, kept = bare.path("data"), None
        why = "a checkpoint was cut short; the WAL holds what is missing"
        if not is_held:
            raw = memoryview(segments.data_of(self.ground.files, bare))
            kept = self.ground.set_aside(path, bytes(raw.cast("B")[end:size]), end)
            why = "nothing sound follows, and the WAL does not hold what was here"
        file = self.ground.files.open(path)
        try:
            file.truncate(end)
            file.sync()  # what was cut must not return behind frames that are copied again
        finally:
            file.close()
        kind: Literal["cut", "quarantined"] = "cut" if is_held else "quarantined"
        self.report.add(kind, path, why, byte_range=(end, size), kept_in=kept)

    def _emptied(
        self, topic: TopicReader, bare: Segment, claimed: int, frames: Frames
    ) -> Segment | None:
        """A last segment without a sound frame: nothing was checkpointed, or all of it is lost."""
        if self.repair:
            is_empty = not self.ground.files.size(bare.path("data"))
            kept = None
            for suffix in ("idx", "data"):
                if self.ground.files.exists(bare.path(suffix)):
                    kept = self.ground.quarantine(bare.path(suffix))
            if not is_empty:
                why = "it holds no sound frame"
                self.report.add("quarantined", bare.path("data"), why, kept_in=kept)
        if claimed > bare.first_sequence and not holds(frames, bare.first_sequence):
            why = f"{bare.path('data')} holds nothing sound"
            self._gap(topic, bare.first_sequence, claimed, LOST, why)
            topic.written_end = max(topic.written_end, claimed)
        return None

    def _proven_claim(self, bare: Segment, sound: index.Entries) -> int:
        """One past the last sequence of an `.idx` that agrees with every sound frame, or nothing.

        Such an index was synced with its `.data`: what it has more is lost.
        """
        end = self._claimed_end(bare)
        entries = None
        if end > bare.first_sequence + len(sound):
            claimed = bare._replace(end_sequence=end, data_bytes=index.DATA_BYTES_MAX)
            entries = segments.load_entries(self.ground.files, claimed)
        if entries is None:
            return bare.first_sequence
        for name in ("position", "length", "timestamp_ms"):
            if (entries[name][: len(sound)] != sound[name]).any():
                return bare.first_sequence
        return end if int(entries["length"][-1]) else bare.first_sequence

    def _claimed_end(self, bare: Segment) -> int:
        """One past the last sequence that an `.idx` has an entry for."""
        path = bare.path("idx")
        if not self.ground.files.exists(path):
            return bare.first_sequence
        return bare.first_sequence + self.ground.files.size(path) // segments.ENTRY_BYTES

    def _sync(self, path: str) -> None:
        file = self.ground.files.open(path)
        try:
            file.sync()
        finally:
            file.close()
