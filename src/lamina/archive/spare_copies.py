"""The archive's copies of small files, for those whose local one is damaged."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.errors import CorruptData, NewerFormat, Unavailable
from lamina.formats.documents import ledger as ledger_file
from lamina.formats.documents import topic_file
from lamina.formats.documents.ledger import Ledger
from lamina.formats.documents.topic_file import TopicFile
from lamina.storage import paths
from lamina.storage.objects import Objects


@dataclass(frozen=True, slots=True)
class ArchiveSpares:
    """Copies in an archive; none of what is missing there, damaged, or cannot be reached now."""

    objects: Objects

    def topic(self, name: str) -> TopicFile | None:
        """Returns the copy of a topic's file, if there is a sound one of a topic that lives."""
        raw = self._read(paths.archive_topic_settings(name))
        try:
            found = topic_file.decode(raw) if raw is not None else None
        except NewerFormat:
            raise
        except CorruptData:
            return None
        return None if found is None or found.deleted else found

    def ledger(self, topic: str, partition: int) -> Ledger | None:
        """Returns the copy of a partition's ledger, if there is a sound one."""
        raw = self._read(paths.archive_ledger(topic, partition))
        try:
            return ledger_file.decode(raw) if raw is not None else None
        except NewerFormat:
            raise
        except CorruptData:
            return None

    def _read(self, key: str) -> bytes | None:
        try:
            return self.objects.read(key).data
        except Unavailable:
            return None
