"""What a cluster's log says of each topic: its windows, applied one after the other.

The first window of an epoch, and the first one above the boundary, hold a copy of every small file
and every remembered producer. So nothing before it is needed but the archived records.

Rules.
1. A later section wins. A topic whose epoch has changed starts empty.
2. Records may be repeated: those below the known end are the same ones.
3. Nothing here reads or writes, except for `adopted`, which reads the copies in an archive that no
   cluster has written to yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lamina.errors import CorruptData, ObjectMissing
from lamina.formats import producer_journal
from lamina.formats.documents import topic_file
from lamina.formats.documents.topic_file import UNKNOWN_MS, TopicFile
from lamina.formats.producer_journal import Entry
from lamina.formats.strm import segment as strm_segment
from lamina.formats.tail_file import Kind, Section, Tail
from lamina.records import OUTPUT_SCHEMAS
from lamina.storage import paths
from lamina.storage.objects import Objects
from lamina.store.archive_store import archived_topics


@dataclass(slots=True)
class PartHistory:
    """One partition: its records above the archive, oldest first, and its producers' batches."""

    records: list[Section] = field(default_factory=list)
    producers: dict[tuple[int, int, int], Entry] = field(default_factory=dict)

    @property
    def end_offset(self) -> int:
        """One past the last offset that a window holds; 0 for none."""
        return max((each.next_offset for each in self.records), default=0)

    def add_producers(self, body: bytes) -> None:
        """Adds entries of the journal; the newest entry of a batch is the last one."""
        for entry in producer_journal.decode(body):
            key = entry.producer_id, entry.epoch, entry.sequence
            self.producers.pop(key, None)
            self.producers[key] = entry


@dataclass(slots=True)
class TopicHistory:
    """One topic: its file, the copies beside it by their keys, and its partitions."""

    about: TopicFile
    copies: dict[str, bytes] = field(default_factory=dict)
    parts: dict[int, PartHistory] = field(default_factory=dict)

    def part(self, number: int) -> PartHistory:
        """Returns what is known of a partition."""
        return self.parts.setdefault(number, PartHistory())


@dataclass(slots=True)
class History:
    """All topics by name, deleted ones too: their epochs must not be used again."""

    topics: dict[str, TopicHistory] = field(default_factory=dict)
    copies: dict[str, bytes] = field(default_factory=dict)
    """Small files of the whole store, by their paths in its directory."""
    is_begun: bool = False
    """Whether any window says something; if none does, the archive's own copies count."""

    def alive(self) -> list[TopicHistory]:
        """Returns the topics that are there, by name."""
        return [each for _, each in sorted(self.topics.items()) if not each.about.deleted]

    def apply(self, tail: Tail) -> None:
        """Applies one window."""
        for section in tail.sections:
            self.is_begun = True
            if section.kind == Kind.COPY:
                self._copy(section)
                continue
            topic = self.topics.get(section.name)
            if topic is None:
                raise CorruptData(
                    "a window holds records of a topic that no window describes",
                    path=paths.tail(tail.seq),
                    found=section.name,
                )
            part = topic.part(section.partition)
            if section.kind == Kind.RECORDS:
                part.records.append(section)
            else:
                part.add_producers(section.body)

    def _copy(self, section: Section) -> None:
        if section.name == paths.GROUP_SETTINGS:
            self.copies[section.name] = section.body
        name = paths.archived_topic(section.name)
        if name is None:
            return
        if section.name == paths.archive_topic_settings(name):
            about = topic_file.decode(section.body)
            known = self.topics.get(name)
            if known is None or about.deleted or not is_same(known.about, about):
                self.topics[name] = TopicHistory(about)
            else:
                known.about = about
        elif name in self.topics:
            self.topics[name].copies[section.name] = section.body


def is_same(known: TopicFile, about: TopicFile) -> bool:
    """Returns whether two files are of one life of a topic."""
    return (known.epoch, known.created_ms) == (about.epoch, about.created_ms)


def history_of(tails: Iterable[Tail]) -> History:
    """Applies windows in order."""
    history = History()
    for tail in tails:
        history.apply(tail)
    return history


def adopted(objects: Objects) -> History:
    """Returns what an archive's own copies say: one that no cluster has written to yet."""
    history = History()
    for about in (
        *archived_topics(objects).values(),
        *archived_topics(objects, deleted=True).values(),
    ):
        if about.created_ms == UNKNOWN_MS:
            raise CorruptData(
                "the archive has objects of a topic, and no sound topic.json of it;"
                " `lamina tier restore` brings back what there is",
                path=f"{objects.url}/{paths.archive_topic_settings(about.name)}",
            )
        topic = history.topics[about.name] = TopicHistory(replace(about, topic_ids=[]))
        if not about.deleted:
            topic.copies = dict(_copies(objects, about))
    return history


def _copies(objects: Objects, about: TopicFile) -> Iterator[tuple[str, bytes]]:
    keys = [paths.archive_topic_schemas(about.name)]
    for number in range(about.partitions):
        prefix = f"{paths.archive_partition(about.name, number)}/{paths.ARCHIVE_STATE}"
        keys += sorted(info.key for info in objects.list(prefix))
    for key in keys:
        try:
            yield key, objects.read(key).data
        except ObjectMissing:
            continue


def batches_of(section: Section, format_name: str, start: int = 0) -> Iterator[pa.RecordBatch]:
    """Yields the records of a section from an offset on, with the columns of a topic's format."""
    if section.body:
        names = OUTPUT_SCHEMAS[format_name].names
        for batch in strm_segment.read_from(section.body, start):
            if batch.num_rows:
                yield batch.select(names)
