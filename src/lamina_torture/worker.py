"""A process that uses a store until it is killed or told to stop, and says what was acknowledged.

`python -m lamina_torture.worker` runs an `Errand` in a child (see `forked`), which says:

    open                               its store is open
    ack <offset> <count> <name>        an append was acknowledged as fsynced
    trim <before>                      is about to be trimmed
    got <offset> …                     a group was given these
    asking <offset> …                  and is about to ack these
    acked <offset> …                   the ack has answered
    refused <class> <doing>            a typed error, after which one more call is made
    closed                             the store is closed

The name of an append determines its bytes (`value_of`).
"""

from __future__ import annotations

import functools
import json
import os
import random
import tempfile
import threading
import traceback
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass

from lamina.api import ProducerStamp
from lamina.config import WalSettings, WriterSettings
from lamina.errors import LaminaError
from lamina.store.store import Store
from lamina_torture import forked
from lamina_torture.forked import say

TOPIC, GROUP = "t", "g"
SEGMENT_BYTES = 8 << 10
PRODUCER = 9


@dataclass(frozen=True)
class Errand:
    """What a child is told. `once` are the batches that the idempotent producer had acknowledged.

    `appends` is how many each thread makes; None is for ever.
    """

    directory: str
    format: str
    seed: str
    number: int
    once: int = 0
    appends: int | None = None
    waits: bool = False
    breaks: str = ""
    """What cuts a single thread off; see `lamina_torture.interrupted`."""

    def encode(self) -> bytes:
        """Returns the line that asks for it."""
        return (json.dumps(asdict(self)) + "\n").encode()


def value_of(name: str, row: int) -> bytes:
    """Returns the value of one record of an append."""
    head = f"{name}#{row}#".encode()
    return head + b"." * (zlib.crc32(head) % 120)


def count_of(name: str) -> int:
    """Returns how many records an append has."""
    return 1 + zlib.crc32(name.encode()) % 12


def open_store(directory: str) -> Store:
    """Opens a store in which little data goes through everything."""
    wal = WalSettings(
        shards=2, wal_bytes=32 << 10, segment_events=50, segment_bytes=SEGMENT_BYTES, hot_segments=1
    )
    return Store(directory, writer=WriterSettings(flush_ms=15), wal=wal, tick_ms=15)


class Child:
    """One errand: threads that append, one that trims, one that consumes."""

    def __init__(self, errand: Errand) -> None:
        self.errand = errand
        self.store = open_store(errand.directory)
        if TOPIC not in self.store.topics():
            config = {"segment.bytes": SEGMENT_BYTES} if errand.format != "wal" else {}
            self.store.create_topic(TOPIC, format=errand.format, config=config)
        say("open")

    def run(self) -> None:
        """Does all of it at once; ends by itself only when appends are counted."""
        work: list[Callable[[], None]] = [lambda: self.produce("a"), lambda: self.produce("b")]
        work += [self.consume, self.trim, self.produce_once]
        threads = [threading.Thread(target=self.guarded, args=(each,)) for each in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.attempt("close", self.store.close)
        say("closed")

    def guarded(self, work: Callable[[], None]) -> None:
        """Lets nothing but typed errors end a thread."""
        try:
            work()
        except BaseException:
            say("error", json.dumps(traceback.format_exc()[-3000:]))
            os._exit(1)

    def attempt(self, doing: str, call: Callable[[], None]) -> bool:
        """Makes a call that may be refused; says by what."""
        try:
            call()
        except LaminaError as error:
            say("refused", type(error).__name__, doing)
            return False
        return True

    def numbers(self) -> range:
        """The numbers of the calls that a thread makes."""
        return range(1 << 60 if self.errand.appends is None else self.errand.appends)

    def produce(self, who: str) -> None:
        """Appends for ever, or until two calls in a row are refused."""
        refused = 0
        for number in self.numbers():
            call = functools.partial(self.append, f"{self.errand.number}-{who}-{number}")
            refused = 0 if self.attempt("append", call) else refused + 1
            if refused == 2:
                return

    def append(self, name: str, producer: ProducerStamp | None = None) -> None:
        """Makes one append and says that it was acknowledged."""
        values = [value_of(name, row) for row in range(count_of(name))]
        ack = self.store.append(TOPIC, values, partition=0, producer=producer)
        say("ack", ack.base_offset, ack.count, name)

    def produce_once(self) -> None:
        """Goes on where an idempotent producer was: the batch that got no answer comes again."""
        sequence = sum(count_of(f"once-{number}") for number in range(self.errand.once))
        for number in self.numbers():
            name = f"once-{self.errand.once + number}"
            call = functools.partial(self.append, name, ProducerStamp(PRODUCER, 0, sequence))
            if not self.attempt("append", call):
                return
            sequence += count_of(name)

    def trim(self) -> None:
        """Trims and rolls now and then."""
        drawn = random.Random(f"{self.errand.seed} {self.errand.number} trim")  # noqa: S311
        pause = threading.Event()
        for _ in self.numbers():
            pause.wait(drawn.uniform(0.002, 0.03))
            before = max(0, self.store.latest_offset(TOPIC) - drawn.choice((200, 500)))
            if drawn.random() < 0.5:
                done = self.attempt("roll", lambda: self.store.roll(TOPIC, 0))
            else:
                say("trim", before)
                done = self.attempt("trim", functools.partial(self._trim, before))
            if not done:
                return

    def _trim(self, before: int) -> None:
        self.store.trim(TOPIC, 0, before)

    def consume(self) -> None:
        """Polls and acks most of what it is given."""
        drawn = random.Random(f"{self.errand.seed} {self.errand.number} group")  # noqa: S311
        for _ in self.numbers():
            if not self.attempt("consume", lambda: self._consume(drawn)):
                return

    def _consume(self, drawn: random.Random) -> None:
        group = self.store.group(TOPIC, GROUP)
        offsets = group.poll(20, 50, wait_ms=20).column("offset").to_pylist()
        if not offsets:
            return
        say("got", *offsets)
        done = [each for each in offsets if drawn.random() < 0.8]
        if done:
            say("asking", *done)
            group.ack(done)
            say("acked", *done)


def warm_up() -> None:
    """Loads the kernels of all formats, so that a child starts at once."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("keratin", "frame", "wal"):
            for _ in range(2):
                with open_store(f"{folder}/{name}") as store:
                    if TOPIC not in store.topics():
                        store.create_topic(TOPIC, format=name)
                    store.append(TOPIC, [b"x"] * 3, partition=0)
                    list(store.scan(TOPIC))
                    group = store.group(TOPIC, GROUP)
                    group.ack(group.poll(2, 50, wait_ms=20))


def serve(run: Callable[[Errand], None]) -> None:
    """Runs a child for each errand that is asked for."""
    forked.serve(warm_up, lambda told: run(Errand(**told)))


if __name__ == "__main__":
    serve(lambda errand: Child(errand).run())
