"""axe, the checker of accessibility: from npm, into the page that is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

AXE = Path(__file__).parents[3] / "console" / "node_modules" / "axe-core" / "axe.min.js"
NONE = "no axe: `make test` takes it from npm where there is npm"
STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def source() -> str:
    if not AXE.exists():
        pytest.skip(NONE)
    return AXE.read_text()


COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
"""What depends on light and dark; the rest is the same in both."""


def violations(page: Page, axe: str, rules: Any = STANDARDS) -> list[str]:
    """Returns what is wrong with the page as it is now, an element a line."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe)
    found: dict[str, Any] = page.evaluate(
        "(rules) => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", rules
    )
    return [
        f"{each['id']}: {node['html'][:120]} {node['failureSummary'][:300]}"
        for each in found["violations"]
        for node in each["nodes"]
    ]
