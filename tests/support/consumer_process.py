"""A process that consumes a group until it is killed, and says what it was told.

Started as `python -m tests.support.consumer_process <directory> <seed>`. It opens the store and
polls from three threads; of what it gets it acks some, releases some and forgets some. Lines on
standard output, each in one atomic write:

    open                            the store is open
    got <offset>:<epoch> …          a poll has answered with these
    asking <offset> …               is about to ack these
    acked <offset> …                the ack has answered
"""

from __future__ import annotations

import os
import random
import sys
import threading
import traceback

from lamina.store.store import Store

TOPIC, GROUP = "t", "g"
LEASE_MS = 60


def say(*words: object) -> None:
    """Writes one line, atomically (it is shorter than a pipe's guarantee)."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


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


def main() -> None:
    """Opens the store and consumes."""
    directory, seed = sys.argv[1:]
    store = Store(directory)
    say("open")

    def guarded(name: str) -> None:
        try:
            consume(store, name)
        except BaseException:
            say("error", traceback.format_exc()[-1500:].replace("\n", " | "))
            os._exit(1)

    for number in range(3):
        threading.Thread(target=guarded, args=(f"{seed} {number}",), daemon=True).start()
    threading.Event().wait(60)


if __name__ == "__main__":
    main()
