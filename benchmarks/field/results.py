"""What was measured, in one file that any number of partial runs add to.

Rules.
1. A later part replaces a figure of an earlier one; it never mixes with it.
2. Every figure names its part, and every part has the limits of the machine at its time, so that
   a share of a limit is always of the same run.
3. What failed or is not installed stays in the file with the reason.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.field.suite import best
from benchmarks.field.system import FSYNC, System
from benchmarks.field.systems import SYSTEMS


@dataclass
class Row:
    """One system at one durability."""

    system: type[System]
    durability: str
    version: str = ""
    rounds: dict[str, list[float]] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, float]:
        """The best of the rounds of every figure."""
        return {name: best(name, found) for name, found in self.rounds.items()}

    @property
    def is_durable(self) -> bool:
        """Whether an acknowledged record is on the disk."""
        return self.durability == FSYNC

    def add(self, part: int, workload: str, found: dict[str, Any]) -> None:
        """Adds a round of a workload; what an earlier part had of it goes."""
        for name, values in found["figures"].items():
            if self.parts.get(name) != part:
                self.rounds[name] = []
                self.parts[name] = part
            self.rounds[name] += values
        place = f"{part} {workload}"
        for stale in [key for key in self.problems if key.endswith(f" {workload}")]:
            if stale != place:
                del self.problems[stale]
        kept = self.problems.setdefault(place, [])
        kept += [each for each in found["problems"] if each not in kept]


@dataclass
class Part:
    """One run, of everything or of some of it."""

    started: str
    rounds: int
    command: str
    seconds: float = 0.0
    limits: dict[str, float] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)

    def add_limits(self, measured: dict[str, float]) -> None:
        """Keeps the best and the worst that the machine showed in any round."""
        for name, value in measured.items():
            better, worse = (min, max) if name.endswith(" us") else (max, min)
            self.limits[name] = better(self.limits.get(name, value), value)
            self.worst[name] = worse(self.worst.get(name, value), value)


@dataclass
class Results:
    """Everything that is known."""

    path: Path
    parts: list[Part] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Results:
        """Reads the file; empty if there is none."""
        if not path.exists():
            return cls(path, machine=machine())
        data = json.loads(path.read_text())
        kinds = {kind.name: kind for kind in SYSTEMS}
        rows = [
            Row(kinds[name], **row) for row in data["rows"] if (name := row.pop("system")) in kinds
        ]
        parts = [Part(**part) for part in data["parts"]]
        return cls(path, parts, rows, data["absent"], data["machine"])

    def save(self) -> None:
        """Replaces the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{**vars(row), "system": row.system.name} for row in self.rows]
        data = {
            "machine": self.machine,
            "parts": [vars(part) for part in self.parts],
            "absent": self.absent,
            "rows": rows,
        }
        draft = self.path.with_suffix(".new")
        draft.write_text(json.dumps(data, indent=1) + "\n")
        draft.replace(self.path)

    def begin(self, rounds: int, command: str) -> Part:
        """Begins a part."""
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
        self.machine = machine()
        self.parts.append(Part(now, rounds, command))
        return self.parts[-1]

    def row(self, kind: type[System], durability: str) -> Row:
        """The row of a system, made where there is none."""
        for each in self.rows:
            if each.system is kind and each.durability == durability:
                return each
        self.rows.append(Row(kind, durability))
        order = {kind: number for number, kind in enumerate(SYSTEMS)}
        self.rows.sort(key=lambda row: (order[row.system], row.durability))
        return self.row(kind, durability)

    def of(self, name: str, durability: str) -> dict[str, float]:
        """The figures of a system; none where it was not run."""
        for each in self.rows:
            if each.system.name == name and each.durability == durability:
                return each.values
        return {}

    def limits_of(self, row: Row, figure: str) -> dict[str, float]:
        """What the machine allowed in the part that a figure is from."""
        return self.parts[row.parts[figure]].limits if figure in row.parts else {}


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "processor": f"{model}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
    }
