"""The archive's copies: of small files whose local one is damaged, and of records (by its list)."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.archive.object_list import Shelf
from lamina.errors import CorruptData, InvalidRequest, NewerFormat, ObjectMissing, Unavailable
from lamina.formats.documents import group_copy, topic_file, topic_schemas
from lamina.formats.documents import ledger as ledger_file
from lamina.formats.documents.ledger import Ledger
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.ranges import Span
from lamina.log.spares import SpareGroup, SpareOffsets, SpareSchemas
from lamina.storage import paths
from lamina.storage.objects import Objects


@dataclass(frozen=True, slots=True)
class ArchiveSpares:
    """Copies in an archive; none of what is missing there, damaged, or cannot be reached now.

    `is_own` is set if the log's records went to this archive, as far as is known. What another
    archive does not hold is not lost because of that.
    """

    objects: Objects
    is_own: bool = True

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

    def schemas(self, topic: str) -> SpareSchemas:
        """Returns the copy of a topic's schemas; of a newer version it is no use."""
        try:
            raw = self.objects.read(paths.archive_topic_schemas(topic)).data
            return SpareSchemas(topic_schemas.decode(raw))
        except ObjectMissing:
            return SpareSchemas()
        except Unavailable as error:
            return SpareSchemas(problem=f"the archive cannot be read now ({error})")
        except NewerFormat:
            return SpareSchemas(problem="the archive's copy was written by a newer version")
        except CorruptData as error:
            return SpareSchemas(problem=f"the archive's copy is damaged ({error.problem})")

    def ledger(self, topic: str, partition: int) -> Ledger | None:
        """Returns the copy of a partition's ledger, if there is a sound one."""
        raw = self._read(paths.archive_ledger(topic, partition))
        try:
            return ledger_file.decode(raw) if raw is not None else None
        except NewerFormat:
            raise
        except CorruptData:
            return None

    def spans(self, about: TopicFile, partition: int) -> list[Span] | None:
        """Returns which offsets the listed objects span; None if the archive does not answer now.

        The archive of another topic of this name has nothing of this one.
        """
        if not self.is_own:
            return None
        try:
            listed = Shelf(self.objects, about, partition).load().objects
        except (Unavailable, CorruptData):
            return None
        except InvalidRequest:
            return []
        return [(each.base_offset, each.next_offset) for each in listed]

    def group(self, topic: str, partition: int, group: str) -> SpareGroup:
        """Returns the copy of a group's state in a partition; of a newer version it is no use."""
        try:
            raw = self.objects.read(paths.archive_group(topic, partition, group)).data
            return SpareGroup(group_copy.decode(raw))
        except ObjectMissing:
            return SpareGroup()
        except Unavailable as error:
            return SpareGroup(problem=f"the archive cannot be read now ({error})")
        except NewerFormat:
            return SpareGroup(problem="the archive's copy was written by a newer version")
        except CorruptData as error:
            return SpareGroup(problem=f"the archive's copy is damaged ({error.problem})")

    def groups(self, topic: str, partition: int) -> list[str] | None:
        """Lists the groups of a partition that have a copy; None if that cannot be known now."""
        prefix = f"{paths.archive_partition(topic, partition)}/{paths.ARCHIVE_STATE}"
        try:
            found = [paths.archived_group(info.key) for info in self.objects.list(prefix)]
        except Unavailable:
            return None
        return [parsed[2] for parsed in found if parsed is not None]

    def offsets(self, topic: str, partition: int) -> SpareOffsets | None:
        """Returns the copy of what classic groups have committed in a partition."""
        try:
            return SpareOffsets(self.objects.read(paths.archive_offsets(topic, partition)).data)
        except ObjectMissing:
            return SpareOffsets()
        except Unavailable as error:
            return SpareOffsets(problem=f"the archive cannot be read now ({error})")

    def _read(self, key: str) -> bytes | None:
        try:
            return self.objects.read(key).data
        except Unavailable:
            return None
