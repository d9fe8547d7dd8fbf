"""Objects in the archive that belong to nothing: found, and removed on request.

A crash between upload and list, or between list and deletion, leaves an object that is not served.
It costs money, and nothing else. One that is younger than an hour may be an upload under way.
The archive of a deleted topic belongs to nothing either. The file that marks it goes last: without
it what is left would look like a topic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lamina.archive.object_list import Shelf
from lamina.errors import CorruptData, InvalidRequest, NewerFormat, ObjectMissing
from lamina.formats.documents import archive_manifest as archive
from lamina.formats.documents.ledger import REMOVED, Ledger
from lamina.formats.documents.topic_file import UNKNOWN_MS, TopicFile
from lamina.storage import paths
from lamina.storage.objects import ObjectInfo, Objects
from lamina.store.archive_store import archived_topics

AGE_MS_MIN = 3_600_000


def orphans(objects: Objects, now_ms: int, age_ms_min: int = AGE_MS_MIN) -> list[ObjectInfo]:
    """Lists staged uploads, segments that no list names and deleted topics, older than an age."""
    found = [*objects.list(paths.STAGING)]
    for about in archived_topics(objects).values():
        for partition in range(about.partitions):
            found += _unlisted(objects, about, partition)
    old = [info for info in found if now_ms - info.modified_ms >= age_ms_min]
    for about in archived_topics(objects, deleted=True).values():
        old += _deleted(objects, about, now_ms - age_ms_min)
    return old


def _deleted(objects: Objects, about: TopicFile, until_ms: int) -> list[ObjectInfo]:
    """Lists what is left of a deleted topic, its mark last, and only if nothing else stays."""
    mark = paths.archive_topic_settings(about.name)
    found = [
        info for info in objects.list(paths.ARCHIVE) if paths.archived_topic(info.key) == about.name
    ]
    old = [info for info in found if info.modified_ms <= until_ms]
    if len(old) < len(found):
        return [info for info in old if info.key != mark]
    return sorted(old, key=lambda info: info.key == mark)


def _unlisted(objects: Objects, about: TopicFile, partition: int) -> Iterator[ObjectInfo]:
    """Yields what the list does not name; nothing without a good list: that is to be rebuilt.

    One that was replaced counts as old as its replacement: readers may have an older list. One that
    is damaged, or holds what the list does not span, is not an orphan: it may be the only copy.
    """
    shelf = Shelf(objects, about, partition)
    try:
        stored = objects.read(paths.archive_manifest(about.name, partition))
        manifest = archive.decode(stored.data)
    except NewerFormat:
        raise
    except (ObjectMissing, CorruptData):
        return
    known, judge = shelf.read_ledger(), shelf.judge()
    gaps = Ledger(tuple(gap for gap in known.gaps if gap.reason in REMOVED))
    keys = [shelf.key_of(entry) for entry in manifest.objects]
    there = {info.key: info for info in shelf.listed()}
    bases = [entry.base_offset for entry in manifest.objects]
    for info in there.values():
        key = paths.object_key(info.key)
        if key is None or info.key in keys:
            continue
        if key.base_offset < manifest.end_offset:  # what is above was never listed: a log has it
            judged = judge.judge(info)
            entry = judged.entry if judged is not None and not judged.problem else None
            if entry is None or not archive.covers(
                manifest.objects, gaps, entry.base_offset, entry.next_offset
            ):
                continue
        row = bisect_right(bases, key.base_offset) - 1
        instead = there.get(keys[row]) if row >= 0 else None
        modified_ms = max(info.modified_ms, instead.modified_ms if instead else 0)
        yield replace(info, modified_ms=modified_ms)


def clean(objects: Objects, found: list[ObjectInfo]) -> None:
    """Removes orphans."""
    for info in found:
        objects.delete(info.key)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """How many objects a topic's lists name now, and what is wrong: (key, problem)."""

    objects: int
    problems: tuple[tuple[str, str], ...]


def rebuild(objects: Objects, topic: str) -> Rebuilt:
    """Makes the lists of a topic again from the objects' headers.

    Damaged objects stay listed, with what is known of them: what is left in them is read, and
    they are not mistaken for orphans. Raises InvalidRequest for a topic that is not archived.
    """
    about = archived_topics(objects).get(topic)
    if about is None:
        raise InvalidRequest(f"{objects.url} has no topic {topic!r}")
    count, problems = 0, []
    if about.created_ms == UNKNOWN_MS:
        problems.append((paths.archive_topic_settings(topic), "it is damaged or gone"))
    for partition in range(about.partitions):
        shelf = Shelf(objects, about, partition)
        shelf.replace_by_rebuilt()
        count += len(shelf.manifest.objects)
        problems += shelf.problems
    return Rebuilt(count, tuple(problems))
