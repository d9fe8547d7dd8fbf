"""Whose a cold directory is: topic ids are small numbers, which any other store has as well.

    <cold.dir>/broker.id     a copy of the owner's, laid down before its first segment

Rules.
1. Nothing is moved to, removed from or read from a directory that holds another store's identity.
2. A directory without one, as older releases left it, is adopted by the first store that opens it
   for writing and has claimed every topic id in it. Readers change nothing, and adopt nothing.
"""

from __future__ import annotations

import errno
import os

from lamina.api import BrokerId
from lamina.errors import CorruptData
from lamina.formats.documents import broker_id
from lamina.storage import paths
from lamina.wal.ground import Ground

MARKER = os.path.basename(paths.BROKER_ID)
LOCK = "lock"


def check(ground: Ground) -> bool:
    """Tells whether a cold directory is known to be ours; raises CorruptData for another's."""
    root = ground.cold_root
    if root is None or not ground.files.exists(os.path.join(root, MARKER)):
        return False
    theirs = _identity(ground, os.path.join(root, MARKER))
    ours = _identity(ground, os.path.join(ground.data, paths.BROKER_ID))
    if theirs.uuid == ours.uuid:
        return True
    raise CorruptData(
        f"the cold directory is another store's: name one of its own for {ground.data} (cold.dir,"
        " TOPICS_COLD_DIR); or, if its segments are this store's, remove this file",
        path=os.path.join(root, MARKER),
        expected=str(ours.uuid),
        found=str(theirs.uuid),
    )


def adopt(ground: Ground, next_topic_id: int) -> None:
    """Takes over a directory that holds segments and nobody's identity, if they can be ours."""
    root = ground.cold_root
    if root is None or check(ground):
        return
    held = {paths.wal_topic_id(name): name for name in ground.files.list(root)}
    held.pop(None, None)
    strange = sorted(name for number, name in held.items() if (number or 0) >= next_topic_id)
    if strange:
        raise CorruptData(
            f"the cold directory holds segments of topics that {ground.data} has never had: name"
            " one of its own (cold.dir, TOPICS_COLD_DIR), or move them away",
            path=os.path.join(root, strange[0]),
        )
    if held:
        claim(ground)


def claim(ground: Ground) -> None:
    """Makes sure that a cold directory is ours before anything is laid into it."""
    root = ground.cold_root
    if root is None or check(ground):
        return
    ground.files.make_directory(root)
    lock = ground.files.lock(os.path.join(root, LOCK), ground.data)
    try:
        if not check(ground):
            own = ground.files.read(os.path.join(ground.data, paths.BROKER_ID))
            ground.files.replace(os.path.join(root, MARKER), own)
    finally:
        lock.release()


def _identity(ground: Ground, path: str) -> BrokerId:
    try:
        return broker_id.decode(ground.files.read(path))
    except CorruptData as error:
        raise error.at_path(path) from error
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise CorruptData(f"it cannot be read: {error}", path=path) from error
