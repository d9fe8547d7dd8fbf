"""What planning over a data directory, or committing to one, stands on."""

from __future__ import annotations

from lamina.storage import paths
from lamina.storage.files import LocalFiles, wall_clock_ms
from lamina.store.opening import Boot


def boot_of(path: str) -> Boot:
    """Returns what reading a data directory stands on.

    Raises InvalidRequest if it is none, CorruptData if it has lost its identity.
    """
    boot = Boot(LocalFiles(), paths.absolute(path), wall_clock_ms)
    boot.require_directory()
    return boot
