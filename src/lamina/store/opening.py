"""Opening a data directory: first boot, identity, lock, checkpoint, and the recovery of partitions.

As document 004 orders it: read `broker.id` (made only when there are no topics), load
`checkpoint.json` (a hint: what the log proves wins), then recover every partition found.
"""

from __future__ import annotations

import contextlib
import platform
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from lamina.api import BrokerId, RecoveryReport
from lamina.errors import CorruptData, InvalidRequest, NewerFormat
from lamina.formats.documents import broker_id, checkpoint
from lamina.formats.documents.checkpoint import PartitionCheckpoint
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.log_format import CODECS
from lamina.log import manifest_file
from lamina.log.data_directory import DataDirectory
from lamina.log.interfaces import Writing
from lamina.log.partition import Partition
from lamina.log.producers import Producers
from lamina.log.recovery import Recovery
from lamina.log.removal import take_back
from lamina.storage import paths
from lamina.storage.bad_pages import is_unreadable
from lamina.store.catalog import Catalog, settings_in_force


@dataclass(frozen=True, slots=True)
class Boot(DataDirectory):
    """A data directory as opening sees it: its identity, its topics, its checkpoint."""

    identity: BrokerId | None = None
    """Whose the directory is, once that is known: checkpoints carry it."""

    @property
    def catalog(self) -> Catalog:
        """The directory's topics."""
        return Catalog(self.files, self.data, self.now_ms, self.spares)

    def identified(self) -> tuple[Boot, BrokerId]:
        """Returns the same with its identity known, and the identity."""
        identity = self.identify()
        return replace(self, identity=identity), identity

    def identify(self) -> BrokerId:
        """Reads the broker's identity, or makes it on the first boot."""
        path = self.path(paths.BROKER_ID)
        if self.files.exists(path):
            for folder in (self.data, paths.parent(path)):
                self.files.sync_directory(folder)  # a killed process may not have
            try:
                return broker_id.decode(self.files.read(path))
            except CorruptData as error:
                raise error.at_path(path) from error
        self._refuse_lost_identity()
        self._make_path_durable()
        created_at = datetime.fromtimestamp(self.now_ms() / 1000, UTC)
        identity = BrokerId(uuid.uuid4(), created_at, platform.node() or None)
        self.files.replace(path, broker_id.encode(identity))
        return identity

    def _make_path_durable(self) -> None:
        """Syncs the directories above the data: one may be there and yet not durable."""
        folder = self.data
        while True:
            with contextlib.suppress(PermissionError):  # of others, who made it durable
                self.files.sync_directory(folder)
            if folder == paths.parent(folder):
                return
            folder = paths.parent(folder)

    def refuse_seat(self) -> None:
        """Refuses to write into a directory that is a cluster's: what it holds, the lease says."""
        if self.files.exists(self.path(paths.SEAT)):
            raise InvalidRequest(
                f"{self.data} is the directory of a cluster's server: write through the cluster"
                " (`lamina.connect`), or read it with read_only=True. If the cluster is no more,"
                f" remove {self.path(paths.SEAT)}"
            )

    def require_directory(self) -> None:
        """Refuses to read what is not a data directory, and one that has lost its identity."""
        if self.files.exists(self.path(paths.BROKER_ID)):
            return
        self._refuse_lost_identity()
        problem = f"{self.data} is not a data directory: it has no {paths.BROKER_ID}"
        if self.files.is_directory(self.path(paths.ARCHIVE)):
            problem += f"; if it is an archive, open file://{self.data}"
        raise InvalidRequest(problem)

    def _refuse_lost_identity(self) -> None:
        topics = self.path(paths.TOPICS)
        if self.files.is_directory(topics) and self.files.list(topics):
            raise CorruptData(
                "the directory holds topics but no identity; restore the file from a backup",
                path=self.path(paths.BROKER_ID),
                expected="broker.id",
                found="nothing",
            )

    def read_checkpoint(self, report: RecoveryReport) -> dict[tuple[str, int], PartitionCheckpoint]:
        """Reads the checkpoint; a missing or damaged one only makes recovery longer."""
        try:
            return self.published_checkpoint(report)
        except OSError as error:
            if not is_unreadable(error):
                raise
            report.add("rebuilt", self.path(paths.CHECKPOINT), f"it cannot be read: {error}")
            return {}

    def published_checkpoint(
        self, report: RecoveryReport
    ) -> dict[tuple[str, int], PartitionCheckpoint]:
        """Reads what a writer, which may be live, has published as durable; raises OSError."""
        path = self.path(paths.CHECKPOINT)
        if not self.files.exists(path):
            return {}
        try:
            found = checkpoint.decode(self.files.read(path))
        except NewerFormat as error:
            raise error.at_path(path) from error
        except CorruptData as error:
            report.add("rebuilt", path, f"the checkpoint is damaged: {error.problem}")
            return {}
        self._refuse_other(found)
        return {(entry.topic, entry.partition): entry for entry in found.partitions}

    def keep_damaged_checkpoint(self) -> None:
        """Sets a copy aside of a checkpoint that is none: it may be somebody else's file."""
        path = self.path(paths.CHECKPOINT)
        try:
            raw = self.files.read(path)
            checkpoint.decode(raw)
        except NewerFormat:
            return
        except CorruptData:
            self.place("", 0).set_aside(path, raw, 0)
        except OSError as error:
            if not (isinstance(error, FileNotFoundError) or is_unreadable(error)):
                raise

    def vanished(
        self, topics: Collection[str], hints: Mapping[tuple[str, int], PartitionCheckpoint]
    ) -> Iterator[tuple[str, str]]:
        """Yields the directory of each topic that only the checkpoint knows, and what it knows.

        Neither its `topic.json` nor a log says any more what it was.
        """
        ends: dict[str, int] = {}
        for (name, _), hint in hints.items():
            if name not in topics and not self.catalog.is_deleted(name):
                ends[name] = ends.get(name, 0) + hint.log_end_offset
        for name, end in sorted(ends.items()):
            why = (
                f"the checkpoint knows topic {name!r} with {end} records up to its end, and neither"
                " a sound topic.json nor a log is left: it is not served"
            )
            yield self.catalog.directory(name), why

    def _refuse_other(self, found: checkpoint.Checkpoint) -> None:
        """Refuses a `broker.id` that is not the one which the checkpoint was written under.

        One of the two files comes from another store, and a program must not write into a directory
        that may not be its own. A checkpoint of an older release has no identity, and is adopted.
        """
        own = self._owner
        if own is None or found.broker in (None, own):
            return
        raise CorruptData(
            "the directory is of another store than its broker.id: put the right broker.id back;"
            f" or, if it is meant to be this one's, remove {paths.CHECKPOINT}",
            path=self.path(paths.BROKER_ID),
            expected=str(found.broker),
            found=own,
        )

    def has_wal(self, topics: Mapping[str, TopicFile]) -> bool:
        """Returns whether the directory has, or had, topics behind a write-ahead log."""
        folders = (paths.WAL, paths.SEGMENTS)
        return any(about.topic_ids for about in topics.values()) or any(
            self.files.is_directory(self.path(folder)) for folder in folders
        )

    @property
    def _owner(self) -> str | None:
        return str(self.identity.uuid) if self.identity is not None else None

    def forget(self, topic: str) -> None:
        """Drops a topic from the checkpoint, which must not apply to the next one of its name."""
        known = self.read_checkpoint(RecoveryReport())
        kept = [entry for (name, _), entry in known.items() if name != topic]
        if len(kept) < len(known):
            data = checkpoint.encode(checkpoint.checkpoint_of(kept, self._owner))
            self.files.replace(self.path(paths.CHECKPOINT), data)

    def write_checkpoint(self, partitions: list[Partition]) -> None:
        """Replaces the checkpoint by what is durable now."""
        entries = []
        for partition in partitions:
            tail = partition.layout.active
            durable = tail.durable
            entries.append(
                PartitionCheckpoint(
                    partition.place.topic,
                    partition.place.partition,
                    log_end_offset=durable.next_offset,
                    active_segment_base_offset=tail.base_offset,
                    active_segment_size_bytes=durable.position,
                    last_flushed_offset=durable.next_offset,
                    floor=min(partition.ledger.floor, durable.next_offset),
                )
            )
        data = checkpoint.encode(checkpoint.checkpoint_of(entries, self._owner))
        self.files.replace(self.path(paths.CHECKPOINT), data)

    def open_partition(
        self,
        about: TopicFile,
        number: int,
        hint: PartitionCheckpoint | None,
        report: RecoveryReport,
        writing: Writing,
    ) -> Partition:
        """Recovers one partition; `hint` is its entry in the checkpoint."""
        place = self.place_of(about, number)
        codec = CODECS[about.format]
        watermark = (hint.last_flushed_offset or 0) if hint is not None else 0
        vouched = {hint.active_segment_base_offset} if hint is not None else set()
        floor = hint.floor if hint is not None else 0
        recorded = {}
        known = manifest_file.read(place, report) if codec.has_manifest else None
        if known is not None:
            watermark = max(watermark, known.next_offset)
            recorded = {segment.base_offset: segment for segment in known.segments}
            vouched |= {known.active_base_offset, *recorded}
        recovered = Recovery(place, codec, watermark, report, recorded, vouched, floor).run()
        producers = Producers(place)
        begun = producers.unfinished(recovered.active.tail.next_offset)
        if begun is not None and begun >= watermark:
            take_back(place, codec, [*recovered.sealed, recovered.active], begun)
            why = (
                f"an idempotent append had not finished: offsets from {begun} on were not answered"
            )
            report.add("cut", place.segments, why)
            recovered = Recovery(place, codec, watermark, report, recorded, vouched, floor).run()
        producers.recover(recovered.active.tail.next_offset, report)
        settings = settings_in_force(about)
        partition = Partition(
            place, codec, settings, recovered, producers=producers, writing=writing
        )
        if not manifest_file.lists(known, codec, partition.layout, settings):
            partition.save_manifest()
        return partition
