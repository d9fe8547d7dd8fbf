"""A process that consumes a group until it is killed, and says what it was told.

`python -m tests.support.consumer_process` does it in a child (see `lamina_torture.forked`): it
opens the store and polls from three threads; of what it gets it acks some, releases some and
forgets some. It says:

    open                            the store is open
    got <offset>:<epoch> …          a poll has answered with these
    asking <offset> …               is about to ack these
    acked <offset> …                the ack has answered
"""

from __future__ import annotations

import json
import os
import random
import threading
import traceback
from dataclasses import asdict, dataclass
from typing import Any

from lamina.store.store import Store
from lamina_torture.forked import say, serve
from lamina_torture.worker import warm_up

TOPIC, GROUP = "t", "g"
LEASE_MS = 60


@dataclass(frozen=True)
class Consuming:
    """What a child is told."""

    directory: str
    seed: str

    def encode(self) -> bytes:
        """Returns the line that asks for it."""
        return (json.dumps(asdict(self)) + "\n").encode()


def consume(store: Store, seed: str) -> None:
    """Polls for ever."""
    drawn = random.Random(seed)
    group = store.group(TOPIC, GROUP)
    while True:
        batch = group.poll(drawn.choice((1, 5, 40)), LEASE_MS, wait_ms=1000)
        offsets = batch.column("offset").to_pylist()
        epochs = batch.column("epoch").to_pylist()
        say("got", *(f"{offset}:{epoch}" for offset, epoch in zip(offsets, epochs, strict=True)))
        done = [each for each in offsets if drawn.random() < 0.6]
        drawn.shuffle(done)
        if done:
            say("asking", *done)
            group.ack(done)
            say("acked", *done)
        left = sorted(set(offsets) - set(done))
        if left and drawn.random() < 0.3:
            group.release(left)


def run(told: dict[str, Any]) -> None:
    """Opens the store and consumes, in a child."""
    asked = Consuming(**told)
    store = Store(asked.directory)
    say("open")

    def guarded(name: str) -> None:
        try:
            consume(store, name)
        except BaseException:
            say("error", json.dumps(traceback.format_exc()[-1500:]))
            os._exit(1)

    for number in range(3):
        seed = f"{asked.seed} {number}"
        threading.Thread(target=guarded, args=(seed,), daemon=True).start()
    threading.Event().wait(60)


if __name__ == "__main__":
    serve(warm_up, run)
