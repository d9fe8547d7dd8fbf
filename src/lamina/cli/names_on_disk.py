"""The names of a directory's topics and groups, from its small documents alone.

A shell asks for them at every press of a key: so neither the storage engine nor its kernels are
loaded, and nothing is locked. It is an offer, no answer: what is damaged is offered by its name.
"""

from __future__ import annotations

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents import group_roster, topic_file
from lamina.formats.documents.topic_file import TopicFile
from lamina.storage import paths
from lamina.storage.files import LocalFiles


def topics_in(data: str) -> list[str]:
    """Returns the names of the topics of a directory, sorted."""
    return sorted(_topics(LocalFiles(), data))


def groups_in(data: str) -> list[str]:
    """Returns the names of the groups of a directory, sorted; each once."""
    files = LocalFiles()
    topics = _topics(files, data)
    parsed = map(paths.group_file, files.list(paths.join(data, paths.GROUPS)))
    found = {each.group for each in parsed if each is not None and each.topic in topics}
    for listed in _listed(files, data):
        about = topics.get(listed.topic)
        if about is not None and about.epoch == listed.epoch:
            found.add(listed.group)
    return sorted(found)


def _topics(files: LocalFiles, data: str) -> dict[str, TopicFile | None]:
    """Returns the topics that are not deleted; None for one whose document is damaged."""
    found: dict[str, TopicFile | None] = {}
    for name in files.list(paths.join(data, paths.TOPICS)):
        try:
            raw = files.read(paths.join(data, paths.TOPICS, name, paths.TOPIC_SETTINGS))
            about = topic_file.decode(raw)
        except (CorruptData, NewerFormat):
            found[name] = None
        except OSError:  # a topic that is being made, or is none
            continue
        else:
            if not about.deleted:
                found[name] = about
    return found


def _listed(files: LocalFiles, data: str) -> list[group_roster.Listed]:
    try:
        return group_roster.decode(files.read(paths.join(data, paths.ROSTER)))
    except (CorruptData, NewerFormat, OSError):  # a group's own files name it, too
        return []
