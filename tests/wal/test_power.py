"""Power is lost, or the process killed, before every step of a workload that uses everything.

Appends, rotation, checkpoint, snapshot, delete, eviction, seal, relocation, delete and recreate.
After each: what was acknowledged is there, what was deleted is not, and the store goes on.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import pytest

from lamina.config import WalSettings, WriterSettings
from lamina.store.store import Store
from lamina_torture.disk import Choice, Disk
from lamina_torture.simulated import SimulatedFiles
from tests.wal.stores import contents

DATA = "/srv/data"
NOW_MS = 1_700_000_000_000
QUIET = WriterSettings(flush_ms=1 << 31)
WAL = WalSettings(
    shards=2, wal_bytes=1 << 10, segment_events=4, cold_directory="/srv/cold", hot_segments=1
)


@dataclass
class Known:
    """Of one life of a topic: all that was handed in, what was acknowledged, what is deleted."""

    epoch: int
    given: dict[int, bytes] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    deleting: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    evicting: bool = False


@dataclass
class Scribe:
    """Runs the workload and remembers, before each step, the disk and what was promised."""

    files: SimulatedFiles = field(default_factory=SimulatedFiles)
    moments: list[tuple[Disk, dict[str, list[Known | None]]]] = field(default_factory=list)
    lives: dict[str, list[Known | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.files.before = lambda kind, path: self.moments.append(
            (self.files.snapshot(), copy.deepcopy(self.lives))
        )

    def life(self, topic: str) -> Known:
        (life,) = self.lives[topic]
        assert life is not None
        return life

    def create(self, store: Store, topic: str, epoch: int = 1, **config: object) -> None:
        self.lives[topic] = [None, Known(epoch)]
        renamed = {key.replace("_", "."): value for key, value in config.items()}
        store.create_topic(topic, format="wal", config=renamed)
        self.lives[topic] = [Known(epoch, evicting=bool(config))]

    def append(self, store: Store, topic: str, count: int) -> None:
        life = self.life(topic)
        first = max(life.given, default=0) + 1
        rows = {each: b"%s %d" % (topic.encode(), each) for each in range(first, first + count)}
        life.given |= rows
        tagged = [{"value": row, "tag": b"%d" % (each % 2)} for each, row in rows.items()]
        assert store.append(topic, tagged).base_offset == first
        life.acked |= rows.keys()

    def delete(self, store: Store, topic: str, parity: int) -> None:
        life = self.life(topic)
        meant = {each for each in life.given if each % 2 == parity}
        life.deleting = meant
        store.delete(topic, tag=b"%d" % parity)
        life.deleted |= meant

    def drop(self, store: Store, topic: str) -> None:
        self.lives[topic] = [self.life(topic), None]
        store.delete_topic(topic)
        self.lives[topic] = [None]


def open_store(files: SimulatedFiles) -> Store:
    return Store(DATA, files=files, now_ms=lambda: NOW_MS, writer=QUIET, wal=WAL, tick_ms=1 << 31)


def workload() -> Scribe:
    scribe = Scribe()
    store = open_store(scribe.files)
    scribe.create(store, "a")
    scribe.append(store, "a", 3)
    scribe.create(store, "b", retention_records=4)
    scribe.append(store, "b", 5)
    scribe.append(store, "a", 1)
    store.maintain()
    scribe.append(store, "a", 6)
    scribe.delete(store, "a", 1)
    scribe.append(store, "b", 7)
    store.maintain()
    scribe.append(store, "a", 2)
    scribe.drop(store, "b")
    scribe.create(store, "b", 2)
    scribe.append(store, "b", 3)
    store.maintain()
    scribe.append(store, "a", 5)
    store.close()
    store = open_store(scribe.files)
    scribe.append(store, "a", 5)
    scribe.delete(store, "b", 0)
    store.maintain()
    store.close()
    return scribe


def hold(store: Store, lives: dict[str, list[Known | None]]) -> dict[str, dict[int, bytes]]:
    """Demands what was promised; returns what is there."""
    served = {}
    for topic, possible in lives.items():
        if topic not in store.topics():
            assert None in possible, f"{topic} is gone"
            continue
        epoch = store.describe_topic(topic).epoch
        matching = [life for life in possible if life is not None and life.epoch == epoch]
        assert matching, f"{topic} has come back"
        life = matching[0]
        found, gaps = contents(store, topic)
        assert all(life.given.get(each) == value for each, value in found.items()), "wrong bytes"
        assert not life.deleted & found.keys(), "a deleted record is back"
        expected = life.acked - life.deleting
        if life.evicting:
            expected = {each for each in expected if each >= store.earliest_offset(topic)}
        assert expected <= found.keys(), f"{topic}: lost {sorted(expected - found.keys())}"
        missing = life.acked - life.deleting
        for gap in gaps:
            if gap.reason != "retention":
                assert not missing & set(range(gap.first, gap.end)), gap
                assert gap.reason == "truncated", gap
        served[topic] = found
    return served


SCRIBES: dict[str, Scribe] = {}


@pytest.mark.long  # shorter runs of the same kind are rows of lamina torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("choice", ["dropped", "kept", 1, 2, "killed"])
def test_power_loss_before_every_step(choice: Choice) -> None:
    scribe = SCRIBES.setdefault("once", workload())
    assert len(scribe.moments) > 300
    for step, (disk, lives) in enumerate(scribe.moments):
        files = disk.restart() if choice == "killed" else disk.crash(choice)
        try:
            store = open_store(files)
            served = hold(store, lives)
            for topic, found in served.items():
                end = store.latest_offset(topic)
                assert store.append(topic, [b"more"]).base_offset == end
                found[end] = b"more"
            again = files.snapshot().crash("dropped")
            store.close()
            for reopened in (again, files):
                with open_store(reopened) as other:
                    for topic, found in served.items():
                        first = other.earliest_offset(topic)  # a cap may have evicted some
                        left = {each: value for each, value in found.items() if each >= first}
                        assert contents(other, topic)[0] == left, "served, and gone"
        except BaseException as error:
            error.add_note(f"step {step} of {len(scribe.moments)}, {choice}")
            raise
