"""Objects in the archive that belong to nothing: found, and removed when somebody asks for it.

A crash between upload and list, or between list and deletion, leaves an object that is not served.
It costs money, and nothing else. One that is younger than an hour may be an upload under way.
The archive of a deleted topic belongs to nothing either. The file that marks it goes last: without
it what is left would look like a topic.
"""

from __future__ import annotations

from collections.abc import Iterator

from lamina.engine.tier.archive_store import archived_topic, archived_topics
from lamina.engine.tier.shelf import Shelf
from lamina.errors import ObjectMissing
from lamina.formats import archive
from lamina.formats.topic import TopicFile
from lamina.storage import paths
from lamina.storage.objects import ObjectInfo, Objects

AGE_MS_MIN = 3_600_000


def orphans(objects: Objects, now_ms: int, age_ms_min: int = AGE_MS_MIN) -> list[ObjectInfo]:
    """Lists staged uploads, segments that no list names and deleted topics, older than an age."""
    found = [*objects.list(paths.STAGING)]
    for name, about in archived_topics(objects).items():
        for partition in range(about.partitions):
            found += _unlisted(objects, name, partition)
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


def _unlisted(objects: Objects, name: str, partition: int) -> Iterator[ObjectInfo]:
    """Yields what the list does not name; nothing without a good list: that is to be rebuilt."""
    try:
        manifest = archive.decode(objects.read(paths.archive_manifest(name, partition)).data)
    except ObjectMissing:
        return
    listed = {(entry.base_offset, entry.generation) for entry in manifest.objects}
    for info in objects.list(paths.archive_partition(name, partition)):
        key = paths.object_key(info.key)
        if key is not None and (key.base_offset, key.generation) not in listed:
            yield info


def clean(objects: Objects, found: list[ObjectInfo]) -> None:
    """Removes orphans."""
    for info in found:
        objects.delete(info.key)


def rebuild(objects: Objects, topic: str) -> int:
    """Makes the lists of a topic again from the objects' headers; returns how many objects."""
    about = archived_topic(objects, topic, 1)
    count = 0
    for partition in range(about.partitions):
        shelf = Shelf(objects, about, partition)
        shelf.replace_by_rebuilt()
        count += len(shelf.manifest.objects)
    return count
