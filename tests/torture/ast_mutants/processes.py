"""Forked children of one warm process: each does one thing, and is ended when it takes too long."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A name, and what a child does."""

    name: str
    act: Callable[[], None]


def run_all(tasks: Sequence[Task], jobs: int, limit_s: float) -> Iterator[tuple[str, str]]:
    """Runs tasks, so many at a time; yields the name of each that ended, and what went wrong."""
    waiting = list(tasks)
    running: dict[int, tuple[str, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            task = waiting.pop(0)
            running[forked(task.act)] = (task.name, time.monotonic())
        time.sleep(0.05)
        for child, (name, started) in list(running.items()):
            if (ended := end_of(child, started + limit_s)) is not None:
                del running[child]
                yield name, ended


def forked(act: Callable[[], None]) -> int:
    """Starts a child, the leader of a group of processes; it ends when `act` returns."""
    child = os.fork()
    if child == 0:
        code = 9
        try:
            os.setpgid(0, 0)
            act()
            code = 0
        finally:
            os._exit(code)
    return child


def end_of(child: int, deadline: float) -> str | None:
    """None while a child may run on; otherwise how it ended, which is empty if all went well."""
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        kill_group(child)
        if os.WIFSIGNALED(status):
            return f"dies of signal {os.WTERMSIG(status)}"
        return f"exit {os.WEXITSTATUS(status)}" if os.WEXITSTATUS(status) else ""
    if time.monotonic() < deadline:
        return None
    kill_group(child)
    os.waitpid(child, 0)
    return "hangs"


def kill_group(child: int) -> None:
    """Ends whatever a child started, and the child itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def said(reading: int) -> list[str]:
    """The whole lines that wait in a pipe, without waiting for more."""
    lines: list[str] = []
    while select.select([reading], [], [], 0)[0]:
        data = os.read(reading, 65536)
        if not data:
            break
        lines += data.decode().splitlines()
    return lines


def quiet() -> None:
    """A child prints nothing: its words would be taken for those of the run."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
