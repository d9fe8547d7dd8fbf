"""The program: every noun and its verbs, one line per error, and the exit code.

Rules.
1. No storage logic here: commands call the store and render what it returns.
2. `--json` prints one object per line and nothing else; tables, colours and progress are for
   people.
3. Each error family has its exit code (`lamina.errors.EXIT_CODES`); 0 is success.
4. A command imports what it needs when it runs, so that `lamina --help` stays instant.
5. A command that destroys anything is a dry run without `--yes`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lamina.cli import (
    cat_command,
    cluster_commands,
    group_commands,
    pipeline_commands,
    router_commands,
    schema_commands,
    segment_commands,
    serve_commands,
    server_commands,
    sql_command,
    tier_commands,
    topic_commands,
)
from lamina.cli.target import (
    Json,
    Where,
    placed,
)
from lamina.errors import EXIT_CODES, LaminaError, Unavailable, exit_code
from lamina.formats.kernels.compile_notice import when_compiling

TRACEBACK = "LAMINA_TRACEBACK"
"""The environment variable that shows where an unexpected error came from."""
DEFECT, INTERRUPTED = 70, 130


class Nouns(TyperGroup):
    """The commands; a verb without its noun (`lamina consume`) is told where it belongs."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds a command; suggests the nouns that have it as a verb."""
        if args and args[0] not in self.commands:
            nouns = [
                f"'{noun} {args[0]}'"
                for noun, group in self.commands.items()
                if args[0] in getattr(group, "commands", {})
            ]
            if nouns:
                ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(nouns)}?")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="lamina",
    cls=Nouns,
    help="A durable, segmented event log for Python and Spark.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # of every command below, too
)
app.add_typer(tier_commands.app)
app.add_typer(topic_commands.app, name="topic")
app.add_typer(group_commands.app, name="group")
app.add_typer(router_commands.app, name="router")
app.add_typer(schema_commands.app, name="schema")
app.add_typer(segment_commands.app, name="segment")
app.add_typer(serve_commands.keys, name="key")
app.add_typer(server_commands.app, name="server")
app.add_typer(cluster_commands.app, name="cluster")
app.add_typer(pipeline_commands.app, name="pipeline")
app.command(epilog="Example: lamina serve --data data --set http.port=8080")(serve_commands.serve)
app.command(epilog="Example: lamina config --set max.wait.ms=1000")(serve_commands.config)
app.command(epilog="Example: lamina cat -C -t orders -o -10 -e -f '%o %s\\n' --data data")(
    cat_command.cat
)
app.command(epilog="Example: lamina dump data/topics/orders/0/segments/00000000000000000000.log")(
    segment_commands.dump
)
app.command(
    epilog="Example: lamina sql 'select count(*) from orders where _timestamp > now() - interval"
    " 10 minutes' --data data"
)(sql_command.sql)
app.command(epilog="Example: lamina verify data/")(segment_commands.verify)
if find_spec("lamina_torture") is not None:  # the harness, a package of its own
    harness = import_module("lamina_torture.command")
    app.command(epilog="Example: lamina torture --seed 7 --fault F4 --format wal")(harness.torture)
if find_spec("lamina_demo") is not None:  # the demonstration, of examples/
    shown = import_module("lamina_demo.command")
    app.command(epilog="Example: lamina demo --data demo-data")(shown.demo)


def _show_version(*, is_asked: bool) -> None:
    """Prints the version and ends."""
    if is_asked:
        from lamina import __version__

        typer.echo(f"lamina {__version__}")
        raise typer.Exit


@app.callback()
def _everywhere(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=lambda asked: _show_version(is_asked=asked),
        ),
    ] = False,
) -> None:
    del version


