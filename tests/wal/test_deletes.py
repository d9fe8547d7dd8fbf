"""Deleted records stay deleted: after a checkpoint, a restart, and the loss of any derived file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lamina.errors import InvalidRequest
from lamina.store.store import Store
from tests.wal.stores import crash, fill, looked_at, numbered, opened, values

KINDS: dict[str, tuple[Callable[[Store], int], Callable[[int], bool]]] = {
    "before": (lambda store: store.delete("t", before=17), lambda offset: offset >= 17),
    "tag": (lambda store: store.delete("t", tag=b"tag 1"), lambda offset: offset % 3 != 1),
    "prefix": (lambda store: store.delete("t", tag_prefix=b"tag "), lambda offset: False),
    "offsets": (
        lambda store: store.delete("t", offsets=[30, 3, 4, 4, 99, 0]),
        lambda offset: offset not in (3, 4, 30),
    ),
}


def _remove(pattern: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        for file in path.glob(pattern):
            file.unlink()

    return damage


def _newest_snapshot_flipped(path: Path) -> None:
    newest = max(path.glob("meta/snapshot-*.bin"), key=lambda each: int(each.stem.split("-")[1]))
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)


LOSSES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda path: None,
    "idx": _remove("segments/*/*.idx"),
    "CURRENT": _remove("wal/CURRENT"),
    "newest snapshot": _newest_snapshot_flipped,
    "all snapshots": _remove("meta/snapshot-*.bin"),
    "checkpoint.json": _remove("meta/checkpoint.json"),
    "topic.json": _remove("topics/t/topic.json"),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["killed", "closed", "maintained and killed", "freed and killed"])
def test_deleted_stays_deleted(tmp_path: Path, kind: str, how: str, loss: str) -> None:
    delete, stays = KINDS[kind]
    store = opened(tmp_path)
    store.create_topic("t", format="wal")
    fill(store, 1, 25)
    store.maintain()
    fill(store, 25, 34)
    expected = {key: each for key, each in numbered(1, 34).items() if stays(key)}
    assert delete(store) == 33 - len(expected)
    assert values(store) == expected
    fill(store, 34, 37)  # later records with the same tags are not meant
    expected |= numbered(34, 37)
    assert values(store) == expected
    if how.endswith("and killed"):
        if how == "freed and killed":
            store.create_topic("filler", format="wal")
            fill(store, 1, 100, "filler")
        store.maintain()
        fill(store, 37, 38)
        expected |= numbered(37, 38)
        store.maintain()
        store.maintain()
        assert values(store) == expected
        assert (tmp_path / "wal" / "wal-1.log").exists() == (how != "freed and killed")
    store.close() if how == "closed" else crash(store)
    LOSSES[loss](tmp_path)
    if loss != "topic.json":
        with looked_at(tmp_path) as reader:
            assert values(reader) == expected
    for _ in range(2):
        with opened(tmp_path) as again:
            assert values(again) == expected
            assert again.recovery_report.of("gap") == []
            again.maintain()
            assert values(again) == expected


def test_a_delete_names_one_thing_and_only_wal_topics_take_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal")
        store.create_topic("k", format="keratin")
        store.append("k", b"x")
        with pytest.raises(InvalidRequest, match="exactly one"):
            store.delete("t", before=1, tag=b"x")
        with pytest.raises(InvalidRequest, match="wal"):
            store.delete("k", before=1)
        assert store.delete("t", tag=b"nobody") == 0


def test_a_wal_file_stays_while_the_older_snapshot_needs_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.create_topic("t", format="wal")
    store.create_topic("filler", format="wal")
    fill(store, 1, 25)
    store.maintain()
    fill(store, 25, 26)
    store.maintain()
    assert store.delete("t", tag=b"tag 1") == 9
    fill(store, 1, 100, "filler")
    store.maintain()
    crash(store)
    _newest_snapshot_flipped(tmp_path)
    with opened(tmp_path) as again:
        assert values(again) == {key: each for key, each in numbered(1, 26).items() if key % 3 != 1}


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_tag_is_not_a_prefix(tmp_path: Path, checkpointed: bool) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal")
        tags = [b"a", b"ab", None, b"", b"a"]
        store.append("t", [{"value": b"%d" % row, "tag": tag} for row, tag in enumerate(tags)])
        if checkpointed:
            store.maintain()
        assert store.delete("t", tag=b"a") == 2
        assert sorted(values(store)) == [2, 3, 4]
        assert store.delete("t", tag_prefix=b"a") == 1
        assert sorted(values(store)) == [3, 4]
