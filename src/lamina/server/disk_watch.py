"""Free space where the data lies: said before it is gone.

    ok ─▶ low: below disk.free.warn.bytes, a warning
       ─▶ short: below disk.free.min.bytes, a problem

A disk without free file entries is short of space, too. Free space is asked for when somebody
wants to know; a server that runs looks each second (`look`), so that its log says when it changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lamina.server.log_lines import told
from lamina.server.setting_table import ServerSettings
from lamina.storage import machine
from lamina.storage.machine import Space

OK, LOW, SHORT = "ok", "low", "short"
FILES_MIN = 64
"""With fewer free file entries no topic can be made and no segment rolled."""
_log = logging.getLogger("lamina.server")


class DiskWatch:
    """The disk of one data directory; without a path nothing is known of it."""

    def __init__(
        self, path: str | None = None, space_of: Callable[[str], Space] = machine.space_of
    ) -> None:
        self._path = path
        self._space_of = space_of
        self._level = OK

    def space(self) -> Space | None:
        """Returns the room there is; None if that is not known."""
        if self._path is None:
            return None
        try:
            return self._space_of(self._path)
        except OSError:  # the directory is not there yet, or the disk answers nothing
            return None

    def level(self, settings: ServerSettings) -> str:
        """Returns how it stands: ok, low or short."""
        space = self.space()
        if space is None:
            return OK
        is_out_of_files = space.total_files > 0 and space.free_files < FILES_MIN
        if space.free_bytes < settings.disk_min_bytes or is_out_of_files:
            return SHORT
        return LOW if space.free_bytes < settings.disk_warn_bytes else OK

    def described(self, settings: ServerSettings) -> str:
        """Returns how much there is, and below which setting that is."""
        space = self.space()
        assert space is not None, "its level is known"
        if space.free_bytes < settings.disk_min_bytes:
            below = f", below disk.free.min.bytes {settings.disk_min_bytes}"
        elif space.free_bytes < settings.disk_warn_bytes:
            below = f", below disk.free.warn.bytes {settings.disk_warn_bytes}"
        else:
            below = f" and {space.free_files} file entries"
        return (
            f"{space.free_bytes} bytes are free{below}: free some, or have retention remove more;"
            " a full disk refuses appends and still reads"
        )

    def is_ready(self, settings: ServerSettings) -> bool:
        """Returns whether a load balancer may send calls, by `disk.free.ready.bytes`."""
        if not settings.disk_ready_bytes:
            return True
        space = self.space()
        return space is None or space.free_bytes >= settings.disk_ready_bytes

    def look(self, settings: ServerSettings) -> None:
        """Logs a level that is not what it was."""
        before, self._level = self._level, self.level(settings)
        if self._level == before:
            return
        if self._level == OK:
            _log.info("there is free space again", extra=told("disk", level=OK))
            return
        text = self.described(settings)
        number = logging.ERROR if self._level == SHORT else logging.WARNING
        _log.log(
            number, "the disk is getting full: %s", text, extra=told("disk", level=self._level)
        )
