"""Bad sectors on a real ext4: a few pages of every kind of file; `lamina torture` tries more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lamina_torture.faults import sectors

pytestmark = pytest.mark.skipif(
    sectors.needs_bad_disk() is not None, reason=str(sectors.needs_bad_disk())
)


@pytest.mark.parametrize("format_name", ["frame", "keratin", "wal"])
def test_a_bad_sector_costs_its_records_and_nobody_dies(format_name: str, tmp_path: Path) -> None:
    with sectors.bad_ext4(tmp_path) as disk:
        made = str(disk.at / "made")
        whole = sectors.filled(made, format_name)
        by_kind: dict[str, list[tuple[str, int]]] = {}
        for path, page in sectors.pages_of(made):
            by_kind.setdefault(Path(path).suffix or Path(path).name, []).append((path, page))
        outcomes = []
        for pages in by_kind.values():
            for path, page in {pages[0], pages[len(pages) // 2], pages[-1]}:
                copy = str(disk.at / "copy")
                shutil.copytree(made, copy)
                spoiled = copy + path.removeprefix(made)
                outcomes.append(sectors.check_page(disk, copy, spoiled, page, whole))
                shutil.rmtree(copy)
        assert "served" in outcomes
