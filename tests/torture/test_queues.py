"""The harness finds the known bugs of two other queues, and finds none of them here."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from lamina_torture.faults import mounts
from tests.torture.queues import after_kill, after_late_bytes, after_power_loss, files_never_synced


def test_queuelib_appears_empty_after_a_kill(tmp_path: Path) -> None:
    found = after_kill("queuelib", tmp_path)  # scrapy/queuelib issue 5
    assert found.acknowledged >= 50
    assert found.found == 0
    assert not found.problem, "it opens, and says that it is empty"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_persist_queue_cannot_be_opened_after_a_power_cut(tmp_path: Path) -> None:
    found = after_late_bytes("persist-queue", tmp_path)  # peter-wangxu/persist-queue issue 180
    gc.collect()  # what could not be opened complains when it goes
    assert "UnpicklingError: invalid load key, '\\x00'" in found.problem


def test_neither_of_them_syncs_what_it_acknowledges(tmp_path: Path) -> None:
    assert set(files_never_synced("persist-queue", tmp_path / "p")) >= {"info", "q00000"}
    assert files_never_synced("queuelib", tmp_path / "q") == ["q00000"]


def test_lamina_loses_nothing_by_the_same_kill(tmp_path: Path) -> None:
    found = after_kill("lamina", tmp_path)
    assert (found.found, found.problem) == (found.acknowledged, "")
    assert found.acknowledged >= 50


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("queue", "loses"), [("persist-queue", True), ("queuelib", True), ("lamina", False)]
)
def test_a_copied_image_tells_them_apart(tmp_path: Path, queue: str, loses: bool) -> None:
    if reason := mounts.needs_loop():
        pytest.skip(reason)
    found = after_power_loss(queue, tmp_path)
    assert found.acknowledged >= 50
    assert found.is_loss == loses, str(found)
