"""Processes that treat an open store as programs do that know no better: scenes, one a process.

Started as `python -m lamina_torture.lives`, it takes errands as a worker does; `breaks` names the
scene. What a scene finds wrong it says as an error.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from lamina.errors import Closed, LaminaError, Locked
from lamina.storage import paths
from lamina.store.store import Store
from lamina_torture.forked import say
from lamina_torture.worker import TOPIC, Errand, count_of, open_store, serve, value_of

APPENDS = 12


class Life:
    """One process with an open store."""

    def __init__(self, errand: Errand) -> None:
        self.errand = errand
        self.store = open_store(errand.directory)
        if TOPIC not in self.store.topics():
            self.store.create_topic(TOPIC, format=errand.format)
        say("open")

    def append(self, name: str, store: Store | None = None) -> None:
        """Makes one append and says that it was acknowledged."""
        values = [value_of(name, row) for row in range(count_of(name))]
        ack = (store or self.store).append(TOPIC, values, partition=0)
        say("ack", ack.base_offset, ack.count, name)

    def name(self, what: object) -> str:
        """A name for an append that no other life gives."""
        return f"{self.errand.number}-{what}"

    def expect(self, kind: type[LaminaError], call: Callable[[], object], what: str) -> None:
        """Returns an error unless a call is refused by one of a kind."""
        try:
            call()
        except kind:
            return
        except BaseException as error:
            say("error", json.dumps(f"{what}: {type(error).__name__}: {error}"))
            return
        say("error", json.dumps(f"{what} was not refused"))

    # ------------------------------------------------------------------ scenes

    def forked(self) -> None:
        """A child is forked: its copy of the store is closed, and the parent's goes on."""
        threads = [threading.Thread(target=self._appending, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        child = os.fork()
        if child == 0:
            self.expect(Closed, lambda: self.append(self.name("child")), "an append after a fork")
            self.expect(Closed, self.store.flush, "a flush after a fork")
            self.expect(Locked, lambda: open_store(self.errand.directory), "a second writer")
            self.store.close()
            os._exit(0)
        os.waitpid(child, 0)
        for thread in threads:
            thread.join()
        self.append(self.name("parent"))
        self.expect(Locked, lambda: open_store(self.errand.directory), "a second writer")
        self.store.close()

    def twice(self) -> None:
        """The directory is opened again here and in another process: refused, and no harm."""
        self.append(self.name("first"))
        for number in range(2):
            self.expect(Locked, lambda: open_store(self.errand.directory), "a second writer")
            self.append(self.name(f"more-{number}"))
        self.store.close()
        with open_store(self.errand.directory) as again:
            self.append(self.name("again"), again)
        self.expect(Closed, lambda: self.append(self.name("closed")), "an append after closing")

    def exits(self) -> None:
        """The interpreter ends with an open store, without a word."""
        self._appending(0)
        sys.exit(0)

    def daemons(self) -> None:
        """The interpreter ends while daemon threads append."""
        for number in range(3):
            endless = itertools.count()
            threading.Thread(target=self._appending, args=(number, endless), daemon=True).start()
        self._appending(9)
        sys.exit(0)

    def pending(self) -> None:
        """The interpreter ends with appends on their way that nobody waits for any more."""

        async def start() -> None:
            values = [[value_of(self.name(f"pending-{row}"), 0)] for row in range(APPENDS)]
            tasks = [
                asyncio.ensure_future(self.store.append_async(TOPIC, each, partition=0))
                for each in values
            ]
            await tasks[0]

        self._appending(0)
        self.store.append(TOPIC, [value_of(self.name("unheard"), 0)], partition=0, acks=0)
        asyncio.run(start())
        sys.exit(0)

    def killed(self) -> None:
        """The process is killed; its lock file names it, and the next process may have its id."""
        self._appending(0)
        lock = Path(self.errand.directory) / paths.LOCK
        lock.write_text(f"pid {os.getppid()}\n")
        os.kill(os.getpid(), 9)

    def _appending(self, thread: int, numbers: object = None) -> None:
        for number in numbers if numbers is not None else range(APPENDS):  # type: ignore[attr-defined]
            self.append(self.name(f"{thread}-{number}"))


SCENES: dict[str, Callable[[Life], None]] = {
    "forked": Life.forked,
    "twice": Life.twice,
    "exits": Life.exits,
    "daemons": Life.daemons,
    "pending": Life.pending,
    "killed": Life.killed,
}


if __name__ == "__main__":
    serve(lambda errand: SCENES[errand.breaks](Life(errand)))
