"""What is done to a store while it is tortured: one long life, all short lives, and random ones.

A workload is a name that says what it does, so that a failure's line can name it: `everything`, or
operations joined by `+`. An operation depends on the promise alone, never on chance.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

from lamina_torture.promises import COPIES
from lamina_torture.scribe import PRODUCER, Scribe

TOPIC = "t"
EVERYTHING = "everything"
SHORT_MAX = 3
"""Up to so many operations all workloads are tried."""


def _append(scribe: Scribe) -> None:
    _, sequence = scribe.opened.producer_position(TOPIC, 0, PRODUCER) or (0, 0)
    scribe.append(TOPIC, [60, 700], sequence=sequence)


def _write(scribe: Scribe) -> None:
    scribe.append(TOPIC, [90, 500], acks=1)


def _roll(scribe: Scribe) -> None:
    scribe.opened.roll(TOPIC)


def _trim(scribe: Scribe) -> None:
    life = scribe.life(TOPIC)
    scribe.trim(TOPIC, max(life.gone, life.durable - 1))


def _delete_records(scribe: Scribe) -> None:
    life = scribe.life(TOPIC)
    scribe.delete_records(TOPIC, max(life.gone, life.durable - 2))


def _delete(scribe: Scribe) -> None:
    if scribe.format_name == "wal" and scribe.life(TOPIC).epoch == scribe.life(TOPIC).first:
        return _delete_tag(scribe)
    scribe.delete(TOPIC)
    scribe.create(TOPIC, **unsynced(scribe.format_name))
    return None


def _delete_tag(scribe: Scribe) -> None:
    scribe.remove_tag(TOPIC, b"red")


def _checkpoint(scribe: Scribe) -> None:
    scribe.opened.flush()


def _snapshot(scribe: Scribe) -> None:
    scribe.opened.maintain()


def _commit(scribe: Scribe) -> None:
    scribe.commit(TOPIC, scribe.life(TOPIC).durable)


def _reopen(scribe: Scribe) -> None:
    scribe.close()
    scribe.open()


def _kill(scribe: Scribe) -> None:
    scribe.kill()
    scribe.open()


OPERATIONS: dict[str, Callable[[Scribe], None]] = {
    "append": _append,
    "write": _write,
    "roll": _roll,
    "trim": _trim,
    "delete": _delete,
    "checkpoint": _checkpoint,
    "snapshot": _snapshot,
    "commit": _commit,
    "reopen": _reopen,
}
"""`write` is an append that is not fsynced (acks=1); `snapshot` is all that maintenance does."""
MORE = {**OPERATIONS, "kill": _kill, "delete-records": _delete_records}


def short_workloads(length_max: int = SHORT_MAX) -> Iterator[str]:
    """Yields every workload of up to so many operations."""
    for length in range(1, length_max + 1):
        for names in itertools.product(OPERATIONS, repeat=length):
            yield "+".join(names)


def random_workload(luck: random.Random, length: int) -> str:
    """Returns a workload of a length; appends are the most frequent."""
    weights = {"append": 5, "write": 4, "kill": 1, "reopen": 1}
    names = list(MORE)
    return "+".join(luck.choices(names, [weights.get(name, 2) for name in names], k=length))


def unsynced(format_name: str) -> dict[str, str]:
    """Returns the settings under which an append with acks=1 is really not synced."""
    return {"durability": "disk"} if format_name == "wal" else {}


def run(name: str, format_name: str, *, whole: bool = False) -> Scribe:
    """Runs a workload; of a short one only the moments of its last operation are kept.

    Those of the others are had by the workload without the last operation.
    """
    scribe = Scribe(format_name)
    if name == EVERYTHING:
        (_wal_life if format_name == "wal" else _log_life)(scribe)
        return scribe
    scribe.watching = whole
    scribe.open()
    scribe.create(TOPIC, **unsynced(format_name))
    scribe.append(TOPIC, [30, 20, 400])
    *before, last = name.split("+")
    for each in before:
        MORE[each](scribe)
    scribe.watching = True
    MORE[last](scribe)
    scribe.look()
    scribe.note()
    scribe.files.before = None
    if scribe.store is not None:
        scribe.store.close()
    return scribe


def _log_life(scribe: Scribe) -> None:
    """Everything that changes a disk, once."""
    store = scribe.open()
    scribe.create("orders")
    scribe.append("orders", [100, 40, 10])
    scribe.append("orders", [300], acks=1)
    scribe.append("orders", [20, 20], acks=0)
    store.maintain()
    scribe.append("orders", [50, 60], sequence=0)
    scribe.retry("orders")
    scribe.append("orders", [600, 500])
    scribe.commit("orders", 5)
    scribe.append("orders", [200] * 14)
    scribe.append("orders", [400, 500, 30], sequence=2)
    scribe.append("orders", [10], acks=1)
    scribe.trim("orders", 9)
    scribe.delete_records("orders", 12)
    scribe.create("other", **{"segment.bytes": 4096})
    scribe.append("other", [700], acks=1)
    store.maintain()
    scribe.append("other", [5])
    scribe.commit("other", 1)
    scribe.retain("orders", **{"retention.bytes": 1500})
    scribe.delete("other")
    scribe.create("other", **{"segment.bytes": 2048})
    scribe.append("other", [9])
    scribe.close()
    scribe.open()
    scribe.retry("orders")
    scribe.append("orders", [1500, 20, 30], sequence=5)
    scribe.append("other", [900, 900], acks=1)
    scribe.trim("orders", scribe.life("orders").end)
    scribe.delete("orders")
    scribe.create("orders")
    scribe.append("orders", [33])
    scribe.close()


def _wal_life(scribe: Scribe) -> None:
    """Appends to several shards, rotation, checkpoint, snapshot, seal, delete, eviction, the move.

    The store is opened with other numbers of shards in between, and killed once.
    """
    store = scribe.open()
    scribe.create("orders")
    scribe.create("other", durability="disk")
    store.create_topic(COPIES, format="wal")
    store.create_router("reds", "orders", COPIES, tag=b"red")
    scribe.append("orders", [100, 40, 10])
    scribe.append("other", [30, 20])
    scribe.append("other", [300], acks=1)
    scribe.append("orders", [60])
    store.maintain()
    scribe.remove_tag("orders", b"red")
    scribe.append("orders", [700, 20, 20])
    scribe.commit("orders", 4)
    scribe.append("other", [10], acks=1)
    scribe.append("orders", [900])
    scribe.remove("other", [1], offsets=[1])
    store.maintain()
    scribe.append("other", [1500], acks=1)
    scribe.append("other", [900])  # rotates, with an unsynced group in the file before
    scribe.append("orders", [40] * 5)
    store.roll("orders")
    scribe.append("other", [500, 20, 20, 5])
    scribe.trim("orders", 4)
    scribe.delete_records("orders", 6)
    store.maintain()
    scribe.retain("orders", **{"retention.records": 6})
    scribe.remove_tag("other", b"green")
    scribe.close()
    scribe.shards = 3
    _wal_later(scribe)


def _wal_later(scribe: Scribe) -> None:
    store = scribe.open()
    scribe.append("orders", [10, 20])
    scribe.remove_tag("orders", b"redder")
    store.maintain()
    scribe.delete("other")
    scribe.create("other")
    scribe.append("other", [50, 60, 70, 80, 90])
    store.maintain()
    scribe.append("orders", [800])
    scribe.append("other", [5], acks="all")
    scribe.kill()
    scribe.shards = 1
    scribe.open()
    scribe.append("other", [11, 12])
    scribe.append("orders", [13])
    scribe.retain("other", **{"retention.records": 2})
    scribe.delete("orders")
    scribe.create("orders")
    scribe.append("orders", [33])
    scribe.close()
