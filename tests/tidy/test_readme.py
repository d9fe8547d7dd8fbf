"""The README's Python runs as it stands, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lamina

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/decisions/README.md",
        *sorted(f"docs/{name.name}" for name in (ROOT / "docs").glob("*.md")),
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)\)", path.read_text())
    for link in links:
        assert (path.parent / link).exists(), link


def test_every_make_target_in_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"^(?:\$ )?make ([a-z-]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_public_face_is_what_it_says() -> None:
    assert len(set(lamina.__all__)) == len(lamina.__all__)
    for name in lamina.__all__:
        assert getattr(lamina, name) is not None
