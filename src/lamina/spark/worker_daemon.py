"""What forks Spark's Python workers, in place of Spark's own daemon: workers are ready sooner.

Spark's daemon reads PySpark from a zip file, which is compiled again each time, and its workers
import everything after the fork, each for itself. This one

- takes the installed PySpark, where that is the one the zip belongs to: 0.2 s instead of 1.2;
- imports before the fork what every worker of its kind imports;
- then moves all of it out of the sight of the garbage collector, which PySpark runs after each
  task: a small task takes a third of the time. What tasks leave behind later follows (`settle`).

Rule: nothing imported here may start a thread that a fork would lose. NumPy and Arrow start helpers
that make themselves again, or do without.
"""

from __future__ import annotations

import gc
import importlib
import sys
from pathlib import Path

WORKER = "pyspark.worker"
BEFORE_FORK = {
    WORKER: (
        "pyspark.sql.worker.plan_data_source_read",
        "lamina.spark.pieces.segment_piece",
        "lamina.formats.kernels.compile",
    )
}
"""What workers import; those that plan, commit and so on: what they are told to run."""
LOOSE_MAX = 5_000
"""So many objects may be looked at after each task: to go through them costs less than a task."""
ZIPS = Path("pyspark", "python", "lib")


def without_zips(path: list[str]) -> list[str]:
    """Leaves out the zip files of a PySpark that is installed beside them on the same path."""
    return [
        entry
        for entry in path
        if not (
            entry.endswith(".zip")
            and Path(entry).parent.parts[-len(ZIPS.parts) :] == ZIPS.parts
            and str(Path(entry).parents[len(ZIPS.parts)]) in path
        )
    ]


def settle() -> None:
    """Does the same after a task with what it left behind for good: modules, kernels, tables.

    Only when that is much, and only what a collection leaves, so that no garbage of tasks stays.
    """
    if len(gc.get_objects()) <= LOOSE_MAX:
        return
    gc.collect()
    if len(gc.get_objects()) > LOOSE_MAX:
        gc.freeze()


def main() -> None:
    """Serves forks until Spark closes the standard input."""
    sys.path[:] = without_zips(sys.path)
    module = sys.argv[1] if len(sys.argv) > 1 else WORKER
    for name in (module, *BEFORE_FORK.get(module, ())):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
