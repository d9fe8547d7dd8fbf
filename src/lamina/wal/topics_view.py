"""Wal topics read without a writer's lock: beside a live writer, or with none.

Every look reads the WAL, then the newest snapshot, then the segments, in this order: whatever a
live writer frees in between is in what is read later. The WAL's last files are synced before they
are served, so nothing that is shown can vanish by power loss. Nothing on disk is changed.

What a look has found in the WAL is used again while the WAL is quiet: the same files, and in the
last ones the same bytes behind the last barrier. What lies before a barrier never changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lamina.api import RecoveryReport, RouterInfo
from lamina.config import TopicSettings
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.kernels.xxh3 import xxh3_of
from lamina.formats.scan import WHOLE
from lamina.formats.wal import log
from lamina.storage import paths
from lamina.wal import ownership
from lamina.wal.ground import Ground
from lamina.wal.metadata import Metadata, TopicMetadata
from lamina.wal.reader import TopicReader
from lamina.wal.replay import Replay, Replayed
from lamina.wal.routers import described
from lamina.wal.shard import WalFile
from lamina.wal.snapshots import Snapshots
from lamina.wal.topic import Arrivals, Sources
from lamina.wal.topic_recovery import TopicRecovery

ATTEMPTS = 10
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a look has found in the WAL, and how it was then: names, and a digest of each tail."""

    replayed: Replayed
    names: tuple[str, ...]
    tails: tuple[int | None, ...]


class WalView:
    """The wal topics of a directory, as they are when looked at."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._seen: _Seen | None = None

    def look(self, about: TopicFile, number: int) -> TopicReader:
        """Returns a reader of one partition as it is now."""
        return self.look_at(about, [number])[0]

    def look_at(self, about: TopicFile, numbers: Sequence[int]) -> list[TopicReader]:
        """Returns readers of several partitions as they are now, by one look."""
        return _insisting(lambda: self._look(about, numbers))

    def lost_topics(self, known: set[str]) -> list[TopicFile]:
        """Returns topics that WAL and snapshot describe, but for those of some names.

        Those are what a writer would bring back.
        """
        metadata, *_ = _insisting(lambda: self._metadata(RecoveryReport()))
        return metadata.lost_topics(known)

    def routers(self, topics: Iterable[TopicFile]) -> list[RouterInfo]:
        """Lists the routers between topics."""
        abouts = {about.topic_ids[0]: about for about in topics if about.topic_ids}
        if not abouts:
            return []
        metadata, *_ = self._metadata(RecoveryReport())
        rules = [
            rule
            for rule in metadata.live_routers().values()
            if not {rule.source_id, rule.target_id} & metadata.dead.keys()
        ]
        return described(rules, abouts)

    def _metadata(self, report: RecoveryReport) -> tuple[Metadata, Replayed, bool]:
        """Reads the WAL, then the newest snapshot; what both add up to."""
        replayed = self._replayed(report)
        metadata = Metadata()
        taken = Snapshots(self._ground).load(report)
        if taken is not None:
            metadata.load(taken)
        for owner, body in replayed.controls:
            metadata.apply(owner, body)
        return metadata, replayed, taken is not None

    def _look(self, about: TopicFile, numbers: Sequence[int]) -> list[TopicReader]:
        ground, report = self._ground.recalling(writes=False), RecoveryReport()
        ownership.check(ground)
        metadata, replayed, has_snapshot = self._metadata(report)
        sources = Sources(ground.files, replayed.files, Arrivals())
        recovery = TopicRecovery(
            ground, sources, replayed, report, repair=False, has_snapshot=has_snapshot
        )
        found = []
        for number in numbers:
            topic_id = about.topic_ids[number]
            place, settings = ground.place_of(about, number), TopicSettings.parse(about.settings)
            known = metadata.topics.get(topic_id, TopicMetadata())
            contents, _ = recovery.recover(place, topic_id, settings, known)
            found.append(TopicReader(place, topic_id, settings, sources, contents))
        return found

    def _replayed(self, report: RecoveryReport) -> Replayed:
        """Reads the WAL, or returns what the last look has found if nothing has changed since."""
        seen, names = self._seen, self._names()
        if seen is not None and seen.names == names and seen.tails == _digests(seen.replayed):
            return seen.replayed
        replayed = Replay(self._ground, report, repair=False).run()
        digests = _digests(replayed)
        self._seen = None if None in digests else _Seen(replayed, names, digests)
        return replayed

    def _names(self) -> tuple[str, ...]:
        """Lists the files of the WAL; none has a name that another one had before."""
        return tuple(
            paths.join(directory, name)
            for _, directory in self._ground.shard_directories()
            for name in self._ground.files.list(directory)
            if paths.wal_file_index(name) is not None
        )


def _insisting(look: Callable[[], _Found]) -> _Found:
    """Looks again where the writer removed what had just been listed."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError):
            return look()
    return look()


def _digests(replayed: Replayed) -> tuple[int | None, ...]:
    return tuple(_digest(file, replayed) for file in replayed.tails)


def _digest(file: WalFile, replayed: Replayed) -> int | None:
    """A digest of a file from its last barrier on, as it is now.

    None where that is not what was found: something was written since, or there is damage.
    """
    first = replayed.synced_to[file.number]
    tail = file.file.read_at(first, max(0, file.file.size() - first))
    if first + log.scan(tail, 0, limit=WHOLE).end != replayed.ends[file.number]:
        return None
    return xxh3_of(tail)
