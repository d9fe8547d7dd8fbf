"""F2 to F7: the process is killed, or power is lost, at every step; on a simulated disk."""

from __future__ import annotations

import random
from collections.abc import Iterator

from lamina_torture import losing, workloads
from lamina_torture.losing import Crashes
from lamina_torture.rows import ALL, Rounds, Trial, row
from lamina_torture.scribe import Moment, Scribe
from lamina_torture.surviving import kill_recovery, survive
from lamina_torture.workloads import (
    EVERYTHING,
    TOPIC,
    random_workload,
    short_workloads,
    unsynced,
)

RANDOM_OPERATIONS = 12


def _lives(trial: Trial) -> Iterator[str]:
    """Yields the long life, and then random ones without end."""
    yield EVERYTHING
    number = 0
    while True:
        yield random_workload(trial.luck(f"life {number}"), RANDOM_OPERATIONS)
        number += 1


@row("F2", "every-step", invariants="I1 I2 I3 I4 I5 I6 I7 I8", rounds=Rounds(30, 300, 20_000))
def killed(trial: Trial) -> None:
    """The process is killed before each step that changes the disk; later power is lost, too."""
    Crashes(trial).run(_lives(trial), lambda moment, luck: ["killed"], whole=True)


@row("F2", "in-recovery", invariants="I1 I3 I7", rounds=Rounds(40, 150, 40_000))
def killed_in_recovery(trial: Trial) -> None:
    """Recovery itself is killed at each of its steps, or loses power there."""
    for name in _lives(trial):
        if trial.only is not None:
            name = trial.only.split(":")[0]  # noqa: PLW2901
        scribe = workloads.run(name, trial.format, whole=True)
        luck = trial.luck(name)
        for moment in luck.sample(scribe.moments, len(scribe.moments)):
            if trial.counts["killed"] >= trial.rounds:
                return
            with trial.case(f"{name}:{moment.step}", "recoveries") as wanted:
                if wanted:
                    files = moment.disk.crash(moment.step)
                    trial.counts["killed"] += kill_recovery(scribe, moment, files)
        if trial.only is not None:
            return


@row("F3", "dropped", invariants="I1 I2 I3 I4 I5 I6 I8", rounds=Rounds(40, 400, 60_000))
def dropped(trial: Trial) -> None:
    """Power is lost before each step, and nothing is left of what was not synced."""
    Crashes(trial).run(_lives(trial), lambda moment, luck: ["dropped", "kept"], whole=True)


@row("F4", "short", invariants="I1 I2 I3 I4 I5 I6 I8", rounds=Rounds(60, 1000, ALL))
def short(trial: Trial) -> None:
    """Any subset of unsynced sectors and names is kept: all workloads of up to 3 operations."""
    names = list(short_workloads())
    trial.luck().shuffle(names)
    Crashes(trial).run(names, losing.reordered)


@row("F4", "reordered", invariants="I1 I2 I3 I4 I5 I6 I8", rounds=Rounds(40, 400, 60_000))
def reordered(trial: Trial) -> None:
    """Any subset of unsynced sectors and names is kept, in one long life and in random ones."""

    def some(moment: Moment, luck: random.Random) -> list[str]:
        return [f"seed-{luck.getrandbits(30)}", *losing.reordered(moment, luck, 1)]

    Crashes(trial).run(_lives(trial), some, whole=True)


@row("F5", "torn-bytes", invariants="I1 I2 I3 I4", rounds=Rounds(40, 400, ALL))
def torn_bytes(trial: Trial) -> None:
    """A log of 64 unsynced records is cut at every byte."""
    scribe = Scribe(trial.format, watching=False)
    scribe.open()
    scribe.create(TOPIC, **{"segment.bytes": 1 << 20, **unsynced(trial.format)})
    scribe.append(TOPIC, [10])
    for size in (8, 1, 40):
        scribe.append(TOPIC, [size] * 21, acks=1)
    scribe.note()
    (moment,) = scribe.moments
    scribe.files.before = None
    names = list(losing.torn_bytes(moment, (".log",)))
    if len(names) > trial.rounds:
        names = trial.luck().sample(names, trial.rounds)
    for number, name in enumerate(names):
        with trial.case(name, "disks") as wanted:
            if wanted:
                files = losing.made(moment.disk, name)
                survive(scribe, files, moment.promise, number)


@row("F5", "torn-writes", invariants="I1 I2 I3 I4", rounds=Rounds(30, 400, 30_000))
def torn_writes(trial: Trial) -> None:
    """Parts of one write, and parts of several, by sectors of 512 and of 4,096 bytes, are kept."""
    scribe = Scribe(trial.format, watching=False)
    scribe.open()
    scribe.create(TOPIC, **{"segment.bytes": 1 << 20, **unsynced(trial.format)})
    scribe.append(TOPIC, [10])
    for size in (6000, 300, 9000):
        scribe.append(TOPIC, [size, size // 2, 20], acks=1)
        scribe.note()
    scribe.files.before = None
    for number in range(trial.rounds):
        luck = trial.luck(number)
        moment = luck.choice(scribe.moments)
        sector_bytes = luck.choice((512, 4096))
        units = moment.disk.units(sector_bytes)
        mask = luck.getrandbits(len(units)) | luck.choice((0, luck.getrandbits(len(units))))
        name = f"{sector_bytes}-{mask:x}-{luck.choice(('sectors', 'zeros', 'garbage'))}"
        with trial.case(f"{number}", "disks") as wanted:
            if wanted:
                survive(scribe, losing.made(moment.disk, name), moment.promise, number)


@row("F6", "tails", invariants="I2 I4", rounds=Rounds(30, 400, 40_000))
def tails(trial: Trial) -> None:
    """Lengths are kept without their data: zeros or garbage are where it should be."""
    Crashes(trial).run(_lives(trial), losing.tails, whole=True)


@row("F7", "names", invariants="I7 I8 I9", rounds=Rounds(40, 400, ALL))
def names(trial: Trial) -> None:
    """Every subset of unsynced renames, creations and removals is kept, with or without data."""
    lives = list(short_workloads())
    trial.luck().shuffle(lives)
    Crashes(trial).run([EVERYTHING, *lives], losing.names_only)
