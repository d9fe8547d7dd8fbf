"""`lamina segment …`: list the segments of a partition, dump a file, verify a file or a tree."""

from __future__ import annotations

from typing import Annotated

import typer

from lamina.cli.target import (
    Json,
    TopicName,
    Where,
    placed,
    readable,
)

app = typer.Typer(
    help="Segment files: what is in them and whether they are sound.",
    no_args_is_help=True,
    epilog="Example: lamina segment list orders --data data",
)


@app.command("list", epilog="Example: lamina segment list orders -p 0 --data data")
@placed
def list_segments(
    topic: TopicName,
    *,
    partition: Annotated[
        int, typer.Option("--partition", "-p", min=0, help="Which partition.")
    ] = 0,
    where: Where,
    as_json: Json = False,
) -> None:
    """Lists the segments of a partition, oldest first."""
    from lamina.cli.layer_drawing import state_of
    from lamina.cli.output import emit, moment, size
    from lamina.wire.values import to_plain

    with readable(where) as store:
        segments = store.segments(topic, partition)
    if as_json:
        emit((to_plain(segment) for segment in segments), as_json=True)
        return
    emit(
        [
            {
                "base_offset": segment.base_offset,
                "next_offset": segment.next_offset,
                "size": size(segment.size_bytes),
                "newest": moment(segment.newest_timestamp_ms),
                "state": state_of(segment),
            }
            for segment in segments
        ],
        as_json=False,
    )


@app.command(
    epilog="Example: lamina segment dump data/topics/orders/0/segments/00000000000000000000.log"
)
def dump(
    path: Annotated[str, typer.Argument(help="Any file that Lamina writes.", metavar="FILE")],
    *,
    first: Annotated[
        int,
        typer.Option(
            "--from", help="First offset (of a log) or entry (of an index) to show.", min=0
        ),
    ] = 0,
    limit: Annotated[int | None, typer.Option(help="Show at most this many.", min=1)] = None,
    verify: Annotated[bool, typer.Option(help="Also exit 1 if anything is damaged.")] = False,
    as_json: Json = False,
) -> None:
    """Shows what a file holds: records, events or entries, with positions and checksum state."""
    from lamina.cli import file_reports

    raise typer.Exit(
        file_reports.dump(path, first=first, limit=limit, verify=verify, as_json=as_json)
    )


@app.command(epilog="Example: lamina segment verify data/")
def verify(
    path: Annotated[str, typer.Argument(help="A file, or a tree of files.", metavar="PATH")],
    *,
    as_json: Json = False,
) -> None:
    """Checks every checksum and every field of a file or a tree; exits 1 if any is damaged."""
    from lamina.cli import file_reports

    raise typer.Exit(file_reports.verify(path, as_json=as_json))
