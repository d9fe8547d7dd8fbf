"""A partition open for writing: the tail that the writer drives, rolling, and removing.

Rules.
1. Only the writer's leader changes the tail and the layout (`writer.exclusively` for the rest).
2. A segment is durable before the next one is created; it is sealed, then shown as sealed.
3. Removing is document 004's order: tombstone, reason, out of sight, indexes, log, tombstone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from lamina.api import DURABLE, Decision, Gap
from lamina.config import NO_LIMIT, TopicSettings
from lamina.errors import (
    PASSING,
    ArchiveUnavailable,
    Closed,
    InvalidRequest,
    LaminaError,
    Poisoned,
    refusal_of,
)
from lamina.formats.documents import tombstone
from lamina.formats.documents.archive_manifest import covers
from lamina.formats.documents.ledger import ARCHIVED, TRIM, Ledger
from lamina.formats.log_format import Codec
from lamina.log import layers as pile
from lamina.log import manifest_file, retention
from lamina.log.active_segment import INDEX_ENTRIES_PER_WRITE, PREPARE_BELOW_BYTES, ActiveSegment
from lamina.log.appending import AppendsBatch
from lamina.log.commit import Writer
from lamina.log.directory import Place
from lamina.log.encoder import GroupEncoder, Judged, Piece, cut
from lamina.log.flights import Departure
from lamina.log.interfaces import Deletion, Writing
from lamina.log.layers import Kind, Layer
from lamina.log.partition_reader import PartitionReader
from lamina.log.producers import Producers
from lamina.log.recovery import Recovered
from lamina.log.removal import remove_files, require_within, unfinished
from lamina.log.requests import Outcome, Request
from lamina.log.retention import Verdict
from lamina.log.sealed_segment import SealedSegment, extend_index
from lamina.log.segment import Damaged
from lamina.log.segment_index import SegmentIndex
from lamina.log.segment_pile import Layout
from lamina.storage import paths
from lamina.storage.files import settle_names
from lamina.storage.paths import SegmentFile

_Result = TypeVar("_Result")


class Partition(AppendsBatch, PartitionReader):
    """One partition, opened for writing."""

    def __init__(
        self,
        place: Place,
        codec: Codec,
        settings: TopicSettings,
        recovered: Recovered,
        *,
        producers: Producers,
        writing: Writing,
    ) -> None:
        layout = Layout(tuple(recovered.sealed), recovered.active)
        super().__init__(place, codec, layout, recovered.ledger)
        self.active = recovered.active
        self.settings = settings
        self.producers = producers
        self._encoder = GroupEncoder(codec, producers)
        self._noting = threading.Lock()
        self._progress = partial(writing.progress, place.topic, place.partition)
        parts = (writing.settings, writing.executor, writing.gate)
        self.writer = Writer(self, *parts, depart=self._depart)

    def exclusively(self, action: Callable[[], _Result]) -> _Result:
        """Runs an action as the only owner of the tail."""
        return self.writer.exclusively(action)

    def level(self, acks: int | None) -> int:
        """The durability of an append: what it asks for, or else fsynced."""
        return DURABLE if acks is None else acks

    def admit(self, request: Request) -> None:
        """Accepts every request: a segmented log stores whatever its format can hold."""

    def search_archive(self, deletion: Deletion) -> Deletion:
        """Looks for nothing: the delete is refused."""
        return deletion

    def delete(self, deletion: Deletion) -> int:
        """Refuses: a segmented log removes whole segments only."""
        raise InvalidRequest(
            f"{self.place.name}: format {self.codec.name} deletes no single records; a topic of"
            " format wal does"
        )

    def fail(self, error: BaseException) -> LaminaError:
        """Takes no more appends until it is opened again; returns why."""
        return self.writer.poison(error)

    @property
    def failure(self) -> LaminaError | None:
        """Why it takes no more appends until it is opened again, if it does not."""
        return self.writer.failure

    def retire(self, reason: Closed) -> None:
        """Refuses further appends for good: the topic was deleted."""
        self.writer.close(reason)

    # ------------------------------------------------------------------ the writer's log

    def write(self, group: Sequence[Request]) -> list[Outcome]:
        """Writes a group of requests behind the tail; see `requests.Log`."""
        judged = self._encoder.judge(group, self.active.tail.next_offset)
        try:
            if judged.stamps:
                self.producers.record(judged.stamps)
            if judged.accepted:
                self._store(judged)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            self.producers.take_back()
            raise refusal_of(
                error,
                f"{self.place.name}: no space left on the device; nothing of the append was kept",
            ) from error
        except InvalidRequest:
            self.producers.take_back()
            raise
        if judged.stamps:
            self.producers.keep()
        return judged.outcomes

    def sync(self) -> None:
        """Makes everything written durable and wakes readers that wait for it."""
        try:
            self.active.sync()
        except OSError as error:
            raise self.writer.poison(error) from error
        if self._waiting or self._listeners:
            self.announce()

    def _depart(self) -> Departure | None:
        """Returns what is written by now, for its sync; None where descriptors are short."""
        return self.active.depart(self.announce)

    def _store(self, judged: Judged) -> None:
        """Writes a group, rolling where a segment is full; without space, nothing of it."""
        first = self.active
        tail, mark = first.tail, first.index.mark()
        touched = [first]
        try:
            for piece in self._encoder.pieces(judged, self.settings, self.place.now_ms()):
                if judged.size_bytes < PREPARE_BELOW_BYTES:
                    first.prepare(len(piece.data))
                self._write_piece(piece, touched)
                if not piece.is_last:  # the disk has it while the next one is encoded
                    touched[-1].file.begin_sync()
        except (OSError, InvalidRequest):
            with self._poisoning():
                self.writer.flights.settle()  # or its sync would hear their errors
                for segment in reversed(touched[1:]):
                    segment.discard()
                first.undo(tail, mark)
            raise
        try:
            if len(touched) > 1:  # nobody may see a sealed part of it before the rest is durable
                touched[-1].file.sync()
            self._publish(touched)
        except OSError as error:
            raise self.writer.poison(error) from error

    @contextlib.contextmanager
    def _poisoning(self) -> Iterator[None]:
        """Poisons the writer on any error: the next append must not follow what it would leave."""
        try:
            yield
        except OSError as error:
            raise self.writer.poison(error) from error

    def _write_piece(self, piece: Piece, touched: list[ActiveSegment]) -> None:
        """Writes a piece to the last segment, and to new ones behind it where that is full."""
        last = touched[-1]
        room = self.settings.segment_bytes - last.tail.position
        if len(piece.data) <= room:
            last.append(piece.data, piece.positions, piece.timestamps)
            return
        parts = cut(
            piece.positions,
            len(piece.data),
            room=room,
            capacity=self.settings.segment_bytes - self.codec.header_bytes,
            is_empty=last.tail.next_offset == last.base_offset,
        )
        for number, (rows, span) in enumerate(parts):
            if number > 0:
                touched.append(self._next_segment(touched[-1]))
            if rows.start < rows.stop:
                starts = piece.positions[rows] - span.start
                touched[-1].append(piece.data[span], starts, piece.timestamps[rows])

    def _next_segment(self, current: ActiveSegment) -> ActiveSegment:
        """Makes the next segment, once all of the current one is durable."""
        with self._poisoning():
            self.writer.flights.settle()
            # A crash must not leave a later segment durable behind a torn one: recovery cuts only
            # the last, and would take the hole before it for a loss.
            current.file.sync()
        return ActiveSegment.create(
            self.codec,
            self.place.files,
            self.place.segments,
            base_offset=current.tail.next_offset,
            created_ms=self.place.now_ms(),
        )

    def _publish(self, touched: list[ActiveSegment]) -> None:
        """Shows readers what was written, by one assignment: all of an append or nothing.

        All but the last segment are now sealed. With them, everything is synced.
        """
        *full, last = touched
        if full:
            sealed = tuple(segment.finish() for segment in full)
            last.show()
            self.active = last
            self.layout = Layout(self.layout.sealed + sealed, last)
            for segment in full:  # for readers that still hold the layout from before
                segment.show()
            self.save_manifest()
        else:
            last.written = last.tail
            if last.index.unsaved >= INDEX_ENTRIES_PER_WRITE:
                last.save_index()
        if self._waiting or self._listeners:
            self.announce()

    # ------------------------------------------------------------------ rolling and removing

    def save_manifest(self) -> None:
        """Replaces the manifest, if the format has one; it describes durable records only.

        On a full disk the old one stays: it is derived, and out of date, but not wrong.
        """
        if not self.codec.has_manifest:
            return
        try:
            manifest_file.save(self.place, self.codec, self.layout, self.settings)
        except OSError as error:
            if error.errno not in PASSING:
                raise

    def roll(self) -> None:
        """Seals the active segment if it holds anything. For the leader."""
        active = self.active
        if active.tail.next_offset > active.base_offset:
            self._publish([active, self._next_segment(active)])

    def is_old(self) -> bool:
        """Returns whether the active segment holds anything and is older than `segment.ms`."""
        holds = self.active.tail.next_offset > self.active.base_offset
        return holds and self.place.now_ms() - self.active.created_ms > self.settings.segment_ms

    def producer_position(self, producer_id: int) -> tuple[int, int] | None:
        """Returns a producer's epoch and the sequence it must go on with; None if not known."""
        return self.producers.position(producer_id)

    def highest_kafka_producer(self) -> int:
        """Returns the highest id of Kafka's producers that is remembered here; -1 for none."""
        return self.producers.highest_of_kafka()

    def has_idle_producers(self) -> bool:
        """Returns whether an idempotent producer may be forgotten."""
        return self.producers.has_idle(self.settings.producer_id_expiration_ms)

    def forget_idle_producers(self) -> None:
        """Forgets idempotent producers that are idle for too long. For the leader."""
        self.producers.forget_idle(self.settings.producer_id_expiration_ms)

    def explain_retention(self) -> list[Decision]:
        """Returns for each segment, oldest first, whether it goes and why."""
        return [each.described() for each in self._verdicts()]

    def _verdicts(self) -> list[Verdict]:
        if self._is_archive_hidden():
            return retention.wait_for_archive(self.layers())
        waits = retention.waited_for(self.settings, self._progress())
        return retention.explain(self.layers(), self.settings, self.place.aging_ms(), waits)

    def has_expired(self) -> bool:
        """Returns whether retention would remove anything now."""
        limits = (self.settings.retention_ms, self.settings.retention_bytes)
        if limits == (NO_LIMIT, NO_LIMIT):
            return False
        return any(verdict.goes for verdict in self._verdicts())

    def apply_retention(self) -> int:
        """Removes what retention lets go; returns how many segments went. For the leader."""
        going = [verdict.layer for verdict in self._verdicts() if verdict.goes]
        self._drop(going, "retention")
        return len(going)

    def _drop(self, layers: Sequence[Layer], reason: tombstone.Reason) -> None:
        """Removes sealed layers for a reason: what is archived first, as it is older."""
        for layer in layers:
            if layer.kind is Kind.OBJECT:
                self._give_up(layer, reason)
        going = {layer.base_offset for layer in layers if layer.kind is Kind.SEALED}
        segments = [each for each in self.layout.sealed if each.base_offset in going]
        for removed, segment in enumerate(segments):
            try:
                self.remove(segment, reason)
            except OSError as error:
                if not removed:
                    raise
                problem = f"{self.place.name}: {removed} of {len(segments)} segments were removed"
                raise unfinished(error, problem) from error

    def trim(self, before: int) -> int:
        """Removes whole segments below an offset; returns the new earliest one. For the leader."""
        if before > self.earliest_offset() and self._is_archive_hidden():
            raise ArchiveUnavailable(
                f"{self.place.name}: what is below {before} is in the archive, which has not"
                " answered yet; nothing was removed"
            )
        active = self.active
        if active.base_offset < active.tail.next_offset <= before:
            self.roll()
        below = [each for each in self.layers() if each.is_sealed and each.next_offset <= before]
        self._drop(below, TRIM)
        return self.earliest_offset()

    def delete_records(self, before: int) -> int:
        """Removes all below an offset; returns the new earliest one. For the leader.

        The ledger's entry is what counts: from then on no reader sees the records. Segments below
        the offset are removed, as by a trim; one that it lies in stays on disk until a later
        deletion or retention covers all of it.
        """
        require_within(self.place.name, before, self.end_offset("durable"))
        first = self.earliest_offset()
        if before > first:
            self.enter_gaps([Gap(first, before, TRIM, self.place.now_ms())])
        try:
            return self.trim(before)
        except OSError as error:
            problem = f"{self.place.name}: all below {before} is deleted, its files are still there"
            raise unfinished(error, problem) from error

    def _is_archive_hidden(self) -> bool:
        """Returns whether records are archived that nobody has asked the object store for yet."""
        is_known = self.cold is not None and self.cold.is_loaded
        return not is_known and bool(self.ledger.archived())

    def _give_up(self, cold: Layer, reason: str) -> None:
        """Enters archived records as removed: from now on no reader sees them; the object goes."""
        now_ms, first, end = self.place.now_ms(), cold.base_offset, cold.next_offset
        self.enter_gaps(
            [
                Gap(max(gap.first, first), min(gap.end, end), reason, now_ms)
                for gap in self.ledger.between(first, end)
                if gap.reason == ARCHIVED
            ]
        )

    @property
    def local_start(self) -> int:
        """The first offset that lies here, and not only in the archive."""
        return self.layout.earliest_offset

    @property
    def published(self) -> Ledger:
        """Every missing range, for the archive's own copy of the ledger."""
        return self.ledger

    @property
    def sealed_end(self) -> int:
        """One past the last offset in a sealed segment."""
        return self.layout.active.base_offset

    def has_local_excess(self, archived_end: int) -> bool:
        """Returns whether local retention would remove anything that is archived."""
        return bool(self._local_excess(archived_end))

    def check_local_excess(self, archived_end: int) -> None:
        """Reads what would go; raises NewerFormat for records that this version cannot judge."""
        for segment in self._local_excess(archived_end):
            fresh = SegmentIndex(self.codec, segment.base_offset)
            extend_index(segment, fresh, (self.codec.header_bytes, segment.base_offset))

    def apply_local_retention(self, archived_end: int) -> int:
        """Removes local segments whose records are archived. For the leader.

        `archived_end` is the offset below which everything was uploaded, read back and listed.
        """
        going = self._local_excess(archived_end)
        for segment in going:
            self.remove(segment, "archived")
        return len(going)

    def _local_excess(self, archived_end: int) -> list[SealedSegment]:
        settings = self.settings.for_local_copies()
        sealed = self.layout.sealed
        if not sealed or sealed[0].next_offset > archived_end:
            return []
        local = [each for each in self.layers() if each.kind is not Kind.OBJECT]
        verdicts = retention.explain(local, settings, self.place.aging_ms())
        going = {each.layer.base_offset for each in verdicts if each.goes}
        entries = self.cold.entries if self.cold is not None else ()
        return [
            segment
            for segment in sealed
            if segment.base_offset in going
            and segment.next_offset <= archived_end
            and covers(entries, self.ledger, segment.base_offset, segment.next_offset)
        ]

    def remove(self, segment: SealedSegment, reason: tombstone.Reason) -> None:
        """Removes a sealed segment: tombstone, reason, out of sight, files, tombstone."""
        now_ms = self.place.now_ms()
        marker = tombstone.Tomb(segment.base_offset, reason, now_ms)
        name = SegmentFile(segment.base_offset, "tomb").name
        path, files = paths.join(self.place.segments, name), self.place.files
        files.replace(path, tombstone.encode(marker))
        gap = Gap(segment.base_offset, segment.next_offset, reason, now_ms)
        try:
            with self._noting:
                self.ledger = self.place.enter_gap(self.ledger, gap)
        except OSError as error:
            if error.errno in PASSING:  # refused, so the next opening must not remove it, either
                with contextlib.suppress(OSError):
                    files.remove(path)
                    settle_names(files, self.place.segments)
            raise
        kept = tuple(each for each in self.layout.sealed if each is not segment)
        self.layout = Layout(kept, self.layout.active)
        remove_files(self.place, self.codec, segment.base_offset)

    def is_deleted(self) -> bool:
        """Returns whether the topic was deleted, also when another has its name by now."""
        return type(self.writer.failure) is Closed or super().is_deleted()

    def enter_gaps(self, gaps: Sequence[Gap]) -> None:
        """Enters why ranges of offsets are missing, or are about to be: at once, and durably."""
        if gaps:
            with self._noting:
                self.ledger = self.place.enter_gaps(self.ledger, gaps)

    def turn(self, old: str, gaps: Sequence[Gap]) -> None:
        """Enters another reason, durably, for what has an old one in some ranges."""
        self._revise(lambda known: known.turned(old, gaps))

    def found_again(self, spans: Sequence[tuple[int, int]]) -> None:
        """Takes back, durably, that the records of some ranges are lost, or only archived."""
        self._revise(lambda known: known.found_again(spans))

    def _revise(self, change: Callable[[Ledger], Ledger]) -> None:
        with self._noting:
            found = change(self.ledger)
            if found != self.ledger:
                self.place.write_ledger(found)
                self.ledger = found

    def note_damage(self, gap: Gap, error: Damaged, damaged: bytes) -> None:
        """Sets damaged bytes aside and enters the range, as lost or as what the archive has.

        On a full disk it does so the next time.
        """
        with self._noting, contextlib.suppress(OSError):
            found = self.place.suspicions(self.ledger, gap, pile.spans_of(self.cold))
            if found:
                self.place.set_aside(error.path, damaged, error.position)
                self.ledger = self.place.enter_gaps(self.ledger, found)

    @property
    def is_poisoned(self) -> bool:
        """Whether a write or fsync failed: the files are left to recovery as they are."""
        return isinstance(self.writer.failure, Poisoned)

    def close(self) -> None:
        """Makes everything durable and seals the files; for the leader, once."""
        self.sync()
        self.active.finish()
        self.save_manifest()
        self.release_files()

    def release_files(self) -> None:
        """Lets the files go as they are."""
        self.active.close_file()
        self.producers.close()
