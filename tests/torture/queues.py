"""Other queues under the same faults: what they acknowledged is counted again after each.

    python -m tests.torture.queues                   every queue and every fault, as a table

A queue is two functions: put one item so that it is stored when `put` returns, and read all items
back from a directory. The faults are those that Lamina's rows make: SIGKILL of a real process, an
ext4 image copied while it is written to, and, for a file that was never fsynced, a size that
reached the disk before its bytes.

`python -m tests.torture.queues NAME DIRECTORY` is the process that puts items until it is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import lamina
from lamina_torture.faults import mounts

ITEMS_MAX = 5000


def item(number: int) -> bytes:
    return b"item %d " % number + b"x" * 40


class PersistQueue:
    """persistqueue.Queue, as its README opens it."""

    def __init__(self, directory: str) -> None:
        from persistqueue import Queue

        self._queue = Queue(directory, tempdir=self._temporary(directory))

    @staticmethod
    def _temporary(directory: str) -> str:
        os.makedirs(directory, exist_ok=True)
        return directory

    def put(self, data: bytes) -> None:
        self._queue.put(data)

    def read(self) -> list[bytes]:
        return [self._queue.get_nowait() for _ in range(self._queue.qsize())]

    def let_go(self) -> None:
        self._queue.headf.close()
        self._queue.tailf.close()


class QueueLib:
    """queuelib.FifoDiskQueue."""

    def __init__(self, directory: str) -> None:
        from queuelib import FifoDiskQueue

        self._queue = FifoDiskQueue(directory)

    def put(self, data: bytes) -> None:
        self._queue.push(data)

    def read(self) -> list[bytes]:
        return list(iter(self._queue.pop, None))

    def let_go(self) -> None:
        self._queue.headf.close()
        self._queue.tailf.close()


class Ours:
    """A topic of Lamina, in its default format."""

    def __init__(self, directory: str) -> None:
        self._store = lamina.open(directory)
        if "q" not in self._store.topics():
            self._store.create_topic("q")

    def put(self, data: bytes) -> None:
        self._store.append("q", data)

    def read(self) -> list[bytes]:
        values = [batch.column("value").to_pylist() for batch in self._store.scan("q")]
        return [value for some in values for value in some]

    def let_go(self) -> None:
        self._store.close()


QUEUES: dict[str, type[PersistQueue | QueueLib | Ours]] = {
    "persist-queue": PersistQueue,
    "queuelib": QueueLib,
    "lamina": Ours,
}


@dataclass(frozen=True)
class Finding:
    """What came of a fault: how many items were acknowledged, and how many are there."""

    queue: str
    fault: str
    acknowledged: int
    found: int
    problem: str = ""

    @property
    def is_loss(self) -> bool:
        return bool(self.problem) or self.found < self.acknowledged

    def __str__(self) -> str:
        what = self.problem or ("items lost" if self.is_loss else "nothing lost")
        return (
            f"{self.queue:14} {self.fault:22} {self.acknowledged:6} acknowledged"
            f" {self.found:6} found  {what}"
        )


def judge(queue: str, fault: str, directory: Path, acknowledged: int) -> Finding:
    """Opens what is left and counts the acknowledged items that are there, with their bytes."""
    try:
        opened = QUEUES[queue](str(directory))
        there = set(opened.read())
        opened.let_go()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        return Finding(queue, fault, acknowledged, 0, problem)
    found = sum(item(number) in there for number in range(acknowledged))
    return Finding(queue, fault, acknowledged, found)


def start(queue: str, directory: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "tests.torture.queues", queue, str(directory)]
    return subprocess.Popen(words, stdout=subprocess.PIPE)


def heard(process: subprocess.Popen[bytes]) -> int:
    """Counts the acknowledgements of a process that is dead."""
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    process.stdout.close()
    process.wait()
    return len([line for line in lines if line == b"ack"])


def wait_for_some(process: subprocess.Popen[bytes], count: int) -> int:
    assert process.stdout is not None
    return sum(process.stdout.readline() == b"ack\n" for _ in range(count))


def after_kill(queue: str, folder: Path) -> Finding:
    """SIGKILL of the process that puts."""
    process = start(queue, folder / "data")
    before = wait_for_some(process, 50)
    os.kill(process.pid, signal.SIGKILL)
    return judge(queue, "kill -9", folder / "data", before + heard(process))


def after_power_loss(queue: str, folder: Path) -> Finding:
    """The image that the process writes to is copied while it stands, and the copy is mounted."""
    image, copy = folder / "image", folder / "copy"
    with mounts.mounted(folder / "live", "-o", "loop", str(mounts.make_image(image))) as at:
        process = start(queue, at / "data")
        before = wait_for_some(process, 50)
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGSTOP)
        mounts.copy_quiet(image, copy)
        os.kill(process.pid, signal.SIGKILL)
        acknowledged = before + heard(process)
    with mounts.mounted(folder / "after", "-o", "loop", str(copy)) as at:
        return judge(queue, "ext4 image copied", at / "data", acknowledged)


def files_never_synced(queue: str, folder: Path) -> list[str]:
    """Names of the files that a put has written and not fsynced when it returns."""
    synced: set[str] = set()
    real = {name: getattr(os, name) for name in ("fsync", "fdatasync")}

    def noted(call: Callable[[int], None]) -> Callable[[int], None]:
        def wrapped(descriptor: int) -> None:
            synced.add(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
            call(descriptor)

        return wrapped

    for name, call in real.items():
        setattr(os, name, noted(call))
    try:
        opened = QUEUES[queue](str(folder))
        for number in range(3):
            opened.put(item(number))
        opened.let_go()
    finally:
        for name, call in real.items():
            setattr(os, name, call)
    return sorted(
        each.name for each in folder.iterdir() if each.is_file() and each.name not in synced
    )


def after_late_bytes(queue: str, folder: Path) -> Finding:
    """The file that names the others was never fsynced: its size is on the disk, its bytes not."""
    data = folder / "data"
    (info,) = [name for name in files_never_synced(queue, data) if name.startswith("info")]
    (data / info).write_bytes(bytes((data / info).stat().st_size))
    return judge(queue, "size before bytes", data, 3)


FAULTS: dict[str, Callable[[str, Path], Finding]] = {
    "kill": after_kill,
    "power": after_power_loss,
    "late": after_late_bytes,
}


def table(queues: Iterable[str], faults: Iterable[str]) -> list[Finding]:
    findings = []
    for queue in queues:
        for fault in faults:
            if fault == "late" and queue != "persist-queue":
                continue  # Lamina syncs all that it names; queuelib names nothing until it closes
            with tempfile.TemporaryDirectory() as folder:
                findings.append(FAULTS[fault](queue, Path(folder)))
    return findings


def main() -> None:
    if len(sys.argv) == 1:
        faults = [name for name in FAULTS if name != "power" or mounts.needs_loop() is None]
        for finding in table(QUEUES, faults):
            print(finding)
        return
    _, queue, directory = sys.argv
    opened = QUEUES[queue](directory)
    for number in range(ITEMS_MAX):
        opened.put(item(number))
        os.write(1, b"ack\n")
    time.sleep(60)


if __name__ == "__main__":
    main()
