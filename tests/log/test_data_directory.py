"""A data directory measures spans by the clock that does not jump, where it has one."""

from __future__ import annotations

from lamina.log.data_directory import DataDirectory
from lamina.storage.files import LocalFiles


def test_spans_are_measured_by_the_steady_clock_and_else_by_the_wall_clock() -> None:
    jumping = DataDirectory(LocalFiles(), "data", lambda: 7, lambda: 1000)
    assert (jumping.now_ms(), jumping.steady()) == (7, 1000)
    assert DataDirectory(LocalFiles(), "data", lambda: 7).steady() == 7
