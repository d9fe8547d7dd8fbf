"""What every command of `lamina pipeline` shares: a Spark session, a progress bar, a summary.

Rules.
1. The bar is drawn on a terminal's standard error and nowhere else; Spark's own log goes to a file
   that is named when something fails.
2. A session that was there before the command is used and left running; one made here is stopped.
3. The last line of `--json` is the job with its sums; the lines before it are the rows.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self, TypeAlias

import typer

from lamina.cli.target import Where, refuse_nowhere
from lamina.errors import InvalidRequest, LaminaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lamina.spark.jobs.job import Progress, Summary
    from lamina.spark.jobs.whereabouts import Place

Master: TypeAlias = Annotated[
    str,
    typer.Option(
        "--master", envvar="LAMINA_MASTER", help="Where Spark runs: local[*], spark://host:7077 …"
    ),
]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Plan everything and print it; change nothing.")
]
HERE = "local[*]"


def run(
    work: Callable[[SparkSession, Progress], Summary],
    *,
    master: str,
    as_json: bool,
    where: Where | None = None,
) -> None:
    """Runs a job with a session and a progress bar, prints its summary, exits 1 if it failed.

    Errors of Lamina pass; what else Spark raises becomes one of them. A target that is not there is
    refused before Spark is started, which takes a while.
    """
    if where is not None:
        refuse_nowhere(where)
    with spark_session(master) as spark, Bar() as bar:
        summary = work(spark, bar)
    emit(summary, as_json=as_json)
    if summary.has_failed:
        raise typer.Exit(1)


def place_of(where: Where) -> Place:
    """Returns a target as the jobs take it; Spark's processes find the CA in the environment."""
    from lamina.spark.jobs.whereabouts import Place

    if where.authority is not None:
        os.environ["LAMINA_CA"] = os.path.abspath(where.authority)
    return Place.of(where.data, where.url, where.archive)


def emit(summary: Summary, *, as_json: bool) -> None:
    """Prints what a job did: a table with its totals below, or everything as JSON lines."""
    from lamina.cli import output

    output.emit(summary.rows, as_json=as_json)
    about = {"job": summary.job, "dry_run": summary.dry_run, "failed": summary.has_failed}
    if as_json:
        output.emit([about | dict(summary.totals)], as_json=True)
        return
    sums = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in summary.totals.items())
    begin = "would do" if summary.dry_run else "failed" if summary.has_failed else "done"
    output.say(f"{summary.job}: {begin}{f': {sums}' if sums else ''}")
    if summary.advice:
        output.say(f"{summary.job}: {summary.advice}")


class Bar:
    """A progress bar on a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Drawing

        self._drawing = Drawing(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._drawing.add_task("planning", total=None)

    def __enter__(self) -> Self:
        self._drawing.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._drawing.stop()

    def expect(self, count: int, unit: str) -> None:
        """Draws how much there is to do."""
        self._drawing.update(self._task, description=unit, total=count, completed=0)

    def advance(self, count: int) -> None:
        """Draws that so much more is done."""
        self._drawing.advance(self._task, count)


@contextlib.contextmanager
def spark_session(master: str, config: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Opens a session whose log goes to a file, which is kept if something fails."""
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession

        from lamina.spark.jobs.lane import typed_failures
        from lamina.spark.spark_session import session
    except ImportError as error:
        raise InvalidRequest(
            f"`lamina pipeline` needs Spark ({error.name} is missing): pip install 'lamina[spark]'"
        ) from error
    try:
        there = SparkSession.active()  # also one that another thread has started
    except PySparkRuntimeError:
        there = None
    log = tempfile.NamedTemporaryFile(prefix="lamina-spark-", suffix=".log", delete=False)  # noqa: SIM115
    try:
        with _errors_into(log.fileno()):
            spark = there or session(master=master, name="lamina pipeline", config=config)
        try:
            with typed_failures():
                yield spark
        finally:
            if there is None:
                spark.stop()
    except (InvalidRequest, typer.Exit):
        os.unlink(log.name)
        raise
    except LaminaError:
        _mention(log.name)
        raise
    else:
        os.unlink(log.name)
    finally:
        log.close()


def _mention(path: str) -> None:
    if os.path.getsize(path):
        typer.echo(f"lamina: Spark's own log: {path}", err=True)
    else:
        os.unlink(path)


@contextlib.contextmanager
def _errors_into(descriptor: int) -> Iterator[None]:
    """Redirects the standard error of processes that are started meanwhile to a file."""
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
