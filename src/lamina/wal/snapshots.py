"""Metadata snapshots: written atomically, two are kept, the newest good one is loaded.

The WAL files that the older of the two needs are kept, so that either leads to the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lamina.api import RecoveryReport
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.wal import snapshot
from lamina.formats.wal.snapshot import CurrentWal, DeletedTopic, Snapshot, TopicMeta
from lamina.storage import paths
from lamina.wal.ground import Ground
from lamina.wal.topic import TopicState

KEPT = 2


class Snapshots:
    """The snapshots of a data directory."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._covered: list[dict[int, int]] = []
        self._sound: list[int] = []
        """The numbers of those that can be used, ascending: only they count as kept."""
        self._damaged: set[int] = set()

    def _numbers(self) -> list[int]:
        numbers = map(paths.snapshot_number, self._ground.files.list(self._ground.meta))
        return sorted(number for number in numbers if number is not None)

    def _path(self, number: int) -> str:
        return paths.join(self._ground.meta, paths.snapshot_file(number))

    def load(self, report: RecoveryReport) -> Snapshot | None:
        """Returns the newest snapshot that is sound; None if there is none."""
        newest: Snapshot | None = None
        for number in reversed(self._numbers()):
            path = self._path(number)
            try:
                found = snapshot.decode(self._ground.files.read(path))
            except NewerFormat as error:
                raise error.at_path(path) from error
            except (CorruptData, FileNotFoundError) as error:
                report.add("note", path, f"the snapshot cannot be used: {error}")
                self._damaged.add(number)
                continue
            covered = {each.shard: each.wal_index for each in found.current_wal}
            self._covered.insert(0, covered)
            self._sound.insert(0, number)
            newest = newest or found
        return newest

    def covers(self, shard: int, index: int) -> bool:
        """Returns whether no snapshot that is kept needs a WAL file's control frames."""
        kept = self._covered[-KEPT:]
        return len(kept) == KEPT and all(covered.get(shard, 0) > index for covered in kept)

    def save(
        self,
        topics: Iterable[tuple[TopicState, TopicMeta]],
        dead: Mapping[int, int],
        next_topic_id: int,
        current: Mapping[int, int],
        routers: tuple[bytes, ...] = (),
    ) -> None:
        """Writes a snapshot; then all but the newest two that can be used go.

        One that cannot be used may be a foreign file: it is set aside, not removed.
        """
        files = self._ground.files
        metas = sorted((meta for _, meta in topics), key=lambda meta: meta.topic_id)
        lowest = min((topic.absorbed_end - 1 for topic, _ in topics), default=0)
        taken = Snapshot(
            next_topic_id,
            lowest,
            tuple(metas),
            tuple(DeletedTopic(key, epoch) for key, epoch in sorted(dead.items())),
            tuple(CurrentWal(shard, index) for shard, index in sorted(current.items())),
            routers,
        )
        numbers = self._numbers()
        number = numbers[-1] + 1 if numbers else 1
        files.replace(self._path(number), snapshot.encode(taken))
        self._covered.append(dict(current))
        self._sound = [*self._sound, number][-KEPT:]
        for old in numbers:
            if old in self._damaged:
                self._ground.quarantine(self._path(old))
            elif old not in self._sound:
                files.remove(self._path(old))
        self._damaged.clear()
        files.sync_directory(self._ground.meta)  # an old snapshot that returns would lag behind
        del self._covered[:-KEPT]


def meta_of(topic: TopicState, name: str, epoch: int, config: str) -> TopicMeta:
    """Makes a topic's entry."""
    return TopicMeta(
        topic.topic_id,
        name,
        epoch,
        config,
        evict_floor=topic.evict_floor,
        earliest_sequence=topic.earliest,
        delete_below=topic.earliest if topic.earliest > topic.evict_floor else 0,
        deleted=topic.deleted.pairs(),
    )
