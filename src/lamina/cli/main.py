"""The command line: `lamina NOUN VERB`, thin over the engine.

Rules.
1. No storage logic here: commands call the engine and render what it returns.
2. `--json` prints one object a line and nothing else; tables, colours and progress are for people.
3. Exit codes are the error families' (`lamina.errors.EXIT_CODES`); 0 is success.
4. A command imports what it needs when it runs, so that `lamina --help` stays instant.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lamina.cli import tier
from lamina.errors import EXIT_CODES, LaminaError, Unavailable, exit_code

app = typer.Typer(
    name="lamina",
    help="A durable, segmented event log for Python and Spark.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

app.add_typer(tier.app)

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]


@app.command(epilog="Example: lamina dump data/topics/orders/0/segments/00000000000000000000.log")
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
    from lamina.cli import files

    raise typer.Exit(files.dump(path, first=first, limit=limit, verify=verify, as_json=as_json))


@app.command(epilog="Example: lamina verify data/")
def verify(
    path: Annotated[str, typer.Argument(help="A file, or a tree of files.", metavar="PATH")],
    *,
    as_json: Json = False,
) -> None:
    """Checks every checksum and every field of a file or a tree; exits 1 if any is damaged."""
    from lamina.cli import files

    raise typer.Exit(files.verify(path, as_json=as_json))


@app.command(epilog="Example: lamina demo --data demo-data")
def demo(
    data: Annotated[str, typer.Option(help="A directory to write the demonstration into.")] = (
        "demo-data"
    ),
) -> None:
    """Tells Lamina's story on real files: writes, damages, dumps and verifies each format."""
    from lamina.cli import story

    story.tell(data)


def main() -> None:
    """Runs the command line; an error of Lamina becomes one line and its family's exit code."""
    try:
        app()
    except LaminaError as error:
        _complain(str(error))
        sys.exit(exit_code(error))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        _complain(f"{error.filename or 'the system'}: {error.strerror or error}")
        sys.exit(EXIT_CODES[Unavailable])


def _complain(problem: str) -> None:
    """Prints one line; what cannot be printed (a name from a hostile directory) is escaped."""
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in problem)
    typer.echo(f"lamina: {shown}", err=True)


if __name__ == "__main__":
    main()
