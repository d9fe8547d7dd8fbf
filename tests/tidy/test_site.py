"""The documentation as a site: every page is in it, no link is broken, the reference is code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import lamina
from lamina.cli.main import app
from tests.tidy import reference_pages

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "docs"
    reference_pages.write(folder)
    return folder


def test_the_site_is_built_and_no_link_is_broken(pages: Path) -> None:
    zensical = Path(sys.executable).with_name("zensical")
    if not zensical.exists():
        pytest.skip("zensical is not installed: pip install '.[docs]'")
    folder = pages.parent
    (folder / "zensical.toml").write_text(reference_pages.configuration(pages))
    done = subprocess.run(
        [zensical, "build", "--strict", "--config-file", "zensical.toml"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for page in ("index", "start/index", "reference/errors/index", "formats/keratin/index"):
        assert "names.css" in (folder / "site" / f"{page}.html").read_text(), page
    assert "nowrap" in (folder / "site" / "names.css").read_text()
    shutil.rmtree(folder / "site")


def test_every_link_of_the_site_leads_to_a_page_and_a_heading(pages: Path) -> None:
    broken = []
    for page in pages.rglob("*.md"):
        for link in links(page.read_text()):
            path, _, anchor = link.partition("#")
            target = page if not path else (page.parent / path)
            if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
                broken.append(f"{page.relative_to(pages)}: {link}")
    assert broken == []


def links(text: str) -> list[str]:
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    plain = re.sub(r"`[^`\n]*`", "", plain)
    found = re.findall(r"\]\(([^)\s]+)\)", plain)
    return [each for each in found if not each.startswith(("http:", "https:"))]


def anchors(text: str) -> set[str]:
    """Headings as the site's generator names them; a repeated one gets a number."""
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
    return {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", each.lower())).strip("-") for each in heads
    }


def test_a_broken_link_would_be_noticed() -> None:
    assert links("[a](b.md) `[c](d.md)` [e](https://f)\n```\n[g](h.md)\n```\n") == ["b.md"]
    assert anchors("# One: two `three`\n") == {"one-two-three"}


def test_every_page_is_in_the_navigation(pages: Path) -> None:
    listed = {
        page for section in reference_pages.sections(pages).values() for page in section.values()
    }
    assert listed == {page.relative_to(pages).as_posix() for page in pages.rglob("*.md")}
    sections = list(reference_pages.sections(pages))
    assert sections[:4] == ["Start", "Guides", "Operate", "Reference"]
    assert "comparison.md" in reference_pages.sections(pages)["Start"].values()
    assert "cluster.md" in reference_pages.sections(pages)["Operate"].values()


def test_the_api_page_has_every_public_name_and_method() -> None:
    page = reference_pages.api_page()
    for name in lamina.__all__:
        assert f"### `lamina.{name}`" in page
    for name in ("append", "scan", "fetch", "create_topic", "trim", "group", "layers"):
        assert f"### `store.{name}`" in page
    for name in ("poll", "ack", "release"):
        assert f"### `group.{name}`" in page


def test_the_settings_page_has_every_setting_of_every_table() -> None:
    page = reference_pages.settings_page()
    for kind in reference_pages.SETTINGS.values():
        for row in kind.explained():
            assert f"| `{row['key']}` |" in page, row["key"]


def test_the_errors_page_says_of_every_error_what_to_do() -> None:
    kinds = reference_pages.error_kinds()
    page = reference_pages.errors_page()
    assert set(reference_pages.REMEDIES) <= {kind.__name__ for kind in kinds}
    for kind in kinds:
        row = next(line for line in page.splitlines() if line.startswith(f"| `{kind.__name__}` |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert all(cells), row


def test_the_metrics_page_has_what_a_server_answers() -> None:
    page = reference_pages.metrics_page()
    names = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert {"lamina_calls_total", "lamina_append_seconds", "lamina_consumergroup_lag"} <= set(names)
    assert len(names) == len(set(names)) == len(reference_pages.metric_families())


def test_the_commands_page_has_every_command() -> None:
    page = reference_pages.commands_page()
    there = list(reference_pages.commands(typer.main.get_command(app)))
    assert len(there) > 20
    for words, _ in there:
        assert f"## `lamina {words}`" in page
