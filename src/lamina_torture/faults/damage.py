"""One spot of a data directory goes bad: each bit, each length, each file of each kind.

Everything is tried on a small directory that has a file of every kind. One damaged spot may cost
the records whose bytes it touched, and only them; the reader is told, and the store stays usable.
A store may refuse to open, by a typed error, only for a file that says it is of a newer format, or
because it cannot tell whose directory it is.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from itertools import combinations, islice, zip_longest
from pathlib import Path, PurePosixPath

from lamina.errors import CorruptData, NewerFormat
from lamina_torture.rows import ALL, Rounds, Trial, demand, row
from lamina_torture.small import (
    TOPIC,
    Files,
    Small,
    hold,
    hold_group,
    make_small,
    open_small,
    scratch_of,
)

IDENTITY = "meta/broker.id"


def _small(trial: Trial) -> Small:
    return make_small(trial.scratch / "made", trial.format)


def _judge(
    trial: Trial, small: Small, changed: Files, excused: set[int], gone: tuple[str, ...] = ()
) -> None:
    """Opens a changed directory and holds it against what was in it; then again."""
    place = scratch_of(trial.scratch, f"{trial.format}-{trial.row.name}")
    groups = any(path.startswith("groups/") for path in (*changed, *gone))
    try:
        with small.laid_out(place, changed, gone) as directory:
            try:
                store = open_small(directory)
            except NewerFormat as error:
                demand(False, "I12", f"damage is taken for a newer format: {error}")
                return
            except CorruptData as error:
                is_identity = error.path.endswith(IDENTITY) and IDENTITY in (*changed, *gone)
                demand(is_identity, "I12", f"it does not open: {error}")
                trial.counts["refused by identity"] += 1
                return
            with store:
                missing = hold(small, store, excused)
                if not groups:
                    hold_group(small, store)
                ack = store.append(TOPIC, [b"after"], partition=0)
                demand(ack.base_offset not in small.records, "I3", f"{ack.base_offset} twice")
            with open_small(directory) as store:
                found = store.fetch(TOPIC, 0, ack.base_offset).column("value")[0].as_py()
                demand(found == b"after", "I7", "what was appended behind the damage is gone")
            _hold_bytes(small, directory, changed, missing)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _hold_bytes(small: Small, directory: str, changed: Files, missing: set[int]) -> None:
    """What is left of a record that cannot be read is kept: where it was, or set aside."""
    kept = [path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()]
    for span in small.spans:
        piece = changed.get(span.path, b"")[span.start : span.end]
        if span.offset in missing and piece.strip(b"\0"):
            demand(
                any(piece in data for data in kept),
                "I4",
                f"{span.offset} cannot be read, and nothing was set aside",
            )


def _bits(small: Small) -> list[tuple[str, int]]:
    """Every bit of every file, by its number in the file."""
    return [(path, bit) for path, data in small.files.items() for bit in range(8 * len(data))]


def _chosen(trial: Trial, cases: list[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """So many cases as there are rounds, the same ones first in every column.

    Kinds of files take turns, so that few rounds reach small files and large ones.
    """
    kinds: dict[str, list[tuple[str, int]]] = {}
    cases = list(cases)
    trial.luck("order").shuffle(cases)
    for case in cases:
        kinds.setdefault(kind_of(case[0]), []).append(case)
    turns = zip_longest(*(kinds[name] for name in sorted(kinds)))
    yield from islice((case for turn in turns for case in turn if case), trial.rounds)


@functools.cache
def kind_of(path: str) -> str:
    """The kind of a file: its place and how its name ends."""
    at = PurePosixPath(path)
    return f"{at.parts[0]} {at.suffix or at.name}"


@row("F8", "bit", invariants="I1 I2 I3 I4 I5 I8 I9", rounds=Rounds(40, 500, ALL))
def flipped_bit(trial: Trial) -> None:
    """One bit of one file of a small directory is flipped, offline."""
    small = _small(trial)
    for path, bit in _chosen(trial, _bits(small)):
        with trial.case(f"{path}:{bit}") as wanted:
            if wanted:
                data = bytearray(small.files[path])
                data[bit // 8] ^= 1 << bit % 8
                excused = small.touched(path, bit // 8, bit // 8 + 1)
                _judge(trial, small, {path: bytes(data)}, excused)


SECTOR = 64
"""The directory is small, and so are its sectors."""


@row("F9", "sector", invariants="I1 I2 I3 I4 I5 I8", rounds=Rounds(15, 300, 60_000))
def replaced_sector(trial: Trial) -> None:
    """A sector holds zeros, noise, or what belongs elsewhere: a lost or misdirected write."""
    small = _small(trial)
    paths = sorted(path for path, data in small.files.items() if data)
    for number in range(trial.rounds):
        with trial.case(number) as wanted:
            if not wanted:
                continue
            drawn = trial.luck(number)
            path, other = drawn.choice(paths), drawn.choice(paths)
            data, foreign = small.files[path], small.files[other]
            start = drawn.randrange(0, len(data), SECTOR)
            length = min(SECTOR, len(data) - start)
            begin = drawn.randrange(0, len(foreign), SECTOR)
            sector = drawn.choice(
                (bytes(length), drawn.randbytes(length), foreign[begin : begin + length])
            ).ljust(length, b"\0")
            excused = small.touched(path, start, start + length)
            changed = data[:start] + sector + data[start + length :]
            _judge(trial, small, {path: changed}, excused)


@row("F10", "cut", invariants="I1 I2 I4 I5 I8 I9", rounds=Rounds(20, 400, ALL))
def cut_file(trial: Trial) -> None:
    """One file is cut to each of its lengths, emptied, or missing."""
    small = _small(trial)
    cases = [(path, size) for path, data in small.files.items() for size in range(-1, len(data))]
    for path, size in _chosen(trial, cases):
        with trial.case(f"{path}:{size}") as wanted:
            if not wanted:
                continue
            data = small.files[path]
            excused = small.touched(path, max(size, 0), len(data))
            if size < 0:
                _judge(trial, small, {}, excused, (path,))
            else:
                _judge(trial, small, {path: data[:size]}, excused)


@row("F10", "swap", invariants="I1 I2 I4 I5", rounds=Rounds(10, ALL, ALL))
def swapped_files(trial: Trial) -> None:
    """Two files of one kind have each other's name, or one is there under both names."""
    small = _small(trial)
    pairs = [
        (first, second)
        for first, second in combinations(small.files, 2)
        if PurePosixPath(first).suffix == PurePosixPath(second).suffix
    ]
    cases = [(f"{first} {second}", copies) for first, second in pairs for copies in (0, 1)]
    for names, copies in _chosen(trial, cases):
        with trial.case(f"{names} {copies}") as wanted:
            if not wanted:
                continue
            first, second = names.split(" ")
            changed = {second: small.files[first]}
            if not copies:
                changed[first] = small.files[second]
            excused = {at for path in changed for at in small.touched(path, 0, 1 << 40)}
            _judge(trial, small, changed, excused)
