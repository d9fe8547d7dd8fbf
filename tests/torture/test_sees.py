"""The harness is proven to see: with one safety step taken away, a named row fails.

Each failure's own command line, run alone, fails again.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest
import typer.testing

from lamina.cli.main import app
from lamina.errors import Poisoned
from lamina.log.commit import Writer
from lamina.log.directory import Place
from lamina.storage.files import Files
from lamina_torture import simulated
from lamina_torture.disk import Inode
from lamina_torture.rows import rows
from lamina_torture.running import Outcome, run_row
from lamina_torture.simulated import SimulatedFiles

Patch = pytest.MonkeyPatch


def no_directory_sync(patch: Patch) -> None:
    patch.setattr(
        SimulatedFiles, "sync_directory", lambda files, path: files.step("sync_directory", path)
    )


def no_sync_of(suffix: str) -> Callable[[Patch], None]:
    def without(patch: Patch) -> None:
        sync = SimulatedFiles.sync

        def maybe(files: SimulatedFiles, inode: Inode, path: str) -> None:
            if path.endswith(suffix):
                files.step("sync", path, inode)
            else:
                sync(files, inode, path)

        patch.setattr(SimulatedFiles, "sync", maybe)

    return without


def rename_before_sync(patch: Patch) -> None:
    def replace(files: Files, path: str, *pieces: bytes, more: Any = ()) -> None:
        temporary = f"{path}.tmp"
        if files.exists(temporary):
            files.remove(temporary)
        files.create(temporary).write_at(0, b"".join([*pieces, *more]))
        files.rename(temporary, path)

    patch.setattr(simulated, "replace_file", replace)


def no_fail_stop(patch: Patch) -> None:
    patch.setattr(Writer, "poison", lambda writer, error: Poisoned(f"failed: {error}"))


def wall_clock_ages(patch: Patch) -> None:
    patch.setattr(Place, "aging_ms", lambda place: place.now_ms())


MUTANTS = [
    ("F3/dropped", "frame", no_directory_sync),
    ("F7/names", "keratin", no_directory_sync),
    ("F3/dropped", "wal", no_directory_sync),
    ("F3/dropped", "frame", no_sync_of(".log")),
    ("F4/short", "keratin", no_sync_of(".log")),
    ("F4/reordered", "wal", no_sync_of(".log")),
    ("F6/tails", "wal", no_sync_of(".log")),
    ("F5/torn-writes", "frame", no_sync_of(".log")),
    ("F28/generations", "frame", no_sync_of(".log")),
    ("F2/every-step", "keratin", no_sync_of(".log")),
    ("F26/delete", "wal", no_sync_of(".log")),
    ("F4/groups", "groups", no_sync_of(".delta")),
    ("F4/transactions", "frame", no_sync_of(".staged")),
    ("F3/dropped", "keratin", rename_before_sync),
    ("F12/failed-sync", "frame", no_fail_stop),
    ("F12/failed-sync", "wal", no_fail_stop),
    ("F17/jumps", "keratin", wall_clock_ages),
]


def tried(key: str, format_name: str) -> Outcome:
    """Tries as many cases as `make torture` does; the first failure ends it."""
    (row,) = rows(key)
    return run_row(row, format_name, 1, row.rounds.ci or 0, failures_max=1)


@pytest.mark.parametrize(
    ("key", "format_name", "mutate"),
    [
        pytest.param(*each, id=f"{each[0]}-{each[1]}-{number}")
        for number, each in enumerate(MUTANTS)
    ],
)
def test_a_safety_step_that_is_taken_away_is_missed(
    key: str, format_name: str, mutate: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    mutate(monkeypatch)
    outcome = tried(key, format_name)
    assert outcome.failures, f"{key} does not see it: {dict(outcome.counts)}"


def test_the_line_of_a_failure_fails_again_by_itself(monkeypatch: Patch) -> None:
    no_sync_of(".log")(monkeypatch)
    (failure,) = tried("F4/reordered", "wal").failures
    assert str(failure).endswith(failure.command)
    program, *words = shlex.split(failure.command)
    assert program == "lamina"
    result = typer.testing.CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert f"{failure.invariant}: {failure.what}" in result.stdout
    assert " 1 disks" in result.stdout, "only this one case"
    monkeypatch.undo()
    assert typer.testing.CliRunner().invoke(app, words).exit_code == 0
