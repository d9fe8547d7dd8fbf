"""The same rows from every mix of tiers, in any split, pruned by what the indexes know."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

import lamina
from lamina.errors import ArchiveUnavailable, InvalidRequest, RecordsMissing
from lamina.spark.batch import explain
from lamina.spark.options import SourceOptions
from lamina.spark.source import LaminaSource
from lamina.storage.object_directory import DirectoryObjects
from tests.server.rig import served
from tests.spark.logs import START_MS, batch_rows, options, reader, rows_of, stored
from tests.spark.tiers import (
    ALL_KEPT,
    COUNT,
    NONE_KEPT,
    SEGMENTED,
    append,
    by_hand,
    make_mix,
    make_wal,
)

COLUMNS = "partition,offset,key,value,timestamp,headers,tag"
SPLITS = [1, 2, 8, 64]
MIXES = ("cold", "cold and hot", "hot", "archive", "wal")


@pytest.fixture(scope="module")
def mixes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories: everything cold but the tail, some local copies, all local; and a wal topic."""
    made = {}
    kept = {"cold": NONE_KEPT, "cold and hot": 80 << 10, "hot": ALL_KEPT}
    for name, kept_bytes in kept.items():
        made[name] = tmp_path_factory.mktemp("mix")
        make_mix(made[name], kept_bytes, tail=0 if name == "cold" else 500)
    made["wal"] = tmp_path_factory.mktemp("wal")
    make_wal(made["wal"])
    made["archive"] = made["cold"]
    return made


def given_for(mix: str, path: Path) -> dict[str, str]:
    if mix == "archive":
        return {"path": str(path / "cold")}
    if mix == "wal":
        return {"path": str(path / "data")}
    return {"path": str(path / "data"), "archive": str(path / "cold")}


def topics_of(mix: str) -> list[str]:
    return ["w"] if mix == "wal" else list(SEGMENTED)


def held(path: Path, topic: str) -> Counter[tuple[Any, ...]]:
    """What the log itself gives."""
    with lamina.open(str(path / "data"), read_only=True, archive=str(path / "cold")) as store:
        found: Counter[tuple[Any, ...]] = Counter()
        for each in store.describe_topic(topic).partitions:
            rows = stored(store, topic, each.partition, "offset", "value", "timestamp")
            found.update((each.partition, *row) for row in rows)
    return found


def read(given: dict[str, str], topic: str, **more: Any) -> tuple[Any, list[Any]]:
    reading = reader(
        Path(given["path"]),
        **{k: v for k, v in given.items() if k != "path"},
        subscribe=topic,
        **more,
    )
    return reading, list(reading.partitions())


@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_of_tiers_gives_the_same_rows_in_any_split(
    mixes: dict[str, Path], mix: str, splits: int
) -> None:
    path = mixes[mix]
    for topic in topics_of(mix):
        reading, tasks = read(
            given_for(mix, path),
            topic,
            minPartitions=splits,
            columns="partition,offset,value,timestamp",
        )
        assert len(tasks) >= splits
        rows = Counter(rows_of(reading, tasks))
        assert rows == held(path, topic)
        assert sorted(row[3].timestamp() * 1000 for row in rows) == [
            START_MS + number for number in range(COUNT)
        ]


def test_the_mixes_are_what_they_are_called(mixes: dict[str, Path]) -> None:
    plans = {
        mix: explain(**given_for(mix, mixes[mix]), subscribe=topics_of(mix)[-1]) for mix in MIXES
    }
    found = {mix: (plan.objects.read > 2, plan.segments.read > 2) for mix, plan in plans.items()}
    assert found == {
        "cold": (True, False),
        "cold and hot": (True, True),
        "hot": (False, True),
        "archive": (True, False),
        "wal": (False, True),
    }


def test_keys_headers_and_tags_come_from_every_tier(mixes: dict[str, Path]) -> None:
    def rows(mix: str, topic: str, **more: Any) -> Counter[tuple[Any, ...]]:
        return Counter(
            rows_of(
                *read(given_for(mix, mixes[mix]), topic, columns="key,value,headers,tag", **more)
            )
        )

    for topic in SEGMENTED:
        every = rows("hot", topic)
        assert rows("archive", topic) == rows("cold and hot", topic) == every
        assert len({row[0] for row in every}) == 51
        assert any(row[2] for row in every) == (topic == "k")
        some = rows("hot", topic, keys='["key 3"]')
        assert rows("archive", topic, keys='["key 3"]') == some
        assert set(some) == {row for row in every if row[0] == b"key 3"}
    assert len({row[3] for row in rows("wal", "w")}) == 51


