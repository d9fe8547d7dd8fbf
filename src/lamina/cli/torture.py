"""`lamina torture`: runs rows of the fault matrix, or one case of one row again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lamina.torture.rows import Row
    from lamina.torture.running import Outcome


def torture(
    *,
    fault: Annotated[
        str | None, typer.Option(help="A fault, F4, or one of its rows, F4/reordered.")
    ] = None,
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="Only this format; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed does the same again.")] = 0,
    column: Annotated[str, typer.Option(help="How much: sample, ci or long.")] = "ci",
    rounds: Annotated[int | None, typer.Option(help="As many rounds instead.", min=1)] = None,
    case: Annotated[str | None, typer.Option(help="Only this case, as a failure names it.")] = None,
    jobs: Annotated[int, typer.Option(help="Trials at a time.", min=1, max=64)] = 1,
    listed: Annotated[bool, typer.Option("--list", help="List the rows, run none.")] = False,
    results: Annotated[
        str | None, typer.Option("--table", help="Tell a run's JSON lines as a table.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, for programs.")
    ] = False,
) -> None:
    """Breaks a store in every way of the fault matrix and checks what was promised."""
    from lamina.errors import InvalidRequest
    from lamina.torture.rows import Column, rows
    from lamina.torture.running import run_trials, trials

    if column not in list(Column):
        raise InvalidRequest(f"a column is sample, ci or long, not {column!r}")
    chosen = rows(fault)
    if results is not None:
        from lamina.torture.page import table

        with open(results, encoding="utf-8") as lines:
            typer.echo("\n".join(table(chosen, lines)))
        return
    if listed:
        for row in chosen:
            _say(as_json, _line(row), _fields(row))
        return
    failed = False
    outcomes = run_trials(trials(chosen, Column(column), formats, rounds), seed, case, jobs)
    for outcome in outcomes:
        failed = failed or bool(outcome.failures)
        _say(as_json, _told(outcome), _result(outcome))
    raise typer.Exit(1 if failed else 0)


def _say(as_json: bool, line: str, fields: dict[str, Any]) -> None:
    typer.echo(json.dumps(fields) if as_json else line)


def _line(row: Row) -> str:
    return f"{row.key:24} {' '.join(row.invariants):28} {', '.join(row.formats)}: {row.about}"


def _fields(row: Row) -> dict[str, Any]:
    return {
        "row": row.key,
        "fault": row.fault,
        "formats": row.formats,
        "invariants": row.invariants,
        "rounds": row.rounds._asdict(),
        "about": row.about,
    }


def _told(outcome: Outcome) -> str:
    counts = ", ".join(f"{count} {what}" for what, count in sorted(outcome.counts.items()))
    head = f"{outcome.row.key} {outcome.format}"
    if outcome.not_run:
        return f"{head}: not run: {outcome.not_run}"
    if not outcome.failures:
        return f"{head}: {counts or 'nothing'} in {outcome.seconds:.1f} s: all hold"
    failures = "\n".join(f"  {each}" for each in outcome.failures)
    return f"{head}: {counts}: {len(outcome.failures)} do not hold\n{failures}"


def _result(outcome: Outcome) -> dict[str, Any]:
    return {
        "row": outcome.row.key,
        "format": outcome.format,
        "seed": outcome.seed,
        "counts": dict(outcome.counts),
        "not_run": outcome.not_run,
        "seconds": round(outcome.seconds, 2),
        "failures": [
            {"invariant": each.invariant, "what": each.what, "command": each.command}
            for each in outcome.failures
        ],
    }
