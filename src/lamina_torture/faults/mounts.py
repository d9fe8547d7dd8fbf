"""File systems that are really full, and disks that are really copied while they are written to."""

from __future__ import annotations

import filecmp
import functools
import gc
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lamina.errors import LaminaError, StorageFull
from lamina.store.store import Store
from lamina_torture.forked import Workers, kill
from lamina_torture.rows import Rounds, Trial, demand, row, violated
from lamina_torture.witness import Witness, read
from lamina_torture.worker import GROUP, SEGMENT_BYTES, TOPIC, Errand, open_store

TMPFS_KIB = 2048
IMAGE_MIB = 48
COPIES_MAX = 50
UNMOUNT_S = 10


def _run(*words: str) -> str | None:
    """Runs a command; returns what it complained of, or None."""
    found = shutil.which(words[0])
    if found is None:
        return f"{words[0]} is not installed"
    ended = subprocess.run([found, *words[1:]], capture_output=True, text=True, check=False)  # noqa: S603
    return None if ended.returncode == 0 else ended.stderr.strip() or f"{words[0]} failed"


@contextmanager
def mounted(where: Path, *words: str) -> Iterator[Path]:
    """Mounts something for as long as it is needed."""
    where.mkdir(parents=True, exist_ok=True)
    problem = _run("mount", *words, str(where))
    demand(problem is None, "I12", f"mount: {problem}")
    try:
        yield where
    finally:
        deadline = time.monotonic() + UNMOUNT_S
        while _run("umount", str(where)) is not None:
            gc.collect()  # maps of segments live as long as what was read from them
            lazily = ["-l"] if time.monotonic() > deadline else []
            _run("umount", *lazily, str(where))
            if lazily or not os.path.ismount(where):
                break
            time.sleep(0.05)


@functools.cache
def needs_mounts() -> str | None:
    """Returns why nothing can be mounted here, or None."""
    with tempfile.TemporaryDirectory() as folder:
        problem = _run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder)
        if problem is None:
            _run("umount", folder)
        return problem and f"mounts are not allowed here: {problem}"


