"""What the archive keeps beside the records: topic file, ledger, and files such as group positions.

With these and the objects a topic can be read, and restored, on a machine that never saw it.

Rules.
1. `topic.json` and `ledger.json` are copies of the local files, byte for byte.
2. Other files are opaque: whoever owns them says what they are (`StateSource`), and a restore gives
   them back. The state of consumer groups is what is found in `groups/`.
3. A copy that a newer version wrote is refused, and stays: it may say what we cannot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from lamina.archive.object_list import Shelf
from lamina.errors import CorruptData, NewerFormat, ObjectConflict, ObjectMissing
from lamina.formats.documents import topic_file
from lamina.formats.documents.ledger import Ledger
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.keratin import delta, snapshot
from lamina.storage import paths
from lamina.storage.files import Files
from lamina.storage.objects import Objects

StateSource: TypeAlias = Callable[[str, int], Mapping[str, bytes]]
"""Gives the named files that belong to a (topic, partition)."""


def group_files(files: Files, data: str) -> StateSource:
    """Makes the source that reads the groups' files of a data directory.

    Deltas before snapshots: an old delta over a newer snapshot converges, the other way loses acks.
    """

    def read(topic_name: str, partition: int) -> Mapping[str, bytes]:
        folder = os.path.join(data, paths.GROUPS)
        found = {}
        for name in sorted(files.list(folder), key=lambda each: each.endswith("snap")):
            parsed = paths.group_file(name)
            if parsed and (parsed.topic, parsed.partition) == (topic_name, partition):
                try:
                    found[name] = files.read(os.path.join(folder, name))
                except FileNotFoundError:
                    continue
        return found

    return read


@dataclass(slots=True)
class Metadata:
    """Keeps the copies current; remembers what it has put so that nothing is put twice."""

    objects: Objects
    state: StateSource
    _put: dict[str, bytes] = field(default_factory=dict)
    _ledgers: dict[tuple[str, int], Ledger] = field(default_factory=dict)

    def save(self, shelf: Shelf, ledger: Ledger) -> None:
        """Saves what has changed of a partition."""
        about = shelf.about
        self.save_topic(about)
        if self._ledgers.get((about.name, shelf.partition)) != ledger:
            shelf.save_ledger(ledger)
            self._ledgers[about.name, shelf.partition] = ledger
        for name, data in self.state(about.name, shelf.partition).items():
            self._save(paths.archive_state(about.name, shelf.partition, name), data)

    def save_topic(self, about: TopicFile) -> None:
        """Saves a topic's own file, if it has changed; never a guess in place of a sound copy."""
        if about.created_ms == topic_file.UNKNOWN_MS:
            return
        self._save(paths.archive_topic_settings(about.name), topic_file.encode(about))

    def forget(self, topic_name: str, partition: int) -> None:
        """Has everything of a partition saved again, because a copy was found damaged."""
        self._put.clear()
        self._ledgers.pop((topic_name, partition), None)

    def mark_deleted(self, about: TopicFile) -> None:
        """Marks the archive of a deleted topic, if it has one: nobody is shown it any more."""
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
            self._refuse_newer(key, stored.data)
        except ObjectMissing:
            pass
        try:
            self.objects.replace(key, data, etag)
        except ObjectConflict:
            if self.objects.read(key).data != data:
                raise
        self._put[key] = data

    def _refuse_newer(self, key: str, data: bytes) -> None:
        """Raises NewerFormat for a copy of a newer version; a damaged one may be replaced."""
        try:
            if key.endswith(f"/{paths.TOPIC_SETTINGS}"):
                topic_file.decode(data)
            elif key.endswith(".snap"):
                snapshot.decode(data)
            elif key.endswith(".delta"):
                delta.decode_header(data)
        except NewerFormat as error:
            raise error.at_path(f"{self.objects.url}/{key}") from error
        except CorruptData:
            pass
