"""Wal topics read without a writer's lock: beside a live writer, or with none.

Every look reads the WAL, then the newest snapshot, then the segments, in this order: whatever a
live writer frees in between is in what is read later. The WAL's last files are synced before they
are served, so nothing that is shown can vanish by power loss. Nothing on disk is changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from lamina.config import TopicSettings
from lamina.engine.place import Place
from lamina.engine.report import RecoveryReport
from lamina.engine.wal.ground import Ground
from lamina.engine.wal.metadata import Metadata, TopicMetadata
from lamina.engine.wal.reading import Sources, TopicReader
from lamina.engine.wal.recovery import TopicRecovery
from lamina.engine.wal.replay import Replay
from lamina.engine.wal.snapshots import Snapshots
from lamina.engine.wal.topic import Arrivals
from lamina.formats.topic import TopicFile

ATTEMPTS = 10


class WalView:
    """The wal topics of a directory, as they are when looked at."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def look(self, about: TopicFile, number: int) -> TopicReader:
        """Returns a reader of one partition as it is now."""
        return self.look_at(about, [number])[0]

    def look_at(self, about: TopicFile, numbers: Sequence[int]) -> list[TopicReader]:
        """Returns readers of several partitions as they are now, by one look."""
        for attempt in range(ATTEMPTS):
            try:
                return self._look(about, numbers)
            except FileNotFoundError:  # the writer removed what had just been listed
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _look(self, about: TopicFile, numbers: Sequence[int]) -> list[TopicReader]:
        ground, report = self._ground, RecoveryReport()
        replayed = Replay(ground, report, repair=False).run()
        metadata = Metadata()
        taken = Snapshots(ground).load(report)
        if taken is not None:
            metadata.load(taken)
        for owner, body in replayed.controls:
            metadata.apply(owner, body)
        sources = Sources(ground.files, replayed.files, Arrivals())
        recovery = TopicRecovery(
            ground, replayed, report, repair=False, has_snapshot=taken is not None
        )
        found = []
        for number in numbers:
            topic_id = about.topic_ids[number]
            place = Place(ground.files, ground.data, about.name, number, ground.now_ms)
            reader = TopicReader(place, topic_id, TopicSettings.parse(about.settings))
            reader.bind(sources)
            recovery.recover(reader, metadata.topics.get(topic_id, TopicMetadata()))
            found.append(reader)
        return found
