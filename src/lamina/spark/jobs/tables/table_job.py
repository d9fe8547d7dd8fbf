"""`table`: a topic's records as rows of a typed table; each run adds what is new, in one commit.

    held ─▶ spans beyond it, and what the schema's newest version changes ─▶ begin
         ─▶ files of new rows, and of old rows that have to be written again (executors)
         ─▶ commit ─▶ small files joined, old snapshots expired

The version of the schema is chosen by the driver, once per run, behind the ends of the topic: what
a run adds was not written under a newer one.

Rules.
1. How far the topic is, its version and its rows are committed together: a run that is killed
   anywhere and run again stores every record once.
2. A run without new records still carries the table over to a new version of the schema.
3. Upkeep comes behind the commit, in commits of its own; a run that is killed there has done its
   work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from lamina.api import TopicSchema
from lamina.errors import InvalidRequest, UnknownSchema
from lamina.formats.typed import avro_text
from lamina.spark.gaps import LeftOut
from lamina.spark.jobs import lane, topic_rows
from lamina.spark.jobs.job import Progress, Summary
from lamina.spark.jobs.tables import table_upkeep
from lamina.spark.jobs.tables.carried_rows import Carrying
from lamina.spark.jobs.tables.column_changes import ColumnChange, changes, told
from lamina.spark.jobs.tables.grouped_files import (
    by_bucket,
    by_time,
    rows_of_files,
    write_grouped,
)
from lamina.spark.jobs.tables.lake_columns import fitted, table_columns
from lamina.spark.jobs.tables.latest_rows import merged
from lamina.spark.jobs.tables.table_contract import (
    Begun,
    Commit,
    Held,
    Swept,
    TableFile,
    TableLake,
    TableState,
    rows_in,
)
from lamina.spark.jobs.tables.table_upkeep import Upkeep, packed
from lamina.spark.jobs.topic_rows import Spans, Topic, reported
from lamina.spark.jobs.whereabouts import Place
from lamina.spark.typed_columns import ERROR, GONE, KEY
from lamina.storage import paths
from lamina.storage.files import LocalFiles

BUCKETS, BUCKETS_MAX = 8, 4096
POLICIES = ("raise", "null", "dead_letter")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run is asked for."""

    latest: bool = False
    """Whether the table has only the last row of each key."""
    buckets: int = BUCKETS
    """Of a new table of latest rows: how many buckets its keys are dealt to."""
    errors: str = "raise"
    skip_lost: bool = False
    upkeep: Upkeep = field(default_factory=Upkeep)

    def __post_init__(self) -> None:
        if self.errors not in POLICIES:
            raise InvalidRequest(f"errors is one of {', '.join(POLICIES)}, not {self.errors!r}")
        if not 1 <= self.buckets <= BUCKETS_MAX:
            raise InvalidRequest(f"buckets are 1 to {BUCKETS_MAX}, not {self.buckets}")


def table(
    spark: SparkSession,
    place: Place,
    name: str,
    lake: TableLake,
    asked: Asked,
    *,
    dry_run: bool,
    progress: Progress,
) -> Summary:
    """Adds what a topic has beyond its table to it, under the newest version of its schema."""
    topic = topic_rows.described(place, name)
    with place.reading() as store:
        versions = store.schemas(name)
    if not versions:
        raise UnknownSchema(
            f"topic {name!r} has no schema: set_schema gives it one, and `lamina pipeline export`"
            " writes records as they are"
        )
    if dry_run:
        return _Run(place, topic, versions, lake, asked, lake.held(topic.extents)).would_do()
    with lake.alone():
        run = _Run(place, topic, versions, lake, asked, lake.held(topic.extents))
        return run.work(spark, progress)


def follow(
    once: Callable[[], Summary], said: Callable[[Summary], None], every_s: float, rounds: int = 0
) -> None:
    """Runs again and again, every so many seconds, until it is interrupted or so often.

    Reports the runs that stored or changed something, and the first one.
    """
    done = 0
    while True:
        begun = time.monotonic()
        summary = once()
        if not done or any(summary.totals.get(each) for each in ("records", "changes", "joined")):
            said(summary)
        done += 1
        if done == rounds:
            return
        time.sleep(max(0.0, every_s - (time.monotonic() - begun)))


