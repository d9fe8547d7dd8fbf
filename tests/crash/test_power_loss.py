"""Power is lost, or the process killed, after every step of a workload; and again in recovery.

A failure names format, step and choice: `-k` and `losing_power.REPLAY` reproduce it.
"""

from __future__ import annotations

from typing import Any

import pytest

from lamina.storage.files import Files
from lamina.torture.disk import Disk
from lamina.torture.simulated import SimulatedFiles
from tests.crash.losing_power import REPLAY, Scribe, kill_recoveries, run
from tests.support.file_system import FileSystemContract

FORMATS = ("frame", "keratin")
SEEDS = 1


def workload(scribe: Scribe) -> None:
    """Everything that changes a disk, once."""
    store = scribe.open()
    scribe.create("orders")
    scribe.append("orders", [100, 40, 10])
    scribe.append("orders", [300], acks=1)
    scribe.append("orders", [20, 20], acks=0)
    store.maintain()
    values = scribe.append("orders", [50, 60], sequence=0)
    scribe.retry("orders", values)
    scribe.append("orders", [600, 500])
    scribe.append("orders", [200] * 14)
    values = scribe.append("orders", [400, 500, 30], sequence=2)
    scribe.append("orders", [10], acks=1)
    scribe.trim("orders", 9)
    scribe.create("other", **{"segment.bytes": 4096})
    scribe.append("other", [700], acks=1)
    store.maintain()
    scribe.append("other", [5])
    scribe.retain("orders", 1500)
    scribe.delete("other")
    scribe.create("other", **{"segment.bytes": 2048})
    scribe.append("other", [9])
    scribe.close()
    scribe.open()
    scribe.retry("orders", values)
    scribe.append("orders", [1500, 20, 30], sequence=5)
    scribe.append("other", [900, 900], acks=1)
    scribe.trim("orders", len(scribe.life("orders").values))
    scribe.delete("orders")
    scribe.create("orders")
    scribe.append("orders", [33])
    scribe.close()


@pytest.fixture(scope="module", params=FORMATS)
def history(request: pytest.FixtureRequest) -> Scribe:
    scribe = Scribe(request.param)
    workload(scribe)
    return scribe


# ---------------------------------------------------------------- the tests


def test_nothing_promised_is_lost_whenever_power_fails(history: Scribe) -> None:
    assert run(history, SEEDS) > 1000 or REPLAY


@pytest.mark.long
def test_nothing_promised_is_lost_by_more_seeds(history: Scribe) -> None:
    assert run(history, 20) > 10_000 or REPLAY


def test_recovery_can_be_killed_at_every_step(history: Scribe) -> None:
    assert kill_recoveries(history, history.moments[20::60]) > 300


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
