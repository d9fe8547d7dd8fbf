"""The write-ahead log of a store: opened with the first topic that needs one, and only then loaded.

Most stores have no wal topic, and neither import nor open anything of `lamina.wal`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lamina.api import RecoveryReport
from lamina.config import WalSettings
from lamina.formats.documents.topic_file import TopicFile
from lamina.log.interfaces import Writing
from lamina.store.opening import Boot

if TYPE_CHECKING:
    from lamina.wal.engine import WalEngine


class WriteAhead:
    """A store's write-ahead log; `engine` is None as long as there is none."""

    def __init__(
        self,
        boot: Boot,
        settings: WalSettings,
        writing: Writing,
        report: RecoveryReport,
    ) -> None:
        self._boot = boot
        self._settings = settings
        self._writing = writing
        self._report = report
        self.engine: WalEngine | None = None

    def load(self, topics: Mapping[str, TopicFile]) -> list[TopicFile]:
        """Reads an existing log; returns the topics that only the log knows any more."""
        self.engine = self._new()
        return self.engine.load(self._report, topics.values()).lost_topics(set(topics))

    def finish_opening(self) -> None:
        """Ends the opening of the log, once all of its topics are open."""
        if self.engine is not None:
            self.engine.finish_opening(self._report)

    def begun(self) -> WalEngine:
        """Returns the log, which begins with the first call."""
        if self.engine is None:
            begun = self._new()
            begun.load(self._report)
            begun.finish_opening(self._report)
            self.engine = begun
        return self.engine

    def release_files(self) -> None:
        """Lets the files of the log go as they are."""
        if self.engine is not None:
            self.engine.sources.wal.close()

    def claim(self, about: TopicFile) -> TopicFile:
        """Assigns ids to a new wal topic; any other topic is returned as it is."""
        return self.begun().claim(about) if about.format == "wal" else about

    def maintain(self, *, force: bool) -> None:
        """Does what is due; with `force`, also what is not due yet."""
        if self.engine is not None:
            self.engine.maintain(force=force)

    def _new(self) -> WalEngine:
        from lamina.wal.engine import WalEngine
        from lamina.wal.ground import Ground

        ground = Ground.of(self._boot, self._settings).recalling(writes=True)
        return WalEngine(ground, self._writing)
