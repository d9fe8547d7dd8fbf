"""The report of what is known: tables, ratios, plots, the machine, versions and commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.field import judging, plots
from benchmarks.field.reasons import REASONS
from benchmarks.field.results import Part, Results, Row

NOISY = 1.5

COLUMNS = {
    "produce_100": ("produce 100 B, k/s", 1e-3),
    "produce_1024": ("produce 1 KiB, k/s", 1e-3),
    "each_100": ("a batch at a time 100 B, k/s", 1e-3),
    "each_1024": ("a batch at a time 1 KiB, k/s", 1e-3),
    "read_100": ("read 100 B, k/s", 1e-3),
    "read_1024": ("read 1 KiB, k/s", 1e-3),
    "lone_p50_us": ("lone p50, µs", 1),
    "lone_p99_us": ("lone p99, µs", 1),
    "bare_p50_us": ("a bare write + fdatasync beside it, µs", 1),
    "lone_over_bare": ("lone, times a bare write + fdatasync", 1),
    "many": ("16 producers, /s", 1),
    "seek_us": ("seek by time, µs", 1),
    "first_ack_s": ("start to first durable ack, s", 1),
    "opened_1M_s": ("after kill -9 with 1 M, s", 1),
    "opened_10M_s": ("after kill -9 with 10 M, s", 1),
    "disk_100_bytes": ("bytes per record (100 B)", 1),
    "disk_1024_bytes": ("bytes per record (1 KiB)", 1),
    "rest_memory_bytes": ("memory at rest, MB", 1e-6),
    "load_memory_bytes": ("memory under load, MB", 1e-6),
    "archive": ("archive, k/s", 1e-3),
    "cold_read": ("read the archive, k/s", 1e-3),
    "archive_bytes": ("bytes per record in the archive", 1),
    "spark_batch": ("Spark batch, k/s", 1e-3),
    "spark_cold": ("Spark batch from the archive, k/s", 1e-3),
    "spark_stream": ("Spark stream, k/s", 1e-3),
}
TABLES = {
    "Storing": ("produce_100", "produce_1024", "each_100", "each_1024"),
    "One record at a time": (
        *("lone_p50_us", "lone_p99_us", "bare_p50_us", "lone_over_bare", "many"),
    ),
    "Reading": ("read_100", "read_1024", "seek_us"),
    "Starting": ("first_ack_s", "opened_1M_s", "opened_10M_s"),
    "What it takes": (
        *("disk_100_bytes", "disk_1024_bytes", "rest_memory_bytes", "load_memory_bytes"),
    ),
    "Archive and Spark": (
        *("archive", "cold_read", "archive_bytes"),
        *("spark_batch", "spark_cold", "spark_stream"),
    ),
}
HEAD = """# Lamina beside the field

Written by `make bench` from [results.json](field/results.json). The systems take turns in
interleaved rounds, one process per system; the table shows the best round of each. `fsync` means
that an acknowledged record is on disk; `default` is each system as it is installed (for Lamina,
whose default is fsync, it is acks=1). A partial run (`ONLY`) replaces its own figures; the others
stay as they were measured before.

**Apache Kafka is 0.9 here, a version of 2015** (0.9.0.1 of early 2016): the newest one that could
be installed by package name where this ran. Its rows say nothing about a current Kafka.

- Records are text of 100 B or 1 KiB, names and random numbers as in events, in batches of 1,000;
  no two are alike.
- *Storing*: every system may have up to 16 batches in flight, or in one commit; *a batch at a time*
  waits for each. The objects that a client takes are made before the clock starts: Arrow batches
  for Lamina and the files, dicts for Kafka, rows for SQLite, packed commands for Redis and NATS.
  `Python objects` is Lamina from lists of bytes and back to lists of bytes.
- *Reading* counts all records and the bytes of their values. After the clock stops, all values are
  compared with what was sent.
- *One record at a time*: a call that waits for its acknowledgement, alternating with bare writes +
  fdatasync on the same disk; then 16 at once, by asyncio, by the client's own callbacks (Kafka) or
  by redis-benchmark.
- *Starting* uses fresh processes: the shortest program up to its first durable record, imports
  included; opening after kill -9, without imports. For servers, from the start of the server.
"""


def write(results: Results, folder: Path) -> Path:
    """Writes the report beside the folder of its plots; returns the report's path."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = plots.draw(results, COLUMNS, folder)
    path = folder.with_suffix(".md")
    path.write_text(
        _text(results, [f"![{title}]({folder.name}/{name}.svg)" for name, title in drawn])
    )
    return path


