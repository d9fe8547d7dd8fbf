"""What a store has promised of its topics, and the check of a store against it.

A promise is written down while a workload runs, and held against the store after each fault. It
allows what was under way: a record whose append has not returned may be there or not, a trim that
has not returned may have removed or not. What has returned, or was seen by a reader of durable
records, must hold whatever happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from lamina.api import ProducerStamp, StoreApi
from lamina.errors import RecordsMissing
from lamina.store.store import Store
from lamina_torture.rows import demand, violated

NOW_MS = 1_700_000_000_000
COPIES = "copies"
"""The target of routers, beside what was promised."""
GROUP = "readers"
TAGS = (None, b"red", b"green", b"redder")

Fields: TypeAlias = tuple[tuple[str, Any], ...]
Records: TypeAlias = dict[str, tuple[int, dict[int, Fields]]]


@dataclass(frozen=True, repr=False)
class Life:
    """What is known of a topic from its creation to its deletion."""

    epoch: int
    format: str
    values: tuple[bytes, ...] = ()
    """By offset from `first` on, all that was ever handed to `append`."""
    first: int = 0
    durable: int = 0
    """Everything below was acknowledged as fsynced, or seen by a reader of durable records."""
    gone: int = 0
    """A trim or retention that has returned left nothing below."""
    going: int = 0
    """One that is under way may remove what is below."""
    retention: tuple[int, ...] = (-1,)
    stamped: tuple[ProducerStamp, int, int] | None = None
    deleted: frozenset[int] = frozenset()
    """Single records whose delete has returned."""
    deleting: frozenset[int] = frozenset()
    committed: int = 0
    """The group's commit that has returned."""
    committing: int = 0
    """One that is under way."""

    @property
    def end(self) -> int:
        """The offset after the last record that was ever handed in."""
        return self.first + len(self.values)

    @staticmethod
    def begun(epoch: int, format_name: str) -> Life:
        """Returns what is known of a new topic; offsets of wal topics count from 1."""
        at = int(format_name == "wal")
        return Life(epoch, format_name, first=at, durable=at, gone=at, going=at)


Promise: TypeAlias = dict[str, tuple[Life | None, ...]]
"""For each name the lives that it may have: more than one while it is being created or deleted."""


def tag_of(offset: int) -> bytes | None:
    """Returns the tag that a record of a wal topic was given."""
    return TAGS[offset % len(TAGS)]


def row_of(format_name: str, offset: int, value: bytes) -> dict[str, Any]:
    """Returns a record as it is handed in: every field that its format keeps, by its offset."""
    row: dict[str, Any] = {"value": value, "timestamp": NOW_MS - 1_000_000 + 7 * offset}
    if format_name == "wal":
        row |= {"tag": tag_of(offset), "node": b"n%d" % offset}
    else:
        row["key"] = b"k%d" % offset
    if format_name == "keratin" and offset % 3 == 0:
        row["headers"] = [("h", b"%d" % offset)]
    return row


def fields_of(format_name: str, offset: int, value: bytes) -> Fields:
    """Returns a record as it must be read."""
    row = row_of(format_name, offset, value)
    if "headers" in row:
        row["headers"] = [{"key": name, "value": data} for name, data in row["headers"]]
    return _comparable(row)


def _comparable(row: dict[str, Any]) -> Fields:
    kept = {name: given for name, given in row.items() if given is not None and given != []}
    return tuple(sorted((name, repr(given)) for name, given in kept.items()))


def read(store: StoreApi, topic: str) -> dict[int, Fields]:
    """Returns every durable record by its offset, over gaps."""
    found: dict[int, Fields] = {}
    at = store.earliest_offset(topic)
    while True:
        try:
            for batch in store.scan(topic, start=at):
                found.update(_rows(batch))
            return found
        except RecordsMissing as missing:
            at, before = missing.end, at
        demand(at > before, "I12", f"{topic}: after offset {before} there is no way on")


