"""One thread that uses a store and is cut off: by Ctrl-C anywhere, or by no memory.

Started as `python -m lamina_torture.interrupted`, it takes errands as a worker does. A break is

    interrupt:<n>     KeyboardInterrupt at the n-th place in Lamina's code where it can be
    memory:<n>        MemoryError at the n-th allocation
    open:<n>          KeyboardInterrupt at the n-th place of an opening
    close:<n>         … and of a close

and hits whatever the thread does then. The program goes on as one would that survives it. It says
what a worker says; a call that the break got out of is refused as Broken, and at the end is

    events <count>                     so many such places there were

Rule: everything runs in the main thread, and nothing by a timer, so that a case is the same again.
"""

from __future__ import annotations

import dis
import faulthandler
import functools
import gc
import importlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import Any

import lamina
from lamina.api import ProducerStamp
from lamina.config import WalSettings, WriterSettings
from lamina.errors import LaminaError
from lamina.store.store import Store
from lamina_torture.forked import say
from lamina_torture.worker import GROUP, PRODUCER, TOPIC, Errand, count_of, serve, value_of

BROKEN = "Broken"
NEVER_MS = 1 << 30
GIVE_UP_S = 20
SOURCE = os.path.dirname(lamina.__file__)
HARNESS = os.path.dirname(__file__)
LOOKING = frozenset(
    dis.opmap[name]
    for name in ("RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD")
    if name in dis.opmap
)
"""The bytecodes behind which Python looks for signals."""


def open_still(directory: str, archive: str | None = None) -> Store:
    """Opens a store in which nothing happens by itself."""
    wal = WalSettings(
        shards=1, wal_bytes=2 << 10, segment_events=8, segment_bytes=1 << 10, hot_segments=1
    )
    writer = WriterSettings(flush_ms=NEVER_MS)
    return Store(directory, writer=writer, wal=wal, tick_ms=NEVER_MS, archive=archive)


class Bytecodes:
    """Counts where this thread can be interrupted in Lamina's code, and interrupts it at one place.

    Python looks for signals when a function begins, at the end of a call and when a loop goes on;
    between other bytecodes, as those that leave a `with`, an interrupt cannot be. It is raised here
    one bytecode later, so a place counts only if the same handlers are in force there.
    """

    def __init__(self, at: int) -> None:
        self._at = at
        self._before: dict[FrameType, int] = {}
        """Of each function that is under way, where its last bytecode was."""
        self.count = 0

    def enter(self, frame: FrameType, event: str, argument: object) -> Any:
        """Follows a call into Lamina's own code."""
        path = frame.f_code.co_filename
        if not path.startswith(SOURCE) or path.startswith(HARNESS):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self.step

    def step(self, frame: FrameType, event: str, argument: object) -> Any:
        """Sees each bytecode before it runs."""
        if event == "return":
            self._before.pop(frame, None)
        elif event == "opcode":
            before, now = self._before.get(frame, -1), frame.f_lasti
            self._before[frame] = now
            code = frame.f_code
            if before < 0 or code.co_code[before] not in LOOKING:
                return self.step
            if handler_of(code, before) == handler_of(code, now):
                self.count += 1
                if self.count == self._at:
                    sys.settrace(None)
                    self._before.clear()  # or the frames, and what they hold, would stay
                    raise KeyboardInterrupt
        return self.step


@functools.cache
def _handlers(code: CodeType) -> list[tuple[int, int, int]]:
    """The exception table of a function: from and to which byte which handler is in force.

    Each entry is four numbers of six bits a byte, the highest first: start, length, target, depth.
    """
    numbers, number = [], 0
    for byte in code.co_exceptiontable:
        number = (number << 6) | (byte & 63)
        if not byte & 64:
            numbers.append(number)
            number = 0
    entries = zip(numbers[::4], numbers[1::4], numbers[2::4], strict=True)
    return [(2 * start, 2 * (start + length), target) for start, length, target in entries]


def handler_of(code: CodeType, position: int) -> int | None:
    """Returns the handler that is in force at a bytecode; None without one."""
    for start, end, target in _handlers(code):
        if start <= position < end:
            return target
    return None


@contextmanager
def broken(kind: str, at: int) -> Iterator[Bytecodes]:
    """Lets one thing go wrong inside; gives the count of bytecodes."""
    seen = Bytecodes(at)
    if kind == "interrupt":
        sys.settrace(seen.enter)
        try:
            yield seen
        finally:
            sys.settrace(None)
        return
    allocations = importlib.import_module("_testcapi")
    allocations.set_nomemory(at, at + 1)
    try:
        yield seen
    finally:
        allocations.remove_mem_hooks()


