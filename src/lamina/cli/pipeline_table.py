"""`lamina pipeline table`: a typed table of a topic in a lake, once or for ever.

Rule: what the table holds is in the table's own commits; the command keeps nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from lamina.cli.pipeline_running import HERE, DryRun, Master, emit, place_of, run
from lamina.cli.target import Json, TopicName, Where, placed, refuse_nowhere, settings_of
from lamina.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lamina.spark.jobs.job import Progress, Summary
    from lamina.spark.jobs.tables.table_contract import TableLake
    from lamina.spark.jobs.tables.table_job import Asked

app = typer.Typer()


class TableKind(StrEnum):
    """What `table` writes."""

    iceberg = "iceberg"
    delta = "delta"
    parquet = "parquet"


class Policy(StrEnum):
    """What becomes of a record that the schema does not fit."""

    fail = "raise"
    null = "null"
    dead_letter = "dead_letter"


Target: TypeAlias = Annotated[
    str, typer.Argument(metavar="TARGET", help="A directory; for Iceberg, NAMESPACE.TABLE.")
]
To: TypeAlias = Annotated[TableKind, typer.Option("--to", help="The kind of table.")]
Latest: TypeAlias = Annotated[
    bool, typer.Option("--latest", help="Only the last row of each key; a null value removes it.")
]
Buckets: TypeAlias = Annotated[
    int, typer.Option(help="With --latest, of a new table: how many files its keys are dealt to.")
]
Errors: TypeAlias = Annotated[
    Policy, typer.Option(help="What becomes of a record that the schema does not fit.")
]
Follow: TypeAlias = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on for ever, in runs; Ctrl-C ends it.")
]
Every: TypeAlias = Annotated[str, typer.Option(help="With --follow: how often to look.")]
SmallFiles: TypeAlias = Annotated[
    int, typer.Option(help="Join the small files of a day when there are so many; 0: never.")
]
FileMegabytes: TypeAlias = Annotated[
    int, typer.Option("--file-mb", help="How large joined files may become, in MB.")
]
Keep: TypeAlias = Annotated[
    str, typer.Option(help="How long snapshots and files that were replaced are kept.")
]
CatalogName: TypeAlias = Annotated[str, typer.Option(help="Iceberg: its name in pyiceberg.")]
CatalogOptions: TypeAlias = Annotated[
    list[str],
    typer.Option("--option", metavar="KEY=VALUE", help="Iceberg: a property of the catalog."),
]
SkipLost: TypeAlias = Annotated[
    bool, typer.Option("--skip-lost", help="Go on without records that are lost, not stopping.")
]


@app.command(
    epilog="Example: lamina pipeline table orders lake/orders --to delta --latest --data data"
)
@placed
def table(
    topic: TopicName,
    target: Target,
    *,
    to: To,
    latest: Latest = False,
    buckets: Buckets = 8,
    errors: Errors = Policy.fail,
    follow: Follow = False,
    every: Every = "10s",
    small_files: SmallFiles = 8,
    file_mb: FileMegabytes = 128,
    keep: Keep = "7d",
    catalog: CatalogName = "default",
    option: CatalogOptions = [],  # noqa: B006
    skip_lost: SkipLost = False,
    where: Where,
    master: Master = HERE,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Adds the new records of a typed topic to a table, as columns, each exactly once.

    The table's columns follow the topic's schema from version to version. Run again, the command
    adds what is new; killed at any moment and run again, it stores nothing twice.
    """
    from lamina.cli.offsets import duration_ms

    keep_ms, every_s = duration_ms(keep), duration_ms(every) / 1000

    def asked() -> Asked:
        from lamina.spark.jobs.tables.table_job import Asked
        from lamina.spark.jobs.tables.table_upkeep import Upkeep

        upkeep = Upkeep(file_mb << 20, small_files, keep_ms)
        return Asked(latest, buckets, errors.value, skip_lost, upkeep)

    def work(spark: SparkSession, progress: Progress) -> Summary:
        from lamina.spark.jobs.tables import table_job

        lake = _lake(to, target, catalog, settings_of(option))
        return table_job.table(
            *(spark, place_of(where), topic, lake, asked()), dry_run=dry_run, progress=progress
        )

    if not follow:
        run(work, master=master, as_json=as_json, where=where)
        return
    if dry_run:
        raise InvalidRequest("--follow does not go with --dry-run")
    _follow(work, every_s, master=master, as_json=as_json, where=where)


def _follow(
    work: Callable[[SparkSession, Progress], Summary],
    every_s: float,
    *,
    master: str,
    as_json: bool,
    where: Where,
) -> None:
    """Runs again and again in one session, and prints the runs that changed something."""
    from lamina.cli.pipeline_running import spark_session

    refuse_nowhere(where)
    with spark_session(master) as spark, contextlib.suppress(KeyboardInterrupt):
        from lamina.spark.jobs.job import Silent
        from lamina.spark.jobs.tables.table_job import follow

        follow(lambda: work(spark, Silent()), lambda done: emit(done, as_json=as_json), every_s)


def _lake(kind: TableKind, target: str, catalog: str, options: dict[str, str]) -> TableLake:
    """Makes the table's face; its package is imported only if it is asked for."""
    if kind is not TableKind.iceberg and options:
        raise InvalidRequest("--option is for Iceberg's catalog")
    try:
        if kind is TableKind.delta:
            from lamina.spark.jobs.tables.delta_rows import DeltaRows

            return DeltaRows(target)
        if kind is TableKind.iceberg:
            from lamina.spark.jobs.tables.iceberg_rows import IcebergRows

            return IcebergRows(target, catalog, options)
    except ImportError as error:
        raise InvalidRequest(
            f"{kind.value} tables need the package {error.name}: pip install 'lamina[{kind.value}]'"
        ) from error
    from lamina.spark.jobs.tables.parquet_rows import ParquetRows

    return ParquetRows(target)
