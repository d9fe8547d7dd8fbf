"""Where a store's archive is, as the data directory remembers it (`meta/archive.json`).

A store that is opened for writing remembers the archive that it was given. Every other way into the
directory (readers, commands, jobs, a server) then finds it by itself: all of them call
`remembered`.

Rules.
1. A file here that cannot be read never keeps a directory from being opened.
2. Only the location is kept, never credentials.
"""

from __future__ import annotations

import logging

from lamina.config import ARCHIVE_VARIABLE
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents import archive_location as location_file
from lamina.log.directory import Place
from lamina.storage import paths
from lamina.storage.files import Files

_log = logging.getLogger(__name__)


def is_path(archive: str) -> bool:
    """Returns whether an archive is named by a path (also as `file://`) and not by another URL."""
    return "://" not in archive or archive.startswith("file://")


def location_of(archive: str) -> str:
    """Returns the one name of an archive: an absolute path, or a URL without credentials."""
    if is_path(archive):
        return paths.absolute(archive.removeprefix("file://"))
    scheme, _, rest = archive.partition("://")
    host, slash, prefix = rest.partition("/")
    if ":" in host and "@" not in host:  # a secret with a slash in it
        rest = rest.rpartition("@")[2]
    else:
        rest = f"{host.rpartition('@')[2]}{slash}{prefix}"
    return f"{scheme}://{rest}".rstrip("/")


def remembered(files: Files, data: str) -> str | None:
    """Returns the archive that a data directory remembers; None if it has none, or no sound file.

    What is wrong with a file that cannot be read is logged; `recalled` returns it.
    """
    found, problem = recalled(files, data)
    if problem:
        _log.warning("%s", problem)
    return found


def recalled(files: Files, data: str) -> tuple[str | None, str]:
    """Returns what a data directory remembers, and what is wrong with the file, if anything is."""
    path = paths.join(data, paths.ARCHIVE_LOCATION)
    try:
        if not files.exists(path):
            return None, ""
        return location_file.decode(files.read(path)).url, ""
    except (CorruptData, OSError) as error:
        kind = "is of a newer version" if isinstance(error, NewerFormat) else "cannot be read"
        return None, (
            f"{path}: the archive's location {kind} ({error}); name the archive by `archive` or"
            f" {ARCHIVE_VARIABLE}: opened for writing, the store remembers it again"
        )


def remember(files: Files, data: str, location: str) -> None:
    """Keeps where the archive is, durably; raises OSError.

    A file that a newer version wrote stays as it is; of one that is damaged, or somebody else's, a
    copy is set aside first.
    """
    path = paths.join(data, paths.ARCHIVE_LOCATION)
    if files.exists(path):
        raw = files.read(path)
        try:
            location_file.decode(raw)
        except NewerFormat:
            return
        except CorruptData:
            Place(files, data, "", 0, lambda: 0).set_aside(path, raw, 0)
    if is_path(location):  # from now on a directory that is not there is away, not empty
        files.make_directory(location)
    encoded = location_file.encode(location_file.ArchiveLocation(location))
    files.replace(path, encoded)
