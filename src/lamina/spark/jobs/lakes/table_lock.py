"""A lock in a table's directory, where readers of tables do not look: one export at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from lamina.errors import Locked
from lamina.storage import machine, paths
from lamina.storage.files import Files

OURS = "_lamina"


@contextlib.contextmanager
def alone_in(files: Files, directory: str) -> Iterator[None]:
    """Holds the lock of a directory; raises Locked if another run does."""
    folder = paths.join(directory, OURS)
    files.make_directory(folder)
    try:
        lock = files.lock(paths.join(folder, "lock"), machine.holder())
    except Locked as error:
        raise Locked(f"{directory}: the same job is running already") from error
    try:
        yield
    finally:
        lock.release()
