"""The store that a job changes: one that a program has open, or a directory that the job opens.

A job that changes files is the writer's own: it runs in the process that holds the directory, next
to its appends, or it opens the directory itself. Where another process holds it, the job is refused
and nothing was touched; a broker archives by itself, and the other jobs wait until it is stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from lamina.archive.open_archive import Archive
from lamina.errors import Busy, InvalidRequest, Locked, UnknownTopic
from lamina.log.sealed import Archivable
from lamina.storage import machine, paths
from lamina.store.store import Store

NEVER_MS = 1 << 31


@contextlib.contextmanager
def held(target: Store | str, archive: Archive = None) -> Iterator[Store]:
    """Gives the open store, or opens the directory for as long as the job lasts.

    The archiver of a store that is opened here rests: the job does its work. Raises Busy where
    another process has the directory.
    """
    if isinstance(target, Store):
        if archive is not None:
            raise InvalidRequest("an open store has its archive already")
        yield target
        return
    path = paths.absolute(target)
    if not machine.is_directory(path):
        raise InvalidRequest(f"{path} is not a data directory")
    try:
        store = Store(path, archive=archive, tick_ms=NEVER_MS)
    except Locked as error:
        raise Busy(
            f"{error}; a job that changes files needs the directory to itself: stop that process,"
            " or run the job inside it"
        ) from error
    with store:
        yield store


def archived(store: Store, topics: list[str] | None) -> list[Archivable]:
    """Returns the partitions that are archived, of some topics or of all; what is named must be."""
    if store.tier is None:
        raise InvalidRequest(
            f"{store.path} remembers no archive; say where it is: --archive s3://bucket/prefix"
        )
    found = store.tier.archived()
    check_known(store, topics)
    for name in topics or ():
        if not any(each.place.topic == name for each in found):
            raise InvalidRequest(f"topic {name!r} is not archived: set remote.storage.enable")
    return [each for each in found if not topics or each.place.topic in topics]


def check_known(store: Store, topics: list[str] | None) -> None:
    """Refuses the name of a topic that is not there."""
    for name in topics or ():
        if name not in store.topics():
            raise UnknownTopic(f"there is no topic {name!r}; there are {store.topics()}")
