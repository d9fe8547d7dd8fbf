"""Every trial gives back what it took: a row whose cases leak is seen, whatever they leak."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lamina_torture import budgets
from lamina_torture.rows import Rounds, Row, Trial
from lamina_torture.running import Outcome, run_row

CASES = 24


def of_cases(each: Callable[[], Any]) -> Outcome:
    """What a row comes to whose cases all do this, and keep what it returns."""
    kept: list[Any] = []

    def run(trial: Trial) -> None:
        for number in range(trial.rounds):
            with trial.case(number):
                kept.append(each())

    row = Row("F28", "made-up", ("store",), ("I12",), Rounds(1, 1, 1), run, "", lambda: None)
    return run_row(row, "store", 1, CASES)


@pytest.fixture
def ended() -> Any:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "SETTLED_S", 0.2)


def test_a_trial_that_gives_everything_back_holds() -> None:
    def closes() -> None:
        os.close(os.open(os.devnull, os.O_RDONLY))
        thread = threading.Thread(target=bytes, args=(8 << 20,))
        thread.start()
        thread.join()

    assert of_cases(closes).failures == ()


def test_a_trial_that_leaks_descriptors_is_seen() -> None:
    with contextlib.ExitStack() as closing:

        def leaks() -> None:
            closing.callback(os.close, os.open(os.devnull, os.O_RDONLY))

        (failure,) = of_cases(leaks).failures
    assert failure.invariant == "I12"
    assert "let go" in failure.what
    assert "descriptors" in failure.what


def test_a_trial_that_leaks_threads_is_seen(ended: threading.Event) -> None:
    def starts() -> None:
        threading.Thread(target=ended.wait, daemon=True).start()

    assert "let go" in str(of_cases(starts).failures)


def test_a_trial_that_leaks_memory_is_seen() -> None:
    def maps() -> mmap.mmap:
        kept = mmap.mmap(-1, 20 << 20)  # not by malloc, which may have room of earlier tests
        kept[:] = b"x" * len(kept)
        return kept

    assert "let go" in str(of_cases(maps).failures)
