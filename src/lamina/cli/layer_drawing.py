"""`topic describe --segments`: the layers of a partition, drawn oldest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from lamina.cli.output import counted, moment, size

if TYPE_CHECKING:
    from lamina.api import SegmentFacts, StoreApi

_WIDTH = 24
_STYLES = {
    "cold": ("░", "cyan"),
    "sealed": ("▓", "yellow"),
    "active": ("█", "green"),
    "gone": ("·", "dim"),
}


def draw(store: StoreApi, topic: str, partition: int) -> None:
    """Draws one partition: what is gone and why, and what is cold, sealed and active."""
    console = Console(soft_wrap=True, highlight=False)
    segments = store.segments(topic, partition)
    first, end = segments[0].base_offset, segments[-1].next_offset
    total = sum(segment.size_bytes for segment in segments)
    console.print(
        Text(f"{topic}-{partition}", style="bold"),
        Text(f"offsets {first} to {end}, {counted(len(segments), 'segment')}, {size(total)}"),
    )
    largest = max(segment.size_bytes for segment in segments) or 1
    lines = [
        (gap.first, _gone(gap.first, gap.end, gap.reason)) for gap in store.gaps(topic, partition)
    ]
    lines += [(segment.base_offset, _layer(segment, largest)) for segment in segments]
    for _, line in sorted(lines, key=lambda pair: pair[0]):
        console.print(line)


def state_of(segment: SegmentFacts) -> str:
    """The state of a segment: only in the archive, sealed, or still written to."""
    return "cold" if segment.cold else "sealed" if segment.sealed else "active"


def _layer(segment: SegmentFacts, largest: int) -> Text:
    state = state_of(segment)
    mark, style = _STYLES[state]
    bar = mark * max(1, round(_WIDTH * segment.size_bytes / largest))
    line = Text("  ")
    line.append(f"{bar:<{_WIDTH}}", style=style)
    line.append(f"  {state:<6}  {segment.base_offset:>12} … {segment.next_offset:<12}")
    line.append(f" {size(segment.size_bytes):>10}  {moment(segment.newest_timestamp_ms)}")
    return line


def _gone(first: int, end: int, reason: str) -> Text:
    mark, style = _STYLES["gone"]
    return Text(f"  {mark * _WIDTH}  gone    {first:>12} … {end:<12}            ({reason})", style)
