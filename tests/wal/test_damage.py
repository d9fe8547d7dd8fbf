"""One damaged spot costs the records whose bytes are damaged, no others, and is told."""

from __future__ import annotations

import contextlib
import errno
import threading
from pathlib import Path

import pytest

from lamina.config import WalSettings
from lamina.errors import LaminaError, StorageFull
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles
from tests.wal.stores import (
    SMALL,
    contents,
    crash,
    fill,
    looked_at,
    numbered,
    opened,
    values,
)


def flip(path: Path, needle: bytes) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(needle)
    data[at] ^= 0x20
    path.write_bytes(data)


def test_damage_in_the_wal_costs_one_record(tmp_path: Path) -> None:
    store = opened(tmp_path, WalSettings(shards=1))
    store.create_topic("t", format="wal")
    for offset in range(1, 21):
        fill(store, offset, offset + 1)
    crash(store)
    flip(tmp_path / "wal" / "wal-1.log", b"value 7")
    expected = {key: each for key, each in numbered(1, 21).items() if key != 7}
    with looked_at(tmp_path) as reader:
        assert contents(reader)[0] == expected
    for _ in range(3):
        with opened(tmp_path, WalSettings(shards=1)) as again:
            found, gaps = contents(again)
            assert found == expected
            assert [(gap.first, gap.end, gap.reason) for gap in gaps] == [(7, 8, "lost")]
            again.maintain()
            assert contents(again)[0] == expected
    assert list((tmp_path / "quarantine" / "wal").iterdir())


def test_a_torn_wal_tail_is_cut_and_the_next_record_takes_its_place(tmp_path: Path) -> None:
    store = opened(tmp_path, WalSettings(shards=1))
    store.create_topic("t", format="wal")
    fill(store, 1, 11)
    crash(store)
    path = tmp_path / "wal" / "wal-1.log"
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data[:-3])
    with opened(tmp_path, WalSettings(shards=1)) as again:
        assert len(again.recovery_report.of("cut")) == 1
        assert values(again) == numbered(1, 10)
        fill(again, 10, 15)
    with opened(tmp_path, WalSettings(shards=1)) as again:
        assert values(again) == numbered(1, 15)


@pytest.mark.parametrize("offset", [3, 14, 25])
@pytest.mark.parametrize("reopened", [False, True])
def test_damage_in_a_segment_costs_one_record(tmp_path: Path, offset: int, reopened: bool) -> None:
    store = opened(tmp_path)
    store.create_topic("t", format="wal")
    for first in range(1, 26, 5):
        fill(store, first, first + 5)
    fill(store, 26, 28)
    store.create_topic("filler", format="wal")
    fill(store, 1, 100, "filler")
    for _ in range(3):
        store.maintain()
        fill(store, store.latest_offset("t"), store.latest_offset("t") + 1)
    end = store.latest_offset("t")
    if reopened:
        store.close()
    path = min(
        each
        for each in tmp_path.glob("segments/0000000000000001/*.data")
        if b"value %d" % offset in each.read_bytes()
    )
    flip(path, b"value %d" % offset)
    expected = {key: each for key, each in numbered(1, end).items() if key != offset}
    if reopened:
        store = opened(tmp_path)
    found, gaps = contents(store)
    assert found == expected
    assert [(gap.first, gap.end, gap.reason) for gap in gaps] == [(offset, offset + 1, "lost")]
    store.close()
    with opened(tmp_path) as again:
        assert contents(again)[0] == expected
        assert [gap.reason for gap in again.gaps("t")] == ["lost"]


def test_damage_at_the_end_that_the_wal_does_not_hold_is_set_aside(tmp_path: Path) -> None:
    """F9/sector: the last record of the last segment was cut off and its bytes thrown away."""
    with opened(tmp_path, WalSettings(shards=1)) as store:
        store.create_topic("t", format="wal")
        fill(store, 1, 21)
        store.roll("t")
    for path in tmp_path.glob("wal/*.log"):
        path.write_bytes(b"")
    (path,) = tmp_path.glob("segments/0000000000000001/*.data")
    flip(path, b"value 20")
    with opened(tmp_path, WalSettings(shards=1)) as again:
        found, gaps = contents(again)
        assert found == numbered(1, 20)
        assert [(gap.first, gap.end, gap.reason) for gap in gaps] == [(20, 21, "lost")]
        (event,) = again.recovery_report.of("quarantined")
        assert event.path == str(path)
        assert event.kept_in is not None
        assert b"alue 20" in Path(event.kept_in).read_bytes()


