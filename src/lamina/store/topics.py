"""The topics of a store that writes: created, altered, grown, deleted.

Rules.
1. A topic exists, or is deleted, by its `topic.json` (see `catalog`); all else follows from that.
2. What fails half-way affects this topic alone: it takes no more appends, and the deletion can be
   tried again, or is finished or undone when the store is opened again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from lamina.config import TopicSettings
from lamina.errors import (
    PASSING,
    Closed,
    InvalidRequest,
    Poisoned,
    StorageFull,
    Unavailable,
    refusal_of,
    typed_errors,
)
from lamina.formats.documents.topic_file import TopicFile
from lamina.groups.registry import Groups
from lamina.log.sealed import Archivable
from lamina.store import catalog
from lamina.store.disk_reserve import Reserve
from lamina.store.open_topics import OpenTopics
from lamina.store.opening import Boot
from lamina.store.typed_topics import TypedTopics
from lamina.store.write_ahead import WriteAhead
from lamina.subjects.entries import TOPIC as SCHEMAS

if TYPE_CHECKING:
    from lamina.archive.tier import Tier


class Carrier(Protocol):
    """Whoever carries topics to another machine: some kinds of them, with some settings."""

    def topic_config(self, format_name: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the settings of a new topic; raises InvalidRequest for what is not carried."""

    def check_alteration(self, config: Mapping[str, Any]) -> None:
        """Raises InvalidRequest for settings with which a topic would not be carried."""