def _rows(batch: Any) -> Iterator[tuple[int, Fields]]:
    stamps = batch.column("timestamp").cast("int64").to_pylist()
    names = [name for name in batch.schema.names if name not in ("offset", "timestamp")]
    columns = [batch.column(name).to_pylist() for name in names]
    offsets = batch.column("offset").to_pylist()
    for offset, stamp, *given in zip(offsets, stamps, *columns, strict=True):
        row = dict(zip(names, given, strict=True)) | {"timestamp": stamp}
        yield offset, _comparable(row)


def records(store: Store) -> Records:
    """Returns all that a store serves, by topic."""
    return {
        topic: (store.describe_topic(topic).epoch, read(store, topic)) for topic in store.topics()
    }


def verify(store: Store, promise: Promise) -> None:
    """Holds a store that was opened after a fault against what was promised before it."""
    there = set(store.topics())
    strange = there - set(promise) - {COPIES}
    demand(not strange, "I2", f"topics that nobody made: {strange}")
    verify_copies(store)
    for topic, lives in promise.items():
        if topic not in there:
            demand(None in lives, "I1", f"topic {topic} is gone")
            continue
        info = store.describe_topic(topic)
        life = life_of(lives, info.epoch)
        if life is None:
            violated("I8", f"topic {topic} has epoch {info.epoch}, which was not promised")
        demand(info.settings["retention.bytes"] in life.retention, "I8", "settings went back")
        verify_topic(store, topic, life)
        verify_group(store, topic, life)


def verify_copies(store: Store) -> None:
    """Holds what routers have copied against their sources: both are there, or neither is.

    A record's value names its topic and offset; routers are made before the first append.
    """
    for router in store.routers():
        copies = {dict(fields)["value"] for fields in read(store, router.target).values()}
        end = store.latest_offset(router.source)
        for value in copies:
            if not value.startswith(f"b'{router.source} "):  # it was appended to the target itself
                continue
            at = int(value.split(" ")[2])
            demand(at < end, "I5", f"{router.source} ends at {end}, and {at} was copied")
        for at, fields in read(store, router.source).items():
            is_meant = dict(fields).get("tag") == repr(router.tag)
            demand(
                (dict(fields)["value"] in copies) == is_meant,
                "I5",
                f"{router.source}: the copy of {at} is {'not ' if is_meant else ''}there",
            )


def life_of(lives: tuple[Life | None, ...], epoch: int) -> Life | None:
    """Returns the life with an epoch."""
    return next((life for life in lives if life is not None and life.epoch == epoch), None)


def verify_topic(store: Store, topic: str, life: Life) -> None:
    """Holds a topic's records against what was promised of it."""
    earliest, end = store.earliest_offset(topic), store.latest_offset(topic)
    demand(life.durable <= end, "I1", f"{topic} ends at {end}; {life.durable} was acknowledged")
    demand(end <= life.end, "I2", f"{topic} ends at {end}; only {life.end} was appended")
    written = store.latest_offset(topic, isolation="written")
    demand(written == end, "I5", f"{topic}: written {written}, durable {end} after opening")
    demand(life.gone <= earliest, "I8", f"{topic} begins at {earliest}; was trimmed to {life.gone}")
    most = max(life.gone, life.going)
    demand(earliest <= most, "I8", f"{topic} begins at {earliest}, and nobody asked beyond {most}")
    found = read(store, topic)
    for offset, fields in found.items():
        wanted = fields_of(life.format, offset, life.values[offset - life.first])
        demand(fields == wanted, "I2", f"{topic} {offset}: {_differing(fields, wanted)}")
    if life.format == "wal":
        _verify_holes(store, topic, life, found)
    else:
        _verify_dense(store, topic, life, found)
    _verify_times(store, topic, life, found)


def _differing(found: Fields, wanted: Fields) -> str:
    return f"read {[each for each in found if each not in wanted]}"[:200]


