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
    tour = (ROOT / "docs" / "start.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", README + tour, re.DOTALL)
    assert len(blocks) >= 6
    for block in (*blocks, *blocks):  # whoever tries a block tries it again
        exec(compile(block, "the tour", "exec"), {})


def test_the_readme_is_short_and_says_the_first_things_first() -> None:
    assert len(README.splitlines()) <= 130
    heads = re.findall(r"^## (.+)$", README, re.MULTILINE)
    assert heads == ["Install", "Five lines", "Promises", "Measured", "Documentation"]
    assert "![" in README.partition("## Install")[0], "a picture comes first"
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(block.strip().splitlines()) <= 8


def test_no_page_calls_a_target_a_bar() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"(space|progress) bar", "", page.read_text())
        assert not re.search(r"\bbars?\b", text, re.IGNORECASE), page.name


def test_the_page_on_asyncio_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/asyncio.md").read_text(), re.DOTALL)
    for _ in range(2):
        exec(compile(block, "asyncio.md", "exec"), {"__name__": "__main__"})


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
    assert set(lamina.__all__) <= set(dir(lamina))
    assert not [name for name in dir(lamina) if name.startswith("_") and name[:2] != "__"]
