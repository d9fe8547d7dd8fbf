"""F20 and F27: files of one directory that do not belong together, or are of a version to come.

The same life is kept at three moments. Of one moment all files are laid out, but those of one kind
from another: a group ahead of its log, an index or a checkpoint ahead or behind, a snapshot that
names segments which are not there. What the logs hold is served, all else gives way to it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

from lamina.api import ProducerStamp
from lamina.errors import NewerFormat
from lamina.formats.documents import strict_json
from lamina.formats.kernels.crc import crc32c_of
from lamina_torture.faults.damage import kind_of
from lamina_torture.rows import ALL, Rounds, Trial, demand, row
from lamina_torture.small import (
    GROUP,
    LEASE_MS,
    TOPIC,
    Files,
    Small,
    files_of,
    hold,
    hold_group,
    make_small,
    open_small,
    read_all,
    scratch_of,
    small_of,
)

MOMENTS = 3
DERIVED = (".idx", ".timeidx", ".tidx", "manifest.bin")


def _moments(directory: Path, format_name: str) -> list[Small]:
    """Keeps one life three times: after each part everything is durable, and nothing is removed."""
    kept = []
    config = {} if format_name == "wal" else {"segment.bytes": 1 << 10}
    for part in range(MOMENTS):
        with open_small(str(directory)) as store:
            if part == 0:
                store.create_topic(TOPIC, format=format_name, config=config)
            for number in range(6):
                values = [b"v%d.%d.%d " % (part, number, row) + b"." * 20 for row in range(4)]
                store.append(TOPIC, values, partition=0)
            if format_name != "wal":
                store.append(TOPIC, [b"once"], partition=0, producer=ProducerStamp(1, 0, part))
            group = store.group(TOPIC, GROUP)
            group.ack(group.poll(20, LEASE_MS))
            if part:
                store.maintain()
            store.append(TOPIC, [b"last %d " % part + b"." * 20] * 2, partition=0)
            store.flush()
            records = read_all(store)[0]
            (lag,) = store.describe_group(TOPIC, GROUP).partitions
        kept.append(small_of(format_name, files_of(directory), records, lag.committed))
    return kept


@row("F20", "mixed", invariants="I2 I3 I4 I6 I9", rounds=Rounds(12, ALL, ALL))
def mixed(trial: Trial) -> None:
    """Files of one kind come from another moment of the same life, before or after the others."""
    moments = _moments(trial.scratch / "made", trial.format)
    cases = [
        f"{base}:{other}:{kind}"
        for base, other in permutations(range(MOMENTS), 2)
        for kind in sorted({kind_of(path) for path in moments[base].files | moments[other].files})
    ]
    trial.luck("order").shuffle(cases)
    for case in cases[: trial.rounds]:
        with trial.case(case) as wanted:
            if wanted:
                base, other, kind = case.split(":")
                _judge(trial, moments[int(base)], moments[int(other)], kind)


def _judge(trial: Trial, base: Small, other: Small, kind: str) -> None:
    files = {path: data for path, data in base.files.items() if kind_of(path) != kind}
    files |= {path: data for path, data in other.files.items() if kind_of(path) == kind}
    known = base.records | other.records
    committed = min(base.committed, other.committed)
    spans = small_of(base.format, files, known, committed).spans
    there = {span.offset: known[span.offset] for span in spans if span.offset in known}
    whole = small_of(base.format, files, there, min(committed, max(there, default=-1) + 1))
    place = scratch_of(trial.scratch, f"{trial.format}-mixed")
    try:
        with whole.laid_out(place, {}) as directory:
            with open_small(directory) as store:
                hold(whole, store, set())
                hold_group(whole, store)
                found, told = read_all(store)
                span = range(store.earliest_offset(TOPIC), store.latest_offset(TOPIC))
                silent = [at for at in span if at not in found and at not in told]
                demand(not silent, "I3", f"{silent[:5]} are missing, and nobody is told")
                ack = store.append(TOPIC, [b"after"], partition=0)
            with open_small(directory) as store:
                found = read_all(store)[0]
                demand(found.get(ack.base_offset) == b"after", "I7", "the next append is gone")
                demand(there.items() <= found.items(), "I7", "opened once more, records are gone")
    finally:
        shutil.rmtree(place, ignore_errors=True)


@row("F27", "newer", invariants="I1 I9 I12", rounds=Rounds(6, ALL, ALL))
def newer(trial: Trial) -> None:
    """Each file that has a version says that it is of the next one: refused, and never cut."""
    small = make_small(trial.scratch / "made", trial.format)
    cases = [(path, changed) for path, changed in _newer(small.files)]
    demand(len(cases) > 4, "I12", "no file has a version")
    trial.luck("order").shuffle(cases)
    for path, changed in cases[: trial.rounds]:
        with trial.case(path) as wanted:
            if wanted:
                _refuse(trial, small, path, changed)


def _newer(files: Files) -> Iterator[tuple[str, bytes]]:
    """Yields the files that say which version they are, with a higher one."""
    for path, data in files.items():
        if data[:1] == b"{":
            told = json.loads(data)
            if "version" in told:
                yield path, json.dumps(_sealed(told | {"version": told["version"] + 1})).encode()
        elif re.match(rb"K[A-Z]+\0+\x01", data):  # big-endian, behind eight bytes of magic
            yield path, _with_checksum(data[:8] + b"\0\2" + data[10:])
        elif data.startswith(b"LAMSNAP\0\1\0"):
            yield path, data[:8] + b"\2\0" + data[10:]


def _sealed(told: dict[str, Any]) -> dict[str, Any]:
    """A document of the next version is sound by its seal, if it has one."""
    fields = {name: value for name, value in told.items() if name != strict_json.SEAL}
    if fields == told:
        return told
    return fields | {strict_json.SEAL: strict_json.seal(fields)}


def _with_checksum(data: bytes) -> bytes:
    """A header of the next version is sound by its checksum, at its end; a manifest has none."""
    if data.startswith(b"KERATIN"):
        return data
    end = int.from_bytes(data[12:16], "big") - 4
    return data[:end] + crc32c_of(data[:end]).to_bytes(4, "big") + data[end + 4 :]


def _refuse(trial: Trial, small: Small, path: str, changed: bytes) -> None:
    """The store refuses the file, or serves everything without it; the file stays as it is."""
    place = scratch_of(trial.scratch, f"{trial.format}-newer")
    try:
        with small.laid_out(place, {path: changed}) as directory:
            try:
                store = open_small(directory)
            except NewerFormat as error:
                demand(error.path.endswith(path), "I12", f"it names {error.path}, not {path}")
                trial.counts["refused"] += 1
            else:
                with store:
                    hold(small, store, set())
                demand(path.endswith(DERIVED), "I12", f"{path} is of a newer version, and was used")
                trial.counts["rebuilt"] += 1
                return
            found = files_of(Path(directory))
            wanted = small.files | {path: changed}
            cut = [each for each in wanted if not _same(each, wanted[each], found.get(each, b""))]
            demand(not cut, "I8", f"a store that was refused has changed {cut[:3]}")
            (Path(directory) / path).write_bytes(small.files[path])
            with open_small(directory) as store:
                hold(small, store, set())
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _same(path: str, before: bytes, after: bytes) -> bool:
    """Whether a file holds what it held: derived ones may be made again, prepared space be cut."""
    if path.endswith(DERIVED):
        return True
    return before.rstrip(b"\0") == after.rstrip(b"\0")