def _verify_dense(store: Store, topic: str, life: Life, found: dict[int, Fields]) -> None:
    """Every offset from the earliest on is there, and what is below it has a reason."""
    earliest, end = store.earliest_offset(topic), store.latest_offset(topic)
    missing = sorted(set(range(earliest, end)) - found.keys())
    lost = [offset for offset in missing if offset < life.durable]
    demand(not lost, "I1", f"{topic}: {lost[:5]} were acknowledged and are missing")
    demand(not missing, "I3", f"{topic}: offsets {missing[:5]} are missing")
    gaps = store.gaps(topic)
    reasons = {gap.reason for gap in gaps}
    demand(reasons <= {"trim", "retention"}, "I4", f"{topic}: gaps because of {reasons}")
    told = all(any(gap.first <= at < gap.end for gap in gaps) for at in range(earliest))
    demand(told, "I3", f"{topic}: what is below {earliest} is gone without a reason")
    demand(all(gap.end <= earliest for gap in gaps), "I3", f"{topic}: a gap where records are")
    if earliest:
        try:
            list(store.scan(topic, start=earliest - 1))
        except RecordsMissing:
            return
        violated("I4", f"{topic}: reading below {earliest} is silently empty")


def _verify_holes(store: Store, topic: str, life: Life, found: dict[int, Fields]) -> None:
    """What is missing was deleted, or was never durable and is said to be missing."""
    earliest, end = store.earliest_offset(topic), store.latest_offset(topic)
    back = life.deleted & found.keys()
    demand(not back, "I8", f"{topic}: {sorted(back)[:5]} were deleted and are back")
    told = {at: gap.reason for gap in store.gaps(topic) for at in range(gap.first, gap.end)}
    never = {at for at in life.deleting if at >= life.durable and told.get(at) == "truncated"}
    deleting = {at for at in life.deleting - never if earliest <= at < end}
    undone = deleting & found.keys()
    demand(undone in (set(), deleting), "I8", f"{topic}: a delete is half done")
    both = told.keys() & found.keys()
    demand(not both, "I3", f"{topic}: {sorted(both)[:5]} are there and said to be missing")
    for at in range(earliest, end):
        if at not in found and at not in life.deleted | deleting:
            demand(at >= life.durable, "I1", f"{topic}: {at} was durable and is missing")
            reason = told.get(at)
            demand(reason == "truncated", "I3", f"{topic}: {at} is missing: {reason}")
    below = {told.get(at) for at in range(1, earliest)}
    demand(below <= {"retention", "trim", "truncated"}, "I3", f"{topic}: gone because of {below}")


def _verify_times(store: Store, topic: str, life: Life, found: dict[int, Fields]) -> None:
    """The time index finds the first record of a time, whatever became of its files."""
    if not found:
        return
    at = sorted(found)[len(found) // 2]
    stamp = row_of(life.format, at, b"")["timestamp"]
    demand(store.offset_for_time(topic, 0, stamp) == at, "I9", f"{topic}: time {stamp} is not {at}")


def verify_group(store: Store, topic: str, life: Life) -> None:
    """Holds the topic's group against its commits, and against the log."""
    if (topic, GROUP) not in store.groups():
        demand(life.committed <= life.first, "I6", f"the group of {topic} is gone")
        return
    (part,) = store.describe_group(topic, GROUP).partitions
    at, end = part.committed, store.latest_offset(topic)
    demand(at <= end, "I6", f"the group of {topic} is at {at}, its log ends at {end}")
    demand(at >= life.committed, "I6", f"the group of {topic} went back to {at}")
    most = max(life.committing, store.earliest_offset(topic))
    demand(at <= most, "I6", f"the group of {topic} is at {at}, and {most} was asked for")


def hold(store: Store, expected: Records) -> None:
    """Demands exactly these records; only where a retention is set, some first ones may be gone."""
    found = records(store)
    demand(found.keys() == expected.keys(), "I5", "topics came or went with the next crash")
    for topic, (epoch, there) in found.items():
        before_epoch, before = expected[topic]
        settings = store.describe_topic(topic).settings
        if any(settings[key] != -1 for key in ("retention.bytes", "retention.records")):
            earliest = store.earliest_offset(topic)
            before = {offset: value for offset, value in before.items() if offset >= earliest}
        same = (epoch, there) == (before_epoch, before)
        demand(same, "I5", f"{topic}: served, and other with the next crash")
