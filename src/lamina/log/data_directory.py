"""A data directory: its files, where it is, and its clock. The one object that knows all three.

Whatever works on a directory holds one of these, or a narrower view that was made from it: a
partition's own (`directory.Place`), the write-ahead log's (`wal.ground.Ground`), or that of opening
(`store.opening.Boot`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lamina.config import TopicSettings
from lamina.errors import CorruptData
from lamina.formats.documents import topic_file
from lamina.formats.documents.topic_file import TopicFile
from lamina.log.directory import Place
from lamina.log.spares import NO_SPARES, Copies, Spares
from lamina.storage import paths
from lamina.storage.files import Files


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """Files, root and clock. `steady_ms` is a clock that does not jump, for spans of time."""

    files: Files
    data: str
    now_ms: Callable[[], int]
    steady_ms: Callable[[], int] | None = None
    spares: Spares = NO_SPARES
    """Copies of small files, where the directory has an archive."""

    def path(self, name: str) -> str:
        """Returns the path of a file in the data directory."""
        return paths.join(self.data, name)

    def steady(self) -> int:
        """Returns the time by which spans are measured: no jump of the clock changes them."""
        return self.now_ms() if self.steady_ms is None else self.steady_ms()

    def place(self, topic: str, partition: int, copies: Copies | None = None) -> Place:
        """Returns a partition's surroundings; copies are those of an archived topic."""
        return Place(self.files, self.data, topic, partition, self.now_ms, self.steady_ms, copies)

    def place_of(self, about: TopicFile, partition: int) -> Place:
        """Returns the surroundings of a topic's partition."""
        is_archived = TopicSettings.parse(about.settings).is_archived
        copies = Copies(self.spares, about, partition) if is_archived else None
        return self.place(about.name, partition, copies)

    def has_deleted(self, topic: str) -> bool:
        """Returns whether a topic's file says that it was deleted; False where there is none."""
        path = self.path(paths.join(paths.TOPICS, topic, paths.TOPIC_SETTINGS))
        try:
            return topic_file.decode(self.files.read(path)).deleted
        except (FileNotFoundError, CorruptData):
            return False
