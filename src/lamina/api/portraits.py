"""How a value shows itself: as text in a terminal, as a table in a notebook.

    `Portrait`   a title, and rows below it; some cells are bars
    `Shown`      what has a portrait has `__repr__` and `_repr_html_`, and nothing more to do

Rules.
1. A portrait is drawn of what is in memory: nobody is asked, no file read, no lock waited for.
2. Showing never raises, whatever was closed or deleted since: a person looks at something else.
3. What is shown may come from outside: control characters are escaped in text, markup in HTML.
4. It is bounded: rows beyond `ROWS_MAX` are counted, not drawn.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

ROWS_MAX = 24
_BAR_WIDTH = 24
_MARKS = {"gone": "·", "cold": "░", "sealed": "▓", "active": "█"}
_COLOURS = {"gone": "#bbb", "cold": "#5aa9c4", "sealed": "#d9a441", "active": "#4c9f70"}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Bar:
    """A cell that is drawn: parts of a whole, each a share of `_BAR_WIDTH` and a state."""

    parts: tuple[tuple[float, str], ...]

    def text(self) -> str:
        """Draws the bar with characters."""
        drawn = (_MARKS[state] * max(1, round(share * _BAR_WIDTH)) for share, state in self.parts)
        return "".join(drawn)[: _BAR_WIDTH + len(self.parts)]

    def html(self) -> str:
        """Draws the bar with boxes."""
        boxes = "".join(
            f'<span title="{state}" style="display:inline-block;height:0.9em;'
            f'width:{max(2, round(share * 160))}px;background:{_COLOURS[state]}"></span>'
            for share, state in self.parts
        )
        return f'<span style="white-space:nowrap">{boxes}</span>'


Cell: TypeAlias = str | int | float | Bar | None


@dataclass(frozen=True, slots=True)
class Portrait:
    """What is shown of a value: one line, and a table below it where there is more to say."""

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    left_out: int = 0

    def text(self) -> str:
        """Returns the portrait for a terminal; one line where there are no rows."""
        lines = [printable(self.title)]
        if self.rows:
            table = [self.columns, *([_plain(cell) for cell in row] for row in self.rows)]
            widths = [max(len(row[at]) for row in table) for at in range(len(self.columns))]
            for row in table:
                cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
                lines.append(f"  {'  '.join(cells)}".rstrip())
        if self.left_out:
            lines.append(f"  … and {self.left_out:,} more")
        return "\n".join(lines)

    def html(self) -> str:
        """Returns the portrait for a notebook."""
        parts = [f"<div><strong>{_escaped(self.title)}</strong>"]
        if self.rows:
            head = "".join(f"<th>{_escaped(name)}</th>" for name in self.columns)
            body = "".join(
                f"<tr>{''.join(f'<td>{_marked_up(cell)}</td>' for cell in row)}</tr>"
                for row in self.rows
            )
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        if self.left_out:
            parts.append(f"<em>… and {self.left_out:,} more</em>")
        return "".join((*parts, "</div>"))


class Shown:
    """The base of what people look at in a terminal or a notebook."""

    __slots__ = ()

    def _portrait(self) -> Portrait:
        """Returns the portrait; a kind that has none is shown by its name."""
        return Portrait(f"<{type(self).__name__}>")

    def __repr__(self) -> str:
        return self._drawn().text()

    def _repr_html_(self) -> str:
        return self._drawn().html()

    def _drawn(self) -> Portrait:
        try:
            return self._portrait()
        except Exception as error:  # rule 2: closed, deleted, half made or half gone
            return Portrait(f"<{type(self).__name__}: {type(error).__name__}>")


def table_portrait(
    title: str, columns: Sequence[str], rows: Iterable[tuple[Cell, ...]], count: int
) -> Portrait:
    """Makes a portrait of at most `ROWS_MAX` of `count` rows."""
    kept = tuple(islice(rows, ROWS_MAX))
    return Portrait(title, tuple(columns), kept, max(0, count - len(kept)))


def store_title(store: object, where: str, *, is_open: bool) -> str:
    """Returns the line that every kind of store is shown by."""
    return f"<lamina.{type(store).__name__} {where!r}, {'open' if is_open else 'closed'}>"


def shown_size(size_bytes: float) -> str:
    """Returns a number of bytes for people."""
    unit = _UNITS[0]
    for unit in _UNITS:
        if size_bytes < 1024 or unit == _UNITS[-1]:
            break
        size_bytes /= 1024
    return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Returns a number with its noun: 1 topic, 2 topics."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def printable(text: str) -> str:
    """Escapes what would move the cursor, change colours or break the line."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _plain(cell: Cell) -> str:
    if isinstance(cell, Bar):
        return cell.text()
    if isinstance(cell, int):
        return f"{cell:,}"
    return "-" if cell is None else printable(str(cell))


def _marked_up(cell: Cell) -> str:
    return cell.html() if isinstance(cell, Bar) else html.escape(_plain(cell))


def _escaped(text: str) -> str:
    return html.escape(printable(text))
