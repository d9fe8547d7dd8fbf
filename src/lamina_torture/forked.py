"""Processes that are killed for real: how they are started, heard and killed, once for everybody.

A module that wants to be killed calls `serve`. Started as a process it imports and compiles
everything once, says `ready`, and forks a child for each line of JSON on its standard input. The
child does what the module does and says what it was answered; all write to standard output, each
line in one atomic write:

    child <pid>                        the child of this line; stopped, if it was told to wait
    refused <class> open               a typed error ended it
    error <traceback as JSON>          something was raised that should not be
    gone <pid> <status>                the child is dead and reaped

`Workers` is the other end: it sends lines, kills children at an instant, and yields all words.
What the words mean, and whether the directory that is left keeps its promises, is judged by
whoever listens: `witness` for the matrix, tests/store/test_kill.py for many topics at once,
tests/groups/test_group_kill.py for consumers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import IO, Any, Protocol, Self

from lamina.errors import LaminaError
from lamina_torture.rows import demand

GIVE_UP_S = 60
"""A child that nobody kills ends itself."""


def say(*words: object) -> None:
    """Writes one line, atomically: it is shorter than what a pipe guarantees."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def serve(warm_up: Callable[[], None], run: Callable[[dict[str, Any]], None]) -> None:
    """Forks a child for each line on standard input, which runs what the line asks for."""
    warm_up()
    say("ready")
    for line in sys.stdin:
        told = json.loads(line)
        process_id = os.fork()
        if process_id == 0:
            _live(told, run)
        _, status = os.waitpid(process_id, 0)
        say("gone", process_id, status)


def _live(told: dict[str, Any], run: Callable[[dict[str, Any]], None]) -> None:
    signal.alarm(GIVE_UP_S)
    say("child", os.getpid())
    if told.get("waits"):
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        run(told)
    except LaminaError as error:
        say("refused", type(error).__name__, "open")
    except SystemExit:  # the interpreter is to end as it does
        raise
    except BaseException:
        say("error", json.dumps(traceback.format_exc()[-3000:]))
        os._exit(1)
    os._exit(0)


class Told(Protocol):
    """What a child is asked to do."""

    def encode(self) -> bytes:
        """Returns the line that asks for it."""


class Workers:
    """The warm process that forks a child for each line; `module` says what those do."""

    def __init__(self, module: str = "lamina_torture.worker", *, cwd: str | None = None) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", module], cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        first = _words(self._stdout)
        demand(first == ["ready"], "I12", f"the worker did not start: {first}")

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def send(self, told: Told) -> int:
        """Starts a child; returns its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(told.encode())
        self._process.stdin.flush()
        kind, process_id = _words(self._stdout)
        demand(kind == "child", "I12", f"the worker said {kind}")
        return int(process_id)

    def listen(self) -> Iterator[list[str]]:
        """Yields what the child says until it is gone; the last words are that."""
        while True:
            words = _words(self._stdout)
            yield words
            if words[0] == "gone":
                return

    def run_and_kill(self, told: Told, delay_s: float, *, after: str = "") -> Iterator[list[str]]:
        """Starts a child and kills it after a delay, which begins with a word or at once."""
        timer = threading.Timer(delay_s, kill, [self.send(told)])
        is_running = False
        try:
            if not after:
                timer.start()
                is_running = True
            for words in self.listen():
                if words[0] == after and not is_running:
                    timer.start()
                    is_running = True
                yield words
        finally:
            timer.cancel()

    def close(self, *, kills: bool = False) -> None:
        """Ends the process; `kills` does not wait for the child that it may have."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if kills:
            self._process.kill()
        self._process.wait()
        self._stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(kills=error is not None)


def _words(stream: IO[bytes]) -> list[str]:
    line = stream.readline()
    demand(line.endswith(b"\n"), "I12", "the process that starts workers died")
    return line.decode().split()


def kill(process_id: int) -> None:
    """Kills a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGKILL)
