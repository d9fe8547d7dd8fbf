"""Wal topics read without a writer's lock: beside a live writer, or with none.

Every look reads the WAL, then the newest snapshot, then the segments, in this order: whatever a
live writer frees in between is in what is read later. The WAL's last files are synced before they
are served, so nothing that is shown can vanish by power loss. Nothing on disk is changed.
"""

from __future__ import annotations

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
        for attempt in range(ATTEMPTS):
            try:
                return self._look(about, number)
            except FileNotFoundError:  # the writer removed what had just been listed
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _look(self, about: TopicFile, number: int) -> TopicReader:
        ground, report = self._ground, RecoveryReport()
        topic_id = about.topic_ids[number]
        place = Place(ground.files, ground.data, about.name, number, ground.now_ms)
        reader = TopicReader(place, topic_id, TopicSettings.parse(about.settings))
        replayed = Replay(ground, report, repair=False).run()
        metadata = Metadata()
        taken = Snapshots(ground).load(report)
        if taken is not None:
            metadata.load(taken)
        for owner, body in replayed.controls:
            metadata.apply(owner, body)
        reader.bind(Sources(ground.files, replayed.files, Arrivals()))
        known = metadata.topics.get(topic_id, TopicMetadata())
        recovery = TopicRecovery(
            ground, replayed, report, repair=False, has_snapshot=taken is not None
        )
        recovery.recover(reader, known)
        return reader
