"""Typed tables whose runs are killed, by SIGKILL, before every step that they take.

Started as `python -m tests.spark.killed_table <kind> <story> <folder> <stride>`. Without Spark:
tasks run one after the other in the process that is killed. This process itself never opens a
table, so that the processes that it forks may: Delta's runtime does not survive a fork.

A table has the first version of the schema, and small files; the run that is killed brings new
records, a version that renames, widens, adds and drops columns, joins files, and expires snapshots.
A story is "every" record, the "latest" of each key, a topic of "protobuf", or "following": two
rounds of `--follow`, between which more records come.

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
from lamina.spark.jobs.tables.table_job import Asked, follow, table
from lamina.spark.jobs.tables.table_upkeep import Upkeep
from lamina.spark.jobs.whereabouts import Place
from lamina.storage.files import LocalFiles
from tests.spark.stepping import NAMES, Steps, count
from tests.spark.tables import (
    DAY_MS,
    MESSAGES_1,
    MESSAGES_2,
    V1,
    V2,
    lake_of,
    read_rows,
    wanted_rows,
)

ALONE: Any = SimpleNamespace()
OTHER_DAY_MS = 1_700_000_000_000 + 2 * DAY_MS
LATER_MS = OTHER_DAY_MS + DAY_MS
"""When the second round of following has something to do."""


def in_this_process() -> None:
    def run_alone(_: Any, tasks: Any, work: Any, progress: Any) -> list[Any]:
        return [work(each) for each in tasks]

    lane.over_tasks = run_alone
    topic_rows.over_tasks = run_alone


def run(folder: Path, kind: str, story: str) -> Summary:
    latest = story == "latest"
    upkeep = Upkeep(small_files=2, keep_ms=0)
    asked = Asked(latest=latest, buckets=2, upkeep=upkeep)
    lake: TableLake = lake_of(kind, folder)
    place = Place.of(str(folder / "data"), None)
    return table(ALONE, place, "orders", lake, asked, dry_run=False, progress=Silent())


def killed_run(folder: Path, kind: str, story: str, steps: Steps) -> None:
    """What is killed: one run, or two rounds of following a topic that grows between them."""
    if story != "following":
        run(folder, kind, story)
        return
    rounds = iter(range(2))

    def once() -> Summary:
        if next(rounds):
            with steps.paused():
                append(folder, "article", 30, 40, LATER_MS)
        return run(folder, kind, story)

    follow(once, lambda _: None, 0.0, rounds=2)


def append(folder: Path, name: str, first: int, end: int, at_ms: int) -> None:
    ids = list(range(first, end))
    rows = {"id": ids, name: [f"item {each}" for each in ids]}
    times = pa.array([at_ms + each for each in ids], pa.timestamp("ms", tz="UTC"))
    with lamina.open(folder / "data") as store:
        kind = store.schema("orders").arrow.field("id").type
        rows["id"] = pa.array([each % 7 for each in ids], kind)
        store.append("orders", pa.table(rows | {"_timestamp": times}))
        store.append("orders", [{"key": b"%d" % (end % 7), "value": None}])


def versions(story: str) -> tuple[dict[str, str], dict[str, str]]:
    """The two versions of the schema, as a store is given them."""
    if story == "protobuf":
        return tuple({"schema": each, "encoding": "protobuf"} for each in (MESSAGES_1, MESSAGES_2))
    return {"schema": V1}, {"schema": V2}


def prepare(folder: Path, kind: str, story: str) -> None:
    (folder / "lake").mkdir(parents=True)
    with lamina.open(folder / "data") as store:
        store.create_topic("orders", partitions=2, key="id", **versions(story)[0])
    for first in (0, 10):
        append(folder, "item", first, first + 10, 1_700_000_000_000)
        run(folder, kind, story)


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


def killed_at_every(stride: int, kind: str, folder: Path, story: str) -> Iterator[Path]:
    """Yields copies of a folder, each left by a kill at another step."""
    steps = folder.parent / "steps"
    for step in range(0, 10_000, stride):
        mine = folder.parent / "killed"  # of the same length: Iceberg has absolute paths
        shutil.rmtree(folder)
        shutil.copytree(mine, folder)

        def work(step: int = step) -> None:
            counted = kill_before(step)
            killed_run(folder, kind, story, counted)
            steps.write_text(str(counted.done))

        status = forked(work)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, status
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
        yield folder


def check(folder: Path, kind: str, before: list[Any], story: str) -> None:
    """What a killed run has left is whole, and running again stores every record once."""
    latest = story == "latest"
    left, after = read_rows(kind, folder), wanted_rows(folder, latest=latest)
    assert left in (*before, after), f"all of a commit or nothing: {len(left)} rows"
    append(folder, "article", 40, 45, OTHER_DAY_MS)
    run(folder, kind, story)
    assert read_rows(kind, folder) == wanted_rows(folder, latest=latest)
    again = run(folder, kind, story)
    assert again.totals["records"] == 0
    assert read_rows(kind, folder) == wanted_rows(folder, latest=latest)


def main() -> None:
    kind, story, place, stride = sys.argv[1:]
    root = Path(place)
    folder = root / "mine"
    in_this_process()
    lake_of(kind, root)  # what it imports is there when processes are forked
    assert forked(lambda: prepare(folder, kind, story)) == 0
    before = [wanted_rows(folder, latest=story == "latest")]
    with lamina.open(folder / "data") as store:
        store.set_schema("orders", **versions(story)[1])
    append(folder, "article", 20, 30, OTHER_DAY_MS)
    before.append(wanted_rows(folder, latest=story == "latest"))
    shutil.copytree(folder, root / "killed")
    done = 0
    for mine in killed_at_every(int(stride), kind, folder, story):
        assert forked(lambda mine=mine: check(mine, kind, before, story)) == 0, done
        done += 1
    assert done > 1, "it was killed a few times"
    print("killed", done, "steps", (root / "steps").read_text())


if __name__ == "__main__":
    main()
