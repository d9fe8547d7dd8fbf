"""What README.md says of the field: between two markers, written again after every run."""

from __future__ import annotations

from pathlib import Path

from benchmarks.field import judging
from benchmarks.field.report import table
from benchmarks.field.results import Results

BEGIN, END = "<!-- field: written by make bench -->", "<!-- /field -->"
SHOWN = ("produce_100", "read_100", "lone_p50_us", "many", "opened_1M_s")


def publish(results: Results, path: Path = Path("README.md")) -> None:
    """Replaces what is between the markers."""
    text = path.read_text()
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if begin and end:
        path.write_text(head + BEGIN + "\n" + _section(results) + END + tail)


def _section(results: Results) -> str:
    if not results.rows:
        return "No run has been written down yet.\n"
    durable = [row for row in results.rows if row.is_durable]
    short = [bar for bar in judging.bars(results) if not bar.ok]
    reached = len(judging.bars(results)) - len(short)
    verdict = f"{reached} of {reached + len(short)} targets are met"
    if short:
        listed = ", ".join(f"`{bar.name}` {bar.measured:.2f} of {bar.wanted:g}" for bar in short)
        verdict += f". Not met: {listed}"
    return f"{table(results, SHOWN, durable)}\n{verdict}.\n"
