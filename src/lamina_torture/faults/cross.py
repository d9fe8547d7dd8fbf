"""F29: the cross product of formats, tiers, damages and users, cell by cell."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from lamina_torture.cross import damages, sparks, templates
from lamina_torture.cross.axes import Cell, is_archived, ordered
from lamina_torture.cross.damages import PAGE_BYTES
from lamina_torture.cross.ground import Ground
from lamina_torture.cross.judge import lay, run_case
from lamina_torture.cross.known import explain
from lamina_torture.cross.table import cells, every_user
from lamina_torture.cross.users import SPARK_USERS, USERS, User
from lamina_torture.faults.sectors import BadExt4, bad_ext4, needs_bad_disk
from lamina_torture.rows import ALL, LOGS, Rounds, Trial, Violation, row
from lamina_torture.small import scratch_of

_NUMBERS = itertools.count()
DRAWS = 4
"""So often each cell is tried in the long column."""


def root_of(format_name: str) -> Path:
    """Where the cells of a format happen, one after the other: always the same place."""
    return scratch_of(Path(tempfile.gettempdir()), f"{format_name}-cross")


@functools.cache
def template(format_name: str, *, archived: bool) -> templates.Template:
    """Makes each template once a process."""
    return templates.make(root_of(format_name), format_name, archived=archived)


def cases(trial: Trial, users: dict[str, User]) -> Iterator[tuple[Cell, int]]:
    """Yields cells and draws: every cell once, then every cell with the next draw."""
    for draw in range(DRAWS):
        for cell in ordered(cells(trial.format, users), trial.luck(f"order {draw}")):
            yield cell, draw


def needs_spark() -> str | None:
    """Returns why Spark cannot run here, or None."""
    found = importlib.util.find_spec("pyspark") and (
        shutil.which("java") or "JAVA_HOME" in os.environ
    )
    return None if found else "there is no Spark here"


@row(
    "F29",
    "cross",
    formats=LOGS,
    invariants="I1 I2 I3 I4 I5 I6 I7 I8 I9 I12",
    rounds=Rounds(160, 1000, ALL),
)
def cross(trial: Trial) -> None:
    """Every user meets every damage in every tier: sound copies are served, the rest is told."""
    _run(trial, USERS)


@row(
    "F29",
    "spark",
    formats=LOGS,
    invariants="I1 I2 I4 I8 I11 I12",
    rounds=Rounds(None, 2, 150),
    needs=needs_spark,
)
def on_spark(trial: Trial) -> None:
    """The same for Spark's source and every job of the pipeline, in one session."""
    sparks.session()  # its threads are nobody's leftovers
    _run(trial, SPARK_USERS)


@row(
    "F29",
    "pages",
    formats=LOGS,
    invariants="I1 I2 I4 I8 I12",
    rounds=Rounds(8, 100, ALL),
    needs=needs_bad_disk,
)
def pages(trial: Trial) -> None:
    """The same on a real ext4, a page of which the device does not deliver; then it does again."""
    with bad_ext4(trial.scratch) as disk:
        makers = {
            archived: templates.make(disk.at / "root", trial.format, archived=archived)
            for archived in (False, True)
        }
        wanted = (each for each in cases(trial, USERS) if each[0].damage == "eio")
        for cell, draw in islice(wanted, trial.rounds):
            with trial.case(cell.case(draw)) as is_wanted:
                if is_wanted:
                    place = Place(disk.at / "root", makers, disk)
                    trial.counts[_try(trial, cell, draw, place)] += 1


def _run(trial: Trial, users: dict[str, User]) -> None:
    root = root_of(trial.format)
    makers = {each: template(trial.format, archived=each) for each in (False, True)}
    wanted = (each for each in cases(trial, users) if each[0].damage != "eio")
    for cell, draw in islice(wanted, trial.rounds):
        with trial.case(cell.case(draw)) as is_wanted:
            if is_wanted:
                trial.counts[_try(trial, cell, draw, Place(root, makers))] += 1


class Place(NamedTuple):
    """Where cells happen, what they begin with, and the disk whose pages go bad, if it is one."""

    root: Path
    templates: dict[bool, templates.Template]
    disk: BadExt4 | None = None


def _try(trial: Trial, cell: Cell, draw: int, place: Place) -> str:
    user = every_user()[cell.user]
    whole = place.templates[is_archived(cell.tier, draw) or user.needs_archive]
    damaged = damages.draw(whole, cell.tier, cell.damage, trial.luck(cell.case(draw)))
    if damaged is None:
        return "without such a file"
    ground = Ground(place.root, whole, damaged, _healing(place.disk))
    try:
        lay(ground)
        if place.disk is not None:
            place.disk.spoil(str(ground.where), damaged.position // PAGE_BYTES)
        return run_case(ground, user)
    except Violation as violation:
        known = explain(cell, violation)
        if known is None:
            raise
        return "known to fail"
    finally:
        # Under another name: what a failed case still holds open is not the next one's.
        if place.disk is not None:
            place.disk.heal()
        left = place.root.rename(f"{place.root}-{next(_NUMBERS)}")
        shutil.rmtree(left, ignore_errors=True)


def _healing(disk: BadExt4 | None) -> Callable[[], None]:
    return disk.heal if disk is not None else lambda: None
