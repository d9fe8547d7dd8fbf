"""The list of groups is written when there is something to say, and names no group that is gone."""

from __future__ import annotations

from pathlib import Path

from tests.support.directories import opened


def roster(path: Path) -> Path:
    return path / "meta" / "groups.json"


def test_a_store_that_never_had_a_group_has_no_list(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t")
        store.append("t", [b"a"])
        store.maintain()
    with opened(tmp_path / "data"):
        pass
    assert not roster(tmp_path / "data").exists()


def test_a_group_is_in_the_list_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        store.create_topic("t")
        store.group("t", "readers")
        store.maintain()
        assert b"readers" in roster(path).read_bytes()
        store.delete_group("t", "readers")
        store.maintain()
        assert not roster(path).exists() or b"readers" not in roster(path).read_bytes()
    with opened(path) as store:
        assert store.groups() == []
        assert store.recovery_report.events == []
