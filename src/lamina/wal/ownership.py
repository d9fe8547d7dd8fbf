"""Which store a cold directory belongs to: topic ids are small numbers that every store uses.

    <cold.dir>/broker.id     a copy of the owner's, written before its first segment

Rules.
1. Nothing is moved to, removed from or read from a directory that holds another store's identity,
   and nothing is opened without one that the store remembers (`cold_location`).
2. A directory without one, as older releases left it, is adopted by the first store that opens it
   for writing and has claimed every topic id in it. Readers change nothing, and adopt nothing.
"""

from __future__ import annotations

from lamina.api import BrokerId
from lamina.errors import CorruptData, NewerFormat, Unavailable
from lamina.formats.documents import broker_id
from lamina.formats.documents import cold_location as location_file
from lamina.formats.documents.cold_location import ColdLocation
from lamina.storage import paths
from lamina.storage.bad_pages import is_unreadable
from lamina.wal import cold_recall
from lamina.wal.cold_recall import MARKER
from lamina.wal.ground import Ground

LOCK = "lock"


def check(ground: Ground) -> bool:
    """Returns whether a cold directory is known to be ours; raises CorruptData for another's.

    Raises Unavailable for one that the store remembers and that is not there.
    """
    root = ground.cold_root
    if root is None:
        return False
    if not ground.files.exists(paths.join(root, MARKER)):
        _refuse_away(ground, root)
        return False
    theirs = _identity(ground, paths.join(root, MARKER))
    ours = _identity(ground, paths.join(ground.data, paths.BROKER_ID))
    if theirs.uuid == ours.uuid:
        return True
    raise CorruptData(
        f"the cold directory is another store's: name one of its own for {ground.data} (cold.dir,"
        " TOPICS_COLD_DIR); or, if its segments are this store's, remove this file",
        path=paths.join(root, MARKER),
        expected=str(ours.uuid),
        found=str(theirs.uuid),
    )


def _refuse_away(ground: Ground, root: str) -> None:
    known = cold_recall.remembered(ground.files, ground.data)
    if known is None or known.path != root or cold_recall.is_there(ground.files, root):
        return
    raise Unavailable(
        f"the cold directory {root} is not there: mount it, or name where it is now (cold.dir,"
        f" TOPICS_COLD_DIR); to go on without what it holds, remove {paths.COLD_LOCATION}"
    )


def remember(ground: Ground) -> None:
    """Keeps where the cold directory is, durably, if that is not known yet."""
    root = ground.cold_root
    assert root is not None, "there is one"
    wanted = ColdLocation(root, paths.absolute(ground.data))
    path = paths.join(ground.data, paths.COLD_LOCATION)
    try:
        if cold_recall.remembered(ground.files, ground.data) == wanted:
            return
    except NewerFormat:
        raise
    except CorruptData:
        ground.quarantine(path)
    except OSError as error:
        if is_unreadable(error):  # it may be read another time
            return
        raise
    ground.files.replace(path, location_file.encode(wanted))


def adopt(ground: Ground, next_topic_id: int) -> None:
    """Takes over a directory that holds segments and nobody's identity, if they can be ours."""
    root = ground.cold_root
    if root is None:
        return
    if check(ground):
        remember(ground)
        return
    held = {paths.wal_topic_id(name): name for name in ground.files.list(root)}
    held.pop(None, None)
    strange = sorted(name for number, name in held.items() if (number or 0) >= next_topic_id)
    if strange:
        raise CorruptData(
            f"the cold directory holds segments of topics that {ground.data} has never had: name"
            " one of its own (cold.dir, TOPICS_COLD_DIR), or move them away",
            path=paths.join(root, strange[0]),
        )
    if held:
        claim(ground)


def claim(ground: Ground) -> None:
    """Makes sure that a cold directory is ours before anything is written to it."""
    root = ground.cold_root
    if root is None or check(ground):
        return
    ground.files.make_directory(root)
    lock = ground.files.lock(paths.join(root, LOCK), ground.data)
    try:
        if not check(ground):
            own = ground.files.read(paths.join(ground.data, paths.BROKER_ID))
            ground.files.replace(paths.join(root, MARKER), own)
    finally:
        lock.release()
    remember(ground)


def _identity(ground: Ground, path: str) -> BrokerId:
    try:
        return broker_id.decode(ground.files.read(path))
    except CorruptData as error:
        raise error.at_path(path) from error
