"""`lamina doctor`: checks a directory, a server or an object store; reports what is wrong.

Nothing is changed, except for one small file that measures the disk and is removed again, and for
what the proof of an object store keeps there.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from lamina.cli.output import counted, size
from lamina.cli.target import Where, readable
from lamina.errors import LaminaError, RecordsMissing

_LOW_SPACE_BYTES = 1 << 30
_SLOW_FSYNC_MS = 20.0


def examine(where: Where, *, thorough: bool = False) -> Iterator[dict[str, Any]]:
    """Yields a finding for each thing looked at: ok, a warning or a problem.

    `thorough` reads every record, here and in the archive: only that finds a page which the device
    does not deliver, or damage that nobody has met yet.
    """
    yield _finding("versions", "ok", _versions())
    yield _processor()
    if where.server is not None:
        yield from _server(where, thorough=thorough)
    elif where.data is not None and os.path.isdir(where.data):
        yield from _directory(where.data, where.archive, thorough=thorough)
    else:
        yield _finding("directory", "problem", f"{where.data} is not a directory")


def _finding(what: str, verdict: str, text: str) -> dict[str, Any]:
    return {"check": what, "verdict": verdict, "finding": text}


def _versions() -> str:
    names = ("lamina", "pyarrow", "numba", "numpy")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def _processor() -> dict[str, Any]:
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    missing = [name for name in ("sse4.2", "pclmul") if not features.get(name)]
    if missing:
        return _finding("processor", "warning", f"no {', '.join(missing)}: checksums are slower")
    return _finding("processor", "ok", "has checksum instructions")


def _directory(data: str, archive: str | None, *, thorough: bool) -> Iterator[dict[str, Any]]:
    import lamina
    from lamina.storage import paths
    from lamina.storage.files import LocalFiles

    live = LocalFiles().is_locked(os.path.join(os.path.abspath(data), paths.LOCK))
    yield _finding("writer", "ok", "a process has it open" if live else "no process has it open")
    free = shutil.disk_usage(data).free
    yield _finding("space", "ok" if free > _LOW_SPACE_BYTES else "warning", f"{size(free)} free")
    yield _fsync(data)
    quarantine = os.path.join(data, "quarantine")
    kept = [name for _, _, names in os.walk(quarantine) for name in names]
    if kept:
        text = f"{counted(len(kept), 'file')} of damaged bytes; see {quarantine}"
        yield _finding("quarantine", "warning", text)
    else:
        yield _finding("quarantine", "ok", "nothing was set aside")
    yield _archive(os.path.abspath(data), archive)
    try:
        with lamina.open(data, read_only=True, archive=archive) as store:
            yield from _vanished(data, store.topics())
            yield from _topics(store, thorough=thorough)
    except LaminaError as error:
        yield _finding("topics", "problem", str(error))


def _vanished(data: str, topics: list[str]) -> Iterator[dict[str, Any]]:
    from lamina.api import RecoveryReport
    from lamina.storage.files import LocalFiles, wall_clock_ms
    from lamina.store.opening import Boot

    boot = Boot(LocalFiles(), os.path.abspath(data), wall_clock_ms)
    for path, why in boot.vanished(topics, boot.read_checkpoint(RecoveryReport())):
        yield _finding("topics", "problem", f"{path}: {why}")


def _archive(data: str, archive: str | None) -> dict[str, Any]:
    from lamina.archive.location import recalled
    from lamina.archive.open_archive import open_archive
    from lamina.storage import paths
    from lamina.storage.files import LocalFiles

    url, problem = recalled(LocalFiles(), data)
    if problem:
        return _finding("archive", "problem", problem)
    objects = open_archive(archive, data=data)
    if objects is None:
        return _finding("archive", "ok", "the store has none")
    try:
        next(iter(objects.list(paths.ARCHIVE)), None)
    except LaminaError as error:
        return _finding("archive", "problem", f"archived records cannot be read now: {error}")
    kept = "" if url else "; the store does not remember it: --archive or LAMINA_ARCHIVE names it"
    return _finding("archive", "ok", f"{objects.url} answers{kept}")


def prove(archive: str, *, is_trusted: bool) -> Iterator[dict[str, Any]]:
    """Yields a finding for each thing that an object store must do to be an archive.

    What was found is kept in the store, where everybody who writes to it reads it.
    """
    from lamina.archive import proof
    from lamina.archive.open_archive import open_archive
    from lamina.storage.files import wall_clock_ms

    objects = open_archive(archive)
    assert objects is not None, "an archive is named"
    try:
        found = proof.prove(objects)
        proof.keep(objects, found, wall_clock_ms(), is_trusted=is_trusted)
    except LaminaError as error:
        yield _finding("archive", "problem", str(error))
        return
    failed = "warning" if is_trusted else "problem"
    for each in found:
        yield _finding(each.check, failed if each.problem else "ok", each.problem or "as needed")
    if not any(each.problem for each in found):
        yield _finding("archive", "ok", f"{objects.url} is fit to be an archive")
    elif is_trusted:
        text = f"{objects.url} is written to although it is not fit, because you trust it"
        yield _finding("archive", "warning", text)
    else:
        text = f"{objects.url} is not fit: stores refuse to write to it, unless --trust is given"
        yield _finding("archive", "problem", text)


def _topics(store: Any, *, thorough: bool) -> Iterator[dict[str, Any]]:
    names = store.topics()
    yield _finding("topics", "ok", counted(len(names), "topic"))
    records = 0
    for name in names:
        try:
            for part in store.describe_topic(name).partitions:
                yield from _lost(store, name, part.partition)
                for found in _unread(store, name, part.partition) if thorough else ():
                    if isinstance(found, int):
                        records += found
                    else:
                        yield found
        except LaminaError as error:
            yield _finding("records", "problem", f"{name}: {error}")
    said = f"{records:,} were read" if thorough else "none was read; --thorough reads all of them"
    yield _finding("records", "ok", said)


def _lost(store: Any, name: str, partition: int) -> Iterator[dict[str, Any]]:
    for gap in store.gaps(name, partition):
        if gap.reason == "lost":
            text = f"{name}-{partition}: offsets {gap.first} to {gap.end} are lost"
            yield _finding("gaps", "problem", text)


def _unread(store: Any, name: str, partition: int) -> Iterator[int | dict[str, Any]]:
    """Reads a partition to its end; yields how many records a batch had, or what cannot be read.

    What was removed on purpose, or is known as lost, is no finding of reading.
    """
    from lamina.log.gap_walk import scan_over

    known = store.gaps(name, partition)
    offset = store.earliest_offset(name, partition)
    for step in scan_over(partial(store.scan, name, partition), offset):
        if not isinstance(step, RecordsMissing):
            yield step.num_rows
        elif not any(gap.first <= step.first < gap.end for gap in known):
            yield _finding("records", "problem", str(step))


def _fsync(data: str) -> dict[str, Any]:
    times = []
    try:
        with tempfile.TemporaryFile(dir=data) as file:
            for _ in range(10):
                file.write(bytes(4096))
                file.flush()
                started = time.perf_counter()
                os.fdatasync(file.fileno())
                times.append((time.perf_counter() - started) * 1000)
    except OSError as error:
        return _finding("disk", "problem", f"writing fails: {error.strerror}")
    middle = statistics.median(times)
    verdict = "ok" if middle < _SLOW_FSYNC_MS else "warning"
    return _finding("disk", verdict, f"write and fdatasync of 4 KiB take {middle:.2f} ms")


def _server(where: Where, *, thorough: bool) -> Iterator[dict[str, Any]]:
    try:
        with readable(where) as store:
            store.topics()
            times = []
            for _ in range(10):
                started = time.perf_counter()
                store.topics()
                times.append((time.perf_counter() - started) * 1000)
            yield _finding("server", "ok", f"answers in {statistics.median(times):.2f} ms")
            yield from _topics(store, thorough=thorough)
    except LaminaError as error:
        yield _finding("server", "problem", str(error))