def _text(results: Results, images: list[str]) -> str:
    parts = [
        HEAD,
        "\n".join(f"- {name}: {value}" for name, value in results.machine.items()) + "\n",
    ]
    if not results.rows:
        return "\n".join([*parts, "No run has been written down yet.\n"])
    parts += ["## Targets\n", targets_table(results)]
    for title, names in TABLES.items():
        parts += [f"## {title}\n", table(results, names)]
    parts += ["## What the machine allows\n", _limits(results), _shares(results)]
    parts += ["## Versions\n", _versions(results)]
    absent = [f"- {name}: {why}" for name, why in results.absent.items()]
    troubles = [
        f"- {row.system.name} ({row.durability}), {place.split()[1]}: {problem}"
        for row in results.rows
        for place, found in row.problems.items()
        for problem in found
    ]
    if absent:
        parts += ["## Not run\n", "\n".join(absent) + "\n"]
    if troubles:
        parts += ["## Problems met\n", "\n".join(troubles) + "\n"]
    parts += ["## Plots\n", "\n".join(images) + "\n"]
    return "\n".join(parts)


def targets_table(results: Results) -> str:
    """What had to be reached, and what was."""
    lines = ["| target | measured | wanted | |", "|---|---:|---:|---|"]
    for bar in judging.bars(results):
        sign = "≤" if bar.at_most else "≥"
        verdict = "" if bar.ok else "not met"
        lines.append(f"| {bar.name} | {bar.measured:.2f} | {sign} {bar.wanted:g} | {verdict} |")
    short_ones: dict[str, list[str]] = {}
    for bar in judging.bars(results):
        if not bar.ok:
            why = REASONS.get(bar.name, "not understood yet")
            short_ones.setdefault(why, []).append(f"`{bar.name}`")
    reasons = [f"- {', '.join(names)}: {why}." for why, names in short_ones.items()]
    return "\n".join([*lines, "", *reasons]) + "\n"


def table(results: Results, names: Sequence[str], rows: Sequence[Row] | None = None) -> str:
    """A row a system that has any of these figures."""
    heads = ["system", "durability", *(COLUMNS[name][0] for name in names)]
    lines = [" | ".join(heads), " | ".join(["---", "---", *["---:"] * len(names)])]
    for row in results.rows if rows is None else rows:
        values = row.values
        if not any(name in values for name in names):
            continue
        cells = [named(row), row.durability]
        cells += [
            short(values[name] * COLUMNS[name][1]) if name in values else "-" for name in names
        ]
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def named(row: Row) -> str:
    """A system with its version, as tables name it: `Redis Streams 7.0.15`."""
    name = row.system.name
    plain = re.match(r"[\d.]+( \(\d{4}\))?", row.version)
    version = plain[0] if plain else row.version.partition(",")[0]
    last = name.rpartition(" ")[2]
    if version.startswith(last):  # Apache Kafka 0.9, in version 0.9.0.1
        return f"{name.removesuffix(last)}{version}"
    if not version:
        return name
    own, comma, rest = name.partition(",")
    is_of_library = not version[0].isdigit()
    return f"{own} ({version}){comma}{rest}" if is_of_library else f"{own} {version}{comma}{rest}"


def short(value: float) -> str:
    """A number as a table shows it."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _best_and_worst(part: Part, name: str) -> str:
    """The best of the rounds; beside it the worst where that is far off: a noisy machine."""
    if name not in part.limits:
        return "-"
    found, worst = part.limits[name], part.worst.get(name, part.limits[name])
    is_far = max(found, worst) > NOISY * min(found, worst)
    return f"{short(found)} (worst {short(worst)})" if is_far else short(found)


def _limits(results: Results) -> str:
    """A column a part: figures are compared with the limits of their own."""
    parts = results.parts
    names = list(dict.fromkeys(name for part in parts for name in part.limits))
    heads = " | ".join(f"part {number}" for number in range(1, len(parts) + 1))
    lines = [f"| limit | {heads} |", "| --- |" + " ---: |" * len(parts)]
    for name in names:
        cells = (_best_and_worst(part, name) for part in parts)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    runs = [
        f"- part {number}: {part.started} UTC, `{part.command}`, {part.rounds} rounds,"
        f" {part.seconds / 60:.1f} minutes"
        for number, part in enumerate(parts, 1)
    ]
    return "\n".join([*lines, "", *runs]) + "\n"


def _shares(results: Results) -> str:
    """How much of what the machine allows each format uses, in the part of its figure."""
    lines = ["## Share of what is possible\n"]
    for row in results.rows:
        if not row.system.name.startswith("Lamina") or not row.is_durable:
            continue
        values = row.values
        for size in (100, 1024):
            limits = results.limits_of(row, f"produce_{size}")
            bare = limits.get("write, fdatasync every 2 MiB MB/s")
            if bare:
                on_disk = values[f"produce_{size}"] * values.get(f"disk_{size}_bytes", size)
                lines.append(
                    f"- {row.system.name}, {size} B, durable: {on_disk / bare / 1e6:.0%} of a bare"
                    " write with an fdatasync every 2 MiB"
                )
            copied = results.limits_of(row, f"read_{size}").get("memcpy MB/s")
            if copied:
                share = values[f"read_{size}"] * size / copied / 1e6
                lines.append(f"- {row.system.name}, {size} B, read: {share:.0%} of memcpy")
    return "\n".join(lines) + "\n"


def _versions(results: Results) -> str:
    found = {row.system.name: row.version for row in results.rows}
    return "\n".join(f"- {name}: {version}" for name, version in found.items()) + "\n"
