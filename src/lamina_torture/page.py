"""The matrix as a table for docs/reliability.md: what each row does, and what was really run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from lamina_torture.rows import Row

HEAD = (
    "| row | what is done | must hold | formats | run | failed |",
    "|---|---|---|---|---|---|",
)


def table(rows: Iterable[Row], results: Iterable[str]) -> list[str]:
    """Makes the table's lines from the rows and the JSON lines of a run."""
    ran: dict[str, Counter[str]] = {}
    failed: Counter[str] = Counter()
    formats: dict[str, set[str]] = {}
    reasons: dict[str, str] = {}
    for line in results:
        told = json.loads(line)
        if told["not_run"]:
            reasons[told["row"]] = f"not possible here: {told['not_run']}"
        else:
            ran.setdefault(told["row"], Counter()).update(told["counts"])
            formats.setdefault(told["row"], set()).add(told["format"])
            failed[told["row"]] += len(told["failures"])
    lines = list(HEAD)
    for row in rows:
        counts = ran.get(row.key, Counter())
        run = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
        missing = [name for name in row.formats if name not in formats.get(row.key, set())]
        if missing:
            run += f" (not {', '.join(missing)})"
        cells = [f"`{row.key}`", row.about, " ".join(row.invariants), ", ".join(row.formats)]
        was_run = row.key in formats
        cells += [run if was_run else reasons.get(row.key, "not run")]
        cells += [str(failed[row.key]) if was_run else "–"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
