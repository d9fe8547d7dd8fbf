"""What a crash leaves at the end of the WAL, what it leaves elsewhere, and what is made of each."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lamina.config import WalSettings, WriterSettings
from lamina.errors import RecordsMissing
from lamina.formats.wal import log
from lamina.formats.wal.headers import headers
from lamina.store.store import Store
from lamina.wal.wal_partition import WalPartition
from lamina_torture.disk import Disk
from lamina_torture.simulated import SimulatedFiles
from tests.wal.stores import SMALL, Clock, contents, crash, fill, numbered, opened, values

QUIET = WriterSettings(flush_ms=1 << 31)
ONE = WalSettings(shards=1)


def on_disk(files: SimulatedFiles, wal: WalSettings = ONE) -> Store:
    return Store("/d", files=files, wal=wal, writer=QUIET, tick_ms=1 << 30)


def torn_middle() -> tuple[Disk, int]:
    """A disk that lost power with unsynced groups, and a seed by which a middle one is lost."""
    files = SimulatedFiles()
    store = on_disk(files)
    store.create_topic("t", format="wal", config={"durability": "disk"})
    fill(store, 1, 3, acks="all")
    for first in range(3, 12):
        store.append("t", [b"value %d" % first + b" " * 600], acks=1)
    disk = files.snapshot()
    crash(store)
    for seed in range(500):
        with on_disk(disk.crash(seed)) as again:
            found, _ = contents(again)
            holes = set(range(1, max(found))) - found.keys()
            if holes and max(found) < 11:
                return disk, seed
    raise AssertionError("no seed loses a middle group only")


def told(store: Store) -> list[tuple[int, int, str]]:
    return [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")]


def test_a_gap_outlives_a_second_crash_and_what_follows_keeps_its_offset() -> None:
    disk, seed = torn_middle()
    files = disk.crash(seed)
    store = on_disk(files)
    first, gaps = contents(store)
    assert {gap.reason for gap in gaps} == {"truncated"}, "none of it was ever acknowledged"
    expected = told(store)
    end = store.latest_offset("t")
    assert set(first) | {at for a, b, _ in expected for at in range(a, b)} == set(range(1, end))
    after = files.snapshot()
    crash(store)
    for again in (after.crash("dropped"), after.crash("kept"), after.restart()):
        store = on_disk(again)
        assert (contents(store)[0], told(store)) == (first, expected), "after a second crash"
        assert store.append("t", [b"next"], acks="all").base_offset == end
        third = again.snapshot().crash("dropped")
        store.maintain()
        assert contents(store)[0] == first | {end: b"next"}
        store.close()
        for last in (third, again):
            with on_disk(last) as store:
                assert contents(store)[0] == first | {end: b"next"}
                assert told(store) == expected
                with pytest.raises(RecordsMissing) as missing:
                    list(store.scan("t", start=expected[0][0]))
                assert missing.value.reason == "truncated"


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_failed_group_never_comes_back_behind_a_shorter_one(error: str) -> None:
    for share in (0.3, 0.6, 0.95, 1.0):
        files = SimulatedFiles()
        store = on_disk(files)
        store.create_topic("t", format="wal")
        fill(store, 1, 3)
        files.fail("write_at", at=1, error=getattr(errno, error), written=share)
        rows = [b"refused %d" % number for number in range(6)]
        with pytest.raises(Exception, match=r"space|failed"):
            store.append("t", rows)
        if error == "EIO":  # the shard is poisoned until it is opened again
            crash(store)
            files = files.snapshot().restart()
            store = on_disk(files)
        end = store.latest_offset("t")
        kept = {at: value for at, value in contents(store)[0].items() if at >= 3}
        assert set(kept.values()) <= set(rows if error == "EIO" else [])
        store.append("t", [b"short"])
        expected = numbered(1, 3) | kept | {end: b"short"}
        disk = files.snapshot()
        assert contents(store)[0] == expected
        crash(store)
        for again in (disk.crash("dropped"), disk.crash("kept"), disk.restart()):
            with on_disk(again) as store:
                assert values(store) == expected


def tear(path: Path, value: bytes) -> None:
    """Leaves the space of what was to be written from the middle of a value on."""
    data = path.read_bytes()
    end = data.rindex(value) + 3
    path.write_bytes(data[:end] + bytes(len(data) - end))


def damage_last(path: Path) -> int:
    """Damages the value of a WAL file's last record; returns its offset."""
    data = bytearray(path.read_bytes())
    found = log.scan(data)
    columns = headers(data, found)
    row = int(columns.sequences.argmax())
    data[int(found.positions[row] + columns.lengths[row]) - 9] ^= 0x40
    path.write_bytes(data)
    return int(columns.sequences[row])


