"""The topics of a store that writes: created, altered, deleted.

Rules.
1. A topic exists, or is deleted, by its `topic.json` (see `catalog`); all else follows from that.
2. What fails half-way affects this topic alone: it takes no more appends, and the deletion can be
   tried again, or is finished or undone when the store is opened again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lamina.config import TopicSettings
from lamina.errors import (
    NO_SPACE,
    Closed,
    InvalidRequest,
    Poisoned,
    StorageFull,
    Unavailable,
    typed_errors,
)
from lamina.formats.documents.checkpoint import PartitionCheckpoint
from lamina.formats.documents.topic_file import TopicFile
from lamina.groups.registry import Groups
from lamina.store.appends import AppendAccess
from lamina.store.disk_reserve import Reserve
from lamina.store.maintenance import Maintenance

if TYPE_CHECKING:
    from lamina.wal.engine import WalEngine


class TopicAccess(AppendAccess):
    """What users of a store that writes can do with topics as a whole."""

    _changing: threading.Lock
    _groups: Groups
    _maintenance: Maintenance
    _reserve: Reserve
    _topics: dict[str, TopicFile]
    _wal: WalEngine | None

    def _claim(self, about: TopicFile) -> TopicFile:
        """Gives a new wal topic its ids."""
        raise NotImplementedError

    def _keep_expired_hidden(self, about: TopicFile) -> None:
        """What has expired does not come back because `retention.ms` grows."""
        raise NotImplementedError

    def _open_partition(
        self, about: TopicFile, number: int, hint: PartitionCheckpoint | None = None
    ) -> None:
        raise NotImplementedError

    def _attach(self, about: TopicFile) -> None:
        raise NotImplementedError

    def _require_tier(self, config: Mapping[str, Any] | None) -> None:
        """Refuses to promise an archive that there is not."""
        if self._tier is None and TopicSettings.parse(config or {}).is_archived:
            raise InvalidRequest("remote.storage.enable needs a store opened with `archive`")

    @typed_errors("creating a topic")
    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        format: str = "keratin",  # the word users know
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Creates a topic; it exists for good when this returns."""
        self._require_open()
        self._require_tier(config)
        with self._changing:
            self._refuse_half_deleted(name)
            if name not in self._topics:
                self._boot.forget(name)
                self._groups.forget_topic(name)
            about = self._boot.catalog.create(
                name,
                partitions=partitions,
                format_name=format,
                settings=config or {},
                claim=self._claim,
            )
            try:
                for number in range(partitions):
                    self._open_partition(about, number)
            except BaseException:
                for number in range(partitions):  # or the next checkpoint would speak of them
                    made = self._partitions.pop((name, number), None)
                    if made is not None:
                        made.retire(Closed(f"topic {name!r} was never made"))
                with contextlib.suppress(OSError):
                    self._boot.catalog.mark_deleted(about)
                raise
            self._topics[name] = about
            self._attach(about)

    def _refuse_half_deleted(self, name: str) -> None:
        """Refuses a topic's name whose deletion has failed: it may come back, or not."""
        if name in self._topics and self._boot.has_deleted(name):
            raise Poisoned(
                f"deleting topic {name!r} failed half-way; delete it again, or reopen the store"
            )

    @typed_errors("changing a topic")
    def alter_topic(self, name: str, config: Mapping[str, Any]) -> None:
        """Changes settings of a topic; what is not named stays as it is."""
        self._require_tier(config)
        with self._changing:
            self._keep_expired_hidden(self._topic(name))
            about = self._boot.catalog.alter(self._topic(name), config)
            self._topics[name] = about
            for number in range(about.partitions):
                self._partitions[name, number].settings = TopicSettings.parse(about.settings)
            if about.topic_ids and self._wal is not None:
                with contextlib.suppress(StorageFull):  # it is altered; a snapshot will say so too
                    self._wal.describe(about)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic with all of its records; the same name can be created again."""
        with self._changing:
            about = self._topic(name)
            try:
                self._reserve.use(lambda: self._mark_deleted(about))
            except (OSError, StorageFull) as error:
                if isinstance(error, StorageFull) and not self._boot.has_deleted(name):
                    raise
                for number in range(about.partitions):  # what is appended now might be deleted
                    self._partitions[name, number].fail(error)
                raise Poisoned(
                    f"deleting topic {name!r} failed half-way ({error}); delete it again, or reopen"
                    " the store to finish or undo it"
                ) from error
            del self._topics[name]
            for number in range(about.partitions):
                partition = self._partitions.pop((name, number))
                partition.end_waits()
                partition.retire(Closed(f"topic {name!r} was deleted"))
            self._groups.close_topic(name)
            if about.topic_ids and self._wal is not None:
                wal = self._wal
                self._reserve.use(lambda: wal.delete(about))
            with contextlib.suppress(OSError, Unavailable):  # or when the store is opened again
                self._boot.catalog.remove_deleted(about)
                self._groups.forget_topic(name)
            if self._tier is not None:
                self._tier.forget(about)
            self._maintenance.tick()  # or the checkpoint would speak of the next topic of this name

    def _mark_deleted(self, about: TopicFile) -> None:
        try:
            self._boot.catalog.mark_deleted(about)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise StorageFull(f"no space left to delete topic {about.name!r}") from error
            raise
