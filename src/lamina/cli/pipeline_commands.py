"""`lamina pipeline <job>`: bulk work on topics, each one Spark job with one commit."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from lamina.cli import pipeline_bulk, pipeline_table
from lamina.cli.pipeline_running import HERE, DryRun, Master, place_of, run
from lamina.cli.target import Json, TopicName, Where, placed, settings_of
from lamina.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lamina.spark.jobs.export import Lake
    from lamina.spark.jobs.job import Progress, Summary
    from lamina.spark.jobs.topic_rows import Chosen

app = typer.Typer(
    name="pipeline",
    help="Bulk work on topics, run by Spark: on this machine, or on a cluster with --master.",
    no_args_is_help=True,
    epilog="Example: lamina pipeline export orders lake/orders --data data",
)

app.add_typer(pipeline_bulk.app)
app.add_typer(pipeline_table.app)

Target = Annotated[str, typer.Argument(metavar="TARGET", help="The topic to append to.")]
Rules = Annotated[
    list[str],
    typer.Option(
        "--map",
        metavar="FIELD=RULE",
        help="What to do with a field that the target cannot keep: drop, none, key=tag …",
    ),
]
SkipLost = Annotated[
    bool,
    typer.Option("--skip-lost", help="Go on without records that are lost, instead of stopping."),
]
State = Annotated[
    str | None,
    typer.Option(
        "--state", help="Where the job keeps its state; by default in the data directory."
    ),
]


class FileFormat(StrEnum):
    """What `ingest` reads."""

    parquet = "parquet"
    json = "json"
    csv = "csv"
    table = "table"


class TableFormat(StrEnum):
    """What `export` writes."""

    parquet = "parquet"
    delta = "delta"
    iceberg = "iceberg"


@app.command(
    epilog="Example: lamina pipeline convert orders orders-plain --format frame"
    " --map headers=drop --map value=empty --data data"
)
@placed
def convert(
    topic: TopicName,
    target: Target,
    *,
    format: Annotated[
        str | None, typer.Option(help="Create the target in this format if it does not exist.")
    ] = None,
    rules: Rules = [],  # noqa: B006
    skip_lost: SkipLost = False,
    state: State = None,
    where: Where,
    master: Master = HERE,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Appends a topic to one of another format; run again, only the new records."""

    def work(spark: SparkSession, progress: Progress) -> Summary:
        from lamina.spark.jobs import copy, field_mapping

        asked = copy.Conversion(topic, target, format, field_mapping.parse(rules), skip_lost, state)
        return copy.convert(spark, place_of(where), asked, dry_run=dry_run, progress=progress)

    run(work, master=master, as_json=as_json, where=where)


