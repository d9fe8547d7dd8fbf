"""`make bench-growth`: the same work at 1, 4, 16 and 64 times as much of one thing.

`--only records,groups` grows those things alone and adds them to what is known; `--scales 1,4,16`
is shorter. The table of docs/scale.md and its plot are written again each time.

Each row grows one thing (records, segments, partitions, topics, groups) and times operations whose
cost should stay flat, or grow no faster than the thing itself. The growth is the exponent between
the smallest and the largest: 0 is flat, 1 is linear; anything clearly above what is expected is a
defect. Times are the best of several rounds; small ones are raised to a floor, under which a
machine's noise would be all that is compared.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import lamina
from benchmarks.bars import Bar, finish

SCALES = (1, 4, 16, 64)
RESULTS, PAGE = Path("docs/field/growth.json"), Path("docs/scale.md")
BEGIN, END = "<!-- growth: written by make bench-growth -->", "<!-- /growth -->"
FLOOR_S = 0.001
FLAT, LINEAR = 0.35, 1.15
"""The exponents that pass as flat and as linear: 64 times the data may cost 4.3 and 120 times."""
BATCH = pa.record_batch({"value": pa.array([b"v" * 100] * 1000, pa.binary())})


@dataclass(frozen=True)
class Growth:
    """One operation at every scale."""

    thing: str
    operation: str
    wanted: float
    scales: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """How the time grows: log of its ratio over log of the scale's."""
        first, last = (max(FLOOR_S, each) for each in (self.seconds[0], self.seconds[-1]))
        return math.log(last / first) / math.log(self.scales[-1] / self.scales[0])

    def bar(self) -> Bar:
        """The bar of this growth."""
        name = f"{self.thing}_{self.operation}".replace(" ", "_")
        return Bar(name, self.exponent, self.wanted, at_most=True)


Timed = dict[str, float]


def best(work: Callable[[], object], rounds: int = 3) -> float:
    """Seconds of the best of some rounds."""
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


def first_record(store: lamina.Store, topic: str, start: int) -> None:
    """Reads one record."""
    next(iter(store.scan(topic, start=start, max_records=1)))


def of_log(folder: str, batches: int, segment_bytes: int, format_name: str) -> Timed:
    """What a log of so many batches costs; its last half is looked into."""
    config = {} if format_name == "wal" else {"segment.bytes": segment_bytes}
    with lamina.open(folder) as store:
        store.create_topic("t", format=format_name, config=config)
        started = time.perf_counter()
        for _ in range(batches):
            store.append("t", BATCH, partition=0, acks=1)
        store.append("t", b"last")
        produced = time.perf_counter() - started
        about = store.describe_topic("t")
        assert about.name == "t"
        middle = store.latest_offset("t") // 2
        moment = next(iter(store.scan("t", start=middle, max_records=1)))["timestamp"][0]
        timed = {
            "append all": produced,
            "append one": best(lambda: store.append("t", b"one"), 20),
            "read one": best(lambda: first_record(store, "t", middle), 20),
            "seek by time": best(lambda: store.offset_for_time("t", 0, moment.value), 20),
            "read all": best(lambda: sum(b.num_rows for b in store.scan("t", max_bytes=4 << 20))),
        }
    timed["open"] = best(lambda: lamina.open(folder).close())
    return timed


def of_records(folder: str, scale: int) -> Timed:
    """Records in one keratin partition, in segments of the default size."""
    return of_log(folder, 25 * scale, 1 << 30, "keratin")


def of_wal_records(folder: str, scale: int) -> Timed:
    """Records in one wal topic."""
    return of_log(folder, 25 * scale, 0, "wal")


def of_segments(folder: str, scale: int) -> Timed:
    """Segments in one partition: as many records a segment at every scale."""
    return of_log(folder, 10 * scale, 1 << 20, "keratin")


def of_partitions(folder: str, scale: int) -> Timed:
    """Partitions of one topic."""
    with lamina.open(folder) as store:
        made = best(lambda: store.create_topic("t", partitions=4 * scale), 1)
        for number in range(4 * scale):
            store.append("t", b"first", partition=number)
        timed = {
            "create": made,
            "append one": best(lambda: store.append("t", b"one", partition=1), 20),
            "read one": best(lambda: first_record(store, "t", 0), 20),
        }
    timed["open"] = best(lambda: lamina.open(folder).close())
    return timed


def _of_topics(folder: str, scale: int, format_name: str) -> Timed:
    names = [f"topic-{number}" for number in range(4 * scale)]
    with lamina.open(folder) as store:
        started = time.perf_counter()
        for name in names:
            store.create_topic(name, format=format_name)
        made = time.perf_counter() - started
        for name in names:
            store.append(name, b"first")
        timed = {
            "create": made,
            "append one": best(lambda: store.append(names[0], b"one"), 20),
            "list": best(store.topics, 20),
        }
    timed["open"] = best(lambda: lamina.open(folder).close())
    return timed


def of_topics(folder: str, scale: int) -> Timed:
    """Topics of the default format."""
    return _of_topics(folder, scale, "keratin")


def of_wal_topics(folder: str, scale: int) -> Timed:
    """Topics behind one write-ahead log."""
    return _of_topics(folder, scale, "wal")


