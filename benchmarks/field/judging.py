"""The bars of the suite: what Lamina has to reach, out of the figures of one run."""

from __future__ import annotations

from benchmarks.bars import Bar
from benchmarks.field.report import Run
from benchmarks.field.suite import Figures, durable

OURS, SERVED = "Lamina keratin", "Lamina served, 4 clients"


def bars(run: Run) -> list[Bar]:
    """Every bar that this run has the figures for."""
    brokers = [each for each in run.figures if each.system.kind == "broker" and durable(each)]
    ours = run.of(OURS, "fsync")
    served = run.of(SERVED, "fsync")
    found = [
        *_against(brokers, ours, "embedded", produce=5, read=10),
        *_against(brokers, served, "served", produce=3, read=5),
        *_ahead(run, brokers, ours),
        _ratio("arrow_files", ours, run.of("Arrow IPC file", "fsync"), "each_100", 1),
        _ratio("redis_16_producers", ours, run.of("Redis Streams", "fsync"), "many", 1),
    ]
    found += _starts(run)
    lone = ours.values["lone_p50_us"] / run.limits["write + fdatasync of 148 B us"]
    return [bar for bar in found if bar is not None] + [Bar("lone_bare", lone, 1.3, at_most=True)]


def _against(
    brokers: list[Figures], ours: Figures, name: str, *, produce: float, read: float
) -> list[Bar | None]:
    """Produce and read against the best broker; reading depends on no durability."""
    return [
        _best(f"{name}_produce_100", ours, brokers, "produce_100", produce),
        _best(f"{name}_produce_1024", ours, brokers, "produce_1024", produce),
        _best(f"{name}_read_100", ours, brokers, "read_100", read),
        _best(f"{name}_read_1024", ours, brokers, "read_1024", read),
    ]


def _ahead(run: Run, brokers: list[Figures], ours: Figures) -> list[Bar | None]:
    """Ahead of every broker and of SQLite wherever an acknowledged record is durable."""
    rivals = [*brokers, run.of("SQLite WAL", "fsync")]
    names = ("produce_100", "produce_1024", "many", "read_100", "read_1024", "lone_p50_us")
    return [_best(f"ahead_{name}", ours, rivals, name, 1) for name in names]


def _best(
    name: str, ours: Figures, rivals: list[Figures], figure: str, wanted: float
) -> Bar | None:
    """How many times better than the best of several; where less is better, the other way."""
    theirs = [each.values[figure] for each in rivals if figure in each.values]
    if not theirs or figure not in ours.values:
        return None
    if figure.endswith(("_us", "_s")):
        return Bar(name, min(theirs) / ours.values[figure], wanted)
    return Bar(name, ours.values[figure] / max(theirs), wanted)


def _ratio(name: str, ours: Figures, theirs: Figures, figure: str, wanted: float) -> Bar | None:
    return _best(name, ours, [theirs], figure, wanted)


def _starts(run: Run) -> list[Bar | None]:
    killed = {
        name: run.fresh.get(f"opened after kill {name} s")
        for name in ("keratin 1M", "keratin 10M", "sqlite 1M")
    }
    first = run.fresh.get("first ack keratin s")
    if first is None or None in killed.values():
        return []
    one, ten, sqlite = (killed[name] or 0.0 for name in ("keratin 1M", "keratin 10M", "sqlite 1M"))
    return [
        Bar("killed_sqlite", one / sqlite, 1, at_most=True),
        Bar("killed_flat", ten / one, 2, at_most=True),
        Bar("first_ack_seconds", first, 1, at_most=True),
    ]