class _Run:
    """One run of one topic into one table."""

    def __init__(
        self,
        place: Place,
        topic: Topic,
        versions: Sequence[TopicSchema],
        lake: TableLake,
        asked: Asked,
        held: Held | None,
    ) -> None:
        self._place, self._topic, self._lake, self._asked = place, topic, lake, asked
        self._held, self._newest = held, versions[-1]
        _refuse_other(topic, lake, asked, held)
        done = {} if held is None else held.state.done
        self._spans: Spans = topic_rows.beyond(topic, done)
        ends = {**done, **{number: end for number, (_, end) in self._spans.items()}}
        buckets = 0 if not asked.latest else asked.buckets if held is None else held.state.buckets
        self._state = TableState(topic.identity, self._newest.version, asked.latest, buckets, ends)
        has_errors = asked.errors == "null" or (held is not None and ERROR in held.schema.names)
        columns_of = partial(table_columns, with_errors=has_errors, has_times=lake.has_times)
        self._columns = columns_of(self._newest.arrow)
        if asked.latest and GONE in self._columns.names:
            raise InvalidRequest(f"the schema has a column {GONE!r}, which latest rows need")
        self._former: TopicSchema | None = None
        self._change: list[ColumnChange] | None = None
        if held is not None:
            self._former = _version(versions, held.state.schema, topic)
            old, new = (avro_text.parse(each.text) for each in (self._former, self._newest))
            former = table_columns(
                self._former.arrow,
                with_errors=ERROR in held.schema.names,
                has_times=lake.has_times,
            )
            found = changes((new, old), self._columns, former, self._newest.encoding)
            is_other = bool(told(found)) or held.state.schema != self._newest.version
            self._change = found if is_other else None

    def would_do(self) -> Summary:
        """Returns the plan."""
        rows = [
            {"partition": number, "start": start, "end": end, "offsets": end - start}
            for number, (start, end) in self._spans.items()
        ]
        totals = {"offsets": topic_rows.offsets(self._spans), **self._about()}
        if self._held is not None:
            joined = table_upkeep.small_files(self._held.files, self._asked.upkeep, self._state)
            totals["files_to_join"] = sum(len(each) for each in joined)
        return Summary("table", True, rows, totals)

    def work(self, spark: SparkSession, progress: Progress) -> Summary:
        """Writes, commits and keeps up; the table's lock is held."""
        added: list[TableFile] = []
        left_out: list[LeftOut] = []
        if self._spans or self._change is not None or self._held is None:
            added, left_out = self._stored(spark, progress)
        joined, swept = self._kept_up(spark, progress)
        totals: dict[str, Any] = {
            "records": self._taken,
            "files": len(added),
            "size_bytes": sum(file.size_bytes for file in added),
            **self._about(),
        }
        if self._asked.latest:
            totals["keys"] = self._keys
            totals["no_key"] = self._keyless
        totals |= {"joined": joined, "snapshots_expired": swept.snapshots, "removed": swept.files}
        return Summary("table", False, _by_group(added), totals | reported(left_out))

    def _about(self) -> dict[str, Any]:
        found = {"from": self._topic.name, "to": self._lake.name, "schema": self._newest.version}
        changed = told(self._change or [])
        return found | ({"changes": changed} if changed else {})

    # ------------------------------------------------------------------ one commit

    def _stored(
        self, spark: SparkSession, progress: Progress
    ) -> tuple[list[TableFile], list[LeftOut]]:
        begun = self._lake.begin(self._state, self._columns, self._change)
        carrying = None
        if self._held is not None and self._former is not None and not begun.keeps_files:
            texts = self._former.text, self._newest.text
            carrying = Carrying(self._newest.encoding, *texts, begun.schema)
        write = self._merge if self._asked.latest else self._append
        added, removed, left_out = write(spark, begun, carrying, progress)
        self._lake.commit(Commit(self._state, added, removed))
        return added, left_out

    _taken = _keys = _keyless = 0

    def _rows(self) -> topic_rows.Rows:
        names = [name for name in self._columns.names if name != ERROR]
        names += [ERROR] if self._asked.errors == "null" else []
        names += [GONE] if self._asked.latest else []
        more = {
            "schema": "topic",
            "schemaVersion": str(self._newest.version),
            "errors": self._asked.errors,
        }
        skip = self._asked.skip_lost
        return topic_rows.rows_of(
            self._place, self._topic, self._spans, names, skip_lost=skip, more=more
        )

    def _append(
        self, spark: SparkSession, begun: Begun, carrying: Carrying | None, progress: Progress
    ) -> tuple[list[TableFile], Sequence[TableFile], list[LeftOut]]:
        def write(_: int, batches: Iterator[pa.RecordBatch]) -> list[TableFile]:
            rows = (_completed(batch, begun.schema) for batch in batches)
            return write_grouped(LocalFiles(), begun.directory, rows, by_time)

        answers, left_out = self._rows().over(spark, write, progress)
        added = [file for files in answers for file in files]
        self._taken = rows_in(added)
        if carrying is None:
            return added, [], left_out
        assert self._held is not None
        tasks = packed(self._held.files, self._asked.upkeep.file_bytes)
        work = partial(
            table_upkeep.written_again,
            self._lake.read_from(),
            begun.directory,
            self._held.schema,
            carrying,
        )
        again = [file for files in lane.over_tasks(spark, tasks, work, progress) for file in files]
        return added + again, self._held.files, left_out

    def _merge(
        self, spark: SparkSession, begun: Begun, carrying: Carrying | None, progress: Progress
    ) -> tuple[list[TableFile], Sequence[TableFile], list[LeftOut]]:
        """Writes changes by bucket, then each bucket that has some again, with them."""
        changed = begun.schema.append(pa.field(GONE, pa.bool_(), nullable=False))
        scratch = self._lake.scratch()
        buckets = self._state.buckets

        def write(_: int, batches: Iterator[pa.RecordBatch]) -> tuple[list[TableFile], int, int]:
            seen = [0, 0]

            def rows() -> Iterator[pa.RecordBatch]:
                for batch in batches:
                    seen[0] += batch.num_rows
                    seen[1] += batch.column(KEY).null_count
                    yield _completed(batch, changed)

            files = write_grouped(LocalFiles(), scratch, rows(), by_bucket(buckets))
            return files, seen[0], seen[1]

        answers, left_out = self._rows().over(spark, write, progress)
        self._taken = sum(taken for _, taken, _ in answers)
        self._keyless = sum(keyless for _, _, keyless in answers)
        news = _grouped(file for files, _, _ in answers for file in files)
        olds = _grouped(self._held.files if self._held is not None else ())
        groups = sorted({*news, *(olds if carrying is not None else ())})
        tasks = [(olds.get(group, []), news.get(group, [])) for group in groups]
        schema = self._held.schema if self._held is not None else begun.schema
        work = partial(
            _merged_bucket, self._lake.read_from(), scratch, begun, (schema, changed), carrying
        )
        added = [file for found in lane.over_tasks(spark, tasks, work, progress) for file in found]
        for files, _, _ in answers:
            for file in files:
                LocalFiles().remove(paths.join(scratch, file.name))
        removed = [file for group in groups for file in olds.get(group, [])]
        self._keys = rows_in(added) + sum(
            rows_in(files) for group, files in olds.items() if group not in groups
        )
        return added, removed, left_out

    # ------------------------------------------------------------------ upkeep

    def _kept_up(self, spark: SparkSession, progress: Progress) -> tuple[int, Swept]:
        held = self._lake.held(self._topic.extents)
        joined = 0
        if held is not None:
            tasks = table_upkeep.small_files(held.files, self._asked.upkeep, self._state)
            if tasks:
                joined = sum(len(each) for each in tasks)
                begun = self._lake.begin(held.state, self._columns, None)
                work = partial(
                    table_upkeep.written_again,
                    self._lake.read_from(),
                    begun.directory,
                    begun.schema,
                    None,
                )
                found = lane.over_tasks(spark, tasks, work, progress)
                added = [file for files in found for file in files]
                gone = [file for task in tasks for file in task]
                self._lake.commit(Commit(held.state, added, gone, has_new_rows=False))
        keep_ms = self._asked.upkeep.keep_ms
        return joined, Swept() if keep_ms is None else self._lake.expire(keep_ms)


