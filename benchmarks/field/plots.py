"""The plots of the report, as SVG and PNG: one figure of all systems each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.field.results import Results
from benchmarks.field.suite import less_is_better

PLOTTED = (
    *("produce_100", "produce_1024", "read_100", "read_1024", "lone_p50_us", "many"),
    *("opened_1M_s",),
)
OWN, OTHER, CEILING = "#0f766e", "#94a3b8", "#d6d3d1"


def draw(
    results: Results, columns: Mapping[str, tuple[str, float]], folder: Path
) -> list[tuple[str, str]]:
    """Draws what there are figures for; returns names and titles."""
    found = []
    for name in PLOTTED:
        title, scale = columns[name]
        if less_is_better(name):
            title += " (less is better)"
        if _bars(results, name, title, scale, folder):
            found.append((name, title))
    return found


def _bars(results: Results, name: str, title: str, scale: float, folder: Path) -> bool:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "lamina"
    found = [
        (f"{row.system.name}, {row.durability}", row.values[name] * scale, row.system.kind)
        for row in results.rows
        if name in row.values
    ]
    if not found:
        return False
    found.sort(key=lambda row: row[1], reverse=less_is_better(name))
    colours = [
        OWN if label.startswith("Lamina") else CEILING if kind in ("ceiling", "files") else OTHER
        for label, _, kind in found
    ]
    figure, axes = plt.subplots(figsize=(8, 0.32 * len(found) + 0.9))
    axes.barh([label for label, _, _ in found], [value for _, value, _ in found], color=colours)
    axes.set_xscale("log")
    axes.set_title(title, loc="left")
    for place, (_, value, _) in enumerate(found):
        text = f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
        axes.text(value, place, f" {text}", va="center", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.15)
    figure.tight_layout()
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{name}.png", dpi=110)
    plt.close(figure)
    return True
