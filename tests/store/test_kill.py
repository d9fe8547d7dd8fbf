"""A real process under load is killed at random instants: what it acknowledged is there.

Checked after each kill, for two formats at once or for many wal topics: every acknowledged append
is at its offset with its bytes, or trimmed or deleted as asked; nothing is there that was not
appended, and nothing twice; offsets are dense or the ledger says why not; what a reader saw once
does not change or vanish.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.config import WalSettings
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from lamina_torture.forked import Workers
from tests.support.producer_process import (
    PLACES,
    WAL_PLACES,
    Round,
    Tag,
    extra_of,
    idempotent_tag,
    value_of,
)

ROOT = Path(__file__).parents[2]
SEED = os.environ.get("LAMINA_KILL_SEED", "")
ROUNDS = 25
WAL_ROUNDS = 16
LONG_ROUNDS = int(os.environ.get("LAMINA_KILL_ROUNDS", "5000"))
REASONS = {"trim", "retention"}


@dataclass
class Known:
    """What must hold for one partition."""

    acked: dict[int, Tag] = field(default_factory=dict)
    values: dict[int, bytes] = field(default_factory=dict)
    trim_before: int = 0
    end: int = 0
    deleting: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)

    def hear(self, offset: int, tag: Tag) -> None:
        assert offset not in self.acked or self.acked[offset] == tag, "two appends at one offset"
        self.acked[offset] = tag

    def forget_below(self, offset: int) -> None:
        self.acked = {at: tag for at, tag in self.acked.items() if at + tag.count > offset}
        self.values = {at: value for at, value in self.values.items() if at >= offset}


@dataclass
class Campaign:
    """Rounds of killing one directory."""

    producers: Workers
    directory: str
    seed: str
    wal: bool = False
    known: dict[tuple[str, int], Known] = field(default_factory=dict)
    done: list[int] = field(default_factory=lambda: [0] * len(PLACES))
    appends: int = 0
    cut: int = 0
    opening_ms: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known = {place: Known() for place in (WAL_PLACES if self.wal else PLACES)}

    def open(self, number: int, *, read_only: bool) -> Any:
        if not self.wal:
            return lamina.open(self.directory, read_only=read_only)
        wal = WalSettings(shards=1 + number % 8, cold_directory=f"{self.directory}-cold")
        return (ReadOnlyStore if read_only else Store)(self.directory, wal=wal)

    def run(self, rounds: int) -> None:
        for number in range(rounds):
            drawn = random.Random(f"{self.seed} {number}")
            delay_s = drawn.choice((drawn.uniform(-0.1, 0), *[drawn.uniform(0, 0.3)] * 3))
            try:
                self.round(number, delay_s, read_only=drawn.random() < 0.4)
            except BaseException:
                print(
                    f"round {number} failed, killed after {delay_s:.3f} s; to repeat:"
                    f" LAMINA_KILL_SEED={self.seed!r} python -m pytest {__file__}"
                    f" -k seed; the directory is kept: {self.directory}"
                )
                raise

    def round(self, number: int, delay_s: float, *, read_only: bool) -> None:
        told = Round(self.directory, self.seed, number, list(self.done), self.wal)
        after = "open" if delay_s >= 0 else ""  # killed while it opens, or some time later
        for words in self.producers.run_and_kill(told, abs(delay_s), after=after):
            self.hear(words)
        if not os.path.exists(f"{self.directory}/meta/broker.id"):
            return
        with self.open(number, read_only=read_only) as store:
            if not read_only:
                self.cut += len(store.recovery_report.events)
            for (topic, partition), known in self.known.items():
                if topic in store.topics():
                    check(store, topic, partition, known, first=int(self.wal))
                else:
                    assert not known.acked, f"topic {topic} is gone"

    def hear(self, words: list[str]) -> None:
        match words:
            case ["gone", *_]:
                pass
            case ["open", milliseconds]:
                self.opening_ms.append(int(milliseconds))
            case ["trim", topic, partition, before]:
                known = self.known[topic, int(partition)]
                known.trim_before = max(known.trim_before, int(before))
            case ["deleting" | "deleted" as what, topic, partition, offset]:
                known = self.known[topic, int(partition)]
                getattr(known, what).add(int(offset))
            case ["ack", offset, _, text]:
                tag = Tag.parse(text)
                self.appends += 1
                self.known[tag.topic, tag.partition].hear(int(offset), tag)
                if tag.who.startswith("once"):
                    each = int(tag.who.removeprefix("once"))
                    assert tag == idempotent_tag(self.seed, each, tag.number)
                    assert tag.number == self.done[each]
                    self.done[each] += 1
            case _:
                raise AssertionError(" ".join(words).encode().decode("unicode_escape"))


def check(store: Any, topic: str, partition: int, known: Known, *, first: int) -> None:
    """Compares a partition with what is known of it."""
    earliest = store.earliest_offset(topic, partition)
    end = store.latest_offset(topic, partition)
    assert end >= known.end, "the end moved back"
    check_gaps(store.gaps(topic, partition), (first, earliest), known.trim_before)
    known.forget_below(earliest)
    found: dict[int, bytes] = {}
    extra: dict[int, bytes | None] = {}
    column = "tag" if first else "key"
    for batch in store.scan(topic, partition, earliest):
        offsets = batch.column("offset").to_pylist()
        found.update(zip(offsets, batch.column("value").to_pylist(), strict=True))
        extra.update(zip(offsets, batch.column(column).to_pylist(), strict=True))
    missing = set(range(earliest, end)) - found.keys()
    assert list(found) == sorted(found)
    assert missing <= known.deleting, "offsets are not dense"
    assert not known.deleted & found.keys(), "deleted, and back again"
    known.deleted |= missing
    for offset, tag in known.acked.items():
        text = str(tag)
        for row in range(max(0, earliest - offset), tag.count):
            if offset + row not in missing:
                assert found.get(offset + row) == value_of(text, row), f"{text}: {offset} + {row}"
    for offset, value in known.values.items():
        assert offset in missing or found[offset] == value, f"{offset} was seen and has changed"
    check_new(topic, partition, found, extra, known)
    known.values = found
    known.end = end


def check_gaps(gaps: Any, below: tuple[int, int], trim_before: int) -> None:
    """Everything below the earliest offset has a reason, and nothing above it is missing."""
    at, earliest = below
    for gap in sorted(gaps, key=lambda gap: gap.first):
        assert gap.reason in REASONS, gap
        assert gap.first <= at, f"no reason for {at} to {gap.first}"
        assert gap.reason != "trim" or gap.end <= trim_before, "more was trimmed than was asked for"
        at = max(at, gap.end)
    assert at == earliest, "offsets below the earliest have no reason, or ones above it have one"


def check_new(
    topic: str,
    partition: int,
    found: dict[int, bytes],
    extra: dict[int, bytes | None],
    known: Known,
) -> None:
    """Each record is one that was appended here: whole appends in order, none twice."""
    appends: dict[str, int] = {}
    for offset, value in found.items():
        text, number, _ = value.decode().split("#")
        row = int(number)
        if known.values.get(offset) != value:
            assert value == value_of(text, row)
            assert extra[offset] == extra_of(text, row)
        assert appends.setdefault(text, offset - row) == offset - row, f"{text} is there twice"
    for text, start in appends.items():
        tag = Tag.parse(text)
        assert (tag.topic, tag.partition) == (topic, partition)
        last = start + tag.count - 1
        torn = last not in found and last not in known.deleted
        assert not torn or last >= known.end, f"{text} lost its last records"
        assert not torn or last > max(found), f"{text} is torn in the middle"


@pytest.fixture(scope="module")
def producers() -> Iterator[Workers]:
    with Workers("tests.support.producer_process", cwd=str(ROOT)) as started:
        yield started


def kill(producers: Workers, directory: Path, seed: str, rounds: int, *, wal: bool = False) -> None:
    campaign = Campaign(producers, str(directory / "data"), seed, wal)
    started = time.perf_counter()
    campaign.run(rounds)
    took = time.perf_counter() - started
    print(
        f"{rounds} rounds, {campaign.appends} acknowledged appends, {campaign.cut} repairs, "
        f"{took:.1f} s, opening {max(campaign.opening_ms)} ms at most"
    )
    assert campaign.appends > rounds
    assert wal or min(campaign.done) > 0
    if wal:
        known = campaign.known.values()
        assert any(each.deleted for each in known)
        assert any(each.trim_before > 1 for each in known)


@pytest.mark.parametrize("seed", [SEED] if SEED else [f"seed{number}" for number in range(3)])
def test_what_was_acknowledged_survives_kills(
    producers: Workers, tmp_path: Path, seed: str
) -> None:
    kill(producers, tmp_path, seed, ROUNDS)


@pytest.mark.parametrize("seed", [SEED] if SEED else ["seed0", "seed1"])
def test_what_many_wal_topics_acknowledged_survives_kills(
    producers: Workers, tmp_path: Path, seed: str
) -> None:
    kill(producers, tmp_path, seed, WAL_ROUNDS, wal=True)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("wal", [False, True])
def test_what_was_acknowledged_survives_many_kills(
    producers: Workers, tmp_path: Path, wal: bool
) -> None:
    base = SEED or f"{time.time_ns()}"
    for number in range(0, LONG_ROUNDS, 100):
        directory = tmp_path / str(number)
        rounds = min(100, LONG_ROUNDS - number)
        kill(producers, directory, f"{base}-{number}", rounds, wal=wal)
