"""The simulated disk: what it loses, keeps and fails, and that it is a file system at all.

That a store survives on it is for the rows F2 to F7 of the fault matrix.
"""

from __future__ import annotations

from typing import Any

import pytest

from lamina.storage.files import Files
from lamina_torture.disk import Chosen, Disk
from lamina_torture.simulated import SimulatedFiles
from tests.support.file_system import FileSystemContract


class TestSimulatedFiles(FileSystemContract):
    @pytest.fixture
    def files(self) -> Files:
        files = SimulatedFiles()
        files.make_directory("/root")
        return files

    @pytest.fixture
    def root(self) -> str:
        return "/root"


def test_the_simulation_loses_what_was_not_synced_and_nothing_else() -> None:
    files = SimulatedFiles()
    files.make_directory("/d")
    file = files.create("/d/a")
    file.write_at(0, b"safe")
    file.sync()
    assert files.snapshot().crash("dropped").list("/d") == [], "its name was not synced"
    files.sync_directory("/d")
    file.write_at(2, b"xx12")
    files.create("/d/b")
    disk = files.snapshot()
    assert disk.crash("dropped").contents() == {"/d/a": b"safe"}
    assert disk.crash("kept").contents() == {"/d/a": b"saxx12", "/d/b": b""}
    assert disk.restart().contents() == disk.crash("kept").contents()
    assert disk.restart().snapshot().crash("dropped").contents() == {"/d/a": b"safe"}
    found = {content for seed in range(200) for content in disk.crash(seed).contents().items()}
    assert {("/d/a", b"safe"), ("/d/a", b"saxx12"), ("/d/b", b"")} <= found
    assert all(data[:2] == b"sa" for path, data in found if path == "/d/a"), "synced bytes stay"


def test_the_simulation_keeps_either_side_of_a_replacement() -> None:
    files = SimulatedFiles()
    files.make_directory("/d")
    files.replace("/d/a", b"old")
    disks: list[Disk] = []
    files.before = lambda kind, path: disks.append(files.snapshot())
    files.replace("/d/a", b"new")
    found = {disk.crash(seed).contents()["/d/a"] for disk in disks for seed in range(50)}
    assert found == {b"old", b"new"}
    assert files.snapshot().crash("dropped").contents() == {"/d/a": b"new"}


def test_the_simulation_keeps_later_sectors_without_earlier_ones() -> None:
    files = SimulatedFiles()
    files.make_directory("/d")
    file = files.create("/d/a")
    files.sync_directory("/d")
    file.write_at(0, b"a" * 512 + b"b" * 512)
    disk = files.snapshot()
    found = {disk.crash(seed).contents()["/d/a"] for seed in range(300)}
    assert bytes(512) + b"b" * 512 in found
    assert b"a" * 512 in found
    assert b"a" * 512 + bytes(512) in found
    assert any(len(data) == 1024 and data.strip(b"\0ab") for data in found), "garbage"


@pytest.mark.parametrize("after", ["dropped", "kept", "pending", "done"])
def test_the_simulation_fails_a_sync_in_four_ways(after: Any) -> None:
    files = SimulatedFiles()
    files.make_directory("/d")
    file = files.create("/d/a")
    files.sync_directory("/d")
    file.write_at(0, b"abc")
    files.fail("sync", after=after)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    assert file.read_at(0, 9) == (b"" if after == "dropped" else b"abc")
    file.sync()
    safe = files.snapshot().crash("dropped").contents()["/d/a"]
    assert safe == (b"" if after in ("dropped", "kept") else b"abc")


def test_the_simulation_keeps_exactly_the_chosen_units() -> None:
    files = SimulatedFiles()
    files.make_directory("/d")
    file = files.create("/d/a")
    files.sync_directory("/d")
    file.write_at(0, b"a" * 512 + b"b" * 512)
    files.create("/d/b")
    disk = files.snapshot()
    units = disk.units()
    assert [unit.inode is None for unit in units] == [True, False, False]
    found = set()
    for mask in range(8):
        kept = [unit for bit, unit in enumerate(units) if mask >> bit & 1]
        found.add(tuple(sorted(disk.crash(Chosen(kept)).contents().items())))
    assert len(found) == 8, "every subset is another disk"
    assert len(disk.units(4096)) == 2, "a page is one unit"
    zeros = disk.crash(Chosen([], tail="zeros")).contents()
    assert zeros == {"/d/a": bytes(1024)}, "the length was kept without the data"


def test_a_lying_sync_succeeds_and_saves_nothing() -> None:
    files = SimulatedFiles()
    files.make_directory("/d")
    file = files.create("/d/a")
    files.sync_directory("/d")
    file.write_at(0, b"abc")
    files.fail("sync", lies=True)
    file.sync()
    assert files.snapshot().crash("dropped").contents() == {"/d/a": b""}
    file.sync()
    assert files.snapshot().crash("dropped").contents() == {"/d/a": b"abc"}
