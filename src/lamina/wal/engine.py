"""The write-ahead log of a store: its shards, its topics, and their maintenance.

    append ─▶ shard's WAL ─▶ compactor ─▶ segments ─▶ cold directory ─▶ evicted
                                └─▶ snapshot ─▶ WAL files freed

Lock order: `changing` (everything but appends), then `exclusively` of a shard's writer.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from lamina.api import RecoveryReport
from lamina.config import TopicSettings
from lamina.errors import Closed, LaminaError, StorageFull
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.wal import control, log
from lamina.formats.wal.routing import Router
from lamina.formats.wal.sharding import shard_of
from lamina.log.commit import Writer
from lamina.log.directory import Place
from lamina.log.interfaces import Writing
from lamina.log.producers import Producers
from lamina.storage import paths
from lamina.wal import ownership, upkeep
from lamina.wal.compactor import Compactor, Copied, mark_of
from lamina.wal.ground import Ground
from lamina.wal.metadata import Metadata, TopicMetadata, config_of
from lamina.wal.reader import TopicReader
from lamina.wal.replay import Replay, Replayed
from lamina.wal.routers import Partitions, Routers
from lamina.wal.shard import POSITION_BITS, Shard, WalFiles
from lamina.wal.shard_log import ShardLog
from lamina.wal.snapshots import Snapshots, meta_of
from lamina.wal.topic import Arrivals, Sources
from lamina.wal.topic_recovery import TopicRecovery
from lamina.wal.wal_partition import Home, Opened, WalPartition

_log = logging.getLogger(__name__)
TOPICS_PER_MARK = 64
"""How many topics are copied before one CheckpointMark is written for all of them."""
SEGMENTS_PER_SYNC = 64
"""How many segments are written before they are synced; two files of each are open."""
ROTATE_BYTES = 1 << 20
"""A snapshot begins a new WAL file if the active one has this size; a smaller one is replayed."""


class WalEngine:
    """The wal topics of a store that is open for writing."""

    def __init__(self, ground: Ground, writing: Writing) -> None:
        self._ground = ground
        self._changing = threading.RLock()
        self._arrivals = Arrivals()
        self.sources = Sources(ground.files, WalFiles(), self._arrivals)
        self._compactor = Compactor(ground)
        self._snapshots = Snapshots(ground)
        self._metadata = Metadata()
        self._topics: dict[int, WalPartition] = {}
        self._abouts: dict[int, tuple[TopicFile, int]] = {}
        self._logs: list[ShardLog] = []
        settings = replace(writing.settings, linger_ms=ground.settings.linger_ms)
        self._writing = writing._replace(settings=settings)
        self._pinned: set[int] = set()
        self._changed = False
        self._retired: dict[int, int] = {}
        self._checkpointed_ms = self._snapshot_ms = self._whole_ms = ground.steady()
        self._rotations = self._snapshot_bytes = 0
        self._recovery: TopicRecovery | None = None
        self._replayed: Replayed | None = None
        partitions = Partitions(self._topics, self._abouts, self._logs)
        self.routers = Routers(partitions, self._write_router)

    # ------------------------------------------------------------------ opening

    def load(self, report: RecoveryReport, topics: Iterable[TopicFile] = ()) -> Metadata:
        """Reads the snapshot and the WAL; returns the topics that they describe, for the catalog.

        `topics` are those that the catalog knows. A cold directory that belongs to another store
        is refused before anything in it is read.
        """
        ownership.check(self._ground)
        self._make_names_durable()
        taken = self._snapshots.load(report)
        floors: dict[int, int] = {}
        if taken is not None:
            self._metadata.load(taken)
            floors = {each.shard: each.wal_index for each in taken.current_wal}
        replayed = Replay(self._ground, report, repair=True).run()
        for topic_id, body in replayed.controls:
            self._metadata.apply(topic_id, body)
        for topic_id in replayed.frames:
            self._metadata.note_id(topic_id)
        for topic_id in (each for about in topics for each in about.topic_ids):
            self._metadata.note_id(topic_id)
        ownership.adopt(self._ground, self._metadata.next_topic_id)
        self._replayed = replayed
        self.sources = Sources(self._ground.files, replayed.files, self._arrivals)
        read = (self._ground, self.sources, replayed, report)
        self._recovery = TopicRecovery(*read, repair=True, has_snapshot=taken is not None)
        self._retired = floors
        for number in range(self._ground.shard_count):
            shard = Shard(self._ground, number, replayed.files)
            shard.index_floor = floors.get(number, 1)
            for file in replayed.tails:
                if file.shard == number:
                    shard.resume(file)
            self._logs.append(ShardLog(self._ground, shard, self._arrivals, self._writing))
        return self._metadata

    def _make_names_durable(self) -> None:
        """Syncs directories in which a killed process may have created files.

        The store syncs `meta`, and the replay syncs the directories of the WAL.
        """
        files, ground = self._ground.files, self._ground
        folders = [ground.data, paths.join(ground.data, paths.SEGMENTS)]
        if ground.cold_root is not None:
            folders += [paths.parent(ground.cold_root), ground.cold_root]
        for folder in folders:
            if files.is_directory(folder):
                files.sync_directory(folder)

    def open_topic(self, about: TopicFile, number: int) -> WalPartition:
        """Puts one partition together from what `load` has read; a new one is empty."""
        topic_id = about.topic_ids[number]
        place = self._ground.place_of(about, number)
        settings = TopicSettings.parse(about.settings)
        opened = self._recovered(place, topic_id, settings)
        home = Home(
            self.sources,
            self._logs[shard_of(topic_id, len(self._logs))],
            self._changing,
            self._compact_one,
            partial(self._writing.progress, about.name, number),
        )
        partition = WalPartition(place, topic_id, settings, home, opened)
        with self._changing:
            self._topics[topic_id] = partition
            self._abouts[topic_id] = (about, number)
            self._metadata.note_id(topic_id)
        return partition

    def _recovered(self, place: Place, topic_id: int, settings: TopicSettings) -> Opened:
        known = self._metadata.topics.get(topic_id, TopicMetadata())
        if self._recovery is None:
            return Opened(flags_due=bool(known.searches))
        contents, stored = self._recovery.recover(place, topic_id, settings, known)
        producers = Producers(place)
        if not producers.has_journal:  # the first idempotent producer begins it
            return Opened(contents, None, bool(known.searches))
        producers.restore(stored, self._recovery.report)
        return Opened(contents, producers, bool(known.searches))

    def finish_opening(self, report: RecoveryReport) -> None:
        """Deals with files of no known topic: finishes their deletion, or sets them aside."""
        for topic_id in [each for each in self._metadata.topics if each not in self._topics]:
            known = self._metadata.topics.pop(topic_id)
            if known.name:  # its topic.json was deleted, or never written: it must not come back
                self._metadata.dead.setdefault(topic_id, known.epoch)
        for directory in self._segment_directories():
            owner = paths.wal_topic_id(paths.base_name(directory))
            if owner is None or owner in self._topics:
                continue
            if owner in self._metadata.dead:
                try:
                    self._remove_all(owner)
                    report.add("deletion finished", directory, "the topic was deleted")
                except OSError as error:
                    report.add("note", directory, f"of a deleted topic, and still there: {error}")
                continue
            for name in self._ground.files.list(directory):
                path = paths.join(directory, name)
                kept = self._ground.quarantine(path)
                report.add("quarantined", path, "no topic is known for it", kept_in=kept)
        assert self._replayed is not None, "the WAL was read before"
        for topic_id, frames in self._replayed.frames.items():
            if topic_id not in self._topics and topic_id not in self._metadata.dead:
                self._pinned |= set(np.unique(frames.locations >> POSITION_BITS).tolist())
                what = f"records of topic id {topic_id}, which no topic has; the WAL keeps them"
                report.add("note", paths.join(self._ground.data, paths.WAL), what)
        self._replayed = self._recovery = None
        self.routers.load(self._metadata)
        self._changed = True

    def _segment_directories(self) -> list[str]:
        root = paths.join(self._ground.data, paths.SEGMENTS)
        return [paths.join(root, name) for name in self._ground.files.list(root)]

    # ------------------------------------------------------------------ topics

    def claim(self, about: TopicFile, ids: Sequence[int] = ()) -> TopicFile:
        """Assigns ids to new partitions, durably, before the `topic.json` that makes them exist.

        Those that a topic has already keep theirs, `ids`.
        """
        with self._changing:
            first = self._metadata.next_topic_id
            more = range(first, first + about.partitions - len(ids))
            self._metadata.next_topic_id = more.stop
            claimed = replace(about, topic_ids=[*ids, *more])
            self.describe(claimed, len(ids))
        return claimed

    def connect(self, grown: TopicFile) -> None:
        """Extends routers to the new partitions of a topic, and writes their number to the WAL."""
        with self._changing:
            with contextlib.suppress(StorageFull):  # snapshots keep it from now on
                self.describe(grown)
            self.routers.reconnect()

    def describe(self, about: TopicFile, first: int = 0) -> None:
        """Writes what a topic's partitions are into the WAL, from a number on."""
        with self._changing:
            for number, topic_id in enumerate(about.topic_ids[first:], first):
                name = f"{about.name}/{number}"
                body = control.TopicCreate(name, about.epoch, config_of(about))
                if topic_id in self._abouts:
                    self._abouts[topic_id] = (about, number)
                    self._changed = True
                self._control(topic_id, body)

    def delete(self, about: TopicFile, first: int = 0) -> None:
        """Forgets the partitions of a deleted topic, from a number on; ids are never reused.

        Its `topic.json` marks it as deleted, durably. A failure here affects no other topic of
        the shard: frames and files that are left over go when the store is next opened.
        """
        ids = about.topic_ids[first:]
        with self._changing:
            gone = [self._topics.pop(topic_id, None) for topic_id in ids]
            for topic_id in ids:
                self._abouts.pop(topic_id, None)
                self._metadata.dead[topic_id] = about.epoch
            self._changed = True
            self.routers.put_in_force()
            for partition in gone:
                if partition is not None:
                    partition.retire(Closed(f"topic {about.name!r} was deleted"))
            for topic_id in ids:
                try:
                    self._control(topic_id, control.TopicDelete(about.epoch))
                    self._remove_all(topic_id)
                except (OSError, LaminaError) as error:
                    _log.warning(
                        "%s: its deletion is finished at the next opening: %s", about.name, error
                    )

    def _write_router(self, router: Router) -> None:
        self._control(router.source_id, router)

    def _control(self, topic_id: int, body: control.Control) -> None:
        shard_log = self._logs[shard_of(topic_id, len(self._logs))]
        frame = log.encode_control(
            control.type_of(body), topic_id, 0, self._ground.now_ms(), control.encode(body)
        )
        shard_log.writer.exclusively(lambda: shard_log.control(frame))
        self._changed = True

    def _remove_all(self, topic_id: int) -> None:
        files = self._ground.files
        for directory in (self._ground.hot(topic_id), self._ground.cold(topic_id)):
            if directory is None or not files.is_directory(directory):
                continue
            ownership.check(self._ground)
            for name in files.list(directory):
                files.remove(paths.join(directory, name))
            files.remove_directory(directory)
            files.sync_directory(paths.parent(directory))

    # ------------------------------------------------------------------ maintenance

    def maintain(self, *, force: bool) -> None:
        """Flushes, checkpoints, seals, evicts, moves, snapshots, frees; with `force`, all of it."""
        with self._changing:
            self._flush()
            self._checkpoint_if_due(force=force)
            self._changed |= upkeep.look_after(self._ground, list(self._topics.values()))
            self._snapshot_if_due(force=force)
            self._free()
            for shard_log in self._logs:
                if shard_log.shard.is_unconfirmed and shard_log.writer.failure is None:
                    shard_log.writer.exclusively(shard_log.confirm)

    def _flush(self) -> None:
        for shard_log in self._logs:
            if shard_log.has_unsynced and shard_log.writer.failure is None:
                shard_log.writer.exclusively(shard_log.sync)

    def _checkpoint_if_due(self, *, force: bool) -> None:
        """Copies everything if that may free a WAL file, else only topics with much in the WAL.

        A few records of a topic cost as many fsyncs as a whole segment, so they wait.
        """
        settings, now_ms = self._ground.settings, self._ground.steady()
        rotations = sum(each.shard.rotations for each in self._logs)
        patience_ms = max(settings.checkpoint_ms, settings.snapshot_ms)
        is_whole = force or rotations > self._rotations or now_ms - self._whole_ms >= patience_ms
        if is_whole:
            self._rotations, self._whole_ms = rotations, now_ms
        if is_whole or now_ms - self._checkpointed_ms >= settings.checkpoint_ms:
            self._checkpointed_ms = now_ms
            self.checkpoint(0 if is_whole else settings.checkpoint_min_bytes)

    def checkpoint(self, min_bytes: int = 0) -> None:
        """Copies durable records of topics with at least so many bytes in the WAL into segments."""
        with self._changing:
            for shard_log in self._logs:
                if shard_log.writer.failure is not None:
                    continue
                waiting = [
                    topic
                    for topic in self._topics.values()
                    if topic.log is shard_log
                    and topic.gone is None
                    and topic.layout.runs
                    and topic.wal_bytes >= min_bytes
                ]
                for start in range(0, len(waiting), TOPICS_PER_MARK):
                    self._compact(shard_log, waiting[start : start + TOPICS_PER_MARK])

    def _compact(self, shard_log: ShardLog, topics: list[WalPartition]) -> None:
        copied: list[Copied] = []
        settled: list[Copied] = []
        for topic in topics:
            with self._told(topic):
                found = self._compactor.copy(topic)
                if found is not None:
                    copied.append(found)
            if sum(each.unsettled for each in copied) >= SEGMENTS_PER_SYNC:
                settled += self._settled(copied)
                copied = []
        settled += self._settled(copied)
        if settled:
            shard_log.writer.exclusively(lambda: self._publish(shard_log, settled))

    def _settled(self, copied: list[Copied]) -> list[Copied]:
        """Makes copies durable; returns those for which that succeeded."""
        settled = []
        for each in copied:
            with self._told(each.topic):
                each.settle()
                settled.append(each)
        return settled

    @contextlib.contextmanager
    def _told(self, topic: TopicReader) -> Iterator[None]:
        """Logs a topic's failure; the others go on, and the next checkpoint tries it again."""
        try:
            yield
        except (OSError, LaminaError) as error:
            _log.warning("%s: its checkpoint failed: %s", topic.place.name, error)

    def _publish(self, shard_log: ShardLog, copied: list[Copied]) -> None:
        shard_log.control(mark_of(copied, self._ground.now_ms()))
        for each in copied:
            each.topic.absorb(each.segments, each.end, each.size_bytes)

    def _compact_one(self, topic: WalPartition) -> None:
        """Copies one topic, for a caller that is already exclusive in its shard."""
        found = self._compactor.copy(topic)
        if found is not None:
            found.settle()
            self._publish(topic.log, [found])

    # ------------------------------------------------------------------ snapshots and freeing

    def _snapshot_if_due(self, *, force: bool) -> None:
        settings = self._ground.settings
        written = sum(each.shard.written_bytes for each in self._logs)
        elapsed = self._ground.steady() - self._snapshot_ms
        changed = self._changed or written > self._snapshot_bytes
        large = written - self._snapshot_bytes >= settings.snapshot_bytes
        if changed and (force or large or elapsed >= settings.snapshot_ms):
            self.snapshot()

    def snapshot(self) -> None:
        """Writes a snapshot of all metadata, after the flags of deleted records that it needs."""
        with self._changing:
            for topic in self._topics.values():
                with self._told(topic):
                    topic.save_flags()
            for shard_log in self._logs:
                self._rotate(shard_log)
            current = dict(self._retired)
            for file in self.sources.wal:
                current[file.shard] = max(current.get(file.shard, 0), file.index + 1)
            for shard_log in self._logs:
                current[shard_log.shard.number] = shard_log.shard.covered_index
            self._save(current)

    def _rotate(self, shard_log: ShardLog) -> None:
        """Begins a new WAL file, so that the snapshot covers the old one: less to replay."""
        active = shard_log.shard.active
        if active is not None and active.size >= ROTATE_BYTES:
            with contextlib.suppress(StorageFull):
                shard_log.writer.exclusively(shard_log.shard.rotate)

    def _save(self, current: dict[int, int]) -> None:
        written = sum(each.shard.written_bytes for each in self._logs)
        metas = []
        for topic_id, topic in self._topics.items():
            about, number = self._abouts[topic_id]
            name = f"{about.name}/{number}"
            highest = max(topic.absorbed_end, topic.earliest) - 1
            metas.append((topic, meta_of(topic, name, about.epoch, config_of(about, highest))))
        ids, routers = self._metadata.next_topic_id, self.routers.encoded()
        self._snapshots.save(metas, self._metadata.dead, ids, current, routers)
        self._retired = current
        self._snapshot_bytes, self._snapshot_ms = written, self._ground.steady()
        self._changed = False

    def _free(self) -> None:
        """Removes WAL files that neither a topic nor a snapshot needs any more."""
        active = {each.shard.active for each in self._logs}
        covered = [
            file
            for file in self.sources.wal
            if file not in active and self._snapshots.covers(file.shard, file.index)
        ]
        needed = self._needed_files() if covered else set()
        going = [file for file in covered if file.number not in needed]
        for file in going:
            with contextlib.suppress(FileNotFoundError):
                self._ground.files.remove(file.path)
            self.sources.wal.drop(file)
        for directory in {paths.parent(file.path) for file in going}:
            self._ground.files.sync_directory(directory)  # erased records must not come back

    def _needed_files(self) -> set[int]:
        """Returns the numbers of the WAL files whose records are nowhere else."""
        needed = set(self._pinned)
        for topic in self._topics.values():
            for run in topic.layout.runs:
                places = np.frombuffer(run.locations[:], dtype=np.int64)
                needed |= set(np.unique(places >> POSITION_BITS).tolist())
        return needed

    # ------------------------------------------------------------------ the end

    @property
    def changing(self) -> threading.RLock:
        """The lock that every change but an append takes."""
        return self._changing

    @property
    def writers(self) -> list[Writer]:
        """The writers of all shards."""
        return [shard_log.writer for shard_log in self._logs]

    @property
    def logs(self) -> list[ShardLog]:
        """The logs of all shards."""
        return self._logs

    def sync(self) -> None:
        """Makes everything written durable."""
        with self._changing:
            for shard_log in self._logs:
                shard_log.writer.exclusively(shard_log.sync)

    def close(self) -> None:
        """Answers accepted requests, copies everything into segments, frees the WAL."""
        try:
            with contextlib.suppress(OSError, LaminaError):
                if all(writer.failure is None for writer in self.writers):
                    self._settle()
        finally:
            for shard_log in self._logs:
                shard_log.writer.close(Closed("the store is closed"))
                shard_log.shard.close()
            self.sources.wal.close()

    def purge(self) -> None:
        """Empties the WAL: copies to segments, begins new files, snapshots twice, frees the old."""
        with self._changing:
            self._flush()
            self.checkpoint()
            for shard_log in self._logs:
                if shard_log.shard.active is not None:
                    shard_log.writer.exclusively(shard_log.shard.rotate)
            self.snapshot()
            self.snapshot()
            self._free()

    def _settle(self) -> None:
        with self._changing:
            self._flush()
            self.checkpoint()
            self.snapshot()
            self.snapshot()
            self._free()