def of_groups(folder: str, scale: int) -> Timed:
    """Consumer groups of one topic."""
    with lamina.open(folder) as store:
        store.create_topic("t")
        store.append("t", BATCH, partition=0)
        groups = [store.group("t", f"group-{number}") for number in range(4 * scale)]
        for group in groups:
            group.commit(500)
        timed = {
            "commit": best(lambda: groups[0].commit(501), 20),
            "lag": best(groups[0].lag, 20),
            "list": best(store.groups, 5),
        }
    timed["open"] = best(lambda: lamina.open(folder).close())
    return timed


SWEEPS: dict[str, tuple[Callable[[str, int], Timed], frozenset[str]]] = {
    "records": (of_records, frozenset({"append all", "read all"})),
    "wal records": (of_wal_records, frozenset({"append all", "read all"})),
    "segments": (of_segments, frozenset({"append all", "read all", "open"})),
    "partitions": (of_partitions, frozenset({"create", "open"})),
    "topics": (of_topics, frozenset({"create", "open", "list"})),
    "wal topics": (of_wal_topics, frozenset({"create", "open", "list"})),
    "groups": (of_groups, frozenset({"open", "list"})),
}
"""What grows, how it is timed, and which of its operations may grow with it; others stay flat."""


def sweep(folder: str, things: list[str], scales: tuple[int, ...]) -> Iterator[Growth]:
    """Times every operation at every scale."""
    for thing in things:
        timed_at, linear = SWEEPS[thing]
        by_scale = []
        for scale in scales:
            place = os.path.join(folder, "data")
            by_scale.append(timed_at(place, scale))
            shutil.rmtree(place)
        for operation in by_scale[0]:
            wanted = LINEAR if operation in linear else FLAT
            seconds = tuple(timed[operation] for timed in by_scale)
            yield Growth(thing, operation, wanted, scales, seconds)


def main() -> None:
    """Measures what was asked for, adds it to what is known, writes it down, judges all of it."""
    parser = argparse.ArgumentParser(prog="make bench-growth", description=main.__doc__)
    parser.add_argument("--only", default=",".join(SWEEPS), help=", ".join(SWEEPS))
    parser.add_argument("--scales", default=",".join(map(str, SCALES)))
    asked = parser.parse_args()
    things = [thing.strip() for thing in asked.only.split(",") if thing.strip()]
    scales = tuple(int(scale) for scale in asked.scales.split(","))
    known = {(each.thing, each.operation): each for each in load()}
    folder = tempfile.mkdtemp(prefix="lamina-growth-")
    try:
        for each in sweep(folder, things, scales):
            known[each.thing, each.operation] = each
            print(f"{each.thing}, {each.operation}: grows with the {each.exponent:.2f}th power")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    order = list(SWEEPS)
    found = sorted(known.values(), key=lambda each: order.index(each.thing))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps([vars(each) for each in found], indent=1) + "\n")
    publish(found)
    _plot(found, RESULTS.parent)
    finish([each.bar() for each in found])


def load() -> list[Growth]:
    """What earlier runs measured."""
    if not RESULTS.exists():
        return []
    return [
        Growth(**row | {"scales": tuple(row["scales"]), "seconds": tuple(row["seconds"])})
        for row in json.loads(RESULTS.read_text())
        if row["thing"] in SWEEPS
    ]


def publish(found: list[Growth]) -> None:
    """Writes the table into its page, between the markers."""
    heads = ["of", "operation", *(f"x{scale}, ms" for scale in SCALES), "exponent", ""]
    lines = [" | ".join(heads), " | ".join(["---", "---", *["---:"] * (len(SCALES) + 1), "---"])]
    for each in found:
        timed = dict(zip(each.scales, each.seconds, strict=True))
        cells = [f"{timed[scale] * 1e3:,.2f}" if scale in timed else "-" for scale in SCALES]
        verdict = "" if each.bar().ok else f"over {each.wanted:g}"
        lines.append(
            " | ".join([each.thing, each.operation, *cells, f"{each.exponent:.2f}", verdict])
        )
    table = "\n".join(f"| {line} |" for line in lines)
    head, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, tail = rest.partition(END)
    if begin and end:
        plot = "![How it grows](field/growth.svg)"
        PAGE.write_text(f"{head}{BEGIN}\n{table}\n\n{plot}\n{END}{tail}")


def _plot(found: list[Growth], folder: Path) -> None:
    """Draws every growth, one panel a thing."""
    try:
        import matplotlib

        matplotlib.use("svg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    matplotlib.rcParams["svg.hashsalt"] = "lamina"
    things = list(SWEEPS)
    figure, panels = plt.subplots(2, 4, figsize=(14, 6), sharex=True)
    for thing, axes in zip(things, panels.flat, strict=False):
        for each in found:
            if each.thing == thing:
                milliseconds = [seconds * 1e3 for seconds in each.seconds]
                axes.loglog(each.scales, milliseconds, marker="o", label=each.operation)
        axes.set_title(f"{thing}, ms", loc="left")
        if axes.lines:
            axes.legend(fontsize=7, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels.flat[len(things) :]:
        axes.axis("off")
    figure.tight_layout()
    figure.savefig(folder / "growth.svg", metadata={"Date": None})
    figure.savefig(folder / "growth.png", dpi=90)


if __name__ == "__main__":
    main()
