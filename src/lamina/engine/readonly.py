"""A data directory opened for reading: beside a live writer, or with none. Nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NoReturn, Self

from lamina.config import WalSettings
from lamina.engine.boot import Boot, wall_clock_ms
from lamina.engine.codec import CODECS
from lamina.engine.log_reader import LogReader
from lamina.engine.reader import StoreReader
from lamina.engine.report import RecoveryReport
from lamina.engine.view import PartitionView
from lamina.engine.wal.ground import Ground
from lamina.engine.wal.view import WalView
from lamina.errors import InvalidRequest
from lamina.formats.topic import TopicFile
from lamina.storage import paths
from lamina.storage.files import Files, LocalFiles


class ReadOnlyStore(StoreReader):
    """A data directory opened for reading, beside a live writer or with none."""

    def __init__(
        self, path: str, *, files: Files | None = None, wal: WalSettings | None = None
    ) -> None:
        self._boot = Boot(files or LocalFiles(), os.path.abspath(path), wall_clock_ms)
        self._boot.require_directory()
        self._views: dict[tuple[str, int, int], PartitionView] = {}
        ground = Ground(
            self._boot.files,
            self._boot.data,
            self._boot.now_ms,
            wal or WalSettings.from_environment(os.environ),
        )
        self._wal = WalView(ground)

    def _files_of_topics(self) -> Mapping[str, TopicFile]:
        return self._boot.catalog.peek()

    def _reader(self, about: TopicFile, partition: int) -> LogReader:
        if about.topic_ids:
            return self._wal.look(about, partition)
        key = about.name, about.epoch, partition
        if key not in self._views:
            place = self._boot.place(about.name, partition)
            self._views[key] = PartitionView(place, CODECS[about.format])
        view = self._views[key]
        live = self._boot.files.is_locked(self._boot.path(paths.LOCK))
        entry = self._boot.read_checkpoint(RecoveryReport()).get((about.name, partition))
        view.refresh((entry.last_flushed_offset or 0) if entry else 0, live=live)
        return view

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise InvalidRequest("the store is open read-only")

    append = append_async = create_topic = alter_topic = delete_topic = _refuse
    trim = delete = apply_retention = roll = flush = _refuse

    def close(self) -> None:
        """Lets the directory go."""
        self._closed = True
        self._views.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
