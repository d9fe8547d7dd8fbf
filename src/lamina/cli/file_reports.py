"""`lamina dump` and `lamina verify`: what is in a file, and what is damaged in a tree.

Rules.
1. What a file holds, and what a file is called, cannot steer the terminal. Text that is not
   printable is shown as JSON, and nothing of it is ever read as markup.
2. Nor can it look like something else: a value that is more than one word is shown as JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from lamina.cli.file_opening import opened
from lamina.errors import InvalidRequest
from lamina.inspect.findings import NOTE, Finding, files_below, unreadable, with_holes

_WORD = re.compile(r"[\w./@%+=~-]+")


def dump(path: str, *, first: int, limit: int | None, verify: bool, as_json: bool) -> int:
    """Prints the contents of one file; returns the exit code."""
    if os.path.isdir(path):
        raise InvalidRequest(f"{path} is a directory; dump shows one file, verify takes a tree")
    _refuse_special(path)
    kind, found = opened(path)
    data = found.data
    if kind is None:
        raise InvalidRequest(f"{path} is not a file that Lamina writes")
    if not as_json:
        _print(f"# {_printable(path)}: {kind.name}, {memoryview(data).nbytes} bytes")
    damaged = False
    for row in itertools.islice(kind.dump(path, data, first), limit):
        damaged = damaged or "problem" in row
        _print(json.dumps(row) if as_json else _line(row))
    if verify and not damaged:
        damaged = any(True for _ in kind.verify(path, data))
    return 1 if verify and damaged else 0


def _refuse_special(path: str) -> None:
    """Opening a pipe would wait for its writer, and a device cannot be mapped."""
    if os.path.exists(path) and not os.path.isdir(path) and not os.path.isfile(path):
        raise InvalidRequest(f"{path} is not a regular file")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def _line(row: dict[str, Any]) -> str:
    """One row as `name: value` pairs, like Kafka's dump tool."""
    if "problem" in row:
        return f"!! {_damage(row['position'], row['problem'], row.get('resumes_at'))}"
    return " ".join(f"{name}: {_shown(value)}" for name, value in row.items())


def _damage(position: int, problem: str, resumes_at: int | None) -> str:
    after = "" if resumes_at is None else f"; sound again at byte {resumes_at}"
    return f"byte {position}: {_printable(problem)}{after}"


def _shown(value: Any) -> str:
    """A value as one unambiguous word: quoted unless it is plain."""
    if value is None:
        return "null"
    if isinstance(value, str) and (not _WORD.fullmatch(value) or value == "null"):
        return json.dumps(value)
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _printable(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)


def verify(path: str, *, as_json: bool) -> int:
    """Checks a file or a tree; prints what is damaged and returns the exit code."""
    if not os.path.exists(path):
        raise InvalidRequest(f"{path}: no such file or directory")
    _refuse_special(path)
    names, findings = files_below(path)
    checked = 0
    for found in _with_progress(names, quiet=as_json):
        checked += found is not None
        findings += found or []
    if os.path.isdir(path):
        from lamina.storage.files import LocalFiles
        from lamina.store.directory_check import belonging, explained

        files = LocalFiles()
        findings = explained(files, path, findings) + belonging(files, path, names)
    if as_json:
        for finding in findings:
            _print(json.dumps(asdict(finding)))
    else:
        _report(findings, checked=checked, skipped=len(names) - checked)
    return 1 if any(each.severity != NOTE for each in findings) else 0


def _with_progress(names: list[str], *, quiet: bool) -> Iterator[list[Finding] | None]:
    """Yields the findings of each file; None for one that is not Lamina's, or gone by now."""
    console = Console(stderr=True)
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    sizes = [_size_of(name) for name in names]
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("verify", total=sum(sizes))
        for name, size in zip(names, sizes, strict=True):
            yield _check(name)
            progress.advance(task, size)


def _size_of(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:  # its check will say why
        return 0


def _check(path: str) -> list[Finding] | None:
    """Checks one file of a tree; a file that cannot be read is a finding, too."""
    try:
        kind, found = opened(path)
    except InvalidRequest as error:
        if not os.path.lexists(path):
            return None  # retention took it in the meantime: a live store is no damaged one
        return [unreadable(path, str(error).removeprefix(f"{path}: "))]
    return None if kind is None else with_holes(path, found, kind.verify(path, found.data))


def _report(findings: list[Finding], *, checked: int, skipped: int) -> None:
    """One line per damaged spot, as compilers print them: full paths, for people and grep."""
    for each in findings:
        damage = _damage(each.position, each.problem, each.resumes_at)
        note = "note: " if each.severity == NOTE else ""
        _print(f"{_printable(each.path)}: {note}{damage}")
    others = f" ({skipped} not Lamina's)" if skipped else ""
    damaged = sum(each.severity != NOTE for each in findings)
    verdict = f"damaged spots: {damaged}" if damaged else "all sound"
    _print(f"files checked: {checked}{others}; {verdict}")