class Program:
    """The calls that a small program makes, each on its own."""

    def __init__(self, errand: Errand) -> None:
        self.errand = errand
        self.store = open_still(errand.directory)
        if TOPIC not in self.store.topics():
            config = {"segment.bytes": 1 << 10} if errand.format != "wal" else {}
            self.store.create_topic(TOPIC, format=errand.format, config=config)
        say("open")

    def run(self) -> None:
        """Makes all calls, one of them cut off; then looks at what can be seen, and closes."""
        kind, at = self.errand.breaks.split(":")
        calls = list(self.calls())
        with broken(kind, int(at)) as seen:
            while calls:
                try:
                    while calls:
                        self.attempt(*calls.pop(0))
                except MemoryError:  # in this very loop
                    say("refused", BROKEN, "call")
        for name in ("after-1", "after-2"):
            self.attempt("append", lambda name=name: self.append(name))  # type: ignore[misc]
        self.look()
        self.attempt("close", self.store.close)
        say("closed")
        say("events", seen.count)

    def calls(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """A few of everything."""
        for number in range(3):
            yield "append", lambda number=number: self.append(f"plain-{number}")  # type: ignore[misc]
        if self.errand.format != "wal":
            yield "append", lambda: self.append("once-0", ProducerStamp(PRODUCER, 0, 0))
        yield "consume", self.consume
        yield "roll", lambda: self.store.roll(TOPIC, 0)
        yield "append", lambda: self.append("rolled")
        yield "trim", self.trim
        yield "maintain", self.store.maintain
        yield "consume", self.consume

    def attempt(self, doing: str, call: Callable[[], object]) -> None:
        """Makes a call, which may be refused or broken."""
        try:
            call()
        except LaminaError as error:
            say("refused", type(error).__name__, doing)
        except KeyboardInterrupt:
            say("refused", BROKEN, doing)
        except Exception:
            if not self.errand.breaks.startswith("memory"):
                raise
            say("refused", BROKEN, doing)  # libraries make other errors of a MemoryError

    def append(self, name: str, producer: ProducerStamp | None = None) -> None:
        """Makes one append and says that it was acknowledged."""
        values = [value_of(name, row) for row in range(count_of(name))]
        ack = self.store.append(TOPIC, values, partition=0, producer=producer)
        say("ack", ack.base_offset, ack.count, name)

    def trim(self) -> None:
        """Trims half."""
        before = self.store.latest_offset(TOPIC) // 2
        say("trim", before)
        self.store.trim(TOPIC, 0, before)

    def consume(self) -> None:
        """Polls and acks half."""
        group = self.store.group(TOPIC, GROUP)
        offsets = group.poll(8, 60_000).column("offset").to_pylist()
        if not offsets:
            return
        say("got", *offsets)
        say("asking", *offsets[::2])
        group.ack(offsets[::2])
        say("acked", *offsets[::2])

    def look(self) -> None:
        """Of each append a reader sees all records or none, those that were trimmed aside."""
        found: dict[str, int] = {}
        first = self.store.earliest_offset(TOPIC)
        for batch in self.store.scan(TOPIC):
            for at, value in zip(*map(batch.column, ("offset", "value")), strict=True):
                name, row, _ = value.as_py().decode().split("#", 2)
                found[name] = found.get(name, 0) + 1
                if at.as_py() == first:
                    found[name] += int(row)
        halves = {name: count for name, count in found.items() if count != count_of(name)}
        if halves:
            say("error", json.dumps(f"appends are seen in part: {halves}"))


class Lifecycle(Program):
    """Opens a store or closes it, cut off there; then nothing of it may be left behind."""

    def run(self) -> None:
        """Cuts an opening or a close off, looks for what stayed, and goes on."""
        kind, at = self.errand.breaks.split(":")
        self.append("plain-0")
        self.append("plain-1", ProducerStamp(PRODUCER, 0, 0) if self.is_segmented else None)
        self.consume()
        if kind == "open":
            self.store.close()
        with broken("interrupt", int(at)) as seen:
            self.attempt(kind, self.reopen if kind == "open" else self.store.close)
        self.store.close()
        left = left_below(self.errand.directory)
        if left:
            say("error", json.dumps(f"these stayed: {left}"))
        self.reopen(close=False)
        for name in ("after-1", "after-2"):
            self.append(name)
        self.look()
        self.store.close()
        say("closed")
        say("events", seen.count)

    @property
    def is_segmented(self) -> bool:
        """Whether the topic has a log of its own."""
        return self.errand.format != "wal"

    def reopen(self, *, close: bool = True) -> None:
        """Opens the store again, with an archive."""
        opened = open_still(self.errand.directory, f"{self.errand.directory}-archive")
        if close:
            opened.close()
        else:
            self.store = opened


def left_below(directory: str) -> list[str]:
    """Names threads of Lamina, and files below a directory that are open."""
    found = [each.name for each in threading.enumerate() if each.name.startswith("lamina-")]
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of this listing
            path = os.readlink(f"/proc/self/fd/{number}")
            found += [path] if path.startswith(directory) else []
    return found


def warm_up() -> None:
    """Runs the program once for each format, unheard: a child then loads and compiles nothing."""
    heard, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name in ("keratin", "frame", "wal"):
                for breaks in ("interrupt:0", "open:0"):
                    where = f"{folder}/{name}-{breaks}"
                    program_of(Errand(where, name, "", 0, breaks=breaks)).run()
    finally:
        os.dup2(heard, 1)
        os.close(heard)
        os.close(nowhere)


def run(errand: Errand) -> None:
    """Runs the program; a finalizer that runs at another time would make another case of it."""
    gc.disable()
    faulthandler.dump_traceback_later(GIVE_UP_S, exit=True)
    program_of(errand).run()


def program_of(errand: Errand) -> Program:
    """Returns the program that an errand is for."""
    return (Lifecycle if errand.breaks.startswith(("open", "close")) else Program)(errand)


if __name__ == "__main__":
    warm_up()
    serve(run)
