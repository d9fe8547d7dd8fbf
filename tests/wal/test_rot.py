"""Damage to what was acknowledged is a loss that is told, not a write that was never finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina.api import ProducerStamp
from lamina.config import WalSettings
from lamina.formats.wal import log
from lamina.formats.wal.headers import headers
from lamina.records import prepare
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles
from tests.wal.stores import Clock, contents, crash, looked_at, opened

ONE = WalSettings(shards=1)
SMALL_VALUE, LARGE_VALUE = 12, 2000


def batch(size: int = SMALL_VALUE) -> list[bytes]:
    return [b"record %02d" % row + b"." * size for row in range(20)]


def killed(path: Path, rows: list[bytes], *, confirmed: bool = False) -> Path:
    """A store that was killed behind one acknowledged append; returns its WAL file."""
    store = opened(path, ONE, now_ms=Clock())
    for topic in ("t", "u"):
        store.create_topic(topic, format="wal")
    store.append("t", [b"first"])
    store.append("t", rows, acks="all")
    if confirmed:
        assert store._write_ahead.engine is not None
        (shard_log,) = store._write_ahead.engine.logs
        shard_log.writer.exclusively(shard_log.confirm)
    crash(store)
    (wal,) = path.glob("wal/wal-*.log")
    return wal


def frame_of(wal: Path, sequence: int) -> tuple[int, int]:
    """Where a record's frame lies: its first byte, and one past its last."""
    data = wal.read_bytes()
    found = log.scan(data)
    columns = headers(data, found)
    rows = (columns.sequences == sequence) & (columns.types == 1)
    (row,) = rows.nonzero()[0].tolist()
    return int(found.positions[row]), int(found.positions[row] + columns.lengths[row])


def flip(wal: Path, position: int) -> None:
    data = bytearray(wal.read_bytes())
    data[position] ^= 0x40
    wal.write_bytes(data)


