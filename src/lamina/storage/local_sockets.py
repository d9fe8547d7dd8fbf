"""Sockets that are files: reached by whoever may enter their directory, and from this machine only.

Rules.
1. Their directory is the server's own: it is made closed to others, and refused if it is open to
   them. So nobody else can come in, take a socket away or put another in its place.
2. What a killed server left is removed; a socket that somebody answers at, or a file that is no
   socket, is left as it is and refused.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat

from lamina.errors import InvalidRequest, Unavailable
from lamina.storage import paths

PATH_BYTES_MAX = 107
"""What the system takes as the name of a socket."""
PRIVATE = 0o700


def claim(directory: str, name: str) -> str:
    """Returns the path of a socket that can be listened at; makes the directory if there is none.

    Raises InvalidRequest or Unavailable, which say why not.
    """
    directory = paths.absolute(directory)
    path = paths.join(directory, name)
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise InvalidRequest(f"{path} is too long for a socket: {PATH_BYTES_MAX} bytes at most")
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, PRIVATE)
        _require_private(directory)
        _remove_left_over(path)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be a socket: {error}") from error
    return path


def _require_private(directory: str) -> None:
    found = os.stat(directory)
    if not stat.S_ISDIR(found.st_mode):
        raise InvalidRequest(f"{directory} is not a directory, which sockets need")
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & ~PRIVATE:
        raise InvalidRequest(
            f"{directory} is not closed to others, who could take the server's place:"
            " name another directory, or make it yours and `chmod 700` it"
        )


def _remove_left_over(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InvalidRequest(f"{path} is in the way: it is not a socket; nothing was changed")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        try:
            trial.connect(path)
        except ConnectionRefusedError:  # nobody listens any more
            os.unlink(path)
            return
    raise Unavailable(f"{path}: another server listens there")


def listen(path: str, backlog: int) -> socket.socket:
    """Listens at a path that was claimed."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(path)
        made.listen(backlog)
    except OSError as error:
        made.close()
        raise Unavailable(f"cannot listen on {path}: {error}") from error
    return made


def give_up(path: str) -> None:
    """Removes a socket that nobody listens at any more."""
    with contextlib.suppress(OSError):
        os.unlink(path)
