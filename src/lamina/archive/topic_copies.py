"""What the archive keeps beside the records: topic file, ledger, and the state of groups.

With these and the objects a topic can be read, and restored, on a machine that never saw it.

Rules.
1. `topic.json`, `schemas.json` and `ledger.json` are copies of the local files, byte for byte.
2. The state of a group is one object per partition, always of one moment (`group_copy`). That of
   a group which is known to be deleted goes; so do the files that earlier releases put there.
   What classic groups have committed is one object per partition for all of them.
3. A copy that a newer version wrote is refused, and stays: it may say what we cannot. One that is
   damaged, or holds something else, is kept under `quarantine/` before it is replaced.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from lamina.archive.object_list import Shelf
from lamina.errors import CorruptData, NewerFormat, ObjectConflict, ObjectMissing
from lamina.formats import committed_offsets
from lamina.formats.documents import group_copy, topic_file, topic_schemas
from lamina.formats.documents.ledger import Ledger
from lamina.formats.documents.topic_file import TopicFile
from lamina.storage import paths
from lamina.storage.objects import Objects


class GroupSource(Protocol):
    """Whoever knows the groups of a store."""

    def copies(self, about: TopicFile, partition: int, archived_end: int) -> Mapping[str, bytes]:
        """Returns the copy of each group's state in a partition, by the group's name."""

    def is_gone(self, topic_file: str, group: str) -> bool:
        """Returns whether it is known that there is no such group."""


class OffsetSource(Protocol):
    """Whoever knows what classic groups have committed."""

    def copy(self, about: TopicFile, partition: int, archived_end: int) -> bytes | None:
        """Returns the copy of a partition's offsets: empty for none, None if that is not known."""


@dataclass(slots=True)
class Metadata:
    """Keeps the copies current; remembers what it has put so that nothing is put twice."""

    objects: Objects
    groups: Callable[[], GroupSource]
    offsets: Callable[[], OffsetSource]
    schemas: Callable[[TopicFile], bytes | None] = lambda about: None
    """Returns the schemas of a typed topic as they are kept; None for any other."""
    _put: dict[str, bytes] = field(default_factory=dict)
    _copied: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """The keys of groups' copies, and of what earlier releases kept of them, by partition."""
    _ledgers: dict[tuple[str, int], Ledger] = field(default_factory=dict)

    def save(self, shelf: Shelf, ledger: Ledger) -> None:
        """Saves what has changed of a partition."""
        about = shelf.about
        self.save_topic(about)
        if self._ledgers.get((about.name, shelf.partition)) != ledger:
            shelf.save_ledger(ledger)
            self._ledgers[about.name, shelf.partition] = ledger
        self._save_groups(about, shelf.partition, shelf.manifest.end_offset)

    def _save_groups(self, about: TopicFile, partition: int, archived_end: int) -> None:
        """Saves the copies of groups; removes those of groups that are gone."""
        copied = self._copied.get((about.name, partition))
        if copied is None:
            prefix = f"{paths.archive_partition(about.name, partition)}/{paths.ARCHIVE_STATE}"
            copied = {info.key for info in self.objects.list(prefix)}
            self._copied[about.name, partition] = copied
        made = self.groups().copies(about, partition, archived_end)
        for name, data in made.items():
            key = paths.archive_group(about.name, partition, name)
            self._save(key, data)
            copied.add(key)
        going = [key for key in sorted(copied) if self._may_go(key, made)]
        key = paths.archive_offsets(about.name, partition)
        offsets = self.offsets().copy(about, partition, archived_end)
        if offsets:
            self._save(key, offsets)
            copied.add(key)
        elif offsets is not None and key in copied:
            going.append(key)
        for key in going:
            self.objects.delete(key)
            copied.discard(key)
            self._put.pop(key, None)

    def _may_go(self, key: str, made: Mapping[str, bytes]) -> bool:
        """Returns whether what is kept of a group is replaced, or the group is gone for good."""
        if (parsed := paths.archived_group(key)) is not None:
            return self.groups().is_gone(parsed[0], parsed[2])
        older = paths.archived_state(key)
        file = paths.group_file(older[2]) if older is not None else None
        if file is None:
            return False
        return file.group in made or self.groups().is_gone(file.topic, file.group)

    def save_topic(self, about: TopicFile) -> None:
        """Saves a topic's own file, if it has changed; never a guess in place of a sound copy."""
        if about.created_ms == topic_file.UNKNOWN_MS:
            return
        self._save(paths.archive_topic_settings(about.name), topic_file.encode(about))
        schemas = self.schemas(about)
        if schemas is not None:
            self._save(paths.archive_topic_schemas(about.name), schemas)

    def forget(self, topic_name: str, partition: int) -> None:
        """Schedules everything of a partition to be saved again: a copy was found damaged."""
        self._put.clear()
        self._copied.pop((topic_name, partition), None)
        self._ledgers.pop((topic_name, partition), None)

    def mark_deleted(self, about: TopicFile) -> None:
        """Marks the archive of a deleted topic, if it has one: it is not shown any more."""
        key = paths.archive_topic_settings(about.name)
        try:
            found = topic_file.decode(self.objects.read(key).data)
        except NewerFormat as error:
            raise error.at_path(f"{self.objects.url}/{key}") from error
        except CorruptData:
            found = about
        except ObjectMissing:
            prefixes = [paths.archive_partition(about.name, n) for n in range(about.partitions)]
            if not any(True for prefix in prefixes for _ in self.objects.list(prefix)):
                return
            found = about
        if (found.epoch, found.created_ms) == (about.epoch, about.created_ms):
            self._save(key, topic_file.encode(replace(about, deleted=True)))
        for number in range(about.partitions):
            self._ledgers.pop((about.name, number), None)
            self._copied.pop((about.name, number), None)

    def _save(self, key: str, data: bytes) -> None:
        if self._put.get(key) == data:
            return
        etag = None
        try:
            stored = self.objects.read(key)
            etag = stored.etag
            if stored.data == data:
                self._put[key] = data
                return
            self._keep_strange(key, stored.data)
        except ObjectMissing:
            pass
        try:
            self.objects.replace(key, data, etag)
        except ObjectConflict:
            if self.objects.read(key).data != data:
                raise
        self._put[key] = data

    def _keep_strange(self, key: str, data: bytes) -> None:
        """Raises NewerFormat for a copy of a newer version; sets a damaged or foreign one aside."""
        try:
            if key.endswith(f"/{paths.TOPIC_SETTINGS}"):
                topic_file.decode(data)
            elif key.endswith(f"/{paths.TOPIC_SCHEMAS}"):
                topic_schemas.decode(data)
            elif paths.archived_group(key) is not None:
                group_copy.decode(data)
            elif key.endswith(f"/{paths.base_name(paths.COMMITTED_OFFSETS)}"):
                committed_offsets.check(data)
        except NewerFormat as error:
            raise error.at_path(f"{self.objects.url}/{key}") from error
        except CorruptData:
            aside = f"{paths.QUARANTINE}/{key}.{zlib.crc32(data):08x}"
            with contextlib.suppress(ObjectConflict):  # it was kept before
                self.objects.replace(aside, data, None)
