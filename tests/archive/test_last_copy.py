"""A local copy goes only when the object that holds its records is whole: it may be the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina.config import WalSettings
from lamina.errors import CorruptData
from lamina.store.store import Store
from tests.archive.rig import NEVER, TOPIC

COUNT = 40


def opened(path: Path) -> Store:
    wal = WalSettings(shards=1, segment_events=8)
    return Store(str(path / "data"), archive=str(path / "cold"), wal=wal, tick_ms=NEVER)


def settings(format_name: str) -> dict[str, object]:
    own = {} if format_name == "wal" else {"segment.bytes": 1024}
    return {**own, "remote.storage.enable": True, "archive.object.bytes": 2048}


def filled(store: Store, format_name: str) -> list[bytes]:
    store.create_topic(TOPIC, format=format_name, config=settings(format_name))
    values = [b"%d " % number + b"." * 200 for number in range(COUNT)]
    for value in values:
        store.append(TOPIC, [value], partition=0)
    store.roll(TOPIC)
    store.archive()
    return values


def read(store: Store) -> list[bytes]:
    return [value for batch in store.scan(TOPIC) for value in batch.column("value").to_pylist()]


def damaged(data: bytes, how: str) -> bytes | None:
    """What becomes of an object; None where it is gone."""
    if how == "bit":
        return data[:100] + bytes([data[100] ^ 4]) + data[101:]
    return {"cut": data[:-30], "foreign": b"Dear reader\n" * 60, "gone": None}[how]


@pytest.mark.parametrize("format_name", ["frame", "keratin", "wal"])
@pytest.mark.parametrize("how", ["cut", "foreign", "gone", "bit"])
def test_local_copies_of_a_damaged_object_stay(tmp_path: Path, format_name: str, how: str) -> None:
    with opened(tmp_path) as store:
        values = filled(store, format_name)
        objects = sorted((tmp_path / "cold" / "data" / TOPIC / "0").glob("*.seg"))
        victim = objects[len(objects) // 2]
        whole = victim.read_bytes()
        left = damaged(whole, how)
        if left is None:
            victim.unlink()
        else:
            victim.write_bytes(left)
        store.alter_topic(TOPIC, {"local.retention.bytes": 1})
        with pytest.raises(CorruptData, match=r"local copies .* stay") as refused:
            store.archive()
        assert refused.value.path.endswith(victim.name)
        assert read(store) == values
        assert store.tier is not None
        assert store.tier.tick() == []  # not looked at again so soon, nor forgotten
        assert victim.name in store.tier_status()[0].last_error
        victim.write_bytes(whole)
        store.archive()
        assert store.tier_status()[0].last_error == ""
    with opened(tmp_path) as store:
        assert read(store) == values


@pytest.mark.parametrize("format_name", ["frame", "keratin", "wal"])
@pytest.mark.parametrize("how", ["cut", "foreign", "gone"])
def test_every_offset_of_a_damaged_local_segment_is_read_from_the_archive(
    tmp_path: Path, format_name: str, how: str
) -> None:
    """A reader may begin anywhere in what is missing here, as groups do."""
    with opened(tmp_path) as store:
        values = filled(store, format_name)
    suffix = "data" if format_name == "wal" else "log"
    folder = "segments" if format_name == "wal" else f"topics/{TOPIC}/0/segments"
    victim = sorted((tmp_path / "data" / folder).rglob(f"*.{suffix}"))[1]
    left = damaged(victim.read_bytes(), how)
    if left is None:
        victim.unlink()
    else:
        victim.write_bytes(left if how == "foreign" else left[:10])
    with opened(tmp_path) as store:
        first = store.earliest_offset(TOPIC)
        for number, value in enumerate(values):
            (row,) = store.fetch(TOPIC, 0, first + number, max_records=1).to_pylist()
            assert (row["offset"], row["value"]) == (first + number, value)


@pytest.mark.parametrize("format_name", ["frame", "keratin", "wal"])
def test_damaged_bytes_are_set_aside_before_their_segment_goes(
    tmp_path: Path, format_name: str
) -> None:
    """Nobody has read the record since it was damaged: archiving is the first to see it."""
    with opened(tmp_path) as store:
        config = {**settings(format_name), "remote.storage.enable": False}
        store.create_topic(TOPIC, format=format_name, config=config)
        values = [b"%d " % number + b"." * 200 for number in range(COUNT)]
        for value in values:
            store.append(TOPIC, [value], partition=0)
        store.roll(TOPIC)
    suffix = "data" if format_name == "wal" else "log"
    victim = sorted((tmp_path / "data").rglob(f"*.{suffix}"))[1]
    whole = victim.read_bytes()
    hurt = next(value for value in values if value in whole[300:])
    left = hurt[:-9] + b"!" + hurt[-8:]
    victim.write_bytes(whole.replace(hurt, left))
    with opened(tmp_path) as store:
        config = {"remote.storage.enable": True, "local.retention.bytes": 1}
        store.alter_topic(TOPIC, config)
        store.append(TOPIC, [b"last"], partition=0)
        store.archive()
        store.maintain()
        assert not victim.exists()
        lost = [gap.end - gap.first for gap in store.gaps(TOPIC) if gap.reason == "lost"]
        assert lost == [1]
    kept = [path for path in (tmp_path / "data/quarantine").rglob("*") if path.is_file()]
    assert any(left in path.read_bytes() for path in kept)
