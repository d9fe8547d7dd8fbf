"""Where a store's cold directory is, as the data directory remembers it (`meta/cold.json`).

A store remembers its cold directory before the first segment moves there. Every other way into the
data directory (readers, commands, Spark's workers) then finds it by itself: records that lie there
are not reported as lost because one of them was not given `cold.dir`.

Rules.
1. A cold directory that is remembered and not there is away, not empty: nothing is read or
   recovered without it.
2. A copy of the data directory remembers the original's. It may read there; it writes there only
   when somebody names it.
3. Another directory is accepted in its place when it has the store's mark (it was moved), or when
   there is nothing in the first one.
"""

from __future__ import annotations

from dataclasses import replace

from lamina.config import WalSettings
from lamina.errors import CorruptData, InvalidRequest, NewerFormat
from lamina.formats.documents import cold_location as location_file
from lamina.formats.documents.cold_location import ColdLocation
from lamina.formats.documents.flips import one_flip_away
from lamina.storage import paths
from lamina.storage.files import Files

MARKER = paths.base_name(paths.BROKER_ID)
"""The file in a cold directory that identifies the store it belongs to: see `ownership`."""
_NAME_IT = "name the cold directory (cold.dir, TOPICS_COLD_DIR)"


def recalled(files: Files, data: str, settings: WalSettings, *, writes: bool) -> WalSettings:
    """Returns settings in which the cold directory is named, if one is given or remembered.

    Raises InvalidRequest for one that cannot be the store's, CorruptData where none is given and
    what is remembered cannot be read.
    """
    named = paths.absolute(settings.cold_directory) if settings.cold_directory else None
    try:
        known = remembered(files, data)
    except NewerFormat:
        raise
    except (CorruptData, OSError):
        if named is None:
            raise
        return settings
    if known is None or known.path == named:
        return settings
    if named is not None:
        _refuse_other(files, known.path, named)
        return settings
    if writes and known.data != paths.absolute(data):
        raise InvalidRequest(
            f"{data} was copied or moved from {known.data}, whose cold directory is {known.path}:"
            f" {_NAME_IT}, that one if it is still this store's own, or a copy of it"
        )
    return replace(settings, cold_directory=known.path)


def remembered(files: Files, data: str) -> ColdLocation | None:
    """Returns what a data directory remembers; raises CorruptData where that cannot be read."""
    path = paths.join(data, paths.COLD_LOCATION)
    if not files.exists(path):
        return None
    raw = files.read(path)
    try:
        return location_file.decode(raw)
    except NewerFormat as error:
        raise error.at_path(path) from error
    except CorruptData as error:
        found = one_flip_away(raw, location_file.decode)
        if found is not None:
            return found
        raise CorruptData(
            f"where the cold directory is cannot be read ({error.problem}): {_NAME_IT}; opened for"
            " writing, the store remembers it again",
            path=path,
            position=error.position,
        ) from error


def has_segments(files: Files, root: str) -> bool:
    """Returns whether a cold directory holds anything of any topic."""
    if not files.is_directory(root):
        return False
    return any(paths.wal_topic_id(name) is not None for name in files.list(root))


def is_there(files: Files, root: str) -> bool:
    """Returns whether a directory is a cold directory that was used: marked, or with segments."""
    return files.exists(paths.join(root, MARKER)) or has_segments(files, root)


def _refuse_other(files: Files, known: str, named: str) -> None:
    is_empty = files.is_directory(known) and not has_segments(files, known)
    if not is_empty and not files.exists(paths.join(named, MARKER)):
        raise InvalidRequest(
            f"the store's cold directory is {known}, and {named} has not its segments: move them"
            f" there with {MARKER}, or name the former"
        )