def test_objects_blocks_and_columns_that_are_not_needed_are_skipped(
    mixes: dict[str, Path],
) -> None:
    given = given_for("archive", mixes["archive"])
    whole = explain(**given, subscribe="f")
    offsets = {"startingOffsets": '{"f":{"0":1200}}', "endingOffsets": '{"f":{"0":1210}}'}
    plan = explain(**given, subscribe="f", **offsets, columns="offset,value")
    assert plan.objects.read == 1
    assert plan.objects.read + plan.objects.skipped == whole.objects.read
    assert plan.blocks.read + plan.blocks.skipped >= 1
    assert plan.size_bytes < whole.size_bytes / 20
    text = str(plan)
    assert f"{plan.objects.skipped} objects skipped" in text
    assert "columns offset, value, 9 columns skipped" in text
    by_time = {"startingTimestamp": START_MS + 1200, "endingTimestamp": START_MS + 1210}
    assert explain(**given, subscribe="f", **by_time).objects == plan.objects
    rows = batch_rows(Path(given["path"]), subscribe="f", columns="offset", **by_time)
    assert [row[0] for row in rows] == list(range(1200, 1210))


def test_only_the_bytes_of_its_blocks_are_fetched_for_a_piece(
    mixes: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = given_for("archive", mixes["archive"])
    reading, tasks = read(given, "f", minPartitions=64, columns="offset")
    size = sum(each.stat().st_size for each in (mixes["archive"] / "cold").rglob("f/0/*.seg"))
    fetched = []
    honest = DirectoryObjects.read_range

    def counting(self: DirectoryObjects, key: str, start: int, end: int) -> Any:
        fetched.append(end - start)
        return honest(self, key, start, end)

    monkeypatch.setattr(DirectoryObjects, "read_range", counting)
    rows_of(reading, tasks[:1])
    assert 0 < sum(fetched) < size / 3


def test_archived_records_need_an_archive_and_say_so(mixes: dict[str, Path]) -> None:
    path = mixes["cold and hot"] / "data"
    with pytest.raises(ArchiveUnavailable, match="name it by 'archive'"):
        batch_rows(path, subscribe="f", archive="")
    with pytest.raises(RecordsMissing, match="lost"):
        batch_rows(path, subscribe="f", archive=str(mixes["wal"] / "nothing"))


def test_secrets_travel_with_the_tasks_and_never_print() -> None:
    given = {"archive.secret_access_key": "hush", "archive.region": "here", "subscribe": "t"}
    parsed = SourceOptions.parse(
        options(Path("s3:/x")) | {"path": "s3://bucket/p"} | given, streaming=False
    )
    copy = pickle.loads(pickle.dumps(parsed))
    assert dict(copy.where.archive.options) == {"secret_access_key": "hush", "region": "here"}
    served_by = SourceOptions.parse(
        {"server": "grpc://h:1", "apiKey": "hush", "subscribe": "t"}, streaming=False
    )
    assert served_by.where.server is not None
    assert served_by.where.server.api_key == "hush"
    assert "hush" not in repr(parsed) + str(parsed) + repr(served_by)
    with pytest.raises(InvalidRequest, match="region"):
        SourceOptions.parse(
            {"path": "/d", "archive": "/c", "archive.region": "x", "subscribe": "t"},
            streaming=False,
        )


# ---------------------------------------------------------------- what happens after planning


def test_a_segment_that_moves_to_the_archive_after_planning_is_read_there(tmp_path: Path) -> None:
    with by_hand(tmp_path, archive=str(tmp_path / "cold")) as store:
        config = {"segment.bytes": 16 << 10, "remote.storage.enable": True}
        store.create_topic("f", format="frame", config=config)
        append(store, "f", "frame", 0, 2000)
        store.maintain()
        given = {"path": str(tmp_path / "data"), "archive": str(tmp_path / "cold")}
        reading, tasks = read(given, "f", columns="offset", minPartitions=8)
        gone = tmp_path / "data/topics/f/0/segments" / ("0" * 20 + ".log")
        assert gone.exists()
        store.alter_topic("f", {"archive.delay.ms": 0, "local.retention.bytes": 0})
        store.archive()
        assert not gone.exists()
        rows = rows_of(reading, tasks)
        assert sorted(row[0] for row in rows) == list(range(2000))


def test_damage_is_read_from_the_archive_where_it_has_a_copy(tmp_path: Path) -> None:
    make_mix(tmp_path, ALL_KEPT)
    given = {"path": str(tmp_path / "data"), "archive": str(tmp_path / "cold")}
    file = sorted((tmp_path / "data/topics/f/0/segments").glob("*.log"))[1]
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    file.write_bytes(raw)
    rows = rows_of(*read(given, "f", columns="offset"))
    assert sorted(row[0] for row in rows) == list(range(COUNT))


def test_damage_in_an_object_costs_its_block_and_has_its_reason(tmp_path: Path) -> None:
    make_mix(tmp_path, NONE_KEPT)
    given = {"path": str(tmp_path / "cold")}
    file = sorted((tmp_path / "cold").rglob("f/0/*.seg"))[1]
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    file.write_bytes(raw)
    with pytest.raises(RecordsMissing, match="lost"):
        rows_of(*read(given, "f", columns="offset"))
    left = rows_of(*read(given, "f", columns="offset", failOnDataLoss="false"))
    offsets = {row[0] for row in left}
    assert len(offsets) == len(left)
    whole = set(range(COUNT - 500))
    assert offsets < whole
    lost = whole - offsets
    assert lost == set(range(min(lost), max(lost) + 1))


# ---------------------------------------------------------------- wal topics


def test_deleted_records_of_a_wal_topic_are_left_out_and_evicted_ones_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data"
    with by_hand(tmp_path) as store:
        store.create_topic("w", format="wal")
        append(store, "w", "wal", 0, COUNT - 500)
        store.maintain()
        append(store, "w", "wal", COUNT - 500, 500)
        store.delete("w", tag=b"key 3")
        store.delete("w", offsets=[1, 2, COUNT])
        tags = {n + 1 for n in range(COUNT) if n % 50 == 3 and n % 7} | {1, 2, COUNT}
        whole = set(range(1, COUNT + 1))
        for splits in SPLITS:
            rows = rows_of(*read({"path": str(path)}, "w", columns="offset", minPartitions=splits))
            assert sorted(row[0] for row in rows) == sorted(whole - tags)
        store.alter_topic("w", {"retention.records": 1000})
        store.apply_retention("w")
        earliest = store.earliest_offset("w")
        assert earliest > 1
    start = {"startingOffsets": '{"w":{"0":0}}'}
    with pytest.raises(RecordsMissing, match="retention"):
        batch_rows(path, subscribe="w", **start)
    rows = batch_rows(path, subscribe="w", columns="offset", failOnDataLoss="false", **start)
    assert sorted(row[0] for row in rows) == sorted(set(range(earliest, COUNT + 1)) - tags)


def test_offset_zero_of_a_wal_topic_is_no_loss(mixes: dict[str, Path]) -> None:
    rows = batch_rows(
        mixes["wal"] / "data",
        subscribe="w",
        columns="offset",
        startingOffsets=json.dumps({"w": {"0": 0, "1": 0}}),
    )
    assert len(rows) == COUNT


def test_a_wal_segment_that_goes_after_planning_is_named_with_the_reason(tmp_path: Path) -> None:
    make_wal(tmp_path)
    strict = read({"path": str(tmp_path / "data")}, "w", columns="offset")
    lenient = read({"path": str(tmp_path / "data")}, "w", columns="offset", failOnDataLoss="false")
    with by_hand(tmp_path) as store:
        store.alter_topic("w", {"retention.records": 500})
        for number in range(2):
            store.apply_retention("w", number)
        left = sum(
            store.latest_offset("w", number) - store.earliest_offset("w", number)
            for number in range(2)
        )
    assert left < COUNT
    with pytest.raises(RecordsMissing, match="retention"):
        rows_of(*strict)
    assert len(rows_of(*lenient)) == left


# ---------------------------------------------------------------- a server


def test_what_leaves_a_server_between_two_of_its_answers_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_mix(tmp_path, 40 << 10, topics="k")
    asked = lamina.RemoteStore.segments
    monkeypatch.setattr(lamina.RemoteStore, "segments", lambda *where: asked(*where)[-1:])
    with served(tmp_path / "data", archive=str(tmp_path / "cold")) as service:
        chosen = {"server": service.flight_url, "archive": str(tmp_path / "cold")}
        columns = {"subscribe": "k", "columns": "partition,offset,value,timestamp"}
        source = LaminaSource(CaseInsensitiveDict(chosen | columns))
        reading = source.reader(source.schema())
        found = Counter(rows_of(reading, list(reading.partitions())))
    assert found == held(tmp_path, "k")


@pytest.mark.parametrize("has_archive", [False, True])
def test_a_server_gives_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_archive: bool
) -> None:
    make_mix(tmp_path, 40 << 10)
    expected = {topic: held(tmp_path, topic) for topic in SEGMENTED}
    monkeypatch.setenv("LAMINA_ARCHIVE", str(tmp_path / "cold"))
    with served(tmp_path / "data") as service:
        url = service.flight_url
        if has_archive:
            given = {"server": url, "archive": str(tmp_path / "cold")}
        else:
            monkeypatch.delenv("LAMINA_ARCHIVE")
            given = {"server": url}
        for topic in SEGMENTED:
            for splits in SPLITS:
                chosen = given | {
                    "subscribe": topic,
                    "minPartitions": str(splits),
                    "columns": "partition,offset,value,timestamp",
                }
                source = LaminaSource(CaseInsensitiveDict(chosen))
                reading = source.reader(source.schema())
                tasks = list(reading.partitions())
                assert len(tasks) >= splits
                kinds = {piece.part.kind for task in tasks for piece in task.pieces}
                assert kinds == ({"object", "segment"} if has_archive else {"segment"})
                assert Counter(rows_of(reading, tasks)) == expected[topic]