@app.command(epilog="Example: lamina pipeline replay orders orders-test -o @-2h:-1h --data data")
@placed
def replay(
    topic: TopicName,
    target: Target,
    *,
    offset: Annotated[
        str, typer.Option("--offset", "-o", help="Which records: 100:200, @-2h:-1h, :end …")
    ],
    name: Annotated[
        str | None,
        typer.Option("--id", help="Names this replay; one of the same name is stored only once."),
    ] = None,
    rules: Rules = [],  # noqa: B006
    skip_lost: SkipLost = False,
    state: State = None,
    where: Where,
    master: Master = HERE,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Appends a range of offsets or of time to another topic, once."""

    def work(spark: SparkSession, progress: Progress) -> Summary:
        from lamina.spark.jobs import copy, field_mapping

        asked = copy.Replay(
            topic,
            target,
            name or f"offsets {offset}",
            _chosen(topic, offset),
            field_mapping.parse(rules),
            skip_lost,
            state,
        )
        return copy.replay(spark, place_of(where), asked, dry_run=dry_run, progress=progress)

    run(work, master=master, as_json=as_json, where=where)


def _chosen(topic: str, text: str) -> Chosen:
    """Parses a range; without an end, it goes to the current end."""
    from lamina.cli.offsets import Offsets, Point, parse, resolve
    from lamina.storage.files import wall_clock_ms

    asked = parse(text, wall_clock_ms())

    def chosen(store: Offsets, partition: int) -> tuple[int, int]:
        edges = asked.start, asked.end or Point("end")
        first, end = (resolve(point, store, topic, partition) for point in edges)
        return first, end

    return chosen


@app.command(
    epilog="Example: lamina pipeline ingest clicks/ clicks --format json --value json --key user"
    " --data data"
)
@placed
def ingest(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A file, a directory, or a Spark table.")
    ],
    target: Target,
    *,
    format: Annotated[FileFormat, typer.Option(help="The source format.")] = FileFormat.parquet,
    key: Annotated[str, typer.Option(help="The column with the key.")] = "",
    value: Annotated[
        str, typer.Option(help="The column with the value; json makes one of all columns.")
    ] = "",
    timestamp: Annotated[
        str, typer.Option(help="The column with the time: a timestamp, a text, or ms.")
    ] = "",
    drop: Annotated[list[str], typer.Option(help="A column to leave out; repeatable.")] = [],  # noqa: B006
    option: Annotated[
        list[str], typer.Option(metavar="KEY=VALUE", help="An option for Spark's reader.")
    ] = [],  # noqa: B006
    name: Annotated[
        str, typer.Option("--id", help="Names this ingestion, which stores each file once.")
    ] = "",
    state: State = None,
    where: Where,
    master: Master = HERE,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Appends files or a table to a topic; run again, only new files."""

    def work(spark: SparkSession, progress: Progress) -> Summary:
        from lamina.spark.jobs import ingest as ingesting

        fields = {"key": key, "value": value, "timestamp": timestamp}
        asked = ingesting.Ingestion(
            source, target, format.value, fields, drop, settings_of(option), name, state
        )
        return ingesting.ingest(spark, place_of(where), asked, dry_run=dry_run, progress=progress)

    run(work, master=master, as_json=as_json, where=where)


@app.command(epilog="Example: lamina pipeline export orders lake/orders --format delta --data data")
@placed
def export(
    topic: TopicName,
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="A directory; for Iceberg, NAMESPACE.TABLE."),
    ],
    *,
    format: Annotated[TableFormat, typer.Option(help="The table format.")] = TableFormat.parquet,
    catalog: Annotated[str, typer.Option(help="Iceberg: the catalog's name in pyiceberg.")] = (
        "default"
    ),
    option: Annotated[
        list[str], typer.Option(metavar="KEY=VALUE", help="Iceberg: a property of the catalog.")
    ] = [],  # noqa: B006
    skip_lost: SkipLost = False,
    where: Where,
    master: Master = HERE,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Adds the new records of a topic to a table by day: Parquet, Delta or Iceberg."""

    def work(spark: SparkSession, progress: Progress) -> Summary:
        from lamina.spark.jobs import export as exporting

        return exporting.export(
            spark,
            place_of(where),
            topic,
            _lake(format, target, catalog, settings_of(option)),
            skip_lost=skip_lost,
            dry_run=dry_run,
            progress=progress,
        )

    run(work, master=master, as_json=as_json, where=where)


def _lake(format: TableFormat, target: str, catalog: str, options: dict[str, str]) -> Lake:
    """Creates the table; its package is imported only if it is asked for."""
    if format is not TableFormat.iceberg and options:
        raise InvalidRequest("--option is for Iceberg's catalog")
    try:
        if format is TableFormat.delta:
            from lamina.spark.jobs.lakes.delta_table import DeltaLake

            return DeltaLake(target)
        if format is TableFormat.iceberg:
            from lamina.spark.jobs.lakes.iceberg_table import IcebergLake

            return IcebergLake(target, catalog, options)
    except ImportError as error:
        raise InvalidRequest(
            f"{format.value} tables need the package {error.name}:"
            f" pip install 'lamina[{format.value}]'"
        ) from error
    from lamina.spark.jobs.lakes.parquet_table import ParquetLake

    return ParquetLake(target)


@app.command(epilog="Example: lamina pipeline profile orders --html orders.html --data data")
@placed
def profile(
    topic: TopicName,
    *,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Also write a page with plots.")
    ] = None,
    skip_lost: SkipLost = False,
    where: Where,
    master: Master = HERE,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Measures a topic: records, bytes, sizes, lateness, and its most frequent keys."""

    def work(spark: SparkSession, progress: Progress) -> Summary:
        import os

        from lamina.spark.jobs import profile as profiling
        from lamina.spark.jobs import profile_page
        from lamina.storage.files import LocalFiles

        summary, found = profiling.profile(
            spark,
            place_of(where),
            topic,
            skip_lost=skip_lost,
            dry_run=dry_run,
            progress=progress,
        )
        if html is not None and found is not None:
            LocalFiles().replace(os.path.abspath(html), profile_page.page(found).encode())
        return summary

    run(work, master=master, as_json=as_json, where=where)