@functools.cache
def needs_loop() -> str | None:
    """Returns why no image can be mounted here, or None."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            image = make_image(Path(folder) / "image")
            with mounted(Path(folder) / "at", "-o", "loop", str(image)):
                return None
        except AssertionError as error:
            return f"loop mounts are not allowed here: {error}"


# ---------------------------------------------------------------- no space


@contextmanager
def _small_disk(scratch: Path) -> Iterator[tuple[Path, str]]:
    """A file system of its own where mounts are allowed; else files that may not grow further."""
    if needs_mounts() is None:
        with mounted(scratch / "full", "-t", "tmpfs", "-o", f"size={TMPFS_KIB}k", "tmpfs") as at:
            yield at, "tmpfs"
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (TMPFS_KIB << 8, before[1]))
    try:
        yield scratch, "rlimit"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@row("F13", "tmpfs", invariants="I1 I2 I3 I6 I12", rounds=Rounds(2, 17, 340))
def full_disk(trial: Trial) -> None:
    """A tmpfs is filled to the last byte; where mounts are not allowed, a limit on file sizes."""
    for number in range(trial.rounds):
        with trial.case(number) as wanted, _small_disk(trial.scratch) as (disk, how):
            if wanted:
                trial.counts[how] += 1
                _fill(trial, disk, number, is_full=how == "tmpfs")


def _fill(trial: Trial, disk: Path, number: int, *, is_full: bool) -> None:
    drawn, directory = trial.luck(number), str(disk / f"data{number}")
    acked: dict[int, bytes] = {}
    config = {} if trial.format == "wal" else {"segment.bytes": 16 * SEGMENT_BYTES}
    with open_store(directory) as store:
        store.create_topic(TOPIC, format=trial.format, config=config)
        group = store.group(TOPIC, GROUP)
        _append_until_full(store, acked, drawn.choice((300, 3000, 20_000)))
        if is_full:
            _use_the_rest(disk / "ballast")
        held = _try_group(group)
        demand(_covers(read(store), acked), "I1", "an acknowledged record cannot be read")
        _refused_typed(store, acked)
    with open_store(directory) as store:  # a full disk is opened as well
        demand(_covers(read(store), acked), "I1", "an acknowledged record is gone")
        if not is_full and trial.format != "wal":
            store.roll(TOPIC, 0)
        store.trim(TOPIC, 0, store.latest_offset(TOPIC))  # freeing space finds room
        again = set(store.group(TOPIC, GROUP).poll(50, 50, wait_ms=1).column("offset").to_pylist())
        demand(not again & held, "I6", f"{sorted(again & held)[:5]} were acked and come again")
        if is_full:
            os.remove(disk / "ballast")
        deadline = time.monotonic() + 30
        while not _appends(store):
            demand(time.monotonic() < deadline, "I12", "with space again, nothing is appended")
            store.maintain()
    with open_store(directory) as store:
        demand(store.latest_offset(TOPIC) > max(acked, default=0), "I5", "the end moved back")
    shutil.rmtree(directory)


def _append_until_full(store: Store, acked: dict[int, bytes], size: int) -> None:
    for number in range(1 << 16):
        value = b"%d " % number + b"x" * size
        try:
            ack = store.append(TOPIC, [value], partition=0)
        except StorageFull:
            return
        acked[ack.base_offset] = value
    violated("I12", "the disk is never full")


def _use_the_rest(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def _try_group(group: object) -> set[int]:
    """Polls and acks; without space an ack may be refused, but only by a typed error."""
    try:
        batch = group.poll(10, 50, wait_ms=1)  # type: ignore[attr-defined]
        group.ack(batch)  # type: ignore[attr-defined]
    except LaminaError:
        return set()
    return set(batch.column("offset").to_pylist())


def _refused_typed(store: Store, acked: dict[int, bytes]) -> None:
    """One more append: a typed error, or kept, if the store had freed a WAL file in between."""
    value = b"y" * 100_000
    try:
        acked[store.append(TOPIC, [value], partition=0).base_offset] = value
    except LaminaError:
        return


def _appends(store: Store) -> bool:
    try:
        store.append(TOPIC, [b"again"], partition=0)
    except LaminaError:
        return False
    return True


def _covers(found: dict[int, bytes], acked: dict[int, bytes]) -> bool:
    return all(found.get(offset) == value for offset, value in acked.items())


# ---------------------------------------------------------------- a disk that loses power


def make_image(path: Path) -> Path:
    """Makes an empty ext4 image."""
    with path.open("wb") as file:
        file.truncate(IMAGE_MIB << 20)
    problem = _run("mkfs.ext4", "-q", "-b", "4096", "-E", "lazy_itable_init=0,nodiscard", str(path))
    demand(problem is None, "I12", f"mkfs.ext4: {problem}")
    return path


@row(
    "F3",
    "ext4-image",
    invariants="I1 I2 I3 I5 I6 I7",
    rounds=Rounds(None, 20, 600),
    needs=needs_loop,
)
def ext4_image(trial: Trial) -> None:
    """An ext4 image is copied while a process writes to it, and mounted: what a real disk had."""
    with Workers() as workers:
        for number in range(trial.rounds):
            with trial.case(number) as wanted:
                if wanted:
                    _lose_power(trial, workers, number)


def _lose_power(trial: Trial, workers: Workers, number: int) -> None:
    drawn = trial.luck(number)
    image, copy = trial.scratch / f"{number}.image", trial.scratch / f"{number}.copy"
    witness = Witness(trial.format)
    with mounted(trial.scratch / "live", "-o", "loop", str(make_image(image))) as at:
        errand = Errand(str(at / "data"), trial.format, str(trial.seed), number)
        process_id = workers.send(errand)
        time.sleep(drawn.choice((drawn.uniform(0, 0.05), drawn.uniform(0.05, 0.6))))
        os.kill(process_id, signal.SIGSTOP)
        copy_quiet(image, copy)
        kill(process_id)
        for words in workers.listen():
            witness.hear(words)
    trial.counts["acknowledged appends"] += len(witness.names)
    with mounted(trial.scratch / "after", "-o", "loop", str(copy)) as at:
        witness.check(str(at / "data"))
    image.unlink()
    copy.unlink()


def copy_quiet(image: Path, copy: Path) -> None:
    """Copies an image at one moment: while its writer stands, until image and copy are the same."""
    for _ in range(COPIES_MAX):
        shutil.copyfile(image, copy)
        if filecmp.cmp(image, copy, shallow=False):
            return
    violated("I12", "the image never stood still")