def _refuse_other(topic: Topic, lake: TableLake, asked: Asked, held: Held | None) -> None:
    """Raises InvalidRequest for a table of another topic, or of another kind."""
    if asked.latest and "key" not in topic.columns:
        raise InvalidRequest(
            f"topic {topic.name!r} is of format {topic.format}, which keeps no keys: there is no"
            " latest row of a key"
        )
    if held is None:
        return
    if held.state.topic != topic.identity:
        raise InvalidRequest(
            f"{lake.name} holds {held.state.topic}, not {topic.identity}: give each topic, and a"
            " topic that was created again, its own table"
        )
    if held.state.latest != asked.latest:
        kind = "the latest row of each key" if held.state.latest else "every record"
        raise InvalidRequest(f"{lake.name} has {kind}: give --latest as before, or another table")


def _version(versions: Sequence[TopicSchema], number: int, topic: Topic) -> TopicSchema:
    if not 1 <= number <= len(versions):
        raise UnknownSchema(
            f"the table has version {number} of the schema, but topic {topic.name!r} has 1 to"
            f" {len(versions)}"
        )
    return versions[number - 1]


def _completed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns rows of a query as rows of a table: without errors, nothing is said of them."""
    if ERROR in schema.names and ERROR not in batch.schema.names:
        batch = batch.append_column(ERROR, pa.nulls(batch.num_rows, pa.string()))
    return fitted(batch, schema)


def _grouped(files: Iterable[TableFile]) -> dict[str, list[TableFile]]:
    found: dict[str, list[TableFile]] = {}
    for file in files:
        found.setdefault(file.group, []).append(file)
    return found


def _merged_bucket(
    source: str,
    scratch: str,
    begun: Begun,
    schemas: tuple[pa.Schema, pa.Schema],
    carrying: Carrying | None,
    task: tuple[Sequence[TableFile], Sequence[TableFile]],
) -> list[TableFile]:
    """Writes one bucket with its changes; runs on an executor."""
    former, changed = schemas
    old, new = task
    group = (*old, *new)[0].group
    held = [
        fitted(batch, begun.schema) if carrying is None else carrying.carried(batch)
        for batch in rows_of_files(source, old, former if carrying is not None else begun.schema)
    ]
    rows = merged(
        pa.Table.from_batches(held, begun.schema),
        pa.Table.from_batches(rows_of_files(scratch, new, changed), changed),
    )
    batches = rows.to_batches()
    return write_grouped(LocalFiles(), begun.directory, batches, lambda batch: [(group, batch)])


def _by_group(files: Sequence[TableFile]) -> list[Mapping[str, Any]]:
    return [
        {
            "group": group,
            "files": len(some),
            "records": rows_in(some),
            "size_bytes": sum(file.size_bytes for file in some),
        }
        for group, some in sorted(_grouped(files).items())
    ]
