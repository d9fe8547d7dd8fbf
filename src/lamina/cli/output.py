"""How commands print: aligned tables for people, one JSON object per line for programs.

Rule: nothing that a record, a name or an error holds can steer the terminal.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal

_WIDTH = 1000  # a line of a table is never cut; the terminal may wrap it
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def emit(
    rows: Iterable[Mapping[str, Any]], *, as_json: bool, title: str = "", none: str = ""
) -> None:
    """Prints rows: as JSON lines, or as a table with their names as headings.

    Where there is no row, people read `none`, and programs nothing.
    """
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps(row) + "\n")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    listed = list(rows)
    if title:
        say(title)
    if not listed:
        if none:
            say(none)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, value in listed[0].items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        side: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(_heading(name), justify=side, no_wrap=True)
    for row in listed:
        table.add_row(*(Text(shown(value)) for value in row.values()))
    console = Console(soft_wrap=True, highlight=False, width=_WIDTH)
    with console.capture() as printed:
        console.print(table, crop=False, overflow="ignore", no_wrap=True)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in printed.get().splitlines())


def _heading(name: str) -> str:
    """Returns a name as the head of a column; one of a table of records keeps its underscore.

    What is no name, such as `count(*)` in SQL, stays as it is.
    """
    if not name.isidentifier():
        return name
    return name.upper() if name.startswith("_") else name.upper().replace("_", "-")


def say(line: str) -> None:
    """Prints one line for people."""
    sys.stdout.write(shown(line) + "\n")


def shown(value: Any) -> str:
    """Makes a value printable by escaping what is not."""
    if value is None:
        return "-"
    text = value if isinstance(value, str) else str(value)
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def counted(count: int, what: str) -> str:
    """A number of things: `1 record`, `2 records`, `2 copies`."""
    if count == 1:
        return f"1 {what}"
    return f"{count} {what[:-1]}ies" if what.endswith("y") else f"{count} {what}s"


def size(size_bytes: float) -> str:
    """A number of bytes for people."""
    for unit in _UNITS:
        if size_bytes < 1024 or unit == _UNITS[-1]:
            break
        size_bytes /= 1024
    return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"


def moment(timestamp_ms: int | None) -> str:
    """A time for people, in UTC; as a number if it is beyond the calendar."""
    if timestamp_ms is None:
        return "-"
    try:
        at = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return at.strftime("%Y-%m-%d %H:%M:%S")
