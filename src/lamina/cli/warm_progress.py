"""`lamina warm`: compiles all kernels behind a progress bar, and says where they are kept."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def warm_with_progress() -> dict[str, Any]:
    """Compiles what is missing; returns where kernels are and how long it took."""
    from lamina.formats.kernels.compile import CACHE
    from lamina.store import warming

    started = time.monotonic()
    was_warm = warming.is_warm()
    columns = (TextColumn("compiling kernels"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not sys.stderr.isatty()
    ) as drawing:
        task = drawing.add_task("", total=None)
        for done, total in () if was_warm else warming.warm():
            drawing.update(task, completed=done, total=total)
    return {
        "kernels": CACHE.directory() or "not kept",
        "compiled": not was_warm,
        "seconds": round(time.monotonic() - started, 1),
    }
