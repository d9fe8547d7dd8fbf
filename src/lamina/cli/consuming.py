"""`lamina topic consume`: from what was asked for to bytes on standard output."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lamina.cli import percent, record_printing
from lamina.cli.group_reading import group_reads
from lamina.cli.offsets import Point, Range, parse
from lamina.cli.target import Where, readable, writable
from lamina.errors import InvalidRequest

if TYPE_CHECKING:
    from lamina.api import StoreApi
    from lamina.cli.record_printing import Read


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records: topics, offsets, how many, partitions, and the group that hands them out."""

    topics: list[str]
    offset: str
    count: int | None
    partitions: list[int]
    group: str | None
    regex: bool


def consume(where: Where, wanted: Wanted, format: str, *, with_values: bool, spread: bool) -> None:
    """Prints what is wanted, batch by batch."""
    from lamina.storage.files import wall_clock_ms

    asked = parse(wanted.offset, wall_clock_ms())
    render = _renderer(format, with_values=with_values, spread=spread)
    with readable(where) if wanted.group is None else writable(where) as store:
        for read in _reads(store, wanted, asked):
            sys.stdout.buffer.write(render(read))
            sys.stdout.buffer.flush()


def _reads(store: StoreApi, wanted: Wanted, asked: Range) -> Iterator[Read]:
    names = _matching(store.topics(), wanted.topics) if wanted.regex else wanted.topics
    if wanted.group is None:
        spans = record_printing.spans(store, names, wanted.partitions, asked)
        return record_printing.reads(store, spans, wanted.count)
    starts_where_it_is = asked.start.kind in ("start", "end")
    if not starts_where_it_is or asked.end not in (None, Point("end")) or wanted.partitions:
        raise InvalidRequest(
            "a group goes on where it is, in all partitions: -o takes start or end, for where a new"
            " group begins, or :end, to stop when nothing is left; `lamina group seek` moves it"
        )
    return group_reads(
        store,
        wanted.group,
        names,
        count=wanted.count,
        ends=asked.end is not None,
        from_end=asked.start.kind == "end",
    )


def _renderer(format: str, *, with_values: bool, spread: bool) -> Callable[[Read], bytes]:
    if format != "json":
        compiled = percent.compile_format(format, percent.RPK)
        return lambda read: b"".join(map(compiled.render, record_printing.rows(read)))

    def lines(read: Read) -> bytes:
        found = record_printing.json_lines(read, with_values=with_values)
        return record_printing.pretty(found) if spread else found

    return lines


def _matching(known: list[str], patterns: list[str]) -> list[str]:
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise InvalidRequest(f"not a regular expression: {error}") from error
    return [name for name in known if any(each.search(name) for each in compiled)]
