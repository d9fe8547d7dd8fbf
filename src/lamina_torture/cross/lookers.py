"""Users that look without reading records: descriptions, layers, times, pages, metrics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import lamina
from lamina.api import Window
from lamina.errors import LaminaError
from lamina_torture.cross.ground import IN_ARCHIVE, Ground, Saw
from lamina_torture.cross.readers import following
from lamina_torture.cross.templates import GROUP, NEIGHBOUR, TOPIC
from lamina_torture.rows import demand

BOTH = (TOPIC, NEIGHBOUR)


def _ask(*questions: Callable[[], object]) -> LaminaError | None:
    """Asks everything; a typed error is an answer. Returns the first of those."""
    refused: LaminaError | None = None
    for question in questions:
        try:
            question()
        except LaminaError as error:
            refused = refused or error
    return refused


def look(store: Any, ground: Ground, reach: tuple[str, ...]) -> LaminaError | None:
    """Asks a store for all that every kind of store can tell, and holds its bounds to the truth."""
    refused = _ask(
        store.topics,
        store.groups,
        store.tier_status,
        store.routers,
        *(partial(store.describe_topic, topic) for topic in BOTH),
        *(partial(store.format_of, topic) for topic in BOTH),
        *(partial(store.segments, topic) for topic in BOTH),
        *(partial(store.gaps, topic) for topic in BOTH),
        lambda: store.describe_group(TOPIC, GROUP),
    )
    known = ground.known(reach, BOTH)
    for topic in BOTH:
        offsets = [offset for name, offset in known if name == topic]
        if not offsets:
            continue
        first, end = store.earliest_offset(topic), store.latest_offset(topic)
        sound = [at for name, at in ground.expected(reach, (topic,)) if name == topic]
        demand(
            not sound or first <= min(sound),
            "I1",
            f"{topic} begins at {first}, not at {min(sound or [0])}",
        )
        demand(
            end > max(sound, default=0),
            "I5",
            f"{topic} ends at {end}, before {max(sound, default=0)}",
        )
        demand(end <= max(offsets) + 1, "I2", f"{topic} ends at {end}, after {max(offsets)}")
    return refused


def describe(ground: Ground) -> Saw:
    """All that an open store tells of itself: topics, groups, segments, layers, blocks, writers."""
    with ground.open() as store:
        refused = look(store, ground, ("data", "cold", "archive"))
        more = _ask(
            store.extents,
            store.writers,
            store.sinks,
            store.failures,
            store.segmented,
            store.wal_partitions,
            lambda: store.producer_position(TOPIC, 0, 1),
            lambda: store.raw_record(TOPIC, 0, 1),
            lambda: store.explain_retention(TOPIC),
            *(partial(store.layers, topic) for topic in BOTH),
            lambda: [
                store.blocks(TOPIC, 0, layer.base_offset, Window(limit=4))
                for layer in store.layers(TOPIC)
                if layer.state != "gone"
            ],
        )
        return Saw(refused=refused or more)


def describe_read_only(ground: Ground) -> Saw:
    """All that a read-only store tells."""
    with lamina.open(ground.data, read_only=True) as store:
        return Saw(refused=look(store, ground, ("data", "cold", "archive")))


def describe_archive(ground: Ground) -> Saw:
    """All that an archive tells of itself."""
    with lamina.open(f"file://{ground.archive}", read_only=True) as store:
        saw = Saw(reach=IN_ARCHIVE, refused=_ask(store.topics, store.groups, store.tier_status))
        for topic in set(BOTH) & set(store.topics()):
            saw.refused = saw.refused or _ask(
                partial(store.describe_topic, topic),
                partial(store.segments, topic),
                partial(store.gaps, topic),
                partial(store.format_of, topic),
            )
        return saw


def _search(store: Any, ground: Ground) -> LaminaError | None:
    """Searches by time: the answer is the first sound record of that time or later."""
    records = [offset for topic, offset in ground.expected(("data", "cold", "archive"), (TOPIC,))]
    return _ask(
        lambda: _at_or_before(store, 0, min(records)),
        lambda: store.offset_for_time(TOPIC, 0, 1 << 60),
    )


def _at_or_before(store: Any, timestamp_ms: int, wanted: int) -> None:
    found = store.offset_for_time(TOPIC, 0, timestamp_ms)
    demand(
        found is not None and found <= wanted, "I9", f"the first record is {wanted}, not {found}"
    )


def offset_for_time(ground: Ground) -> Saw:
    """`Store.offset_for_time`."""
    with ground.open() as store:
        return Saw(refused=_search(store, ground))


def describe_replica(ground: Ground) -> Saw:
    """All that a standby's replica tells of the archive, and of itself."""
    with following(ground) as store:
        saw = Saw(reach=IN_ARCHIVE, refused=_ask(store.topics, store.status, store.replica_lag_ms))
        for topic in set(BOTH) & set(store.topics()):
            saw.refused = saw.refused or _ask(
                partial(store.describe_topic, topic),
                partial(store.segments, topic),
                partial(store.gaps, topic),
                partial(store.format_of, topic),
                partial(store.offset_for_time, topic, 0, 0),
            )
        return saw


def offset_for_time_read_only(ground: Ground) -> Saw:
    """`ReadOnlyStore.offset_for_time`, and that of an archive."""
    with lamina.open(ground.data, read_only=True) as store:
        refused = _search(store, ground)
    if ground.template.is_archived:
        with lamina.open(f"file://{ground.archive}", read_only=True) as archive:
            refused = refused or _ask(lambda: archive.offset_for_time(TOPIC, 0, 0))
    return Saw(refused=refused)
