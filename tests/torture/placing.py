"""Finds a few lines of code in the source, and puts others in their place.

The lines are looked for as they are written down, in the file that is named; then by their words
alone, however deep they are indented, in that file and in all others: code that was moved is found
where it is now. Whatever is not there, or there twice, is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def put(root: Path, changed: Mapping[str, str], path: str, now: str, before: str) -> dict[str, str]:
    """Returns the changed files with one more change: `before` stands where `now` stood."""
    text = _text(root, changed, path)
    if text.count(now) == 1:
        return {**changed, path: text.replace(now, before)}
    if text.count(now) > 1:
        raise ValueError(f"its piece is {text.count(now)} times in {path}")
    others = sorted(str(each.relative_to(root)) for each in root.rglob("*.py"))
    for paths in ([path], others):
        found = [
            (each, lines, row)
            for each in paths
            for lines in [_text(root, changed, each).splitlines(keepends=True)]
            for row in _rows(lines, now)
        ]
        if len(found) == 1:
            ((where, lines, row),) = found
            end = row + len(_words(now))
            depth = _depth(lines[row]) - _depth(now.lstrip("\n"))
            lines[row:end] = [_moved(line, depth) for line in before.splitlines(keepends=True)]
            return {**changed, where: "".join(lines)}
        if found:
            raise ValueError(f"its piece is {len(found)} times in {[each for each, *_ in found]}")
    raise ValueError(f"its piece is 0 times in {path}, and nowhere else")


def _text(root: Path, changed: Mapping[str, str], path: str) -> str:
    if path in changed:
        return changed[path]
    return (root / path).read_text() if (root / path).exists() else ""


def _words(text: str) -> list[str]:
    return [line.strip() for line in text.strip("\n").splitlines()]


def _rows(lines: list[str], now: str) -> list[int]:
    words, there = _words(now), [line.strip() for line in lines]
    starts = [row for row, line in enumerate(there) if line == words[0]]
    return [row for row in starts if there[row : row + len(words)] == words]


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _moved(line: str, depth: int) -> str:
    bare = line.lstrip(" ")
    return line if bare == "\n" else " " * (_depth(line) + depth) + bare
