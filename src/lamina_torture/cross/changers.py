"""Users that change, move or remove: none may take the last sound copy of what should stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import lamina
from lamina.api.memberships import Committed
from lamina.errors import LaminaError
from lamina.storage import paths
from lamina_torture.cross.ground import Ground, Saw
from lamina_torture.cross.readers import by_scan
from lamina_torture.cross.templates import (
    CLASSIC,
    CLASSIC_AT,
    GROUP,
    LEASE_MS,
    NEIGHBOUR,
    TAG,
    TOPIC,
    Record,
    Template,
)
from lamina_torture.rows import demand

CAP_BYTES = 30 << 10
TRIMMED = 60


def _tried(ground: Ground, change: Callable[[Any], Saw | None]) -> Saw:
    """Opens the store and changes it; a change that is refused by a typed error is no harm."""
    with ground.open() as store:
        try:
            return change(store) or Saw()
        except LaminaError as error:
            return Saw(refused=error)


def append(ground: Ground) -> Saw:
    """`Store.append`, by every level, and by a producer that repeats itself."""

    def change(store: Any) -> None:
        for acks in (0, 1, "all"):
            end = store.latest_offset(TOPIC, isolation="written")
            ack = store.append(TOPIC, [b"more"], partition=0, acks=acks)
            demand(
                acks == 0 or ack.base_offset >= end,
                "I3",
                f"appended at {ack.base_offset}, below {end}",
            )
        end = store.latest_offset(TOPIC, isolation="written")
        first, count = store.append_batch(TOPIC, [b"more"])
        demand((first, count) == (end, 1), "I3", f"appended {count} at {first}, not at {end}")
        store.flush()

    return _tried(ground, change)


def roll(ground: Ground) -> Saw:
    """`Store.roll`, `flush` and `purge_wal`."""

    def change(store: Any) -> None:
        store.flush()
        if ground.template.format != "wal":
            store.roll(TOPIC)
            store.roll(NEIGHBOUR)
        store.purge_wal()

    return _tried(ground, change)


def maintain(ground: Ground) -> Saw:
    """`Store.maintain`, with local copies of archived records to be removed."""

    def change(store: Any) -> None:
        if ground.template.is_archived:
            store.alter_topic(TOPIC, {"local.retention.bytes": 1})
        store.maintain()
        store.maintain()

    return _tried(ground, change)


def retention(ground: Ground) -> Saw:
    """`Store.apply_retention` by a cap: only the oldest records go, and with that reason."""

    def change(store: Any) -> Saw:
        store.alter_topic(TOPIC, {"retention.bytes": CAP_BYTES})
        store.explain_retention(TOPIC)
        store.apply_retention(TOPIC)
        store.alter_topic(TOPIC, {"retention.bytes": -1})
        return Saw(removed=_below(store, ground))

    return _tried(ground, change)


def _below(store: Any, ground: Ground) -> Callable[[Record], bool]:
    """What went is a beginning, and a cap keeps at least what it names."""
    first = store.earliest_offset(TOPIC)
    sizes = {at: size for (topic, at), size in sizes_of(ground.template).items() if topic == TOPIC}
    left = sum(size for at, size in sizes.items() if at >= first)
    is_whole = first <= min(sizes)
    demand(is_whole or left >= CAP_BYTES, "I8", f"of {CAP_BYTES} bytes to keep {left:.0f} are left")
    return lambda record: record[0] == TOPIC and record[1] < first


def sizes_of(template: Template) -> dict[Record, float]:
    """What each record takes on disk: its part of the file, where copies differ of the larger."""
    held = Counter(copy.path for copy in template.copies)
    sizes: dict[Record, float] = {}
    for copy in template.copies:
        part = len(template.files[copy.path]) / held[copy.path]
        sizes[copy.record] = max(part, sizes.get(copy.record, 0.0))
    return sizes


def trim(ground: Ground) -> Saw:
    """`Store.trim` in the middle: nothing above it goes."""

    def change(store: Any) -> Saw:
        first = store.trim(TOPIC, 0, TRIMMED)
        demand(first <= TRIMMED, "I8", f"trimmed below {TRIMMED}, and {first} is the first left")
        return Saw(removed=lambda record: record[0] == TOPIC and record[1] < TRIMMED)

    return _tried(ground, change)


def delete_records(ground: Ground) -> Saw:
    """`Store.delete_records` in the middle: all below it goes for good, and nothing above it."""

    def change(store: Any) -> Saw:
        first = store.delete_records(TOPIC, 0, TRIMMED)
        demand(first >= TRIMMED, "I8", f"deleted below {TRIMMED}, and {first} is the first left")
        return Saw(removed=lambda record: record[0] == TOPIC and record[1] < TRIMMED)

    saw = _tried(ground, change)
    if saw.refused is None:
        with ground.open() as store:
            left = by_scan(store).served or {}
            back = sorted(at for topic, at in left if topic == TOPIC and at < TRIMMED)
            demand(not back, "I8", f"{back[:5]} were deleted and are read")
    return saw


def delete(ground: Ground) -> Saw:
    """`Store.delete` by a tag: the tagged go for good, and no others."""

    def change(store: Any) -> Saw:
        store.delete(TOPIC, tag=TAG)
        tagged = ground.template.tagged
        return Saw(removed=lambda record: record[0] == TOPIC and record[1] in tagged)

    saw = _tried(ground, change)
    if saw.refused is None:
        with ground.open() as store:
            left = by_scan(store).served or {}
            back = sorted(at for topic, at in left if topic == TOPIC and saw.removed((topic, at)))
            demand(not back, "I8", f"{back[:5]} were deleted and are read")
    return saw


def archive(ground: Ground) -> Saw:
    """`Store.archive` and what the archiver does in time: joining, local retention."""

    def change(store: Any) -> None:
        if not ground.template.is_archived:
            for topic in (TOPIC, NEIGHBOUR):
                store.alter_topic(topic, {"remote.storage.enable": "true"})
        for _ in range(2):
            if ground.template.format != "wal":
                store.roll(TOPIC)
            store.archive()
            store.alter_topic(TOPIC, {"local.retention.bytes": 1})
            store.maintain()

    return _tried(ground, change)


def delete_topic(ground: Ground) -> Saw:
    """`Store.delete_topic` of the neighbour: the other topic keeps everything."""

    def change(store: Any) -> Saw:
        store.delete_topic(NEIGHBOUR)
        store.maintain()
        store.create_topic(NEIGHBOUR, format=ground.template.format)
        return Saw(topics=(TOPIC,), removed=lambda record: record[0] == NEIGHBOUR)

    return _tried(ground, change)


def groups(ground: Ground) -> Saw:
    """`reset_group`, `delete_group` and a group that releases, extends, rejects and commits."""

    def change(store: Any) -> None:
        group = store.group(TOPIC, "other")
        batch = group.poll(3, LEASE_MS)
        if batch.num_rows:
            group.extend(batch, LEASE_MS)
            group.reject(batch.slice(0, 1))
            group.release(batch)
        group.commit(store.earliest_offset(TOPIC))
        told = [each.committed for each in group.describe().partitions]
        demand(told == [group.committed()], "I6", f"a group is told at {told} and elsewhere")
        demand(sum(each.records for each in group.lag()) >= 0, "I6", "a group's lag is negative")
        store.reset_group(TOPIC, "other", to="earliest", execute=True)
        store.delete_group(TOPIC, "other")
        if (TOPIC, GROUP) in store.groups():
            store.reset_group(TOPIC, GROUP, to="latest", execute=False)

    return _tried(ground, change)


def classic_group(ground: Ground) -> Saw:
    """A group of Kafka's kind: what it committed is told, or nothing is; what it commits stays."""
    is_hurt = ground.damaged.path.endswith(paths.COMMITTED_OFFSETS)

    def told(store: Any) -> None:
        found = [each.offset for each in store.committed_offsets(CLASSIC)]
        wanted = ([CLASSIC_AT], []) if is_hurt else ([CLASSIC_AT],)
        demand(found in wanted, "I6", f"a classic group is told at {found}, not at {CLASSIC_AT}")

    def change(store: Any) -> None:
        told(store)
        store.describe_members(CLASSIC)
        store.new_producer_id()
        store.commit_offsets(CLASSIC, [Committed(TOPIC, 0, CLASSIC_AT + 1)])

    with lamina.open(ground.data, read_only=True) as view:
        told(view)
    saw = _tried(ground, change)
    if saw.refused is None:
        with ground.open() as store:
            found = [each.offset for each in store.committed_offsets(CLASSIC)]
            demand(found == [CLASSIC_AT + 1], "I6", f"a classic group's commit reads as {found}")
    return saw


def alter(ground: Ground) -> Saw:
    """`alter_topic`, `create_topic`, `add_partitions`; of wal topics routers between them, too."""

    def change(store: Any) -> None:
        store.alter_topic(TOPIC, {"retention.ms": 1 << 50})
        store.create_topic("third", format=ground.template.format)
        store.append("third", [b"new"], partition=0)
        if ground.template.format == "wal":
            _route(store)
        store.add_partitions("third", 3)
        store.append("third", [b"new"], partition=2)

    return _tried(ground, change)


def _route(store: Any) -> None:
    """Connects new topics by a router, changes it and ends it: each record is copied in time."""
    rows = [{"value": b"copied", "tag": b"red"}]
    store.create_topic("fourth", format="wal")
    store.create_router("reds", "third", "fourth", tag=b"blue")
    store.append("third", rows)
    store.alter_router("reds", tag=b"red")
    store.append("third", rows)
    store.delete_router("reds")
    store.append("third", rows)
    found = store.latest_offset("fourth") - store.earliest_offset("fourth")
    demand(found == 1, "I3", f"a router copied {found} records, not 1")
