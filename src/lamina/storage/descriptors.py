"""The descriptors of the process, shared between connections and the store's files.

A connection takes a descriptor before it can be refused, and gRPC does not count connections. So
each door gets a share of what files leave over, and Flight's connections beyond it are closed from
outside.

Rules.
1. Files come first: a store without descriptors refuses everybody's calls, while a closed
   connection costs one client a retry.
2. Connections that were there before stay; those that came last go.
3. Looking must work when there is no descriptor left: that is when it matters.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import stat
import threading

from lamina.storage.open_files import within_limit

DOORS = 3
"""Flight, HTTP and Kafka: each has its share."""
OWN_FILES = 64
"""What the process needs beside: listening, logging, libraries, files that are used just now."""
LOOK_S = 0.1

_log = logging.getLogger(__name__)


def share_of_door(connections: int, open_files: int) -> int:
    """Returns how many connections a door may have: `connections`, or what files leave of them."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return connections
    left = allowed - within_limit(open_files) - OWN_FILES
    return max(1, min(connections, left // DOORS))


class ConnectionGuard:
    """Closes connections to a port of this process, or to a socket by its path, beyond a share."""

    def __init__(self, port: int | str, limit: int) -> None:
        self._port = port
        self._limit = limit
        self._known: set[tuple[int, object]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lamina-descriptors", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends looking."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.look()
            except Exception:
                _log.exception("connections could not be counted; it is tried again")

    @property
    def _shown(self) -> str:
        return f"port {self._port}" if isinstance(self._port, int) else self._port

    def look(self) -> int:
        """Closes those beyond the limit, the newest first; returns how many."""
        open_now = _descriptors()
        if len(open_now) <= self._limit:
            return 0
        found: dict[tuple[int, object], socket.socket] = {}
        try:
            for number in open_now:
                self._find(number, found)
            known = [each for each in found if each in self._known]
            every = known + [each for each in found if each not in self._known]
            for each in every[self._limit :]:
                with contextlib.suppress(OSError):  # it went by itself
                    found[each].shutdown(socket.SHUT_RDWR)
        finally:
            for wrapped in found.values():
                wrapped.detach()  # the descriptor is another's
        self._known = set(every[: self._limit])
        closed = len(every) - len(self._known)
        if closed:
            _log.warning(
                "%d connections to %s were closed: there is room for %d, by max.connections"
                " or by the descriptors that the process may have",
                *(closed, self._shown, self._limit),
            )
        return closed

    def _find(self, number: int, found: dict[tuple[int, object], socket.socket]) -> None:
        """Adds a descriptor that is a connection to the port."""
        with contextlib.suppress(OSError):  # no socket, not connected, or gone by now
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                return
            wrapped = socket.socket(fileno=number)
            is_ours = False
            try:
                peer, own = wrapped.getpeername(), wrapped.getsockname()
                is_ours = (own[1] if isinstance(own, tuple) else own) == self._port
                if is_ours:
                    found[number, peer] = wrapped
            finally:
                if not is_ours:
                    wrapped.detach()


def _descriptors() -> list[int]:
    """Lists the open descriptors; all that there could be where none is left for the listing."""
    try:
        return sorted(map(int, os.listdir("/proc/self/fd")))
    except OSError:
        return list(range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
