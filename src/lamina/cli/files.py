"""`lamina dump` and `lamina verify`: what is in a file, and what is damaged in a tree."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from lamina.engine.filekinds import files_below, open_file, verify_file
from lamina.engine.inspection import Finding
from lamina.errors import InvalidRequest

_out = sys.stdout


def dump(path: str, *, first: int, limit: int | None, verify: bool, as_json: bool) -> int:
    """Prints the contents of one file; returns the exit code."""
    if os.path.isdir(path):
        raise InvalidRequest(f"{path} is a directory; dump shows one file, verify takes a tree")
    kind, data = open_file(path)
    if kind is None:
        raise InvalidRequest(f"{path} is not a file that Lamina writes")
    if not as_json:
        _print(f"# {path}: {kind.name}, {memoryview(data).nbytes} bytes")
    damaged = False
    for row in itertools.islice(kind.dump(path, data, first), limit):
        damaged = damaged or "problem" in row
        _print(json.dumps(row) if as_json else _line(row))
    if verify and not damaged:
        damaged = any(True for _ in kind.verify(path, data))
    return 1 if verify and damaged else 0


def _print(line: str) -> None:
    _out.write(line + "\n")


def _line(row: dict[str, Any]) -> str:
    """One row as `name: value` pairs, in the manner of Kafka's dump tool."""
    if "problem" in row:
        goes_on = row.get("resumes_at")
        after = f"sound again at byte {goes_on}" if goes_on is not None else "nothing sound follows"
        return f"!! byte {row['position']}: {row['problem']}; {after}"
    return " ".join(f"{name}: {_shown(value)}" for name, value in row.items())


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value)
    if isinstance(value, str) and not value.isprintable():
        return json.dumps(value)  # a record must not be able to steer the terminal
    return "null" if value is None else str(value)


def verify(path: str, *, as_json: bool) -> int:
    """Checks a file or a tree; prints what is damaged and returns the exit code."""
    if not os.path.exists(path):
        raise InvalidRequest(f"{path}: no such file or directory")
    names = files_below(path)
    findings: list[Finding] = []
    checked = 0
    for found in _with_progress(names, quiet=as_json):
        checked += found is not None
        findings += found or []
    if as_json:
        for finding in findings:
            _print(json.dumps(asdict(finding)))
    else:
        _report(findings, checked=checked, skipped=len(names) - checked)
    return 1 if findings else 0


def _with_progress(names: list[str], *, quiet: bool) -> Iterable[list[Finding] | None]:
    console = Console(stderr=True)
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        task = progress.add_task("verify", total=sum(os.path.getsize(name) for name in names))
        for name in names:
            yield verify_file(name)
            progress.advance(task, os.path.getsize(name))


def _report(findings: list[Finding], *, checked: int, skipped: int) -> None:
    console = Console(soft_wrap=True)
    if findings:
        table = Table(Column("file", overflow="fold"), "byte", "damage", "sound again at")
        for finding in findings:
            resumes = "-" if finding.resumes_at is None else str(finding.resumes_at)
            table.add_row(finding.path, str(finding.position), finding.problem, resumes)
        console.print(table)
    others = f" ({skipped} not Lamina's)" if skipped else ""
    verdict = f"damaged spots: {len(findings)}" if findings else "all sound"
    console.print(f"files checked: {checked}{others}; {verdict}")
