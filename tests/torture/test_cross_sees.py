"""Users of the cross product see what they look for: each check fails on a product that lies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import Unavailable
from lamina.log import retention
from lamina.store.store import Store
from lamina_torture.cross import changers, doors, promise, templates
from lamina_torture.cross.damages import PAGE_BYTES, Damaged
from lamina_torture.cross.ground import Ground
from lamina_torture.cross.judge import lay, run_case
from lamina_torture.cross.users import USERS
from lamina_torture.faults.sectors import BadExt4, bad_ext4, needs_bad_disk
from lamina_torture.rows import Violation


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, templates.Template]:
    root = tmp_path_factory.mktemp("cross") / "root"
    return root, templates.make(root, "frame", archived=True)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BadExt4]:
    if (problem := needs_bad_disk()) is not None:
        pytest.skip(problem)
    with bad_ext4(tmp_path_factory.mktemp("disk")) as made:
        yield made


@pytest.fixture
def ground(whole: tuple[Path, templates.Template]) -> Iterator[Ground]:
    """A root on which nothing is damaged."""
    root, template = whole
    path = template.tiers["sealed"][0]
    template.lay_out(root)
    with templates.environment(root, archived=True):
        yield Ground(root, template, Damaged(path, "bit", template.files[path], frozenset()))
    root.rename(root.with_name(f"{root.name}-{id(template)}-{len(list(root.parent.iterdir()))}"))


def test_whoever_meets_no_damage_has_nothing_to_complain_of(ground: Ground) -> None:
    doors.metrics(ground)
    changers.retention(ground)


def test_metrics_without_the_archived_records_are_seen(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Store.describe_topic

    def local_only(self: Store, topic: str) -> Any:
        info = real(self, topic)
        parts = [replace(part, earliest_offset=40) for part in info.partitions]
        return replace(info, partitions=parts)

    monkeypatch.setattr(Store, "describe_topic", local_only)
    with pytest.raises(Violation, match="/metrics: t begins at 40"):
        doors.metrics(ground)


def test_metrics_that_leave_a_topic_out_are_seen(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: Store, topic: str) -> Any:
        raise Unavailable("not now")

    monkeypatch.setattr(Store, "describe_topic", refuses)
    with pytest.raises(Violation, match="/metrics says nothing of t"):
        doors.metrics(ground)


def test_a_cap_that_keeps_less_than_it_names_is_seen(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "is_beyond_cap", lambda held, excess: excess > 0)
    with pytest.raises(Violation, match=f"of {changers.CAP_BYTES} bytes to keep"):
        changers.retention(ground)


@pytest.mark.parametrize(
    ("tier", "suffix", "may"),
    [("active", ".log", True), ("sealed", ".log", False), ("active", ".idx", False)],
)
def test_a_page_refuses_a_store_only_where_recovery_decides_by_it(
    ground: Ground, tier: str, suffix: str, may: bool
) -> None:
    path = next(path for path in ground.template.tiers[tier] if path.endswith(suffix))
    bad = replace(ground, damaged=Damaged(path, "eio", b"", frozenset()))
    assert promise.may_refuse(bad, Unavailable(f"reading {ground.root / path} failed")) == may
    assert not promise.may_refuse(bad, Unavailable("reading something failed"))


def spoiled(disk: BadExt4, template: templates.Template, path: str) -> Ground:
    """Lays a template out, and has the first page of a file not delivered."""
    hurt = frozenset(template.touched(path, 0, PAGE_BYTES))
    damaged = Damaged(path, "eio", template.files[path], hurt)
    ground = Ground(disk.at / "root", template, damaged, disk.heal)
    lay(ground)
    disk.spoil(str(ground.where), 0)
    with pytest.raises(OSError, match="Input/output error"):
        ground.where.read_bytes()
    return ground


@pytest.mark.parametrize(
    ("format_name", "suffix"),
    [("frame", "0.idx"), ("frame", "0.timeidx"), ("keratin", "manifest.bin"), ("wal", "CURRENT")],
)
def test_a_page_of_what_can_be_made_again_does_not_keep_a_store_shut(
    disk: BadExt4, format_name: str, suffix: str
) -> None:
    shutil.rmtree(disk.at / "root", ignore_errors=True)
    template = templates.make(disk.at / "root", format_name, archived=False)
    path = next(path for path in template.files if path.endswith(suffix))
    assert run_case(spoiled(disk, template, path), USERS["scan"]) == "held"


@pytest.mark.parametrize(("format_name", "suffix"), [("frame", ".log"), ("wal", ".data")])
def test_what_the_device_does_not_deliver_is_not_archived_as_gone(
    disk: BadExt4, caplog: pytest.LogCaptureFixture, format_name: str, suffix: str
) -> None:
    """Or local retention would take the only copy, of records that can be read again later."""
    caplog.set_level("CRITICAL")  # a log that is kept keeps an error, and with it what is open
    shutil.rmtree(disk.at / "root", ignore_errors=True)
    template = templates.make(disk.at / "root", format_name, archived=True)
    path = max(path for path in template.tiers["sealed"] if path.endswith(suffix))
    assert run_case(spoiled(disk, template, path), USERS["archive"]) == "held"
