"""Moves sealed segments from the hot to the cold directory: copy, fsync, flip, remove.

    hot ──copy as .tmp, synced──▶ both ──rename, names synced──▶ published ──▶ hot copy removed

Rules.
1. A name in the cold directory is a whole file: its bytes are durable before it gets the name.
2. While both exist the hot one counts; so a crash at any step changes nothing that can be read.
   Opening a store removes what it left in the cold directory.
3. The newest `hot.segments` sealed segments stay, and the active one always does.
4. The directory is marked as this store's before the first file is written to it.
"""

from __future__ import annotations

from collections.abc import Container

from lamina.storage import paths
from lamina.storage.files import Files
from lamina.wal import ownership
from lamina.wal.ground import Ground
from lamina.wal.segments import Segment
from lamina.wal.topic import TopicState

_CHUNK_BYTES = 4 << 20


def due(ground: Ground, topic: TopicState) -> list[Segment]:
    """Returns the segments that should move, oldest first."""
    cold = ground.cold(topic.topic_id)
    if cold is None:
        return []
    sealed = [segment for segment in topic.layout.segments if segment.sealed]
    beyond = sealed[: max(0, len(sealed) - ground.settings.hot_segments)]
    return [segment for segment in beyond if segment.directory != cold]


def copy(ground: Ground, segment: Segment) -> Segment:
    """Makes the cold copy of a segment; the hot one is still there."""
    cold = ground.cold(segment.topic_id)
    assert cold is not None, "only with a cold directory anything is due"
    ownership.claim(ground)
    ground.files.make_directory(cold)
    moved = segment._replace(directory=cold)
    for suffix in ("idx", "data"):
        if ground.files.exists(segment.path(suffix)):
            _copy_file(ground, segment.path(suffix), moved.path(suffix))
    ground.files.sync_directory(cold)  # the copy is there for good before the original may go
    return moved


def clear(ground: Ground, topic_id: int, cold: str, names: Container[str]) -> None:
    """Removes what a crash left of moves: temporary files, and copies of what is hot still.

    Nothing would find them once the hot file is rewritten or removed, and then records that were
    erased would stay, or come back. A copy that is not the same as the hot file is left alone.
    """
    files, hot = ground.files, ground.hot(topic_id)
    gone = False
    for name in files.list(cold):
        path, twin = paths.join(cold, name), paths.join(hot, name)
        if name.endswith(paths.TEMPORARY_SUFFIX) or (name in names and _is_same(files, path, twin)):
            files.remove(path)
            gone = True
    if gone:
        files.sync_directory(cold)  # a copy that returns would bring erased records back


def _is_same(files: Files, path: str, other: str) -> bool:
    return files.size(path) == files.size(other) and files.read(path) == files.read(other)


def _copy_file(ground: Ground, source: str, target: str) -> None:
    files = ground.files
    temporary = target + paths.TEMPORARY_SUFFIX
    if files.exists(temporary):
        files.remove(temporary)
    origin = files.open_read_only(source)
    try:
        copied = files.create(temporary)
        try:
            position = 0
            while chunk := origin.read_at(position, _CHUNK_BYTES):
                copied.write_at(position, chunk)
                position += len(chunk)
            copied.sync()  # before the rename: a durable name must lead to all of its bytes
        finally:
            copied.close()
    finally:
        origin.close()
    files.rename(temporary, target)
    files.sync_directory(paths.parent(target))  # or a crash may leave the file under neither name
