"""What the suite asks of every system, and how servers among them are started and killed.

A system is opened in an empty folder at one of two durabilities: `default`, as it comes, and
`fsync`, in which an acknowledged record is on the disk. What a system does not offer it leaves at
the method here, which raises `NotOffered`; the report then shows a dash, never a guess.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

DEFAULT, FSYNC = "default", "fsync"
IN_FLIGHT = 16
HOST = "127.0.0.1"


LEFT_PROCESSES = "LAMINA_FIELD_PROCESSES"
"""Names the file that lists what a measuring process started, for whoever has to clear up."""


class NotOffered(Exception):
    """The system has no such thing, or no such durability."""


class System:
    """One system at one durability, in one folder; used by the suite through these calls only."""

    name: ClassVar[str]
    kind: ClassVar[str] = "broker"
    """`embedded`, `broker`, `queue`, `files` or `ceiling`."""
    durabilities: ClassVar[Sequence[str]] = (DEFAULT, FSYNC)
    start_s: ClassVar[float] = 0
    """About how long it takes to start: only for telling how long a run takes."""
    reuses_batches: ClassVar[bool] = True
    """Whether what `prepare` made can be sent more than once."""
    reads_once: ClassVar[bool] = False
    """Whether reading takes the records out."""

    def __init__(self, folder: str, durability: str) -> None:
        self.folder = folder
        self.durability = durability

    @classmethod
    def missing(cls) -> str | None:
        """Says why it cannot be run here; None if it can."""
        return None

    @classmethod
    def takes(cls, workload: str, durability: str) -> bool:
        """Whether it has anything to do in a workload; `records` is for everybody."""
        return workload == "records"

    @classmethod
    def version(cls) -> str:
        """Which version this is, and which client."""
        return ""

    def start(self) -> None:
        """Makes it ready for the first record."""

    def stop(self) -> None:
        """Ends it."""

    def prepare(self, values: Sequence[Sequence[bytes]]) -> Sequence[Any]:
        """Makes batches into what its producers hold anyway; not timed."""
        return values

    def produce(self, values: Sequence[Any]) -> None:
        """Stores batches of records as this system does best; returns when all are acknowledged.

        Up to `IN_FLIGHT` batches may be under way, or share a commit, for everybody.
        """
        raise NotOffered

    def produce_each(self, values: Sequence[Any]) -> None:
        """Stores batches one after the other, each acknowledged before the next."""
        raise NotOffered

    def append(self, value: bytes) -> None:
        """Stores one record and waits for its acknowledgement."""
        raise NotOffered

    def append_from(self, producers: int, value: bytes, seconds: float) -> float:
        """Single records from several producers at once; returns appends a second."""
        raise NotOffered

    def chunks(self, count: int) -> Iterator[Any]:
        """Reads so many records from the first on, in the pieces in which the client has them."""
        raise NotOffered

    def values(self, chunk: Any) -> Sequence[bytes]:
        """The values of a chunk as Python objects."""
        return chunk  # type: ignore[no-any-return]

    def counted(self, chunk: Any) -> tuple[int, int]:
        """How many records a chunk has, and how many bytes of values; a timed part of reading."""
        values = self.values(chunk)
        return len(values), sum(map(len, values))

    def seek(self, timestamp_ms: int) -> bytes:
        """Finds the first record at or after a time and reads it; returns its value."""
        raise NotOffered

    def memory_bytes(self) -> int:
        """Resident memory of the server's process; of this one for what is embedded."""
        return resident_bytes(os.getpid())

    def size_bytes(self) -> int:
        """What the data occupies on the disk."""
        return folder_bytes(self.folder)


class Server(System):
    """A system that is a process of its own."""

    process: subprocess.Popen[bytes] | None = None
    port: int

    @classmethod
    def takes(cls, workload: str, durability: str) -> bool:
        """A server is started again after a kill, too, where its records are on the disk."""
        return workload == "records" or (workload == "starts" and durability == FSYNC)

    def command(self) -> list[str]:
        """The command that starts the server."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """What the server's environment has beside this one's."""
        return {}

    def connect(self) -> None:
        """Opens the client; raises while the server is not ready."""

    def disconnect(self) -> None:
        """Closes the client."""

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        if self.process is None:
            self.port = free_port()
        self.launch()

    def launch(self) -> None:
        """Starts the process, again after a kill, and waits until it answers."""
        os.makedirs(self.folder, exist_ok=True)
        self.process = spawn(self.command(), self.folder, self.environment())
        until(self.connect, self.process)

    def kill(self) -> None:
        """Ends the server as a crash would."""
        assert self.process is not None
        self.disconnect()
        end(self.process, signal.SIGKILL)

    def stop(self) -> None:
        """Ends the server and everything that it started."""
        with contextlib.suppress(Exception):
            self.disconnect()
        if self.process is not None:
            end(self.process, signal.SIGKILL)

    def memory_bytes(self) -> int:
        """Resident memory of the server and its children."""
        assert self.process is not None
        return sum(resident_bytes(pid) for pid in group_of(self.process.pid))


def spawn(command: list[str], folder: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Starts a process in a session of its own, with its output in a file beside the data."""
    with open(f"{folder}.log", "ab") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    if listed := os.environ.get(LEFT_PROCESSES):
        with open(listed, "a") as file:
            file.write(f"{process.pid}\n")
    return process


def end(process: subprocess.Popen[bytes], number: int) -> None:
    """Sends a signal to a process and all that it started, and waits for its end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    process.wait(30)


def until(
    attempt: Callable[[], None], process: subprocess.Popen[bytes], seconds: float = 60
) -> None:
    """Tries until it works; raises the last error when the time is up or the process is gone."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except Exception:
            if time.monotonic() > deadline or process.poll() is not None:
                raise
            time.sleep(0.01)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> None:
    """Raises unless somebody listens."""
    socket.create_connection((HOST, port), 1).close()


def group_of(leader: int) -> Iterator[int]:
    """The processes of a session."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(entry)) == leader:
                    yield int(entry)


def resident_bytes(pid: int) -> int:
    """How much memory a process has resident."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
    return 0


def folder_bytes(folder: str) -> int:
    """What a folder's files occupy."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(path, name)).st_blocks * 512
    return total


def needs_program(name: str) -> str | None:
    """Says that a program is not on the path."""
    return None if shutil.which(name) else f"{name} is not installed"


def needs_package(name: str) -> str | None:
    """Says that a Python package is not installed."""
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"the package {name} is not installed"
    return None