class TopicChanges:
    """Creates, alters and deletes topics, one change at a time (`changing`)."""

    def __init__(
        self,
        boot: Boot,
        open_topics: OpenTopics,
        write_ahead: WriteAhead,
        groups: Groups,
        *,
        reserve: Reserve,
        tier: Tier | None,
        checkpoint: Callable[[], None],
    ) -> None:
        self._boot = boot
        self._open = open_topics
        self._lookup = open_topics.lookup
        self._write_ahead = write_ahead
        self._groups = groups
        self._reserve = reserve
        self._tier = tier
        self._checkpoint = checkpoint
        self.changing = threading.Lock()
        self.typed: TypedTopics | None = None
        """Knows the schemas of topics; given by the store, which makes it later."""
        self.seat: Carrier | None = None
        """The store's hold on a cluster, if it has one."""

    def _require_tier(self, config: Mapping[str, Any]) -> None:
        """Raises InvalidRequest for archiving without an archive."""
        if self._tier is None and TopicSettings.parse(config).is_archived:
            raise InvalidRequest("remote.storage.enable needs a store opened with `archive`")

    def _require_alterable(self, config: Mapping[str, Any]) -> None:
        if self.seat is not None:
            self.seat.check_alteration(config)
        self._require_tier(config)

    def _carried(self, format_name: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the settings of a new topic as the store's cluster demands them."""
        return config if self.seat is None else self.seat.topic_config(format_name, config)

    def settings_in_force(self, topic: str) -> TopicSettings:
        """Returns the settings that a topic's partitions follow, without parsing them again."""
        return self._lookup.partition(topic, 0).settings

    @property
    def made_count(self) -> int:
        """How often a topic came to be since the store was opened."""
        return self._open.made_count

    def epoch_of(self, name: str) -> int:
        """Returns the epoch of a topic; raises UnknownTopic."""
        return self._lookup.topic(name).epoch

    def epochs(self) -> dict[str, int]:
        """Returns the epoch of every topic, by name."""
        return {name: about.epoch for name, about in list(self._open.topics.items())}

    def check_new(
        self, name: str, *, partitions: int, format: str, config: Mapping[str, Any]
    ) -> None:
        """Refuses what `create_topic` refuses for its arguments; creates nothing."""
        self._lookup.require_open()
        config = self._carried(format, config)
        self._require_tier(config)
        catalog.check_new(name, partitions, format, config)

    def check_alteration(self, name: str, config: Mapping[str, Any]) -> None:
        """Refuses what `alter_topic` refuses for its arguments; changes nothing."""
        self._require_alterable(config)
        catalog.check_alteration(self._lookup.topic(name), config)

    def check_growth(self, topic: str, total: int) -> None:
        """Refuses what `add_partitions` refuses for its arguments; adds nothing."""
        catalog.check_growth(self._lookup.topic(topic), total)

    @typed_errors("creating a topic")
    def create_topic(  # noqa: PLR0913 - as in StoreApi
        self,
        name: str,
        *,
        partitions: int = 1,
        format: str = "keratin",  # the word users know
        config: Mapping[str, Any] | None = None,
        exist_ok: bool = False,
        schema: Any = None,
        encoding: str | None = None,
        key: str | None = None,
    ) -> None:
        """Creates a topic; it exists for good when this returns."""
        self._lookup.require_open()
        config = self._carried(format, config or {})
        self._require_tier(config)
        begin_typed = self._typing(format, schema, encoding, key)
        with self.changing:
            self._refuse_half_deleted(name)
            if exist_ok and name in self._open.topics:
                catalog.check_new(name, partitions, format, config)
                catalog.refuse_different(self._open.topics[name], partitions, format)
                if self.typed is not None and schema is not None:
                    self.typed.refuse_different(self._open.topics[name], schema, encoding)
                return
            if name not in self._open.topics:
                self._boot.forget(name)
                self._groups.forget_topic(name)
            about = self._boot.catalog.create(
                name,
                partitions=partitions,
                format_name=format,
                settings=config,
                claim=lambda about: begin_typed(self._write_ahead.claim(about)),
            )
            try:
                for number in range(partitions):
                    self._open.open(about, number)
            except BaseException:
                for number in range(partitions):  # or they would be in the next checkpoint
                    made = self._open.partitions.pop((name, number), None)
                    if made is not None:
                        made.retire(Closed(f"topic {name!r} was never made"))
                with contextlib.suppress(OSError):
                    self._boot.catalog.mark_deleted(about)
                raise
            self._open.enter(about)
            if SCHEMAS in self._open.topics and self.typed is not None and name != SCHEMAS:
                self.typed.follow_registered(about)

    def _typing(
        self, format_name: str, schema: Any, encoding: str | None, key: str | None
    ) -> Callable[[TopicFile], TopicFile]:
        """Returns what makes a new topic a typed one, before it exists; checks the schema now."""
        if schema is None:
            if encoding is not None or key is not None:
                raise InvalidRequest("encoding and key belong to a schema: give one")
            return lambda about: about
        assert self.typed is not None, "given with the store"
        return self.typed.begin(format_name, schema, encoding, key)

    def _refuse_half_deleted(self, name: str) -> None:
        """Refuses a topic's name whose deletion has failed: it may come back, or not."""
        if name in self._open.topics and self._boot.has_deleted(name):
            raise Poisoned(
                f"deleting topic {name!r} failed half-way; delete it again, or reopen the store"
            )

    @typed_errors("changing a topic")
    def alter_topic(self, name: str, config: Mapping[str, Any]) -> None:
        """Changes settings of a topic; what is not named stays as it is."""
        self._require_alterable(config)
        with self.changing:
            self._keep_expired_hidden(self._lookup.topic(name))
            about = self._boot.catalog.alter(self._lookup.topic(name), config)
            self._open.topics[name] = about
            settings = catalog.settings_in_force(about)
            for number in range(about.partitions):
                self._open.partitions[name, number].settings = settings
            if about.topic_ids and self._write_ahead.engine is not None:
                with contextlib.suppress(StorageFull):  # it is altered; a snapshot keeps that, too
                    self._write_ahead.engine.describe(about)

    @typed_errors("adding partitions")
    def add_partitions(self, topic: str, total: int) -> None:
        """Adds partitions to a topic until it has so many.

        They are made, with the places of all groups in them, before `topic.json` lists them; before
        that they cannot be found.
        """
        with self.changing:
            self._refuse_half_deleted(topic)
            about = self._lookup.topic(topic)
            grown = self._boot.catalog.prepare_growth(about, total)
            if about.topic_ids:
                grown = self._write_ahead.begun().claim(grown, about.topic_ids)
            made: list[Archivable] = []
            try:
                for number in range(about.partitions, total):
                    made.append(self._open.made(grown, number))
                with self._groups.growing(topic, made):
                    self._boot.catalog.grow(grown)
                    for partition in made:
                        self._open.partitions[topic, partition.place.partition] = partition
                    self._open.enter(grown)
            except BaseException:
                if self._lookup.topic(topic) is about:
                    self._unmake(grown, about.partitions, made)
                raise
            if grown.topic_ids:
                self._write_ahead.begun().connect(grown)
            self._checkpoint()  # readers in other processes look again when it changes

    def _unmake(self, grown: TopicFile, first: int, made: list[Archivable]) -> None:
        """Lets partitions go that were never found; what is left of them is empty."""
        for partition in made:
            partition.retire(Closed(f"partition {partition.place.name} was never made"))
        if grown.topic_ids:
            self._write_ahead.begun().delete(grown, first)

    def _keep_expired_hidden(self, about: TopicFile) -> None:
        """What has expired does not come back because `retention.ms` grows."""
        if about.topic_ids:
            for partition in self._open.behind_wal([about.name]):
                if partition.earliest_offset() > partition.earliest:
                    partition.exclusively(partition.keep_expired_hidden)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic with all of its records; the same name can be created again."""
        with self.changing:
            about = self._lookup.topic(name)
            try:
                self._reserve.use(lambda: self._mark_deleted(about))
            except (OSError, Unavailable) as error:
                if isinstance(error, Unavailable) and not self._boot.has_deleted(name):
                    raise
                for number in range(about.partitions):  # what is appended now might be deleted
                    self._open.partitions[name, number].fail(error)
                raise Poisoned(
                    f"deleting topic {name!r} failed half-way ({error}); delete it again, or reopen"
                    " the store to finish or undo it"
                ) from error
            del self._open.topics[name]
            for number in range(about.partitions):
                partition = self._open.partitions.pop((name, number))
                partition.end_waits()
                partition.retire(Closed(f"topic {name!r} was deleted"))
            self._groups.close_topic(name)
            if about.topic_ids and self._write_ahead.engine is not None:
                wal = self._write_ahead.engine
                self._reserve.use(lambda: wal.delete(about))
            with contextlib.suppress(OSError, Unavailable):  # or when the store is opened again
                self._boot.catalog.remove_deleted(about)
                self._groups.forget_topic(name)
            if self._tier is not None:
                self._tier.forget(about)
            self._checkpoint()  # or the checkpoint would apply to the next topic of this name

    def _mark_deleted(self, about: TopicFile) -> None:
        try:
            self._boot.catalog.mark_deleted(about)
        except OSError as error:
            if error.errno in PASSING:
                problem = f"no space left to delete topic {about.name!r}"
                raise refusal_of(error, problem) from error
            raise
