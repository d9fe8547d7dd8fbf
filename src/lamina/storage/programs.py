"""Programs of this machine: found on its path, or written for this user to be run.

What others could have written is never run: below the temporary directory, which everybody can
write, only a directory that belongs to this user alone is trusted.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile


def find(name: str) -> str | None:
    """Returns the path of a program behind all links; None if there is none."""
    found = shutil.which(name)
    return None if found is None else os.path.realpath(found)


def can_run(path: str) -> bool:
    """Returns whether this user may run a file, where it lies."""
    return os.access(path, os.X_OK)


def own_directory(name: str) -> str | None:
    """Returns this user's own directory below the temporary one; None if it cannot be trusted."""
    try:
        path = os.path.join(tempfile.gettempdir(), f"lamina-{name}-{os.getuid()}")
        if not os.path.lexists(path):
            os.mkdir(path, mode=0o700)
        about = os.lstat(path)
    except OSError:
        return None
    is_ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
    return path if is_ours and not about.st_mode & 0o022 else None


def write(place: str, name: str, text: str) -> str:
    """Writes a program as `bin/<name>` into a directory of this user, unless it is there."""
    home = own_directory(place) or tempfile.mkdtemp(prefix=f"lamina-{place}-")
    target = os.path.join(home, "bin", name)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if not _holds(target, text):
        made = f"{target}.{os.getpid()}"  # replaced in one step: another process may be starting it
        with open(made, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(made, 0o700)
        os.replace(made, target)
    return target


def _holds(path: str, text: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read() == text
    except OSError:
        return False
