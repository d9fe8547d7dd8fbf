"""What planning over a data directory, or committing to one, stands on."""

from __future__ import annotations

import os

from lamina.storage.files import LocalFiles
from lamina.store.opening import Boot, wall_clock_ms


def boot_of(path: str) -> Boot:
    """Returns what reading a data directory stands on; raises InvalidRequest if it is none."""
    boot = Boot(LocalFiles(), os.path.abspath(path), wall_clock_ms)
    boot.require_directory()
    return boot