def full_wal_file(path: Path) -> None:
    """Three WAL files, of which only the last is not full; nothing is in segments.

    The clock stands still: a checksum that happens to continue a value would be found as one.
    """
    store = opened(path, now_ms=Clock())
    store.create_topic("t", format="wal")
    for first in range(1, 90):
        fill(store, first, first + 1)
    assert len(list(path.glob("wal/wal-*.log"))) == 3
    crash(store)


def test_a_damaged_last_frame_of_a_full_wal_file_is_a_loss_and_a_torn_one_of_the_last_is_none(
    tmp_path: Path,
) -> None:
    full_wal_file(tmp_path)
    logs = sorted(tmp_path.glob("wal/wal-*.log"))
    last = damage_last(logs[0])
    tear(logs[-1], b"value 89")
    for _ in range(2):
        with opened(tmp_path) as store:
            found, gaps = contents(store)
            assert found == {at: value for at, value in numbered(1, 89).items() if at != last}
            assert [(gap.first, gap.end, gap.reason) for gap in gaps] == [(last, last + 1, "lost")]


def test_a_sealed_segment_that_lost_its_end_is_a_loss_and_not_a_torn_tail(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal")
        fill(store, 1, 35)
    sealed = sorted(tmp_path.glob("segments/*/*.data"))
    assert len(sealed) == 4
    sealed[1].write_bytes(sealed[1].read_bytes()[:-5])
    for _ in range(2):
        with opened(tmp_path) as store:
            found, gaps = contents(store)
            assert found == {at: value for at, value in numbered(1, 35).items() if at != 20}
            assert [(gap.first, gap.end, gap.reason) for gap in gaps] == [(20, 21, "lost")]
            assert not store.recovery_report.of("cut")


def test_an_active_segment_torn_by_a_checkpoint_is_made_whole_from_the_wal(tmp_path: Path) -> None:
    store = opened(tmp_path, ONE)
    store.create_topic("t", format="wal")
    fill(store, 1, 8)
    store.maintain()
    crash(store)
    (data,) = tmp_path.glob("segments/*/*.data")
    whole = data.read_bytes()
    for size in range(0, len(whole), 11):
        data.write_bytes(whole[:size])
        with opened(tmp_path, ONE) as again:
            assert values(again) == numbered(1, 8), size
            assert not again.gaps("t")
            crash(again)


def test_the_wal_keeps_what_could_not_be_checkpointed() -> None:
    files = SimulatedFiles()
    store = on_disk(files, SMALL)
    for topic in ("t", "u"):
        store.create_topic(topic, format="wal")

    def refuse(kind: str, path: str) -> None:
        if kind == "create" and "/segments/0000000000000001/" in path:
            raise OSError(errno.EIO, "no segments for this topic", path)

    files.before = refuse
    for first in range(1, 60, 10):
        fill(store, first, first + 10)
        store.append("u", [b"x" * 900] * 4)
        store.maintain()
    names = [path for path in files.contents() if "/wal/wal-" in path]
    assert len(names) > 4, "nothing of the first topic is in segments, so its files stay"
    disk = files.snapshot()
    files.before = None
    assert values(store) == numbered(1, 61)
    store.maintain()
    assert values(store) == numbered(1, 61)
    store.close()
    for again in (files, disk.crash("dropped"), disk.restart()):
        with on_disk(again, SMALL) as store:
            assert values(store) == numbered(1, 61)


def test_a_deleted_topic_leaves_nothing_behind(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for topic in ("t", "u"):
        store.create_topic(topic, format="wal")
        fill(store, 1, 30, topic)
    store.maintain()
    fill(store, 30, 40)
    store.delete_topic("t")
    crash(store)
    with opened(tmp_path) as again:
        assert again.topics() == ["u"]
        report = again.recovery_report
        assert not report.of("note"), "its records in the WAL are known to be nobody's"
        assert not report.of("quarantined")
    assert not (tmp_path / "segments" / f"{1:016x}").exists()


def test_a_topic_whose_frames_lie_in_many_shards_is_read_in_order(tmp_path: Path) -> None:
    end = 1
    for shards in (8, *range(1, 9), *range(8, 0, -1), 5, 2, 7):
        store = opened(tmp_path, WalSettings(shards=shards))
        for topic in ("t", "u", "v"):
            if end == 1:
                store.create_topic(topic, format="wal")
            assert values(store, topic) == numbered(1, end)
            fill(store, end, end + 3, topic)
        end += 3
        crash(store)
    assert not list(tmp_path.glob("segments/*/*.data")), "all of it is in the WAL"
    with opened(tmp_path) as store:
        for topic in ("t", "u", "v"):
            assert values(store, topic) == numbered(1, end)


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_a_topic_made_again_is_empty_whatever_shards_there_are(tmp_path: Path, end: str) -> None:
    last = b""
    for shards in (*range(1, 9), *range(8, 0, -1)):
        wal = WalSettings(shards=shards, wal_bytes=1 << 12, segment_events=10)
        store = opened(tmp_path, wal)
        if last:
            assert values(store) == {1: last}
            store.delete_topic("t")
        store.create_topic("t", format="wal")
        last = b"with %d shards, epoch %d" % (shards, store.describe_topic("t").epoch)
        assert store.append("t", [last]).base_offset == 1
        assert values(store) == {1: last}
        if shards % 2:
            store.maintain()
        store.close() if end == "closed" else crash(store)
    with opened(tmp_path) as store:
        assert store.describe_topic("t").epoch == 16


def test_followers_see_each_record_once_while_everything_moves(tmp_path: Path) -> None:
    """Appends, checkpoints, seals, moves to the cold directory and frees, under diff reads."""
    wal = WalSettings(
        shards=2,
        wal_bytes=1 << 13,
        segment_events=20,
        cold_directory=str(tmp_path / "cold"),
        hot_segments=1,
    )
    topics = [f"t{number}" for number in range(4)]
    seen: dict[str, list[bytes]] = {topic: [] for topic in topics}
    given: dict[str, dict[int, bytes]] = {topic: {} for topic in topics}
    problems: list[BaseException] = []
    over = threading.Event()
    store = opened(tmp_path / "data", wal)
    for topic in topics:
        store.create_topic(topic, format="wal")

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                problems.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def produce(worker: int) -> None:
        for number in range(40):
            topic = topics[(worker + number) % len(topics)]
            rows = [b"%d %d %d" % (worker, number, row) for row in range(1 + number % 4)]
            base = store.append(topic, rows).base_offset
            given[topic] |= dict(enumerate(rows, base))

    def follow(topic: str) -> None:
        at = 1
        while True:
            ending = over.is_set()
            answer = store.diff(topic, 0, at, limit=7)
            assert not answer.gaps
            seen[topic] += answer.records.column("value").to_pylist()
            at = answer.next_offset
            if answer.caught_up and ending:
                return

    def look_after() -> None:
        while not over.is_set():
            store.maintain()

    producers = [guarded(lambda w=worker: produce(w)) for worker in range(6)]  # type: ignore[misc]
    others = [guarded(lambda t=topic: follow(t)) for topic in topics]  # type: ignore[misc]
    others.append(guarded(look_after))
    for thread in producers:
        thread.join()
    over.set()
    for thread in others:
        thread.join()
    assert not problems
    for topic in topics:
        assert sorted(given[topic]) == list(range(1, len(given[topic]) + 1))
        assert seen[topic] == [given[topic][at] for at in sorted(given[topic])]
    store.close()


def test_power_loss_tears_any_segment_of_a_copy_and_nothing_is_lost() -> None:
    wal = WalSettings(shards=1, segment_events=4)
    files, moments = SimulatedFiles(), list[Disk]()
    store = on_disk(files, wal)
    store.create_topic("t", format="wal")
    fill(store, 1, 3)
    store.maintain()
    expected = numbered(1, 3) | {each: b"%d" % each * 700 for each in range(3, 15)}
    store.append("t", [expected[each] for each in range(3, 15)])
    files.before = lambda kind, path: moments.append(files.snapshot())
    store.maintain()
    files.before = None
    crash(store)
    torn = 0
    for disk in moments:
        for choice in ("dropped", "kept", *range(6)):
            with on_disk(disk.crash(choice), wal) as store:
                assert values(store) == expected
                torn += any(
                    event.kind in ("cut", "quarantined") for event in store.recovery_report.events
                )
                store.maintain()
                assert values(store) == expected
    assert torn > 20


@pytest.mark.parametrize("first", [1, 11, 21])
def test_a_sound_end_does_not_vouch_for_the_middle_of_an_unmarked_copy(
    tmp_path: Path, first: int
) -> None:
    store = opened(tmp_path)
    store.create_topic("t", format="wal")
    fill(store, 1, 25)
    target = store._partitions["t", 0]
    assert store._write_ahead.engine is not None
    assert isinstance(target, WalPartition)
    assert store._write_ahead.engine._compactor.copy(target) is not None
    crash(store)  # before the mark
    (path,) = tmp_path.glob(f"segments/*/seg-{first:020}.data")
    torn = bytearray(path.read_bytes())
    torn[70:120] = bytes(50)
    path.write_bytes(torn)
    with opened(tmp_path) as store:
        assert values(store) == numbered(1, 25)
        assert [event.path for event in store.recovery_report.of("cut")] == [str(path)]
        fill(store, 25, 27)
        store.maintain()
    with opened(tmp_path) as store:
        assert values(store) == numbered(1, 27)
        assert not store.gaps("t")