def told(store: Store) -> list[tuple[int, int, str]]:
    return [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")]


def test_any_byte_of_an_acknowledged_record_in_the_last_group_is_told_as_lost(
    tmp_path: Path,
) -> None:
    wal = killed(tmp_path, batch())
    whole = wal.read_bytes()
    first, end = frame_of(wal, 9)
    for position in range(first, end):
        wal.write_bytes(whole)
        flip(wal, position)
        with looked_at(tmp_path, ONE) as store:
            found, gaps = contents(store)
        assert [(gap.first, gap.end, gap.reason) for gap in gaps] == [(9, 10, "lost")], position
        assert sorted(found) == [*range(1, 9), *range(10, 22)], position


def test_a_damaged_record_stays_lost_and_its_offset_is_not_given_again(tmp_path: Path) -> None:
    wal = killed(tmp_path, batch())
    for _, end in [frame_of(wal, 9), frame_of(wal, 21)]:  # nothing follows the second
        flip(wal, end - 12)
    expected = [(9, 10, "lost"), (21, 22, "lost")]
    for end in (22, 23):
        with opened(tmp_path, ONE) as store:
            assert told(store) == expected
            assert store.latest_offset("t") == end
            assert store.append("t", [b"more"]).base_offset == end


@pytest.mark.parametrize("sequence", [9, 21])
def test_a_barrier_speaks_for_records_of_any_size(tmp_path: Path, sequence: int) -> None:
    wal = killed(tmp_path, batch(LARGE_VALUE), confirmed=True)
    flip(wal, frame_of(wal, sequence)[0] + 1000)
    with opened(tmp_path, ONE) as store:
        assert told(store) == [(sequence, sequence + 1, "lost")]
        assert store.append("t", [b"more"]).base_offset == 22


def test_maintenance_writes_the_barrier_once() -> None:
    files = SimulatedFiles()
    store = Store("/d", files=files, wal=ONE, tick_ms=1 << 30)
    store.create_topic("t", format="wal")
    store.append("t", [b"value"], acks="all")
    assert store._write_ahead.engine is not None
    (shard_log,) = store._write_ahead.engine.logs
    assert shard_log.shard.is_unconfirmed
    store._write_ahead.engine.maintain(force=False)
    assert not shard_log.shard.is_unconfirmed
    active = shard_log.shard.active
    assert active is not None
    size, written = active.size, shard_log.shard.written_bytes
    store._write_ahead.engine.maintain(force=False)
    assert (active.size, shard_log.shard.written_bytes) == (size, written), "an idle store rests"
    store.close()


def test_the_last_record_of_a_topic_is_lost_though_only_others_follow(tmp_path: Path) -> None:
    store = opened(tmp_path, ONE)
    for topic in ("t", "u"):
        store.create_topic(topic, format="wal")
    store.append("t", [b"one", b"two"])
    store.append("u", [b"other"])
    crash(store)
    (wal,) = tmp_path.glob("wal/wal-*.log")
    flip(wal, frame_of(wal, 2)[1] - 9)
    with opened(tmp_path, ONE) as store:
        assert told(store) == [(2, 3, "lost")]
        assert store.append("t", [b"three"]).base_offset == 3


def test_a_hole_before_what_was_durable_is_lost_though_a_tail_is_torn(tmp_path: Path) -> None:
    wal = WalSettings(shards=1, wal_bytes=1 << 12)
    store = opened(tmp_path, wal, now_ms=Clock())
    store.create_topic("t", format="wal")
    for row in range(60):
        store.append("t", [b"record %d" % row + b"." * 100])
    crash(store)
    logs = sorted(tmp_path.glob("wal/wal-*.log"), key=lambda each: int(each.stem[4:]))
    assert len(logs) > 2
    logs[1].unlink()
    data = logs[-1].read_bytes()
    torn = log.scan(data).end
    logs[-1].write_bytes(data[:torn] + data[:20])
    with opened(tmp_path, wal) as store:
        (gap,) = told(store)
        assert gap[2] == "lost"


def test_an_idempotent_append_that_rotted_is_not_taken_for_one_that_never_finished(
    tmp_path: Path,
) -> None:
    rows, stamp = batch(), ProducerStamp(7, 0, 0)
    store = opened(tmp_path, ONE, now_ms=Clock())
    store.create_topic("t", format="wal")
    store.append("t", rows, partition=0, producer=stamp)
    crash(store)
    (wal,) = tmp_path.glob("wal/wal-*.log")
    flip(wal, frame_of(wal, 9)[1] - 12)
    with opened(tmp_path, ONE) as store:
        assert told(store) == [(9, 10, "lost")]
        assert len(contents(store)[0]) == len(rows) - 1
        assert store.append("t", rows, partition=0, producer=stamp).base_offset == 1, (
            "it was stored"
        )


def test_the_names_of_freed_wal_files_do_not_come_back() -> None:
    """Erased bytes must not: whoever purges is told only when power loss keeps the removal."""
    files = SimulatedFiles()
    store = Store("/d", files=files, wal=ONE, tick_ms=1 << 30)
    store.create_topic("t", format="wal")
    store.append("t", [b"a secret"])
    store.purge_wal()
    for choice in ("dropped", "kept"):
        again = files.snapshot().crash(choice)
        left = [path for path in again.contents() if path.endswith("wal-1.log")]
        assert not left, choice
    store.close()


@pytest.mark.parametrize("first", [1, 11, 21])
def test_a_segment_that_no_index_can_describe_costs_only_itself(tmp_path: Path, first: int) -> None:
    wal = WalSettings(shards=1, segment_events=10)
    with opened(tmp_path, wal) as store:
        for topic in ("t", "u"):
            store.create_topic(topic, format="wal")
            for row in range(25):
                store.append(topic, [b"value %d" % row])
        topic_id = store._partitions["t", 0].topic_id
    (path,) = tmp_path.glob(f"segments/{topic_id:016x}/seg-{first:020}.data")
    far, _ = log.encode(
        prepare([b"far"], "wal", now_ms=1),
        topic_id=topic_id,
        base_sequence=1 << 40,
        durable=True,
    )
    whole = path.read_bytes()
    strange = whole + far.tobytes()[1:]
    path.write_bytes(strange)
    path.with_suffix(".idx").unlink()
    with opened(tmp_path, wal) as store:
        assert sorted(contents(store)[0]) == list(range(1, 26))
        assert sorted(contents(store, "u")[0]) == list(range(1, 26))
        assert store.append("t", [b"more"]).base_offset == 26
    kept = b"".join(each.read_bytes() for each in tmp_path.glob("quarantine/**/*.data.*"))
    assert far.tobytes()[1:] in kept


def test_what_a_crash_leaves_of_a_move_goes_when_the_store_is_opened(tmp_path: Path) -> None:
    """Else a hot segment that is erased or removed would leave its records in the cold copy."""
    cold = tmp_path / "cold"
    wal = WalSettings(shards=1, segment_events=5, cold_directory=str(cold), hot_segments=100)
    with opened(tmp_path / "data", wal) as store:
        store.create_topic("t", format="wal")
        store.append("t", [b"value %d" % row for row in range(12)])
    first, second, _ = sorted((tmp_path / "data").glob("segments/*/*.data"))
    folder = cold / first.parent.name
    folder.mkdir(parents=True)
    (folder / first.name).write_bytes(first.read_bytes())
    (folder / second.name).write_bytes(b"of something else")
    (folder / (second.name + ".tmp")).write_bytes(second.read_bytes()[:99])
    with looked_at(tmp_path / "data", wal) as reader:
        assert len(contents(reader)[0]) == 12
    assert len(list(folder.iterdir())) == 3, "who only reads changes nothing"
    with opened(tmp_path / "data", wal) as store:
        assert len(contents(store)[0]) == 12
    assert [each.name for each in folder.iterdir()] == [second.name]
