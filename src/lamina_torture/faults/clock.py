"""F17: the clock jumps back, ahead and about, stands still, and producers live in the future."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from lamina.storage.files import wall_clock_ms
from lamina.store.store import Store
from lamina_torture.clocks import Clocks, clocks
from lamina_torture.promises import GROUP
from lamina_torture.rows import Rounds, Trial, demand, row
from lamina_torture.scribe import open_store
from lamina_torture.simulated import SimulatedFiles

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
JUMPS = {
    "back an hour": -HOUR_MS,
    "back a year": -YEAR_MS,
    "ahead an hour": HOUR_MS,
    "ahead ten years": 10 * YEAR_MS,
    "jitter": 500,
}
RETENTION_MS = 2 * HOUR_MS
LEASE_MS = 30_000
TOPIC = "t"


@dataclass
class Session:
    """A store, its clocks, and the time that each of its records was given."""

    clocks: Clocks
    format_name: str
    luck: random.Random
    files: SimulatedFiles = field(default_factory=SimulatedFiles)
    stamps_ms: list[int] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)
    """Until when each polled record is its consumer's, by the steady clock."""
    jumped: bool = False
    """Whether the wall clock was set since the store was opened."""
    origin_ms: int = 0
    """What the wall clock would say at the steady clock's zero, had nobody set it since."""

    def open(self) -> Store:
        """Opens the store; it goes by the clocks."""
        self.jumped = False
        self.origin_ms = self.clocks.wall_ms - self.clocks.steady_ms
        return open_store(self.files, now_ms=wall_clock_ms)

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return int(self.format_name == "wal")


@row("F17", "jumps", invariants="I1 I3 I6 I8", rounds=Rounds(6, 50, 3500))
def jumps(trial: Trial) -> None:
    """The wall clock is set back, ahead and about while records are appended, leased and kept."""
    for number in range(trial.rounds):
        with trial.case(number) as wanted:
            if wanted:
                with clocks() as made:
                    _live(Session(made, trial.format, trial.luck(number)))


def _live(session: Session) -> None:
    luck, now = session.luck, session.clocks
    store = session.open()
    config = {"retention.ms": RETENTION_MS, "segment.bytes": 1024}
    store.create_topic(TOPIC, format=session.format_name, config=config)
    for _ in range(25):
        action = luck.choice(("append", "append", "jump", "pass", "maintain", "poll", "reopen"))
        if action == "append":
            _append(session, store)
        elif action == "jump":
            now.jump_ms(luck.choice(list(JUMPS.values())) * luck.choice((1, -1, 1)))
            session.jumped = True
        elif action == "pass":
            now.pass_ms(luck.choice((1, 1000, LEASE_MS + 1, HOUR_MS)))
        elif action == "maintain":
            store.maintain()
            _check_kept(session, store)
        elif action == "poll":
            _poll(session, store)
        elif not session.jumped:  # which time it is at a start, only the wall clock knows
            store.close()
            store = session.open()
        _check_dense(session, store)
    store.close()
    with session.open() as store:
        _check_dense(session, store)


def _append(session: Session, store: Store) -> None:
    luck, now = session.luck, session.clocks
    rows: list[dict[str, Any]] = [{"value": b"x" * luck.randint(1, 500)} for _ in range(3)]
    if luck.random() < 0.3:  # a producer whose clock is years ahead
        rows[1]["timestamp"] = now.wall_ms + 5 * YEAR_MS
    ack = store.append(TOPIC, rows, partition=0)
    expected = session.first + len(session.stamps_ms)
    demand(ack.base_offset == expected, "I3", f"appended at {ack.base_offset}, not {expected}")
    session.stamps_ms += [each.get("timestamp", now.wall_ms) for each in rows]


def _check_kept(session: Session, store: Store) -> None:
    """Nothing goes before its time has really passed, however far ahead the wall clock is."""
    now_ms = session.origin_ms + session.clocks.steady_ms
    for at in range(session.first, store.earliest_offset(TOPIC)):
        age_ms = now_ms - session.stamps_ms[at - session.first]
        demand(age_ms > RETENTION_MS, "I8", f"{at} went after {age_ms} ms, of {RETENTION_MS}")


def _check_dense(session: Session, store: Store) -> None:
    earliest, end = store.earliest_offset(TOPIC), store.latest_offset(TOPIC)
    expected = session.first + len(session.stamps_ms)
    demand(end == expected, "I1", f"the log ends at {end}, not {expected}")
    batches = list(store.scan(TOPIC, start=earliest))
    offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    demand(
        offsets == list(range(earliest, end)), "I1", f"read {offsets[:3]}.. of {earliest}..{end}"
    )
    for batch in batches[:1]:
        stamp = int(batch.column("timestamp").cast("int64")[0].as_py())
        found = store.offset_for_time(TOPIC, 0, stamp)
        demand(found == earliest, "I9", f"the time of {earliest} is found at {found}")


def _poll(session: Session, store: Store) -> None:
    """A record is with one consumer until its lease has really passed."""
    group, now_ms = store.group(TOPIC, GROUP), session.clocks.steady_ms
    polled = group.poll(4, lease_ms=LEASE_MS).column("offset").to_pylist()
    again = [at for at in polled if session.held.get(at, 0) > now_ms]
    demand(not again, "I6", f"{again} are still held by another consumer")
    if session.luck.random() < 0.5:
        group.ack(polled)
    session.held |= dict.fromkeys(polled, now_ms + LEASE_MS)
