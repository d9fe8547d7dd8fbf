"""From where a log is to something that can be planned over."""

from __future__ import annotations

from lamina.errors import InvalidRequest
from lamina.spark.access import ArchiveAccess
from lamina.spark.logs.archived_log import LogArchive
from lamina.spark.logs.directory_log import LogDirectory
from lamina.spark.logs.served_log import LogServer
from lamina.spark.options import SourceOptions
from lamina.spark.plan import Log
from lamina.storage import machine, paths


def open_log(options: SourceOptions) -> Log:
    """Opens what the options name: a server, an object store, an archive, or a data directory."""
    where, selection = options.where, options.selection
    names = None
    if selection.pattern is None:
        names = sorted({*selection.topics, *selection.assigned})
    if where.server is not None:
        return LogServer(where.server, where.archive, names)
    if where.path is None:
        if where.archive is None:
            raise InvalidRequest("give a path or a server")
        return LogArchive(where.archive, names)
    if is_archive(where.path):
        return LogArchive(ArchiveAccess(where.path), names)
    return LogDirectory(where.path, where.archive)


def is_archive(path: str) -> bool:
    """Returns whether a directory is an archive; a data directory has a broker.id."""
    is_data = machine.exists(paths.join(path, paths.BROKER_ID))
    return not is_data and machine.is_directory(paths.join(path, paths.ARCHIVE))
