"""What must hold on a disk after a crash: now, in use, after the next one, and when repeated.

A store is opened on the disk, held against the promise, used further, and opened again; or its
recovery is itself killed at each of its steps.
"""

from __future__ import annotations

from lamina.api import ProducerStamp
from lamina.store.store import Store
from lamina_torture.disk import Choice, Disk
from lamina_torture.promises import (
    Life,
    Promise,
    fields_of,
    hold,
    life_of,
    read,
    records,
    row_of,
    verify,
)
from lamina_torture.rows import demand
from lamina_torture.scribe import Moment, Scribe
from lamina_torture.simulated import SimulatedFiles

VOLATILE = ("checkpoint.json", "recovery.json", "lock", ".bin")
"""The ends of files that opening and closing may change."""


def survive(scribe: Scribe, files: SimulatedFiles, promise: Promise, turn: int) -> None:
    """Opens a disk after a crash, checks it and uses it; then, in turn, one of three ends.

    Power is lost before the use; or after it; or all is closed and opened twice again.
    """
    store = scribe.open_on(files, turn)
    try:
        verify(store, promise)
        expected = records(store)
        disk = files.snapshot()
        if turn % 3:
            use_further(scribe, store, promise, turn)
            expected = records(store)
            disk = files.snapshot()
    finally:
        store.close()
    if turn % 3 < 2:
        files = disk.crash("dropped")
    with scribe.open_on(files, turn) as again:
        hold(again, expected)
    if turn % 3 == 2:
        before = lasting(files)
        scribe.open_on(files, turn).close()
        demand(lasting(files) == before, "I7", "opening once more has changed files")


def lasting(files: SimulatedFiles) -> dict[str, bytes]:
    """Returns the files that opening and closing must not change."""
    return {path: data for path, data in files.contents().items() if not path.endswith(VOLATILE)}


def use_further(scribe: Scribe, store: Store, promise: Promise, turn: int) -> None:
    """Repeats the last idempotent append, as its producer would, and appends more.

    Every second time it stops there: whatever comes later could make good what opening left undone.
    """
    for topic in store.topics():
        life = life_of(promise.get(topic, ()), store.describe_topic(topic).epoch)
        if life is not None and life.stamped is not None:
            repeat(store, topic, life, life.stamped)
        end = store.latest_offset(topic)
        more = store.append(topic, [b"more", b"x" * 700], partition=0, acks="all")
        demand(more.base_offset == end, "I3", f"{topic}: appended at {more.base_offset}, not {end}")
        demand(store.latest_offset(topic) == end + 2, "I12", f"{topic}: the append is not there")
    if turn % 2 and scribe.format_name == "wal":
        for _ in range(3):  # until what was in the WAL is only in segments and snapshots
            for topic in store.topics():
                store.append(topic, [b"y" * 900], partition=0, acks="all")
            store.maintain()


def repeat(store: Store, topic: str, life: Life, stamped: tuple[ProducerStamp, int, int]) -> None:
    """Repeats an idempotent append: each of its records is there once."""
    stamp, first, count = stamped
    values = dict(enumerate(life.values[first - life.first :][:count], first))
    rows = [row_of(life.format, at, value) for at, value in values.items()]
    end, before = store.latest_offset(topic), read(store, topic)
    for at in (*life.deleted, *life.deleting, *range(first, store.earliest_offset(topic))):
        values.pop(at, None)
    is_whole = end >= first + count and values.keys() <= before.keys()
    answer = store.append(topic, rows, partition=0, acks="all", producer=stamp)
    if is_whole:  # of a wal topic power loss may have kept the last ones only
        demand(answer.base_offset == first, "I3", f"{topic}: a repeat of what is there")
        demand(store.latest_offset(topic) == end, "I3", f"{topic}: a repeat was appended again")
    found = list(read(store, topic).values())
    counts = [found.count(fields_of(life.format, at, each)) for at, each in values.items()]
    demand(counts == [1] * len(counts), "I3", f"{topic}: each record once, not {counts}")


def kill_recovery(scribe: Scribe, moment: Moment, files: SimulatedFiles) -> int:
    """Kills recovery at each of its steps: what one gives does not depend on those begun before.

    Returns how many were killed.
    """
    begun: list[Disk[SimulatedFiles]] = []
    files.before = lambda kind, path: begun.append(files.snapshot())
    with scribe.open_on(files, moment.step) as store:
        files.before = None
        expected = records(store)
    for number, disk in enumerate(begun):
        choices: tuple[Choice, ...] = ("dropped", "kept", number)
        choice = choices[number % 3]
        again = disk.crash(choice) if number % 4 else disk.restart()
        with scribe.open_on(again, moment.step) as store:
            verify(store, moment.promise)
            hold(store, expected)
    return len(begun)
