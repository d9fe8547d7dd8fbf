"""`lamina tier`: what an archive holds, its orphans, and restoring topics from it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli.output import counted, size
from lamina.cli.target import (
    Json,
    Where,
    placed,
    readable,
    writable,
)
from lamina.errors import EXIT_CODES, CorruptData, InvalidRequest, LaminaError, Unavailable

if TYPE_CHECKING:
    from lamina.api import TierStatus
    from lamina.storage.objects import Objects

app = typer.Typer(
    name="tier",
    help="The archive in an object store.",
    epilog="Example: lamina tier show s3://bucket/prefix",
    no_args_is_help=True,
)

Url = Annotated[str, typer.Argument(help="s3://bucket/prefix, or a directory.", metavar="ARCHIVE")]


@app.command(epilog="Example: lamina tier show s3://bucket/prefix")
def show(archive: Url, *, as_json: Json = False) -> None:
    """Lists archived topics with their partitions, offsets and sizes."""
    from lamina.archive.object_list import Shelf
    from lamina.store.archive_store import archived_topics

    objects = _opened(archive)
    for name, about in sorted(archived_topics(objects).items()):
        for partition in range(about.partitions):
            manifest = Shelf(objects, about, partition).load()
            _say(
                as_json,
                f"{name}/{partition}: {counted(len(manifest.objects), 'object')},"
                f" {size(manifest.size_bytes)}, end offset {manifest.end_offset}",
                topic=name,
                partition=partition,
                objects=len(manifest.objects),
                size_bytes=manifest.size_bytes,
                end_offset=manifest.end_offset,
            )


@app.command(epilog="Example: lamina tier status --data data --archive s3://bucket/prefix")
@placed
def status(*, where: Where, as_json: Json = False) -> None:
    """Shows how far the archive of each partition is behind; exits 3 on an error."""
    with readable(_archived(where)) as store:
        found = store.tier_status()
    _tell(found, as_json=as_json)


@app.command(
    "archive", epilog="Example: lamina tier archive --data data --archive s3://bucket/prefix"
)
@placed
def archive_now(*, where: Where, as_json: Json = False) -> None:
    """Archives sealed segments now, and shows how far the archive is; exits 3 on an error."""
    with writable(_archived(where)) as store:
        try:
            store.archive()
        except LaminaError as error:  # the rows say it, too, and what was archived all the same
            typer.echo(str(error), err=True)
        found = store.tier_status()
    _tell(found, as_json=as_json)


def _archived(where: Where) -> Where:
    """Refuses a directory that has no archive; a server knows its own."""
    if where.data is not None and where.archive is None:
        from lamina.archive.location import remembered
        from lamina.storage.files import LocalFiles

        if remembered(LocalFiles(), where.data) is None:
            raise InvalidRequest(
                f"{where.data} remembers no archive: name it with --archive or LAMINA_ARCHIVE"
            )
    return where


def _tell(found: list[TierStatus], *, as_json: bool) -> None:
    from lamina.cli.output import emit

    rows: list[dict[str, Any]] = [asdict(each) for each in found]
    for row in rows if not as_json else ():
        row |= {name: size(row[name]) for name in ("size_bytes", "bytes_behind")}
        row["seconds_behind"] = round(row["seconds_behind"], 1)
    none = (
        "no topic is archived; in a store with an archive, `lamina topic alter TOPIC -c"
        " remote.storage.enable=true` has one archived"
    )
    emit(rows, as_json=as_json, none=none)
    raise typer.Exit(EXIT_CODES[Unavailable] if any(each.last_error for each in found) else 0)


@app.command(epilog="Example: lamina tier orphans s3://bucket/prefix --yes")
def orphans(
    archive: Url,
    *,
    execute: Annotated[
        bool, typer.Option("--yes", "-y", "--execute", help="Remove them, not only list them.")
    ] = False,
    age_ms: Annotated[int, typer.Option(help="Leave younger ones alone.", min=0)] = 3_600_000,
    as_json: Json = False,
) -> None:
    """Lists objects that a crash has left and no list names; removes them with --yes."""
    from lamina.storage.files import wall_clock_ms
    from lamina.store import orphans as finding

    objects = _opened(archive)
    found = finding.orphans(objects, wall_clock_ms(), age_ms)
    for info in found:
        line = f"{info.key} ({size(info.size_bytes)})"
        _say(as_json, line, key=info.key, size_bytes=info.size_bytes, removed=execute)
    if execute:
        finding.clean(objects, found)
    elif found and not as_json:
        typer.echo(
            f"{counted(len(found), 'object')}; --yes removes {'it' if len(found) == 1 else 'them'}"
        )


@app.command(epilog="Example: lamina tier rebuild s3://bucket/prefix orders")
def rebuild(
    archive: Url,
    topic: Annotated[str, typer.Argument(help="The topic whose lists are rebuilt.")],
    *,
    as_json: Json = False,
) -> None:
    """Rebuilds a topic's lists from the headers of its objects; exits 1 if some are damaged.

    Damaged objects stay listed: what is left in them can be read.
    """
    from lamina.store import orphans as finding

    rebuilt = finding.rebuild(_opened(archive), topic)
    problems = [{"key": key, "problem": problem} for key, problem in rebuilt.problems]
    line = f"{topic}: {counted(rebuilt.objects, 'object')} listed"
    _say(as_json, line, topic=topic, objects=rebuilt.objects, problems=problems)
    for key, problem in rebuilt.problems if not as_json else ():
        typer.echo(f"{key}: {problem}", err=True)
    if rebuilt.problems:
        raise typer.Exit(EXIT_CODES[CorruptData])


@app.command(epilog="Example: lamina tier restore s3://bucket/prefix data orders")
def restore(
    archive: Url,
    data: Annotated[str, typer.Argument(help="The data directory, which may not exist yet.")],
    topics: Annotated[list[str] | None, typer.Argument(help="Topics; all by default.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """Restores archived topics: records, offsets, settings, gaps and group positions.

    What the archive cannot give back is listed and entered as lost; then the exit code is 1.
    """
    from lamina.storage.files import LocalFiles, wall_clock_ms
    from lamina.store import restore as restoring
    from lamina.store.opening import Boot

    boot = Boot(LocalFiles(), os.path.abspath(data), wall_clock_ms)
    restored = restoring.restore(_opened(archive), boot, topics or None)
    for done in restored:
        held = counted(done.records, "record")
        line = f"{done.topic}: {held} in {counted(done.partitions, 'partition')}"
        fields: dict[str, object] = {"records": done.records, "end_offsets": done.end_offsets}
        losses = [{"partition": each.partition, **asdict(each.gap)} for each in done.losses]
        groups = [each._asdict() for each in done.lost_groups]
        fields |= {"losses": losses, "lost_groups": groups, "schema_problem": done.schema_problem}
        _say(as_json, line, topic=done.topic, **fields)
        for each in done.losses if not as_json else ():
            where = f"{done.topic}/{each.partition}: offsets {each.gap.first} to {each.gap.end}"
            typer.echo(f"{where} are lost: {each.gap.detail}", err=True)
        for lost in done.lost_groups if not as_json else ():
            where = f"{done.topic}/{lost.partition}: group {lost.group!r}"
            typer.echo(f"{where} could not be restored: {lost.problem}", err=True)
        if done.schema_problem and not as_json:
            typer.echo(f"{done.topic}: its schemas cannot be read: {done.schema_problem}", err=True)
    if any(done.losses or done.lost_groups or done.schema_problem for done in restored):
        raise typer.Exit(EXIT_CODES[CorruptData])


def _opened(archive: str) -> Objects:
    from lamina.archive.open_archive import open_archive

    if "://" not in archive and not os.path.isdir(archive):
        raise InvalidRequest(f"{archive} is neither a directory nor a URL like s3://bucket/prefix")
    objects = open_archive(archive)
    assert objects is not None, "an argument is never empty"
    return objects


def _say(as_json: bool, line: str, **fields: object) -> None:
    typer.echo(json.dumps(fields) if as_json else line)
