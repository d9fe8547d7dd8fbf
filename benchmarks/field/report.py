"""The report of a run: tables, ratios, plots as SVG and PNG, the machine and the commands."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.field.suite import Figures
from benchmarks.field.system import System

COLUMNS = {
    "produce_100": ("produce 100 B, k/s", 1e-3),
    "produce_1024": ("produce 1 KiB, k/s", 1e-3),
    "each_100": ("one batch at a time, k/s", 1e-3),
    "read_100": ("read 100 B, k/s", 1e-3),
    "read_1024": ("read 1 KiB, k/s", 1e-3),
    "lone_p50_us": ("lone p50, µs", 1),
    "lone_p99_us": ("lone p99, µs", 1),
    "many": ("16 producers, /s", 1),
    "seek_us": ("seek by time, µs", 1),
    "recover_1M_s": ("after kill -9 with 1 M, s", 1),
    "disk_100_bytes": ("bytes a record (100 B)", 1),
    "disk_1024_bytes": ("bytes a record (1 KiB)", 1),
    "rest_memory_bytes": ("memory at rest, MB", 1e-6),
    "load_memory_bytes": ("memory under load, MB", 1e-6),
}
PLOTTED = ("produce_100", "produce_1024", "read_100", "read_1024", "lone_p50_us", "many")
OWN, OTHER, CEILING = "#0f766e", "#94a3b8", "#d6d3d1"


@dataclass
class Run:
    """Everything that one run found."""

    figures: list[Figures]
    absent: dict[str, str]
    limits: dict[str, float] = field(default_factory=dict)
    fresh: dict[str, float] = field(default_factory=dict)
    cold: dict[str, float] = field(default_factory=dict)

    def of(self, name: str, durability: str) -> Figures:
        """The figures of a system; empty ones where it was not run."""
        for each in self.figures:
            if each.system.name == name and each.durability == durability:
                return each
        return Figures(System, durability)

    def keep(self, name: str, seconds: float) -> None:
        """Keeps the shortest time of a fresh process."""
        self.fresh[name] = min(self.fresh.get(name, seconds), seconds)

    def add_limits(self, measured: dict[str, float]) -> None:
        """Keeps the best that the machine showed in any round."""
        for name, value in measured.items():
            better = min if name.endswith(" us") else max
            self.limits[name] = better(self.limits.get(name, value), value)


def write(run: Run, folder: Path) -> Path:
    """Writes report.md, figures.json and the plots; returns the report's path."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"system": each.system.name, "version": each.system.version()}
        | {"durability": each.durability, **each.values, "problems": each.problems}
        for each in run.figures
    ]
    data = {"machine": machine(), "limits": run.limits, "fresh": run.fresh, "cold": run.cold}
    (folder / "figures.json").write_text(json.dumps(data | {"rows": rows}, indent=1) + "\n")
    plots = [plot(run, name, folder) for name in PLOTTED]
    path = folder / "report.md"
    path.write_text(_text(run, [name for name in plots if name]))
    return path


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "processor": f"{model}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _text(run: Run, plots: list[str]) -> str:
    about = machine()
    parts = [
        "# Lamina beside the field\n",
        "One run of `make bench`: every system in turn, in interleaved rounds, the best of them"
        " shown. `fsync` means that an acknowledged record is on the disk; `default` is each"
        " system as it comes (for Lamina: acks=1).\n",
        "\n".join(f"- {name}: {value}" for name, value in about.items()) + "\n",
        _table(run),
        "## What the machine allows\n",
        _pairs(run.limits),
        "## Fresh processes\n",
        _pairs(run.fresh),
        "## Archive\n",
        _pairs(run.cold),
        _shares(run),
    ]
    if run.absent:
        lines = "\n".join(f"- {name}: {why}" for name, why in run.absent.items())
        parts += ["## Not run\n", lines + "\n"]
    troubles = [
        f"- {each.system.name} ({each.durability}): {problem}"
        for each in run.figures
        for problem in dict.fromkeys(each.problems)
    ]
    if troubles:
        parts += ["## Problems met\n", "\n".join(troubles) + "\n"]
    parts += [f"![{name}]({name}.svg)\n" for name in plots]
    return "\n".join(parts)


def _table(run: Run) -> str:
    heads = ["system", "durability", *(title for title, _ in COLUMNS.values())]
    lines = [" | ".join(heads), " | ".join(["---", "---", *["---:"] * len(COLUMNS)])]
    for each in run.figures:
        cells = [f"{each.system.name} ({each.system.version()})", each.durability]
        for name, (_, scale) in COLUMNS.items():
            value = each.values.get(name)
            cells.append("-" if value is None else _short(value * scale))
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _pairs(values: dict[str, float]) -> str:
    lines = ["| what | measured |", "| --- | ---: |"]
    lines += [f"| {name} | {_short(value)} |" for name, value in values.items()]
    return "\n".join(lines) + "\n"


def _shares(run: Run) -> str:
    """How much of the machine the embedded log uses."""
    if not run.limits:
        return ""
    lines = ["## Share of what is possible\n"]
    copied = run.limits["write, fdatasync every 2 MiB MB/s"] * 1e6
    for name in ("Lamina keratin", "Lamina frame", "Lamina wal"):
        values = run.of(name, "fsync").values
        for size in (100, 1024):
            rate = values.get(f"produce_{size}")
            if rate is not None:
                share = rate * values.get(f"disk_{size}_bytes", size) / copied
                lines.append(
                    f"- {name}, {size} B records, durable: {share:.0%} of a bare write with an"
                    " fdatasync every 2 MiB"
                )
        if "lone_p50_us" in values:
            times = values["lone_p50_us"] / run.limits["write + fdatasync of 148 B us"]
            lines.append(f"- {name}, lone durable append: {times:.2f} times write + fdatasync")
    return "\n".join(lines) + "\n"


def plot(run: Run, name: str, folder: Path) -> str | None:
    """Draws one figure of all systems as bars; returns its name, None if nobody has it."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "lamina"
    title, scale = COLUMNS[name]
    found = [
        (f"{each.system.name}, {each.durability}", each.values[name] * scale, each.system.kind)
        for each in run.figures
        if name in each.values
    ]
    if not found:
        return None
    less_is_better = name.endswith(("_us", "_s"))
    found.sort(key=lambda row: row[1], reverse=less_is_better)
    colours = [
        OWN if label.startswith("Lamina") else CEILING if kind in ("ceiling", "files") else OTHER
        for label, _, kind in found
    ]
    figure, axes = plt.subplots(figsize=(8, 0.32 * len(found) + 0.9))
    axes.barh([label for label, _, _ in found], [value for _, value, _ in found], color=colours)
    axes.set_xscale("log")
    axes.set_title(title + (" (less is better)" if less_is_better else ""), loc="left")
    for place, (_, value, _) in enumerate(found):
        axes.text(value, place, f" {_short(value)}", va="center", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.15)
    figure.tight_layout()
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{name}.png", dpi=110)
    plt.close(figure)
    return name
