"""Consumers are killed under load: what was acked never comes again, what was not always does."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina.store.store import Store
from lamina_torture.forked import Workers
from tests.support.consumer_process import GROUP, LEASE_MS, TOPIC, Consuming

ROOT = Path(__file__).parents[2]
SEED = os.environ.get("LAMINA_KILL_SEED", "groups")
ROUNDS = 4
LONG_ROUNDS = 300
RECORDS_A_ROUND = 4000
FORMATS = pytest.mark.parametrize("format_name", ["keratin", "wal"])
LIMIT = 1 << 30
"""No dead letters: every delivery is counted here."""


@pytest.fixture(scope="module")
def consumers() -> Iterator[Workers]:
    with Workers("tests.support.consumer_process", cwd=str(ROOT)) as started:
        yield started


def campaign(consumers: Workers, directory: Path, rounds: int, seed: str, format_name: str) -> None:
    drawn = random.Random(seed)
    acked: set[int] = set()
    asked: set[int] = set()
    epochs: dict[int, int] = {}
    kills = 0
    config = {"group.share.delivery.count.limit": LIMIT}
    with Store(str(directory)) as store:
        store.create_topic(TOPIC, format=format_name, config=config)
        first = store.earliest_offset(TOPIC)
    for number in range(rounds):
        with Store(str(directory)) as store:
            store.append(TOPIC, [b"x" * 50] * RECORDS_A_ROUND)
        after = "open" if number % 2 else "acked"  # killed at any time, or surely after an ack
        told, delay_s = Consuming(str(directory), f"{seed} {number}"), drawn.uniform(0.05, 0.6)
        *said, gone = consumers.run_and_kill(told, delay_s, after=after)
        assert int(gone[-1]) == signal.SIGKILL, said[-1]
        assert {kind for kind, *_ in said} <= {"open", "got", "asking", "acked"}, said[-1]
        # Threads may speak in another order than they were answered, but not across a kill.
        hear(
            [word for kind, *words in said if kind == "got" for word in words], acked, epochs, kills
        )
        asked |= {int(word) for kind, *words in said if kind == "asking" for word in words}
        acked |= {int(word) for kind, *words in said if kind == "acked" for word in words}
        kills += 1
    with Store(str(directory)) as store:
        group = store.group(TOPIC, GROUP)
        found: set[int] = set()
        while (batch := group.poll(5000, 600_000, wait_ms=2 * LEASE_MS + 1000)).num_rows:
            columns = (batch.column(name).to_pylist() for name in ("offset", "epoch"))
            hear([f"{o}:{e}" for o, e in zip(*columns, strict=True)], acked, epochs, kills)
            found |= {*batch.column("offset").to_pylist()}
        everything = set(range(first, first + rounds * RECORDS_A_ROUND))
        assert everything - found - acked <= asked, "neither acked nor delivered again"
        assert len(acked) > 0, "nothing was acked before the kill"
        assert len(found) > 0, "everything was acked before the kill"


def hear(words: list[str], acked: set[int], epochs: dict[int, int], kills: int) -> None:
    """Checks deliveries: of nothing acked before, and counted right but for polls a kill cut off.

    Each delivery of a record has a number of its own, one more than that of the one before; a
    number is missing only where a poll was journaled and its process killed before it answered.
    """
    heard: dict[int, list[int]] = {}
    for word in words:
        offset, epoch = (int(each) for each in word.split(":"))
        heard.setdefault(offset, []).append(epoch)
    assert not heard.keys() & acked, "acked, and delivered again"
    for offset, found in heard.items():
        known = epochs.get(offset, 0)
        assert len(set(found)) == len(found), f"{offset}: one delivery number twice"
        assert known < min(found), f"{offset}: delivery {min(found)} after {known}"
        assert max(found) <= known + len(found) + kills, f"{offset}: {found} after {known}"
        epochs[offset] = max(found)


@FORMATS
def test_killed_consumers_lose_and_repeat_nothing(
    consumers: Workers, tmp_path: Path, format_name: str
) -> None:
    campaign(consumers, tmp_path / "data", ROUNDS, SEED, format_name)


@pytest.mark.long
@pytest.mark.timeout(3600)
@FORMATS
def test_consumers_killed_very_often_lose_and_repeat_nothing(
    consumers: Workers, tmp_path: Path, format_name: str
) -> None:
    campaign(consumers, tmp_path / "data", LONG_ROUNDS, SEED, format_name)
