"""The machine of this process: environment, processors, and trees of files as they lie there.

What a store reads and writes goes through `Files`, so that tests can put a simulated disk behind
it. What is here concerns the machine itself: settings from the environment, the number of
processors, and jobs that walk over whole directories, whatever they hold.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

ENVIRONMENT: MutableMapping[str, str] = os.environ
"""The variables of this process; settings are read from here when a program passes none."""
process_id = os.getpid
exists = os.path.exists
entry_exists = os.path.lexists
"""Whether there is a name, also that of a link that leads nowhere."""
is_directory = os.path.isdir
is_file = os.path.isfile
size_of = os.path.getsize


def processors() -> int:
    """Returns how many processors the machine has."""
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Space:
    """The room of a file system, as it is for users without privileges."""

    free_bytes: int
    total_bytes: int
    free_files: int
    total_files: int
    """0 where a file system has no such limit."""


def space_of(path: str) -> Space:
    """Returns how much room there is where a path lies."""
    found = os.statvfs(path)
    return Space(
        found.f_bavail * found.f_frsize,
        found.f_blocks * found.f_frsize,
        found.f_favail,
        found.f_files,
    )


def threads_of_process() -> int:
    """Returns how many threads this process has, those of libraries included; 0 if not known."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def holder() -> str:
    """Returns the text by which a lock file names its holder."""
    return f"pid {process_id()}\n"


def in_forked_child(action: Callable[[], None]) -> None:
    """Registers an action that runs first in every child that this process forks."""
    os.register_at_fork(after_in_child=action)


def files_below(
    root: str,
    *,
    leave: str | None = None,
    on_error: Callable[[OSError], object] | None = None,
) -> Iterator[str]:
    """Yields the path of everything in a tree that is no directory, folder by folder.

    Folders named `leave` are skipped; `on_error` gets the errors of those that cannot be listed.
    """
    for folder, folders, names in os.walk(root, onerror=on_error):
        folders[:] = [name for name in folders if name != leave]
        yield from (os.path.join(folder, name) for name in sorted(names))


def temporary_directory(prefix: str) -> AbstractContextManager[str]:
    """Makes a directory that is removed, with all that is in it, at the end of a `with` block."""
    return tempfile.TemporaryDirectory(prefix=prefix)


def remove_tree(root: str) -> None:
    """Removes a tree as far as it can; what is left or missing does not matter."""
    shutil.rmtree(root, ignore_errors=True)


def version_of(path: str) -> tuple[int, int, int] | None:
    """Returns what changes when a file is written or replaced; None if there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def versions_in(folder: str) -> list[tuple[str, int, int]]:
    """Returns (path, time of change in ns, size) of every file that lies in a folder."""
    with os.scandir(folder) as found:
        return [
            (each.path, each.stat().st_mtime_ns, each.stat().st_size)
            for each in found
            if each.is_file()
        ]
