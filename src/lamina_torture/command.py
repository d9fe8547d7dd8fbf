"""`lamina torture`: runs rows of the fault matrix, or one case of one row again."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lamina_torture.rows import Row
    from lamina_torture.running import Outcome

LONGEST = 10
"""So many of the rows that took longest are named."""


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
    log: Annotated[
        str | None, typer.Option(help="Keep each trial as a JSON line in this file.")
    ] = None,
) -> None:
    """Breaks a store in every way of the fault matrix and checks what was promised."""
    from lamina.errors import InvalidRequest
    from lamina_torture.rows import Column, rows
    from lamina_torture.running import run_trials, trials

    if column not in list(Column):
        raise InvalidRequest(f"a column is sample, ci or long, not {column!r}")
    chosen = rows(fault)
    if results is not None:
        from lamina_torture.page import table

        with open(results, encoding="utf-8") as lines:
            typer.echo("\n".join(table(chosen, lines)))
        return
    if listed:
        for row in chosen:
            _say(as_json, _line(row), _fields(row))
        return
    wanted = trials(chosen, Column(column), formats, rounds)
    if not wanted:
        raise InvalidRequest(f"column {column} has no such row; --rounds N runs it all the same")
    started = time.monotonic()
    outcomes = []
    with open(log or os.devnull, "w", encoding="utf-8") as kept:
        for outcome in run_trials(wanted, seed, case, jobs):
            outcomes.append(outcome)
            head = f"[{len(outcomes)}/{len(wanted)}] " if len(wanted) > 1 else ""
            _say(as_json, head + _told(outcome), _result(outcome))
            kept.write(json.dumps(_result(outcome)) + "\n")
            kept.flush()
    if len(wanted) > 1 and not as_json:
        typer.echo("\n".join(_summary(outcomes, time.monotonic() - started)))
    raise typer.Exit(1 if any(outcome.failures for outcome in outcomes) else 0)


def _summary(outcomes: list[Outcome], seconds: float) -> list[str]:
    """Prints what came of all trials: their number, the longest rows, and every failure again."""
    skipped = [each for each in outcomes if each.not_run]
    failed = [each for each in outcomes if each.failures]
    by_row: Counter[str] = Counter()
    for each in outcomes:
        by_row[each.row.key] += round(each.seconds)
    longest = ", ".join(f"{key} {took} s" for key, took in by_row.most_common(LONGEST))
    held = len(outcomes) - len(skipped) - len(failed)
    lines = [f"the longest rows: {longest}"]
    lines += [f"not possible here: {each.row.key} {each.format}" for each in skipped]
    lines += [f"FAILED: {failure.command}" for each in failed for failure in each.failures]
    lines += [
        f"{len(outcomes)} trials in {seconds / 60:.1f} min: {held} hold, {len(failed)} fail, "
        f"{len(skipped)} are not possible here"
    ]
    return lines


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
        return f"{head}: not possible here: {outcome.not_run}"
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
