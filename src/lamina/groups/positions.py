"""Positions of readers that have no store: left as small files, taken over by the writer.

A streaming query reads a directory without a lock, so it can change nothing of a group. It leaves
a file (`positions/of-<group>.json`), replaced after each batch. The store takes such files over
when it is opened and at every tick: the group is made if it is new, what was read is committed.

Rules.
1. A file is taken by renaming it, committed, and only then removed: whatever is killed, a position
   is committed at least once, and to commit one twice is the same as once.
2. A position never moves a group back, nor beyond the durable end, and counts only for the topic
   that it was read from, which its epoch identifies.
3. A file is used once: a group that is reset or deleted afterwards stays so until the reader
   leaves the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from lamina.errors import CorruptData
from lamina.formats.documents import position_file as position
from lamina.formats.documents.position_file import Position, TopicPosition
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.keratin.delta import Event
from lamina.groups.state import State, events_of
from lamina.log.data_directory import DataDirectory
from lamina.storage import paths
from lamina.storage.files import Files

Commit: TypeAlias = Callable[[TopicFile, str, int, int], None]
"""Takes a topic, a group, a partition and an offset."""


def leave(files: Files, data: str, left: Position) -> None:
    """Leaves a position for the store, in one atomic step."""
    path = paths.join(data, paths.position_file(left.group))
    files.make_directory(paths.parent(path))
    files.replace(path, position.encode(left))


def pending(boot: DataDirectory) -> Iterator[Position]:
    """Yields the positions that no store has taken over yet, changing nothing."""
    folder = boot.path(paths.POSITIONS)
    for name in boot.files.list(folder):
        if paths.position_group(name.removesuffix(paths.POSITION_TAKEN)) is not None:
            found = _read(boot.files, paths.join(folder, name))
            if found is not None:
                yield found


def part_of(left: Position, about: TopicFile) -> TopicPosition | None:
    """Returns a position's offsets in a topic: in this very one, not another of its name."""
    same = (about.name, about.epoch)
    return next((each for each in left.topics if (each.topic, each.epoch) == same), None)


def left_in(boot: DataDirectory, about: TopicFile, group: str) -> list[TopicPosition]:
    """Returns what was left of a group's position in a topic, changing nothing."""
    found = [part_of(each, about) for each in pending(boot) if each.group == group]
    return [part for part in found if part is not None]


def advanced(state: State, left: list[TopicPosition], partition: int) -> State:
    """Returns a state as it will be when the store has taken over what was left."""
    for part in left:
        until = part.offsets.get(partition, 0)
        state = state.apply(events_of(Event.BUMP_ACKED_UNTIL, until))
    return state


def take_over(boot: DataDirectory, topics: Mapping[str, TopicFile], commit: Commit) -> None:
    """Commits every position that was left."""
    folder = boot.path(paths.POSITIONS)
    for name in boot.files.list(folder):
        if paths.position_group(name.removesuffix(paths.POSITION_TAKEN)) is None:
            continue
        path = paths.join(folder, name)
        taken = path if name.endswith(paths.POSITION_TAKEN) else path + paths.POSITION_TAKEN
        if taken != path:
            boot.files.rename(path, taken)
        found = _read(boot.files, taken)
        if found is not None:
            _commit(found, topics, commit)
        boot.files.remove(taken)
        boot.files.sync_directory(folder)  # a position that returns would move the group back


def _commit(left: Position, topics: Mapping[str, TopicFile], commit: Commit) -> None:
    for about in list(topics.values()):
        part = part_of(left, about)
        for partition, offset in part.offsets.items() if part is not None else ():
            if partition < about.partitions:
                commit(about, left.group, partition, offset)


def _read(files: Files, path: str) -> Position | None:
    """Reads a position; a damaged one is ignored, and the next one will replace it."""
    try:
        return position.decode(files.read(path))
    except (FileNotFoundError, CorruptData):
        return None
