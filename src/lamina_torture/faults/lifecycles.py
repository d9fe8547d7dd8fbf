"""F16: processes that fork, end or die with an open store, and others that open it meanwhile."""

from __future__ import annotations

import shutil

from lamina_torture.forked import Workers
from lamina_torture.lives import SCENES
from lamina_torture.rows import Rounds, Trial, demand, row
from lamina_torture.witness import Witness
from lamina_torture.worker import Errand

LIVES_PER_DIRECTORY = 6


@row("F16", "processes", invariants="I1 I2 I3 I5 I12", rounds=Rounds(6, 66, 660))
def processes(trial: Trial) -> None:
    """Fork, exit, daemon threads, pending appends, a second writer, a lock of the dead, in turn."""
    with Workers("lamina_torture.lives") as workers:
        for first in range(0, trial.rounds, LIVES_PER_DIRECTORY):
            directory = trial.scratch / str(first)
            with trial.case(first, counted="directories") as wanted:
                witness = Witness(trial.format)
                scenes = list(SCENES)
                trial.luck(first).shuffle(scenes)
                for number, scene in enumerate(scenes if wanted else ()):
                    _live(workers, witness, Errand(str(directory), trial.format, "", number,
                                                   breaks=scene))  # fmt: skip
                    trial.counts["lives"] += 1
            shutil.rmtree(directory, ignore_errors=True)


def _live(workers: Workers, witness: Witness, errand: Errand) -> None:
    workers.send(errand)
    for words in list(workers.listen()):
        witness.hear(words)
    demand(not witness.refused, "I12", f"{errand.breaks}: refused: {witness.refused[:3]}")
    witness.check(errand.directory)
