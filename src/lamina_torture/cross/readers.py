"""Users that read records: through each method of each kind of store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

import lamina
from lamina.client.consumer import Consumer
from lamina.client.message import TopicPartition
from lamina.errors import LaminaError, RecordsMissing
from lamina.storage.files import LocalFiles
from lamina.storage.object_directory import DirectoryObjects
from lamina.store.replica import ReplicaStore
from lamina_torture.cross.ground import (
    IN_ARCHIVE,
    Ground,
    Saw,
    given_reasons,
    read_over,
    rows_of,
)
from lamina_torture.cross.templates import GROUP, LEASE_MS, NEIGHBOUR, TOPIC
from lamina_torture.rows import demand

BOTH = (TOPIC, NEIGHBOUR)
FEW = 7
POLLS_MAX = 400
JOIN_S = 20
"""So long a consumer may take to get its share of the partitions."""


def by_scan(store: Any) -> Saw:
    """Scans both topics."""
    return read_over(store, lambda topic, at: store.scan(topic, start=at), BOTH)


def by_fetch(store: Any) -> Saw:
    """Fetches both topics, a few records at a time."""

    def reading(topic: str, at: int) -> Iterable[pa.RecordBatch]:
        while True:
            batch = store.fetch(topic, 0, at, max_records=FEW)
            if batch.num_rows == 0:
                return
            yield batch
            at = int(batch.column("offset")[batch.num_rows - 1].as_py()) + 1

    return read_over(store, reading, BOTH)


def by_diff(store: Any) -> Saw:
    """Diffs both topics from their first offset on; gaps come beside the records."""
    saw = Saw(served={})
    assert saw.served is not None
    for topic in BOTH:
        at = store.earliest_offset(topic)
        for _ in range(POLLS_MAX):
            found = store.diff(topic, 0, at, limit=40)
            saw.served |= rows_of(topic, found.records)
            saw.told |= {
                (topic, offset) for gap in found.gaps for offset in range(gap.first, gap.end)
            }
            if found.caught_up:
                break
            demand(found.next_offset > at, "I12", f"a diff of {topic} at {at} does not move on")
            at = found.next_offset
        saw.told |= given_reasons(store, topic)
    return saw


def by_group(store: Any) -> Saw:
    """Consumes both topics by a new group that acks all; gaps are what it says it skipped."""
    saw = Saw(served={})
    assert saw.served is not None
    for topic in BOTH:
        group = store.group(topic, "reader")
        for _ in range(POLLS_MAX):
            batch = group.poll(40, LEASE_MS)
            if batch.num_rows == 0:
                break
            saw.served |= rows_of(topic, batch)
            group.ack(batch)
        else:
            demand(False, "I12", f"polling {topic} never ends")
        for gap in group.skipped:
            saw.told |= {(topic, offset) for offset in range(gap.first, gap.end)}
        saw.told |= given_reasons(store, topic)
    return saw


def scan(ground: Ground) -> Saw:
    """`Store.scan`."""
    with ground.open() as store:
        return by_scan(store)


def fetch(ground: Ground) -> Saw:
    """`Store.fetch`."""
    with ground.open() as store:
        return by_fetch(store)


def diff(ground: Ground) -> Saw:
    """`Store.diff`."""
    with ground.open() as store:
        return by_diff(store)


def group(ground: Ground) -> Saw:
    """`Store.group`, from the first record on."""
    with ground.open() as store:
        return by_group(store)


def old_group(ground: Ground) -> Saw:
    """The group that was there before: what it acked stays acked, the rest comes again."""
    with ground.open() as store:
        if (TOPIC, GROUP) not in store.groups():
            return Saw()
        taken = store.group(TOPIC, GROUP)
        (part,) = store.describe_group(TOPIC, GROUP).partitions
        is_of_group = "/groups/" in ground.damaged.path
        lowest = 0 if is_of_group else ground.template.committed
        demand(part.committed >= lowest, "I6", f"the group went back to {part.committed}")
        demand(
            part.committed <= ground.template.committed,
            "I6",
            f"the group went ahead to {part.committed}, past what it acked",
        )
        saw = Saw(served={}, topics=(TOPIC,))
        assert saw.served is not None
        for _ in range(POLLS_MAX):
            batch = taken.poll(40, LEASE_MS)
            if batch.num_rows == 0:
                break
            saw.served |= rows_of(TOPIC, batch)
            taken.ack(batch)
        for gap in taken.skipped:
            saw.told |= {(TOPIC, offset) for offset in range(gap.first, gap.end)}
        acked = ground.template.committed
        saw.removed = lambda record: record[1] < acked
        return saw


def read_only(ground: Ground) -> Saw:
    """`ReadOnlyStore.scan`, beside nobody."""
    with lamina.open(ground.data, read_only=True) as store:
        return by_scan(store)


def read_only_fetch(ground: Ground) -> Saw:
    """`ReadOnlyStore.fetch`, beside a writer that has recovered."""
    with ground.open(), lamina.open(ground.data, read_only=True) as store:
        return by_fetch(store)


def read_only_diff(ground: Ground) -> Saw:
    """`ReadOnlyStore.diff`."""
    with lamina.open(ground.data, read_only=True) as store:
        return by_diff(store)


def archive_scan(ground: Ground) -> Saw:
    """`ArchiveStore.scan`: the archive without a broker."""
    with lamina.open(f"file://{ground.archive}", read_only=True) as store:
        saw = by_scan(store)
    saw.reach = IN_ARCHIVE
    return saw


def archive_fetch(ground: Ground) -> Saw:
    """`ArchiveStore.fetch` and `diff`."""
    with lamina.open(f"file://{ground.archive}", read_only=True) as store:
        saw, other = by_fetch(store), by_diff(store)
    demand(saw.served == other.served, "I2", "fetch and diff of an archive differ")
    saw.reach = IN_ARCHIVE
    return saw


def replica_scan(ground: Ground) -> Saw:
    """`ReplicaStore.scan`, over an archive that no cluster has written to."""
    with following(ground) as store:
        saw = by_scan(store)
    saw.reach = IN_ARCHIVE
    return saw


def replica_fetch(ground: Ground) -> Saw:
    """`ReplicaStore.fetch` and `diff`."""
    with following(ground) as store:
        saw, other = by_fetch(store), by_diff(store)
    demand(saw.served == other.served, "I2", "fetch and diff of a replica differ")
    saw.reach = IN_ARCHIVE
    return saw


def following(ground: Ground) -> ReplicaStore:
    """Opens the archive as a standby does that has looked at it once."""
    store = ReplicaStore(DirectoryObjects(LocalFiles(), ground.archive))
    store.poll()
    return store


def by_consumer(store: Any) -> Saw:
    """Reads both topics by one `lamina.Consumer`, which goes on behind what it says is missing."""
    saw = Saw(served={})
    assert saw.served is not None
    with Consumer(store, {"group.id": "consumer", "auto.offset.reset": "earliest"}) as reader:
        reader.subscribe(list(BOTH))
        for _ in range(POLLS_MAX):
            try:
                messages = reader.consume(40, timeout=0 if reader.assignment() else JOIN_S)
            except RecordsMissing as missing:
                gone = range(missing.first, missing.end)
                saw.told |= {(topic, offset) for topic in BOTH for offset in gone}
                continue
            if not messages:
                break
            for message in messages:
                saw.served[message.topic(), message.offset()] = message.value() or b""
        _ask(reader)
    for topic in BOTH:
        saw.told |= given_reasons(store, topic)
    return saw


def _ask(reader: Consumer) -> None:
    """Asks a consumer for all that it tells of its partitions; a typed refusal is an answer."""
    places = [TopicPartition(topic, 0) for topic in BOTH]
    times = [TopicPartition(topic, 0, offset=0) for topic in BOTH]
    calls: list[Callable[[], object]] = [
        lambda: reader.position(places),
        reader.commit,
        lambda: reader.committed(places),
        lambda: reader.offsets_for_times(times),
        lambda: [reader.get_watermark_offsets(place) for place in places],
    ]
    for call in calls:
        with contextlib.suppress(LaminaError):
            call()


def consumer(ground: Ground) -> Saw:
    """`lamina.Consumer` over the embedded store."""
    with ground.open() as store:
        return by_consumer(store)
