"""The bars of the suite: what Lamina has to reach, out of the figures that are known."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.bars import Bar
from benchmarks.field.results import Results, Row
from benchmarks.field.suite import less_is_better

OURS, SERVED, WAL = "Lamina keratin", "Lamina served, 4 clients", "Lamina wal"
SQLITE, ARROW, REDIS = "SQLite WAL", "Arrow IPC file", "Redis Streams"
AHEAD = (
    *("produce_100", "produce_1024", "each_100", "each_1024", "read_100", "read_1024"),
    *("lone_p50_us", "many"),
)
READ = {100: 10, 1024: 12}
Values = dict[str, float]


def bars(results: Results) -> list[Bar]:
    """Every bar that there are figures for."""
    brokers = brokers_of(results)
    ours, served = results.of(OURS, "fsync"), results.of(SERVED, "fsync")
    sqlite, arrow = results.of(SQLITE, "fsync"), results.of(ARROW, "fsync")
    sizes = (100, 1024)
    found = [
        *(_best(f"embedded_produce_{n}", ours, brokers, f"produce_{n}", 5) for n in sizes),
        *(_best(f"embedded_read_{n}", ours, brokers, f"read_{n}", READ[n]) for n in sizes),
        *(_best(f"served_produce_{n}", served, brokers, f"produce_{n}", 3) for n in sizes),
        *(_best(f"served_read_{n}", served, brokers, f"read_{n}", 5) for n in sizes),
        *(_best(f"ahead_{name}", ours, [*brokers, sqlite], name, 1) for name in AHEAD),
        _best("served_of_embedded_read_1024", served, [ours], "read_1024", 0.7),
        *(_best(f"arrow_{name}", ours, [arrow], name, 1) for name in AHEAD[:2]),
        *(_best(f"arrow_{name}", ours, [arrow], name, 0.95) for name in AHEAD[2:4]),
        _best("wal_produce_1024", results.of(WAL, "fsync"), [ours], "produce_1024", 0.75),
        _best("redis_many", ours, [results.of(REDIS, "fsync")], "many", 1.3),
        _at_most("lone_over_bare", ours.get("lone_over_bare"), 1.3),
        _best("opened_1M_sqlite", ours, [sqlite], "opened_1M_s", 0.4),
        _flat(ours),
        _at_most("first_ack_seconds", ours.get("first_ack_s"), 1),
    ]
    return [bar for bar in found if bar is not None]


def brokers_of(results: Results) -> list[Values]:
    """The brokers whose acknowledged records are on the disk."""
    rows: list[Row] = results.rows
    return [row.values for row in rows if row.system.kind == "broker" and row.is_durable]


def best_of(rivals: Sequence[Values], figure: str) -> float | None:
    """The best of several at one figure; None if nobody has it."""
    theirs = [each[figure] for each in rivals if figure in each]
    if not theirs:
        return None
    return min(theirs) if less_is_better(figure) else max(theirs)


def times(ours: Values, rivals: Sequence[Values], figure: str) -> float | None:
    """How many times better than the best of several, whatever is better."""
    theirs = best_of(rivals, figure)
    if theirs is None or figure not in ours:
        return None
    return theirs / ours[figure] if less_is_better(figure) else ours[figure] / theirs


def _best(
    name: str, ours: Values, rivals: Sequence[Values], figure: str, wanted: float
) -> Bar | None:
    ratio = times(ours, rivals, figure)
    return None if ratio is None else Bar(name, ratio, wanted)


def _at_most(name: str, measured: float | None, wanted: float) -> Bar | None:
    return None if measured is None else Bar(name, measured, wanted, at_most=True)


def _flat(ours: Values) -> Bar | None:
    """Ten times the records may cost little more to open, though they have ten times the files."""
    if "opened_1M_s" not in ours or "opened_10M_s" not in ours:
        return None
    return Bar("opened_flat", ours["opened_10M_s"] / ours["opened_1M_s"], 1.3, at_most=True)
