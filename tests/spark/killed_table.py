"""Typed tables whose runs are killed, by SIGKILL, before every step that they take.

Started as `python -m tests.spark.killed_table <kind> <latest> <folder> <stride>`. Without Spark:
tasks run one after the other in the process that is killed. This process itself never opens a
table, so that the processes that it forks may: Delta's runtime does not survive a fork.

A table has the first version of the schema, and small files; the run that is killed brings new
records, a version that renames, widens, adds and drops columns, joins files, and expires snapshots.
A step is a file made, renamed or removed, a directory synced, and the commits of the packages. It
prints how many steps there were.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

import lamina
from lamina.spark.jobs import lane, topic_rows
from lamina.spark.jobs.job import Silent, Summary
from lamina.spark.jobs.tables.table_contract import TableLake
from lamina.spark.jobs.tables.table_job import Asked, table
from lamina.spark.jobs.tables.table_upkeep import Upkeep
from lamina.spark.jobs.whereabouts import Place
from lamina.storage.files import LocalFiles
from tests.spark.stepping import NAMES, Steps, count
from tests.spark.tables import DAY_MS, V1, V2, lake_of, read_rows, wanted_rows

ALONE: Any = SimpleNamespace()
OTHER_DAY_MS = 1_700_000_000_000 + 2 * DAY_MS


def in_this_process() -> None:
    def run_alone(_: Any, tasks: Any, work: Any, progress: Any) -> list[Any]:
        return [work(each) for each in tasks]

    lane.over_tasks = run_alone
    topic_rows.over_tasks = run_alone


def run(folder: Path, kind: str, *, latest: bool) -> Summary:
    upkeep = Upkeep(small_files=2, keep_ms=0)
    asked = Asked(latest=latest, buckets=2, upkeep=upkeep)
    lake: TableLake = lake_of(kind, folder)
    place = Place.of(str(folder / "data"), None)
    return table(ALONE, place, "orders", lake, asked, dry_run=False, progress=Silent())


def append(folder: Path, name: str, first: int, end: int, at_ms: int) -> None:
    ids = list(range(first, end))
    rows = {"id": ids, name: [f"item {each}" for each in ids]}
    times = pa.array([at_ms + each for each in ids], pa.timestamp("ms", tz="UTC"))
    with lamina.open(folder / "data") as store:
        kind = store.schema("orders").arrow.field("id").type
        rows["id"] = pa.array([each % 7 for each in ids], kind)
        store.append("orders", pa.table(rows | {"_timestamp": times}))
        store.append("orders", [{"key": b"%d" % (end % 7), "value": None}])


def prepare(folder: Path, kind: str, *, latest: bool) -> None:
    (folder / "lake").mkdir(parents=True)
    with lamina.open(folder / "data") as store:
        store.create_topic("orders", partitions=2, schema=V1, key="id")
    for first in (0, 10):
        append(folder, "item", first, first + 10, 1_700_000_000_000)
        run(folder, kind, latest=latest)


def forked(work: Callable[[], None]) -> int:
    """Runs something in a process of its own; returns how it ended."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def kill_before(step: int) -> Steps:
    """Counts steps of the file system and of the packages, and kills before one of them."""
    from deltalake import DeltaTable
    from deltalake.table import TableAlterer
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Transaction

    steps = Steps(step, lambda: os.kill(os.getpid(), signal.SIGKILL))
    count(LocalFiles, (*NAMES, "replace"), steps)
    count(DeltaTable, ("create_write_transaction", "vacuum", "cleanup_metadata"), steps)
    count(TableAlterer, ("add_columns",), steps)
    count(SqlCatalog, ("commit_table",), steps)
    count(Transaction, ("update_snapshot", "set_properties", "commit_transaction"), steps)
    return steps


def killed_at_every(stride: int, kind: str, folder: Path, *, latest: bool) -> Iterator[Path]:
    """Yields copies of a folder, each left by a kill at another step."""
    steps = folder.parent / "steps"
    for step in range(0, 10_000, stride):
        mine = folder.parent / "killed"  # of the same length: Iceberg has absolute paths
        shutil.rmtree(folder)
        shutil.copytree(mine, folder)

        def work(step: int = step) -> None:
            counted = kill_before(step)
            run(folder, kind, latest=latest)
            steps.write_text(str(counted.done))

        status = forked(work)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, status
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
        yield folder


def check(folder: Path, kind: str, before: list[Any], *, latest: bool) -> None:
    """What a killed run has left is whole, and running again stores every record once."""
    left, after = read_rows(kind, folder), wanted_rows(folder, latest=latest)
    assert left in (before, after), f"all of a commit or nothing: {len(left)} rows"
    append(folder, "article", 40, 45, OTHER_DAY_MS)
    run(folder, kind, latest=latest)
    assert read_rows(kind, folder) == wanted_rows(folder, latest=latest)
    again = run(folder, kind, latest=latest)
    assert again.totals["records"] == 0
    assert read_rows(kind, folder) == wanted_rows(folder, latest=latest)


def main() -> None:
    kind, is_latest, place, stride = sys.argv[1:]
    latest, root = is_latest == "latest", Path(place)
    folder = root / "mine"
    in_this_process()
    lake_of(kind, root)  # what it imports is there when processes are forked
    assert forked(lambda: prepare(folder, kind, latest=latest)) == 0
    before = wanted_rows(folder, latest=latest)
    with lamina.open(folder / "data") as store:
        store.set_schema("orders", V2)
    append(folder, "article", 20, 30, OTHER_DAY_MS)
    shutil.copytree(folder, root / "killed")
    done = 0
    for mine in killed_at_every(int(stride), kind, folder, latest=latest):
        assert forked(lambda mine=mine: check(mine, kind, before, latest=latest)) == 0, done
        done += 1
    assert done > 1, "it was killed a few times"
    print("killed", done, "steps", (root / "steps").read_text())


if __name__ == "__main__":
    main()
