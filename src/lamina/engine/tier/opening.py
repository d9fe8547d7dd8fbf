"""From what a user calls an archive to an object store: a URL, a path, or one that is open."""

from __future__ import annotations

import os
from typing import TypeAlias

from lamina.config import ARCHIVE_VARIABLE
from lamina.storage.files import Files, LocalFiles
from lamina.storage.object_directory import DirectoryObjects
from lamina.storage.objects import Objects, open_objects

Archive: TypeAlias = str | Objects | None


def open_archive(archive: Archive, files: Files | None = None) -> Objects | None:
    """Opens `s3://bucket/prefix`, `file:///path`, a path or `memory://`; None for none.

    Without an argument the environment's LAMINA_ARCHIVE is used.
    """
    chosen = os.environ.get(ARCHIVE_VARIABLE) if archive is None else archive
    if not chosen:
        return None
    if not isinstance(chosen, str):
        return chosen
    if "://" in chosen and not chosen.startswith("file://"):
        return open_objects(chosen)
    path = os.path.abspath(chosen.removeprefix("file://"))
    return DirectoryObjects(files or LocalFiles(), path)
