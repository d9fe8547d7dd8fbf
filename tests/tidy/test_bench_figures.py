"""docs/measured.md: what `make bench-typed INTO=docs/measured.md` puts there, and where."""

from __future__ import annotations

from pathlib import Path

from benchmarks.bars import Bar
from benchmarks.typed import BEGIN, END, figures_of, filled_in
from benchmarks.typed_codecs import EVENTS, ROWS, calls_of, rows_of

PAGE = (Path(__file__).parents[2] / "docs" / "measured.md").read_text(encoding="utf-8")


def test_the_page_has_one_place_for_the_figures_and_keeps_the_rest() -> None:
    ways = [f"{event} {way}" for event in EVENTS for way in ("decode", "encode")]
    best = {f"{name} {way}": 0.5 for name in ROWS for way in ways}
    figures = figures_of(best, 1_000_000, [Bar("this / that", 2.0, 1)])
    assert figures.splitlines()[2] == "| Avro | 2.00 | 2.00 | 2.00 | 2.00 |"
    assert figures.splitlines()[-1] == "- this / that 2.00 >=1 ok"
    once = filled_in(PAGE, figures)
    assert filled_in(once, figures) == once
    assert once.partition(BEGIN)[0] == PAGE.partition(BEGIN)[0]
    assert once.partition(END)[2] == PAGE.partition(END)[2]
    assert once.count(BEGIN) == once.count(END) == 1


def test_every_row_of_the_table_does_what_it_says() -> None:
    for event in EVENTS:
        for name, call in calls_of(event, rows_of(event, 5)).items():
            assert call() is not None, name
