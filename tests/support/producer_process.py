"""A process that appends until it is killed, and says what was acknowledged.

`python -m tests.support.producer_process` runs a `Round` in a child (see `lamina_torture.forked`).
It opens the store, appends from threads and asyncio, trims, rolls and deletes, never ends by
itself, and says:

    open <milliseconds>                            its store is open
    trim <topic> <partition> <before>              is about to be trimmed
    deleting <topic> <partition> <offset>          is about to be deleted
    deleted <topic> <partition> <offset>           was deleted
    ack <offset> <acks> <tag>                      was acknowledged

A tag names an append and determines its bytes: see `records_of`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
import threading
import time
import traceback
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from lamina.api import ProducerStamp
from lamina.config import WalSettings, WriterSettings
from lamina.store.store import Store
from lamina_torture.forked import say, serve

PLACES = [("k", 0), ("k", 1), ("f", 0), ("f", 1)]
"""Topic and partition of what is appended to; also of the idempotent producers, by number."""
WAL_PLACES = [(f"w{number}", 0) for number in range(24)]
BATCH_RECORDS_MAX = 50
SEGMENT_BYTES = 16 << 10


@dataclass(frozen=True)
class Round:
    """What a child is told. `producers` are the batches that each one has had acknowledged."""

    directory: str
    seed: str
    number: int
    producers: list[int]
    wal: bool = False
    """Whether to use many wal topics, instead of two of the other formats."""

    def encode(self) -> bytes:
        """Returns the line that asks for it."""
        return (json.dumps(asdict(self)) + "\n").encode()


@dataclass(frozen=True)
class Tag:
    """Names an append: where to, by whom, which, of how many records, plain or with keys."""

    topic: str
    partition: int
    who: str
    number: int
    count: int
    kind: str

    def __str__(self) -> str:
        parts = (self.topic, self.partition, self.who, self.number, self.count, self.kind)
        return "/".join(map(str, parts))

    @classmethod
    def parse(cls, text: str) -> Tag:
        topic, partition, who, number, count, kind = text.split("/")
        return cls(topic, int(partition), who, int(number), int(count), kind)


def value_of(tag: str, row: int) -> bytes:
    """The value of one record of an append."""
    head = f"{tag}#{row}#".encode()
    return head + b"." * (zlib.crc32(head) % 200)


EXTRA = {"keys": "key", "tags": "tag"}
"""The column that an append of a kind has beside its values."""


def extra_of(tag: str, row: int) -> bytes | None:
    """The key or tag of one record of an append."""
    return None if tag.endswith("/plain") else f"extra {row}".encode()


def records_of(tag: Tag) -> Any:
    """All records of an append: plain values, or a batch."""
    text = str(tag)
    values = [value_of(text, row) for row in range(tag.count)]
    if tag.kind == "plain":
        return values
    extra = [extra_of(text, row) for row in range(tag.count)]
    return pa.RecordBatch.from_pydict(
        {EXTRA[tag.kind]: pa.array(extra, pa.binary()), "value": pa.array(values, pa.binary())}
    )


def idempotent_tag(seed: str, producer: int, number: int) -> Tag:
    """The n-th append of an idempotent producer: the same in every round, so that it is retried."""
    topic, partition = PLACES[producer]
    drawn = zlib.crc32(f"{seed} {producer} {number}".encode())
    kind = "plain" if drawn & 64 else "keys"
    return Tag(topic, partition, f"once{producer}", number, 1 + drawn % BATCH_RECORDS_MAX, kind)


class Child:
    """One round: the threads that append, and the one that trims and rolls."""

    places = PLACES
    kind = "keys"

    def __init__(self, told: Round) -> None:
        self.told = told
        started = time.perf_counter()
        self.store = self.open()
        say("open", round((time.perf_counter() - started) * 1000))

    def open(self) -> Store:
        store = Store(self.told.directory, writer=WriterSettings(flush_ms=15), tick_ms=15)
        for topic, name, more in (("k", "keratin", {}), ("f", "frame", RETAINED)):
            if topic not in store.topics():
                config = {"segment.bytes": SEGMENT_BYTES, **more}
                store.create_topic(topic, partitions=2, format=name, config=config)
        return store

    def drawn(self, who: str) -> random.Random:
        return random.Random(f"{self.told.seed} {self.told.number} {who}")

    def run(self) -> None:
        """Appends from all sides, for ever."""
        work: list[Callable[[], None]] = [self.trim_and_roll, self.tasks]
        work += [lambda name=f"thread{n}": self.produce(name) for n in range(3)]
        work += self.more_work()
        for each in work[1:]:
            threading.Thread(target=self.guarded, args=(each,), daemon=True).start()
        self.guarded(work[0])

    def more_work(self) -> list[Callable[[], None]]:
        return [lambda n=n: self.produce_once(n) for n in (0, 1)]  # type: ignore[misc]

    def guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:
            say("error", json.dumps(traceback.format_exc()[-3500:]))
            os._exit(1)

    def tags(self, who: str) -> Any:
        """Yields the appends of one who is not idempotent, with an acks level each."""
        drawn = self.drawn(who)
        number = 0
        while True:
            topic, partition = drawn.choice(self.places)
            count = drawn.choice((1, 1, 5, drawn.randint(1, BATCH_RECORDS_MAX)))
            kind = drawn.choice(("plain", "plain", self.kind))
            unique = f"{who}-{self.told.number}"
            yield (
                Tag(topic, partition, unique, number, count, kind),
                drawn.choice(("all", "all", 1)),
            )
            number += 1

    def produce(self, who: str) -> None:
        for tag, acks in self.tags(who):
            ack = self.store.append(tag.topic, records_of(tag), partition=tag.partition, acks=acks)
            say("ack", ack.base_offset, acks, tag)

    def produce_once(self, first: int) -> None:
        """Goes on where two idempotent producers were when the last child was killed."""
        numbers = list(self.told.producers)
        sequences = [
            sum(idempotent_tag(self.told.seed, each, n).count for n in range(numbers[each]))
            for each in range(len(PLACES))
        ]
        while True:
            for each in (first, first + 2):
                tag = idempotent_tag(self.told.seed, each, numbers[each])
                stamp = ProducerStamp(1000 + each, 0, sequences[each])
                acks = "all" if numbers[each] % 3 else 1
                ack = self.store.append(
                    tag.topic,
                    records_of(tag),
                    partition=tag.partition,
                    acks=acks,
                    producer=stamp,
                )
                say("ack", ack.base_offset, acks, tag)
                numbers[each] += 1
                sequences[each] += tag.count

    def tasks(self) -> None:
        async def task(who: str) -> None:
            for tag, acks in self.tags(who):
                ack = await self.store.append_async(
                    tag.topic, records_of(tag), partition=tag.partition, acks=acks
                )
                say("ack", ack.base_offset, acks, tag)

        async def together() -> None:
            await asyncio.gather(*(task(f"task{n}") for n in range(4)))

        asyncio.run(together())

    def trim_and_roll(self) -> None:
        drawn = self.drawn("trim")
        while True:
            time.sleep(drawn.uniform(0.002, 0.04))
            topic, partition = drawn.choice(self.places)
            if drawn.random() < 0.3:
                self.store.roll(topic, partition)
                continue
            end = self.store.latest_offset(topic, partition, isolation="written")
            before = max(0, end - drawn.choice((0, 200, 1000, 1000)))
            say("trim", topic, partition, before)
            self.store.trim(topic, partition, before)


class WalChild(Child):
    """A round with many topics behind few shards, of which there may be other ones each time."""

    places = WAL_PLACES
    kind = "tags"

    def open(self) -> Store:
        drawn = self.drawn("shards")
        wal = WalSettings(
            shards=drawn.choice((1, 2, 2, 5)),
            wal_bytes=64 << 10,
            segment_events=100,
            segment_bytes=SEGMENT_BYTES,
            checkpoint_ms=drawn.choice((0, 30)),
            checkpoint_min_bytes=drawn.choice((0, 4 << 10)),
            snapshot_ms=drawn.choice((0, 50)),
            cold_directory=f"{self.told.directory}-cold",
            hot_segments=1,
        )
        store = Store(self.told.directory, writer=WriterSettings(flush_ms=15), wal=wal, tick_ms=15)
        for topic, _ in WAL_PLACES:
            if topic not in store.topics():
                store.create_topic(topic, format="wal")
        return store

    def more_work(self) -> list[Callable[[], None]]:
        return [self.delete]

    def delete(self) -> None:
        """Deletes single records that are there."""
        drawn = self.drawn("delete")
        while True:
            time.sleep(drawn.uniform(0.001, 0.005))
            topic, partition = drawn.choice(self.places)
            end = self.store.latest_offset(topic, partition)
            first = self.store.earliest_offset(topic, partition)
            if first < end:
                offset = drawn.randrange(first, end)
                say("deleting", topic, partition, offset)
                self.store.delete(topic, partition, offsets=[offset])
                say("deleted", topic, partition, offset)


RETAINED = {"retention.bytes": 20 * SEGMENT_BYTES}


def warm_up() -> None:
    """Loads the kernels of all formats, so that a child starts at once."""
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            with Store(folder) as store:
                for topic, name in (("k", "keratin"), ("f", "frame"), ("w0", "wal")):
                    if topic not in store.topics():
                        store.create_topic(topic, format=name)
                    for kind in ("plain", "tags" if name == "wal" else "keys"):
                        store.append(topic, records_of(Tag(topic, 0, "warm", 0, 3, kind)))
                    list(store.scan(topic))


def run(told: dict[str, Any]) -> None:
    """One round, in a child."""
    asked = Round(**told)
    (WalChild if asked.wal else Child)(asked).run()


if __name__ == "__main__":
    serve(warm_up, run)
