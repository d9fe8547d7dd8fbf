"""`lamina pipeline table`: a topic's rows in lakes, as other readers see them.

Tasks run one after the other in this process, but for the one test that has a session.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lamina
from lamina.cli import main as cli
from lamina.errors import InvalidRequest, Locked, SchemaError, UnknownSchema
from lamina.spark.jobs import lane, topic_rows
from lamina.spark.jobs.job import Silent, Summary
from lamina.spark.jobs.tables.delta_rows import DeltaRows
from lamina.spark.jobs.tables.parquet_rows import ParquetRows
from lamina.spark.jobs.tables.table_job import Asked, follow, table
from lamina.spark.jobs.tables.table_upkeep import Upkeep
from lamina.spark.jobs.whereabouts import Place
from lamina.store.store import Store
from tests.spark.tables import (
    DAY_MS,
    MESSAGES_1,
    MESSAGES_2,
    V1,
    V2,
    catalog_of,
    lake_of,
    read_rows,
    read_table,
    sorted_rows,
    wanted_rows,
)

KINDS = ("iceberg", "delta", "parquet")
ROOT = Path(__file__).parents[2]
START_MS = 1_700_000_000_000
ALONE: Any = SimpleNamespace()
NEVER = Upkeep(small_files=0, keep_ms=None)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    actual = lane.over_tasks

    def run(spark: Any, tasks: Any, work: Any, progress: Any) -> list[Any]:
        if isinstance(spark, SparkSession):
            return actual(spark, tasks, work, progress)
        return [work(each) for each in tasks]

    monkeypatch.setattr(lane, "over_tasks", run)
    monkeypatch.setattr(topic_rows, "over_tasks", run)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "lake").mkdir()
    with lamina.open(tmp_path / "data") as store:
        store.create_topic("orders", partitions=2, schema=V1, key="id")
    return tmp_path


def append(folder: Path, ids: list[int], at_ms: int = START_MS, **columns: list[Any]) -> None:
    with lamina.open(folder / "data") as store:
        schema = store.schema("orders").arrow
        times = pa.array([at_ms + each for each in ids], pa.timestamp("ms", tz="UTC"))
        given = {"id": ids, **columns}
        made = {name: pa.array(each, schema.field(name).type) for name, each in given.items()}
        store.append("orders", pa.table({**made, "_timestamp": times}))


def keep(
    folder: Path, kind: str, *, spark: Any = ALONE, dry_run: bool = False, **asked: Any
) -> Summary:
    place = Place.of(str(folder / "data"), None)
    wanted = Asked(**{"upkeep": NEVER, **asked})
    lake = lake_of(kind, folder)
    return table(spark, place, "orders", lake, wanted, dry_run=dry_run, progress=Silent())


def seen_by_duckdb(kind: str, folder: Path) -> list[dict[str, Any]]:
    """The rows of the files of the last snapshot, under the names that the newest of them have."""
    if kind == "iceberg":
        from pyiceberg.catalog import load_catalog

        found = load_catalog("default", **catalog_of(folder)).load_table("shop.orders")
        files = [task.file.file_path for task in found.scan().plan_files()]
    elif kind == "delta":
        from deltalake import DeltaTable

        files = DeltaTable(str(folder / "lake" / kind)).file_uris()
    else:
        files = [str(each) for each in (folder / "lake" / kind).glob("*.parquet")]
    paths = [each.removeprefix("file://") for each in files]
    return sorted_rows(duckdb.read_parquet(paths, union_by_name=True).to_arrow_table())


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_follows_its_topic_and_the_versions_of_its_schema(shop: Path, kind: str) -> None:
    append(shop, list(range(50)), item=[f"item {each}" for each in range(50)])
    with lamina.open(shop / "data") as store:
        store.append("orders", [{"key": b"7", "value": None}])
    assert keep(shop, kind, dry_run=True).totals["offsets"] == 51
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever a reader says of no table
        read_table(kind, shop).column("id")
    assert keep(shop, kind).totals["records"] == 51
    assert read_rows(kind, shop) == wanted_rows(shop) == seen_by_duckdb(kind, shop)
    assert keep(shop, kind).totals["records"] == 0
    append(shop, [100, 101], START_MS + DAY_MS, item=["a day later", "and more"])
    done = keep(shop, kind)
    assert (done.totals["records"], [row["group"] for row in done.rows]) == (2, ["2023-11-15"])
    assert read_rows(kind, shop) == wanted_rows(shop)
    with lamina.open(shop / "data") as store:
        store.set_schema("orders", V2)
    append(shop, [1 << 40], article=["wide"], note=["new"])
    planned = keep(shop, kind, dry_run=True).totals["changes"]
    done = keep(shop, kind)
    assert done.totals["changes"] == planned
    assert planned == ["id widened", "article renamed from item", "note added", "old dropped"]
    assert done.totals["records"] == 1
    assert read_rows(kind, shop) == wanted_rows(shop)
    with lamina.open(shop / "data") as store:  # old rows get the default, as a read says
        more = V2.removesuffix("]}") + ', {"name": "count", "type": "int", "default": 7}]}'
        store.set_schema("orders", more)
    done = keep(shop, kind)
    assert done.totals["records"] == 0
    assert "count added, with its default in old rows" in done.totals["changes"]
    assert read_rows(kind, shop) == wanted_rows(shop) == seen_by_duckdb(kind, shop)
    assert {row["count"] for row in read_rows(kind, shop)} == {7, None}  # null for the null value


def test_a_version_that_comes_as_a_run_begins_wrote_no_bad_records(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run reads by a version that is as new as its last record, whenever that one came."""
    described = topic_rows.described
    append(shop, [1], item=["a"])

    def meanwhile(*asked: Any) -> topic_rows.Topic:
        with lamina.open(shop / "data") as store:
            store.set_schema("orders", V2)
        append(shop, [2], article=["b"])
        return described(*asked)

    monkeypatch.setattr(topic_rows, "described", meanwhile)
    assert keep(shop, "parquet", errors="null").totals["schema"] == 2
    found = sorted_rows(read_table("parquet", shop))
    assert [(row["id"], row["article"], row["_error"]) for row in found] == [
        *((1, "a", None), (2, "b", None))
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_the_latest_rows_has_one_per_key(shop: Path, kind: str) -> None:
    asked = {"latest": True, "buckets": 3}
    append(shop, list(range(20)) + list(range(5)), item=[f"item {each}" for each in range(25)])
    assert keep(shop, kind, **asked).totals["keys"] == 20
    assert read_rows(kind, shop) == wanted_rows(shop, latest=True)
    append(shop, [3], START_MS - DAY_MS, item=["later, with an earlier time"])
    with lamina.open(shop / "data") as store:
        store.append("orders", [{"key": b"4", "value": None}, {"key": b"404", "value": None}])
        batch = next(iter(store.scan("orders", 0)))
        store.append("orders", [{"value": batch["value"][0].as_py()}])  # which has no key
    done = keep(shop, kind, **asked)
    assert (done.totals["records"], done.totals["keys"], done.totals["no_key"]) == (4, 19, 1)
    rows = read_rows(kind, shop)
    assert rows == wanted_rows(shop, latest=True)
    assert [row["item"] for row in rows if row["_key"] == b"3"] == ["later, with an earlier time"]
    assert b"4" not in {row["_key"] for row in rows}
    with lamina.open(shop / "data") as store:
        store.set_schema("orders", V2)
    append(shop, [9], article=["renamed"], note=[None])
    assert keep(shop, kind, **asked).totals["records"] == 1
    assert read_rows(kind, shop) == wanted_rows(shop, latest=True) == seen_by_duckdb(
        kind, shop
    ) or (
        kind == "iceberg"  # whose older files have the older names, and the same numbers
    )
    with pytest.raises(InvalidRequest, match="give --latest as before"):
        keep(shop, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_small_files_are_joined_and_what_was_replaced_goes_in_time(shop: Path, kind: str) -> None:
    for first in (0, 10, 20):
        append(shop, list(range(first, first + 5)), item=["x"] * 5)
        keep(shop, kind)
    before = set(shop.rglob("*.parquet"))
    done = keep(shop, kind, upkeep=Upkeep(small_files=3, keep_ms=None))
    assert (done.totals["records"], done.totals["joined"]) == (0, 3)
    assert read_rows(kind, shop) == wanted_rows(shop) == seen_by_duckdb(kind, shop)
    if kind == "delta":
        assert before < set(shop.rglob("*.parquet")), "older versions can still be read"
    keep(shop, kind, upkeep=Upkeep(keep_ms=0))
    left = set(shop.rglob("*.parquet"))
    assert len(left) == 1
    assert not left & before
    assert read_rows(kind, shop) == wanted_rows(shop)
    if kind == "iceberg":
        from pyiceberg.catalog import load_catalog

        found = load_catalog("default", **catalog_of(shop)).load_table("shop.orders")
        assert len(found.metadata.snapshots) == 1


def test_bad_records_are_treated_as_asked(shop: Path) -> None:
    append(shop, [1, 2], item=["good", "good"])
    with lamina.open(shop / "data") as store:
        store.append("orders", [b"bad"], partition=0)
        store.create_topic("orders.dlq", partitions=2)
        bad_at = store.latest_offset("orders", 0) - 1
    with pytest.raises(SchemaError, match=rf"orders/0, offset {bad_at}"):
        keep(shop, "parquet")
    assert read_rows_or_none(shop) == []
    assert keep(shop, "delta", errors="dead_letter").totals["records"] == 2
    with lamina.open(shop / "data") as store:
        letters = [batch for number in (0, 1) for batch in store.scan("orders.dlq", number)]
        assert [each for batch in letters for each in batch["value"].to_pylist()] == [b"bad"]
    assert keep(shop, "parquet", errors="null").totals["records"] == 3
    rows = read_rows("parquet", shop)
    assert [row["id"] for row in rows if row["_error"]] == [None]
    append(shop, [3], item=["good"])
    assert keep(shop, "parquet").totals["records"] == 1  # the column stays
    assert [row["_error"] for row in read_rows("parquet", shop) if row["id"] == 3] == [None]
    append(shop, [4], item=["good"])
    assert keep(shop, "delta", errors="null").totals["changes"] == ["_error added"]
    assert {row["_error"] for row in read_rows("delta", shop)} == {None}


def read_rows_or_none(folder: Path) -> list[dict[str, Any]]:
    return [
        row for _ in (folder / "lake").rglob("table.json") for row in read_rows("parquet", folder)
    ]


def test_what_cannot_be_kept_is_refused(shop: Path) -> None:
    append(shop, [1], item=["x"])
    keep(shop, "parquet")
    lake, place = lake_of("parquet", shop), Place.of(str(shop / "data"), None)
    with lake.alone(), pytest.raises(Locked):
        keep(shop, "parquet")
    with lamina.open(shop / "data") as store:
        store.create_topic("plain")
        store.create_topic("tagged", format="wal", schema=V1)
        store.delete_topic("orders")
        store.create_topic("orders", schema=V1)
    with pytest.raises(InvalidRequest, match="created again"):
        keep(shop, "parquet")
    for name, problem in {"plain": "has no schema", "tagged": "keeps no keys"}.items():
        with pytest.raises((UnknownSchema, InvalidRequest), match=problem):
            table(
                *(ALONE, place, name, lake_of("delta", shop), Asked(latest=True)),
                dry_run=False,
                progress=Silent(),
            )
    other = {"delta": DeltaRows, "parquet": ParquetRows}
    for kind, mine in {"delta": "parquet", "parquet": "delta"}.items():
        (shop / "lake" / "delta" / "_delta_log").mkdir(parents=True, exist_ok=True)
        with pytest.raises(InvalidRequest, match="another kind"):
            other[kind](str(shop / "lake" / mine)).held([0])
    (shop / "lake" / "parquet" / "mine.parquet").write_bytes(b"somebody else's")
    with lake.alone():
        assert (shop / "lake" / "parquet" / "mine.parquet").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_a_protobuf_topic_follows_its_versions_by_number(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "lake").mkdir()
    rows: dict[str, list[Any]] = {
        "item": ["pen", "", "ink"],
        "old": [None, "o", ""],
        "count": [0, 7, -1],
        "price": [None, 0.0, 2.5],
        "kind": ["PLAIN", "RED", "PLAIN"],
        "in": [None, {"x": 0, "y": ""}, {"x": -3, "y": "z"}],
        "many": [[], [1, -(1 << 60)], [0]],
        "named": [[], [("-1", "a"), ("2", "")], [("", "b")]],
        "large": [0, (1 << 64) - 1, 1 << 63],
    }
    with lamina.open(tmp_path / "data") as store:
        store.create_topic("orders", partitions=2, schema=MESSAGES_1, encoding="protobuf", key="id")
    append(tmp_path, [0, 1, 2], **rows)
    with lamina.open(tmp_path / "data") as store:
        store.append("orders", [{"key": b"7", "value": None}])
    assert keep(tmp_path, kind).totals["records"] == 4
    assert read_rows(kind, tmp_path) == wanted_rows(tmp_path) == seen_by_duckdb(kind, tmp_path)
    with lamina.open(tmp_path / "data") as store:
        store.set_schema("orders", MESSAGES_2, encoding="protobuf")
    assert keep(tmp_path, kind, dry_run=True).totals["changes"] == [
        *("id widened", "article renamed from item", "count changed", "price changed"),
        *("kind changed", "in changed", "note added"),
        *("fresh added, with its default in old rows", "old dropped"),
    ]
    append(tmp_path, [1 << 40], START_MS + DAY_MS, article=["wide"], kind=["BLUE"], fresh=[5])
    assert keep(tmp_path, kind).totals["records"] == 1
    found = read_rows(kind, tmp_path)
    assert found == wanted_rows(tmp_path) == seen_by_duckdb(kind, tmp_path)
    assert [row["count"] for row in found if row["article"] == "pen"] == [None]
    assert [row["price"] for row in found if row["article"] == "pen"] == [0.0]
    with lamina.open(tmp_path / "data") as store:  # what a commit alone can do, where it can
        more = MESSAGES_2.replace("string article", "string name").replace("int32 fresh", "int64 f")
        store.set_schema("orders", more, encoding="protobuf")
    changed = keep(tmp_path, kind).totals["changes"]
    assert changed == ["name renamed from article", "f renamed from fresh and widened"]
    assert read_rows(kind, tmp_path) == wanted_rows(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_latest_rows_of_a_protobuf_topic_follow_its_versions_too(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "lake").mkdir()
    asked = {"latest": True, "buckets": 3}
    with lamina.open(tmp_path / "data") as store:
        store.create_topic("orders", partitions=2, schema=MESSAGES_1, encoding="protobuf", key="id")
    append(tmp_path, [*range(9), *range(4)], item=["x"] * 13, count=[0, 1, 2] * 4 + [3])
    keep(tmp_path, kind, **asked)
    with lamina.open(tmp_path / "data") as store:
        store.set_schema("orders", MESSAGES_2, encoding="protobuf")
    append(tmp_path, [2], article=["renamed"])
    assert keep(tmp_path, kind, **asked).totals["keys"] == 9
    assert read_rows(kind, tmp_path) == wanted_rows(tmp_path, latest=True)


def test_what_only_the_archive_has_is_in_the_table(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    config = {
        **{"remote.storage.enable": True, "segment.bytes": 16 << 10},
        "local.retention.bytes": 0,
    }
    with Store(str(tmp_path / "data"), archive=str(tmp_path / "cold"), tick_ms=1 << 31) as store:
        store.create_topic("orders", partitions=2, schema=V1, key="id", config=config)
        ids = list(range(3000))
        store.append(
            "orders", pa.table({"id": pa.array(ids, pa.int32()), "item": ["x" * 20] * 3000})
        )
        for number in (0, 1):
            store.roll("orders", number)
        store.archive()
        (status, _) = store.tier_status()
        assert status.objects > 0
        assert status.records_behind == 0
    wanted = wanted_rows(tmp_path)
    assert len(wanted) == 3000
    assert keep(tmp_path, "iceberg").totals["records"] == 3000
    assert read_rows("iceberg", tmp_path) == wanted


def test_the_command_keeps_a_table_by_spark(
    spark: SparkSession,
    shop: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append(shop, list(range(100)), item=["x"] * 100)
    given = [f"--option={key}={value}" for key, value in catalog_of(shop).items()]
    more = {
        "delta": [str(shop / "lake" / "delta"), "--latest"],
        "iceberg": ["shop.orders", *given],
    }

    def run(kind: str, *words: str) -> tuple[Any, list[Any]]:
        command = ["lamina", "pipeline", "table", "orders", *more[kind], "--to", kind, *words]
        monkeypatch.setattr(sys, "argv", [*command, "--data", str(shop / "data"), "--json"])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        lines = capsys.readouterr().out.splitlines()
        return caught.value.code, [json.loads(line) for line in lines]

    for kind in more:
        code, lines = run(kind)
        assert (code, lines[-1]["job"], lines[-1]["records"]) == (0, "table", 100)
        assert read_rows(kind, shop) == wanted_rows(shop, latest=kind == "delta")
        code, lines = run(kind, "--dry-run")
        assert (code, lines[-1]["dry_run"], lines[-1]["offsets"]) == (0, True, 0)
    assert run("iceberg", "--follow", "--dry-run")[0] == 2
    assert run("iceberg", "--keep", "soon")[0] == 2


def test_following_reports_what_was_stored(shop: Path) -> None:
    said: list[Summary] = []
    turns = itertools.count()

    def once() -> Summary:
        turn = next(turns)
        if turn in (1, 3):
            append(shop, [turn], item=["x"])
        return keep(shop, "delta")

    follow(once, said.append, 0.0, rounds=4)
    assert [summary.totals["records"] for summary in said] == [0, 1, 1]
    assert read_rows("delta", shop) == wanted_rows(shop)


@pytest.mark.parametrize(
    ("kind", "story"),
    [
        *[("iceberg", "every"), ("delta", "latest"), ("parquet", "every")],
        *[("iceberg", "protobuf"), ("delta", "following"), ("parquet", "protobuf")],
    ],
)
def test_a_run_that_is_killed_at_some_step_is_done_once_when_it_is_run_again(
    tmp_path: Path, kind: str, story: str
) -> None:
    killed(tmp_path, kind, story, stride={"iceberg": 9, "delta": 6, "parquet": 15}[kind])


@pytest.mark.long
@pytest.mark.parametrize("story", ["every", "latest", "protobuf", "following"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_killed_at_any_step_is_done_once_when_it_is_run_again(
    tmp_path: Path, kind: str, story: str
) -> None:
    killed(tmp_path, kind, story, stride=1)


def killed(folder: Path, kind: str, story: str, *, stride: int) -> None:
    command = [sys.executable, "-m", "tests.spark.killed_table", kind, story, str(folder)]
    ended = subprocess.run(
        [*command, str(stride)], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("killed ")
