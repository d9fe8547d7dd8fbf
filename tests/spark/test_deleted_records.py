"""Records deleted up to an offset inside of a segment: no rows, no false loss, at every door."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict

from lamina.cli import main as cli
from lamina.errors import RecordsMissing
from lamina.spark import stream as streaming
from lamina.spark.logs import archived_log, served_log
from lamina.spark.source import LaminaSource
from tests.server.rig import served
from tests.spark.logs import START_MS, rows_of
from tests.spark.tiers import ALL_KEPT, CONFIG, NONE_KEPT, append, by_hand

COUNT = 1000
BEFORE = 333
FORMATS = ("frame", "keratin", "wal")
DOORS = ("directory", "tiered", "archive", "server", "server and archive")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archived_log, "LOOK_S", 0.0)
    monkeypatch.setattr(served_log, "LOOK_S", 0.0)
    monkeypatch.setattr(streaming, "LOOK_AGAIN_S", 0.0)


@dataclass(frozen=True)
class Door:
    """How a topic is read, the store that writes it, and whether that has an archive."""

    where: dict[str, str]
    store: Any
    archives: bool

    def delete(self, before: int) -> None:
        assert self.store.delete_records("t", 0, before) == before
        if self.archives:
            self.store.archive()
        self.store.maintain()

    def source(self, **given: Any) -> LaminaSource:
        chosen = self.where | {"subscribe": "t", "columns": "offset"}
        return LaminaSource(CaseInsensitiveDict(chosen | {k: str(v) for k, v in given.items()}))

    def planned(self, **given: Any) -> tuple[Any, list[Any]]:
        source = self.source(**given)
        reading = source.reader(source.schema())
        return reading, list(reading.partitions())

    def offsets(self, **given: Any) -> list[int]:
        return sorted(row[0] for row in rows_of(*self.planned(**given)))


def at(offset: int) -> str:
    """An offset of the only partition, as options name it."""
    return json.dumps({"t": {"0": offset}})


@contextlib.contextmanager
def opened(path: Path, format_name: str, door: str) -> Iterator[Door]:
    """A topic of several segments; without a directory to read, all of them are archived."""
    cold, data = str(path / "cold"), str(path / "data")
    is_cold = door not in ("directory", "server")
    kept = ALL_KEPT if door == "archive" else NONE_KEPT
    with by_hand(path, archive=cold if is_cold else None) as store:
        config = CONFIG | {"local.retention.bytes": kept} if is_cold else {"segment.bytes": 16384}
        store.create_topic("t", format=format_name, config=config)
        append(store, "t", format_name, 0, COUNT)
        if is_cold:
            store.roll("t")
            store.archive()
        store.maintain()
        if "server" not in door:
            yield Door({"path": cold if door == "archive" else data}, store, is_cold)
            return
    with served(path / "data", **({"archive": cold} if is_cold else {})) as service:
        where = {"server": service.flight_url} | ({"archive": cold} if is_cold else {})
        yield Door(where, service._store, is_cold)


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("door", DOORS)
def test_a_batch_reads_what_is_left_and_names_the_rest(
    tmp_path: Path, format_name: str, door: str
) -> None:
    first = int(format_name == "wal")
    end = COUNT + first
    with opened(tmp_path, format_name, door) as log:
        assert log.offsets() == list(range(first, end))
        log.delete(BEFORE)
        left = list(range(BEFORE, end))
        for splits in (1, 16):
            assert log.offsets(minPartitions=splits) == left, "earliest is no loss"
            assert log.offsets(minPartitions=splits, failOnDataLoss="false") == left
        from_middle = {"startingOffsets": at(BEFORE - 100)}
        with pytest.raises(RecordsMissing, match=rf"{BEFORE - 100} to {BEFORE} \(trim\)"):
            log.offsets(**from_middle)
        assert log.offsets(**from_middle, failOnDataLoss="false") == left
        assert log.offsets(startingTimestamp=START_MS) == left
        assert log.offsets(startingOffsets=at(BEFORE)) == left
        ends = {"endingOffsets": at(BEFORE - 10), **from_middle}
        with pytest.raises(RecordsMissing, match="trim"):
            log.offsets(**ends)
        assert log.offsets(**ends, failOnDataLoss="false") == []


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("door", DOORS)
def test_a_stream_names_what_went_before_it_was_read(
    tmp_path: Path, format_name: str, door: str
) -> None:
    with opened(tmp_path, format_name, door) as log:
        few = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 100}

        def made(**given: Any) -> Any:
            source = log.source(**few, **given)
            return source.streamReader(source.schema())

        strict, lenient = made(), made(failOnDataLoss="false")
        start = strict.initialOffset()
        begun = strict.latestOffset(start, strict.getDefaultReadLimit())
        assert len(rows_of(strict, list(strict.partitions(start, begun)))) == 100
        log.delete(BEFORE)
        latest = strict.latestOffset(begun, strict.getDefaultReadLimit())
        with pytest.raises(RecordsMissing, match=rf" to {BEFORE} \(trim\)"):
            strict.partitions(begun, latest)
        found: list[int] = []
        while True:
            latest = lenient.latestOffset(begun, lenient.getDefaultReadLimit())
            if latest == begun:
                break
            found += [r[0] for r in rows_of(lenient, list(lenient.partitions(begun, latest)))]
            begun = latest
        assert found == list(range(BEFORE, COUNT + int(format_name == "wal")))
        fresh = made()
        begun = fresh.initialOffset()
        latest = fresh.latestOffset(begun, fresh.getDefaultReadLimit())
        assert len(rows_of(fresh, list(fresh.partitions(begun, latest)))) == 100


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("door", DOORS)
def test_a_plan_made_before_reads_what_is_left_whole(
    tmp_path: Path, format_name: str, door: str
) -> None:
    """A plan is a snapshot: it may still read what lies on disk, and says what it does not."""
    end = COUNT + int(format_name == "wal")
    with opened(tmp_path, format_name, door) as log:
        lenient = log.planned(minPartitions=8, failOnDataLoss="false")
        log.delete(BEFORE)
        found = [row[0] for row in rows_of(*lenient)]
        below = sorted(each for each in found if each < BEFORE)
        assert sorted(each for each in found if each >= BEFORE) == list(range(BEFORE, end))
        assert len(set(below)) == len(below)
        assert below in ([], list(range(BEFORE - len(below), BEFORE))), "of the last segment alone"


# ---------------------------------------------------------------- with Spark itself


def exported(table: Path) -> list[int]:
    return sorted(pq.read_table(str(table))["offset"].to_pylist())


@pytest.fixture
def export(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Runs `lamina pipeline export` in this process; returns its exit code and its last line."""

    def run(log: Door, table: Path, *words: str) -> tuple[int, Any]:
        given = ["lamina", "pipeline", "export", "t", str(table), "--json", *words]
        for option, value in log.where.items():
            given += ["--data" if option == "path" else f"--{option}", value]
        monkeypatch.setattr(sys, "argv", given)
        with pytest.raises(SystemExit) as caught:
            cli.main()
        lines = capsys.readouterr().out.splitlines()
        assert isinstance(caught.value.code, int)
        return caught.value.code, json.loads(lines[-1]) if lines else None

    return run


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("door", ["directory", "tiered", "server and archive"])
def test_an_export_begins_and_goes_on_as_after_a_trim(
    tmp_path: Path, export: Any, format_name: str, door: str
) -> None:
    first = int(format_name == "wal")
    end = COUNT + first
    with opened(tmp_path, format_name, door) as log:
        log.delete(BEFORE)
        table = tmp_path / "table"
        code, done = export(log, table)
        assert (code, done["records"]) == (0, end - BEFORE), "what went before is no loss"
        assert "left_out" not in done
        assert exported(table) == list(range(BEFORE, end))
        log.delete(BEFORE + 100)
        assert export(log, table)[1]["records"] == 0, "what is exported already is no loss"
        append(log.store, "t", format_name, COUNT, 250)
        log.delete(end + 50)
        assert export(log, table)[0] != 0
        assert exported(table) == list(range(BEFORE, end))
        code, done = export(log, table, "--skip-lost")
        assert (code, done["records"], done["left_out"]) == (0, 200, 50)
        assert exported(table) == [*range(BEFORE, end), *range(end + 50, end + 250)]
