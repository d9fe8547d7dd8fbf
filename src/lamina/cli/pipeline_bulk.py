"""The bulk jobs of `lamina pipeline`: archive, compact, verify, repair and erase.

Rule: a job that takes records away, or sets them aside, is a dry run until `--yes`.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from lamina.cli import pipeline_running as running
from lamina.cli.pipeline_running import HERE, DryRun, Master
from lamina.cli.target import Json, Yes

app = typer.Typer()

Directory: TypeAlias = Annotated[
    str, typer.Option("--data", envvar="LAMINA_DATA", help="The data directory.")
]
ArchiveUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--archive", envvar="LAMINA_ARCHIVE", help="s3://bucket/prefix, or a directory."),
]
Topics: TypeAlias = Annotated[
    list[str] | None, typer.Option("--topic", "-t", help="Only this topic; repeatable.")
]


@app.command(epilog="Example: lamina pipeline archive --data data --archive s3://bucket/prefix")
def archive(
    *,
    data: Directory,
    archive: ArchiveUrl = None,
    topic: Topics = None,
    dry_run: DryRun = False,
    master: Master = HERE,
    as_json: Json = False,
) -> None:
    """Copies sealed segments into the object store; each task makes one object."""
    from lamina.spark.jobs import archive as job

    running.run(
        lambda spark, progress: job.run(
            spark, data, archive, topics=topic, dry_run=dry_run, progress=progress
        ),
        master=master,
        as_json=as_json,
    )


@app.command(epilog="Example: lamina pipeline compact --data data --archive s3://bucket/prefix")
def compact(
    *,
    data: Directory,
    archive: ArchiveUrl = None,
    topic: Topics = None,
    keep_last: Annotated[
        bool, typer.Option("--keep-last", help="Keep only the last record of each key.")
    ] = False,
    clean_age_ms: Annotated[
        int, typer.Option(help="Remove what was replaced this long ago.", min=0)
    ] = 3_600_000,
    dry_run: DryRun = False,
    yes: Yes = False,
    master: Master = HERE,
    as_json: Json = False,
) -> None:
    """Joins small archived objects to 64-256 MB. With --keep-last, a dry run without --yes."""
    from lamina.spark.jobs import compact as job

    running.run(
        lambda spark, progress: job.run(
            spark,
            data,
            archive,
            topics=topic,
            keep_last=keep_last,
            clean_age_ms=clean_age_ms,
            dry_run=dry_run or (keep_last and not yes),
            progress=progress,
        ),
        master=master,
        as_json=as_json,
    )


@app.command(epilog="Example: lamina pipeline verify --data data --archive s3://bucket/prefix")
def verify(
    *,
    data: Annotated[
        str | None, typer.Option("--data", envvar="LAMINA_DATA", help="A data directory.")
    ] = None,
    archive: ArchiveUrl = None,
    dry_run: DryRun = False,
    master: Master = HERE,
    as_json: Json = False,
) -> None:
    """Checks every checksum of a directory and an archive; exits 1 if anything is damaged."""
    from lamina.spark.jobs import verify as job

    running.run(
        lambda spark, progress: job.run(spark, data, archive, dry_run=dry_run, progress=progress),
        master=master,
        as_json=as_json,
    )


@app.command(epilog="Example: lamina pipeline repair --data data --yes")
def repair(
    *,
    data: Directory,
    archive: ArchiveUrl = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    master: Master = HERE,
    as_json: Json = False,
) -> None:
    """Rebuilds indexes and lists, and sets damage aside. A dry run without --yes."""
    from lamina.spark.jobs import repair as job

    running.run(
        lambda spark, progress: job.run(
            spark, data, archive, dry_run=dry_run or not yes, progress=progress
        ),
        master=master,
        as_json=as_json,
    )


@app.command(epilog="Example: lamina pipeline erase --data data --key user-17 --yes")
def erase(
    *,
    data: Directory,
    archive: ArchiveUrl = None,
    key: Annotated[list[str] | None, typer.Option(help="A key; repeatable.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag; repeatable.")] = None,
    topic: Topics = None,
    backup: Annotated[
        list[str] | None, typer.Option(help="A copy of the directory, to erase from, too.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    master: Master = HERE,
    as_json: Json = False,
) -> None:
    """Removes records of keys or tags from every tier, with a receipt. A dry run without --yes."""
    from lamina.spark.jobs import erase as job

    running.run(
        lambda spark, progress: job.run(
            spark,
            data,
            archive,
            keys=[each.encode() for each in key or ()],
            tags=[each.encode() for each in tag or ()],
            topics=topic,
            backups=backup or (),
            dry_run=dry_run or not yes,
            progress=progress,
        ),
        master=master,
        as_json=as_json,
    )