@app.command(epilog="Example: lamina doctor --data data")
@placed
def doctor(
    *,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Read every record, including archived ones.")
    ] = False,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Write to an --archive that fails, at your own risk."),
    ] = False,
    where: Where,
    as_json: Json = False,
) -> None:
    """Checks a directory and its disk, or a server; exits 1 if there is a problem.

    With --archive alone it proves that the object store is fit to be one: writers race for objects
    that it makes and removes again, and what was found is kept there for all who write to it.
    """
    from lamina.cli import doctor as examination
    from lamina.cli.output import emit
    from lamina.errors import InvalidRequest

    if where.data is None and where.server is None:
        if where.archive is None:
            raise InvalidRequest(
                "say what to look at: --data DIRECTORY, --server grpc://host:port, or --archive"
                " s3://bucket/prefix alone"
            )
        findings = list(examination.prove(where.archive, is_trusted=trust))
    elif trust:
        raise InvalidRequest("--trust is for --archive alone, without --data and --server")
    else:
        findings = list(examination.examine(where, thorough=thorough))
    emit(findings, as_json=as_json)
    raise typer.Exit(1 if any(row["verdict"] == "problem" for row in findings) else 0)


@app.command(epilog="Example: lamina warm")
def warm(*, as_json: Json = False) -> None:
    """Compiles all kernels now, so that nobody waits for one later; in an image, while it is built.

    They are kept in $LAMINA_KERNEL_CACHE, or below ~/.cache, or in a temporary directory.
    """
    from lamina.cli.output import emit
    from lamina.cli.warm_progress import warm_with_progress

    emit([warm_with_progress()], as_json=as_json)


@app.command(epilog="Example: lamina bench --data bench-data --seconds 5 --producers 4")
@placed
def bench(
    *,
    seconds: Annotated[float, typer.Option(help="How long to produce.", min=0.1)] = 3.0,
    producers: Annotated[int, typer.Option(help="How many append at once.", min=1, max=256)] = 1,
    batch: Annotated[int, typer.Option(help="Records per append.", min=1, max=100_000)] = 100,
    size: Annotated[int, typer.Option(help="Bytes per value.", min=0, max=1 << 20)] = 100,
    where: Where,
    as_json: Json = False,
) -> None:
    """Measures durable appends and reads in a topic of its own, which is removed afterwards."""
    from lamina.cli import bench as measuring
    from lamina.cli.output import emit
    from lamina.cli.target import writable

    with writable(where, create=True) as store:
        rows = measuring.run(
            store, seconds=seconds, producers=producers, batch=batch, size_bytes=size
        )
    emit(rows, as_json=as_json)


def main() -> None:
    """Runs the command line; a Lamina error becomes one line and its family's exit code."""
    when_compiling(_say_why_it_takes_long)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # closed: `>&-`
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are raised; its log repeats them
    try:
        _run()
    except LaminaError as error:
        _complain(str(error))
        sys.exit(exit_code(error))
    except BrokenPipeError:  # the reader has all it wanted: `| head`
        _forget_output()
        sys.exit(0)
    except OSError as error:
        _forget_output()
        _complain(f"{error.filename or 'the system'}: {error.strerror or error}")
        sys.exit(EXIT_CODES[Unavailable])
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # a defect: its traceback helps us, and nobody else
        if os.environ.get(TRACEBACK):
            raise
        _complain(
            f"unexpected {type(error).__name__}: {error}. This is a defect of Lamina: please report"
            f" it with what {TRACEBACK}=1 prints"
        )
        sys.exit(DEFECT)


def _run() -> None:
    """Runs a command and writes out what is left of its output, while errors are still caught."""
    try:
        app()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        sys.stdout.flush()
        raise


def _forget_output() -> None:
    """Lets the interpreter flush into nothing when it ends: the output cannot be written."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say_why_it_takes_long() -> None:
    """Prints a note on a terminal; the error stream of a script stays clean."""
    if sys.stderr.isatty():
        _complain("compiling kernels, once on this machine: this takes some seconds")


def _complain(problem: str) -> None:
    """Prints one line; escapes what cannot be printed, as in a name from a hostile directory."""
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in problem)
    typer.echo(f"lamina: {shown}", err=True)


if __name__ == "__main__":
    main()