@pytest.mark.parametrize("needle", [b"value 1", b"value 7", b"value 20"])
def test_damage_in_the_last_segment_costs_nothing_while_the_wal_holds_it(
    tmp_path: Path, needle: bytes
) -> None:
    with opened(tmp_path, WalSettings(shards=1)) as store:
        store.create_topic("t", format="wal")
        fill(store, 1, 21)
        store.roll("t")
    assert needle in (tmp_path / "wal" / "wal-1.log").read_bytes()
    (path,) = tmp_path.glob("segments/0000000000000001/*.data")
    flip(path, needle)
    with opened(tmp_path, WalSettings(shards=1)) as again:
        assert contents(again) == (numbered(1, 21), [])
        fill(again, 21, 22)
    with opened(tmp_path, WalSettings(shards=1)) as again:
        assert contents(again) == (numbered(1, 22), [])


@pytest.mark.parametrize("content", [b"", b"x" * 20, b"\xff" * 45, bytes(200)])
@pytest.mark.parametrize("pattern", ["segments/*/*.idx", "wal/CURRENT", "meta/snapshot-*.bin"])
def test_a_derived_file_may_hold_anything(tmp_path: Path, pattern: str, content: bytes) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal")
        fill(store, 1, 34)
        store.maintain()
        fill(store, 34, 40)
    paths = list(tmp_path.glob(pattern))
    assert paths
    for path in paths:
        path.write_bytes(content)
    with looked_at(tmp_path) as reader:
        assert values(reader) == numbered(1, 40)
    with opened(tmp_path) as again:
        assert values(again) == numbered(1, 40)
        assert again.offset_for_time("t", 0, 0) == 1
        fill(again, 40, 45)
        again.maintain()
        assert values(again) == numbered(1, 45)


def test_writers_in_threads_lose_nothing_while_the_compactor_runs(tmp_path: Path) -> None:
    store = opened(tmp_path, WalSettings(shards=2, wal_bytes=1 << 14, segment_events=50))
    topics = [f"t{number}" for number in range(6)]
    for topic in topics:
        store.create_topic(topic, format="wal")
    answers: dict[str, dict[int, bytes]] = {topic: {} for topic in topics}

    def produce(worker: int) -> None:
        for number in range(60):
            topic = topics[(worker + number) % len(topics)]
            value = b"%d %d" % (worker, number)
            answers[topic][store.append(topic, value).base_offset] = value

    threads = [threading.Thread(target=produce, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        store.maintain()
        for topic in topics:
            contents(store, topic)
    for thread in threads:
        thread.join()
    for topic in topics:
        assert values(store, topic) == answers[topic]
    crash(store)
    with opened(tmp_path) as again:
        for topic in topics:
            assert values(again, topic) == answers[topic]


def _workload(store: Store, acked: dict[int, bytes]) -> None:
    for number in range(6):
        rows = [b"%d %d" % (number, row) for row in range(3)]
        base = store.append("t", rows).base_offset
        acked |= {base + row: value for row, value in enumerate(rows)}
        if number % 2:
            store.maintain()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_any_failing_step_loses_nothing_that_was_acknowledged(code: int) -> None:
    step = 0
    while True:
        files = SimulatedFiles()
        store = Store("/d", files=files, wal=SMALL, tick_ms=1 << 30)
        store.create_topic("t", format="wal")
        left = [step]

        def fail(kind: str, path: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise OSError(code, "injected", path)

        files.before = fail
        acked: dict[int, bytes] = {}
        with contextlib.suppress(LaminaError):
            _workload(store, acked)
        reached = left[0] < 0
        files.before = lambda kind, path: None
        found, _ = contents(store)
        assert found.items() >= acked.items(), step
        crash(store)
        again = Store("/d", files=files.snapshot().restart(), wal=SMALL, tick_ms=1 << 30)
        found, _ = contents(again)
        assert found.items() >= acked.items(), step
        end = again.latest_offset("t")
        assert again.append("t", b"more").base_offset == end
        again.close()
        if not reached:
            assert step > 20
            return
        step += 1


def test_nothing_of_a_batch_that_found_no_space_stays_behind_a_shorter_one() -> None:
    files = SimulatedFiles()
    store = Store("/d", files=files, wal=WalSettings(shards=1), tick_ms=1 << 30)
    store.create_topic("t", format="wal")
    store.append("t", [b"first"])
    files.capacity_bytes = files.used_bytes + (80 << 10)
    with pytest.raises(StorageFull):
        store.append("t", [b"x" * 1000] * 300)
    assert values(store) == {1: b"first"}
    files.capacity_bytes = None
    assert store.append("t", [b"y" * 999]).base_offset == 2
    expected = {1: b"first", 2: b"y" * 999}
    assert values(store) == expected
    crash(store)
    with Store(
        "/d", files=files.snapshot().restart(), wal=WalSettings(shards=1), tick_ms=1 << 30
    ) as again:
        assert values(again) == expected
        assert again.latest_offset("t") == 3
