"""A part of each row's sample, by one seed; `make torture` runs the CI column."""

from __future__ import annotations

import pytest

from lamina_torture.rows import Column, Row, rows
from lamina_torture.running import run_row

SEED = 1
SHARE = 4
ONE_FORMAT = {
    "F1/doors": "keratin",
    "F1/kafka": "keratin",
    "F1/transactions": "wal",
    "F3/kafka": "frame",
    "F11/strace": "frame",
    "F15/close": "wal",
    "F15/interrupt": "keratin",
    "F15/no-memory": "frame",
    "F15/open": "keratin",
    "F16/processes": "wal",
    "F18/requests": "frame",
    "F22/failovers": "keratin",
}
"""Rows that start processes or servers, and take longer for that than for their few cases."""
SAMPLES = [
    pytest.param(row, format_name, id=f"{row.key}-{format_name}")
    for row in rows()
    if row.rounds.of(Column.SAMPLE) is not None
    for format_name in row.formats
    if format_name == ONE_FORMAT.get(row.key, format_name)
]


@pytest.mark.parametrize(("row", "format_name"), SAMPLES)
def test_a_sample_of_the_row_holds(row: Row, format_name: str) -> None:
    rounds = row.rounds.of(Column.SAMPLE) or 0
    outcome = run_row(row, format_name, SEED, -(-rounds // SHARE))
    if outcome.not_run:
        pytest.skip(outcome.not_run)
    assert not outcome.failures, "\n".join(map(str, outcome.failures))
    assert sum(outcome.counts.values()) > 0
