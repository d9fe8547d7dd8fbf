"""The comparison judges itself: what is lost, changed or slow is never counted as reached."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.field import __main__ as runs
from benchmarks.field import judging, publishing, report, suite
from benchmarks.field.embedded import Keratin, Wal
from benchmarks.field.files import ArrowFile
from benchmarks.field.queues import Sqlite
from benchmarks.field.redis_streams import RedisStreams
from benchmarks.field.results import Results
from benchmarks.field.served import ServedByMany
from benchmarks.field.suite import Figures
from benchmarks.field.system import System

ROOT = Path(__file__).parents[2]


class Kept(System):
    """Keeps records in a list."""

    name = "kept"

    def start(self) -> None:
        self.records: list[bytes] = []

    def produce(self, values: Sequence[Sequence[bytes]]) -> None:
        for batch in values:
            self.records += batch

    def append(self, value: bytes) -> None:
        self.records.append(value)

    def chunks(self, count: int) -> Iterator[list[bytes]]:
        for start in range(0, count, 1000):
            yield self.records[start : start + 1000]

    def seek(self, timestamp_ms: int) -> bytes:
        return self.records[0]


class Losing(Kept):
    """Gives back one record too few."""

    def chunks(self, count: int) -> Iterator[list[bytes]]:
        yield self.records[: count - 1]


class Changing(Kept):
    """Gives back other bytes of the same length."""

    def values(self, chunk: Any) -> Sequence[bytes]:
        return [value[::-1] for value in chunk]


class Failing(Kept):
    """Cannot store."""

    def produce(self, values: Sequence[Sequence[bytes]]) -> None:
        raise OSError("the disk is gone")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRODUCE_SECONDS", "PIECE_SECONDS", "LONE_SECONDS"):
        monkeypatch.setattr(suite, name, 0.001)
    monkeypatch.setattr(suite, "PIECE_MOST_BYTES", 4 << 20)


def measured(kind: type[System], tmp_path: Path) -> Figures:
    figures = Figures(kind, "fsync")
    suite.records(figures, str(tmp_path / "system"))
    return figures


def test_a_system_that_keeps_everything_has_its_figures_and_no_problem(tmp_path: Path) -> None:
    figures = measured(Kept, tmp_path)
    assert figures.problems == []
    wanted = {"produce_100", "produce_1024", "read_100", "read_1024", "seek_us", "lone_p50_us"}
    assert wanted <= figures.values.keys()
    assert "each_100" not in figures.values, "what is not offered is left out"


@pytest.mark.parametrize(
    ("kind", "problem", "figure"),
    [
        (Losing, "acknowledged records", "read_100"),
        (Changing, "not what was sent", "read_100"),
        (Failing, "the disk is gone", "produce_100"),
    ],
)
def test_what_goes_wrong_is_a_problem_and_no_figure(
    kind: type[System], problem: str, figure: str, tmp_path: Path
) -> None:
    figures = measured(kind, tmp_path)
    assert any(problem in each for each in figures.problems)
    assert figure not in figures.values


def test_a_later_part_replaces_and_rounds_of_one_part_are_kept(tmp_path: Path) -> None:
    results = Results.load(tmp_path / "results.json")
    results.begin(2, "make bench").add_limits({"memcpy MB/s": 10.0, "round trip us": 5.0})
    row = results.row(Keratin, "fsync")
    row.add(0, "records", {"figures": {"many": [5.0], "lone_p50_us": [9.0]}, "problems": ["old"]})
    row.add(0, "records", {"figures": {"many": [7.0], "lone_p50_us": [8.0]}, "problems": []})
    assert row.values == {"many": 7.0, "lone_p50_us": 8.0}
    results.begin(1, "make bench ONLY=keratin").add_limits({"memcpy MB/s": 20.0})
    row.add(1, "records", {"figures": {"many": [6.0]}, "problems": []})
    results.save()
    found = Results.load(tmp_path / "results.json")
    (kept,) = found.rows
    assert kept.values == {"many": 6.0, "lone_p50_us": 8.0}
    assert [each for problems in kept.problems.values() for each in problems] == []
    assert found.limits_of(kept, "many") == {"memcpy MB/s": 20.0}
    assert found.limits_of(kept, "lone_p50_us")["memcpy MB/s"] == 10.0


def test_words_choose_systems_and_workloads() -> None:
    chosen = runs.jobs("redis,'sqlite wal',records")
    assert {kind for kind, _, _ in chosen} == {RedisStreams, Sqlite}
    assert {workload for _, _, workload in chosen} == {"records"}
    everything = runs.jobs("")
    assert {workload for _, _, workload in everything} == {"records", "starts", "archive", "spark"}


def filled(tmp_path: Path) -> Results:
    results = Results.load(tmp_path / "results.json")
    results.begin(1, "make bench")
    for kind, produced, lone in ((Keratin, 600.0, 90.0), (RedisStreams, 100.0, 100.0)):
        found = {"produce_100": [produced], "lone_p50_us": [lone]}
        results.row(kind, "fsync").add(0, "records", {"figures": found, "problems": []})
    return results


def test_bars_compare_with_the_best_whichever_way_is_better(tmp_path: Path) -> None:
    bars = {bar.name: bar for bar in judging.bars(filled(tmp_path))}
    assert bars["embedded_produce_100"].measured == pytest.approx(6.0)
    assert bars["ahead_lone_p50_us"].measured == pytest.approx(100 / 90)
    assert "served_produce_100" not in bars, "without figures there is no verdict"


def test_there_is_a_bar_for_each_comparison_that_has_figures(tmp_path: Path) -> None:
    results = filled(tmp_path)
    figures = {name: [100.0] for name in ("produce_1024", "read_1024", "each_1024")}
    for kind, share in ((Keratin, 1.0), (Wal, 0.5), (ServedByMany, 0.8), (ArrowFile, 2.0)):
        found = {name: [share * value for value in each] for name, each in figures.items()}
        results.row(kind, "fsync").add(0, "records", {"figures": found, "problems": []})
    bars = {bar.name: bar for bar in judging.bars(results)}
    assert (bars["wal_produce_1024"].measured, bars["wal_produce_1024"].ok) == (0.5, False)
    assert bars["served_of_embedded_read_1024"].measured == pytest.approx(0.8)
    assert bars["served_of_embedded_read_1024"].ok
    assert (bars["arrow_each_1024"].measured, bars["arrow_each_1024"].wanted) == (0.5, 0.95)


def test_a_compared_system_carries_its_version(tmp_path: Path) -> None:
    results = filled(tmp_path)
    results.row(RedisStreams, "fsync").version = "7.0.15, redis-py 7.4.1"
    results.row(Keratin, "fsync").version = "0.1.0, in process"
    text = report.table(results, ["produce_100"])
    assert "| Redis Streams 7.0.15 | fsync |" in text
    assert "| Lamina keratin 0.1.0 | fsync |" in text


def test_versions_are_told_in_the_page_and_in_the_readme_and_so_is_kafka_s_age() -> None:
    field = (ROOT / "docs" / "field.md").read_text()
    readme = (ROOT / "README.md").read_text()
    for page in (field, readme):
        rows = [line for line in page.splitlines() if re.search(r"\| (fsync|default) \|", line)]
        assert len(rows) > 10
        for row in rows:
            assert re.search(r"\d+\.\d+", row.split("|")[1]), row
        assert "2015" in page
        assert not re.search(r"\bbars?\b", page)


def test_only_what_is_between_the_markers_is_written_again(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{publishing.BEGIN}\nold\n{publishing.END}\nafter\n")
    publishing.publish(filled(tmp_path), page)
    text = page.read_text()
    assert text.startswith(f"before\n{publishing.BEGIN}\n| system")
    assert text.endswith(f"{publishing.END}\nafter\n")
    assert "old" not in text
    assert "| Lamina keratin | fsync | 0.6 |" in text


def test_the_report_says_what_was_not_run_and_why(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = filled(tmp_path)
    results.absent["NATS JetStream"] = "the package is not installed"
    results.row(Sqlite, "fsync").add(0, "records", {"figures": {}, "problems": ["it hung"]})
    text = report.write(results, tmp_path / "field").read_text()
    assert "- NATS JetStream: the package is not installed" in text
    assert "- SQLite WAL (fsync), records: it hung" in text
    assert (tmp_path / "field" / "produce_100.svg").exists()
    assert (tmp_path / "field" / "produce_100.png").exists()


def test_without_a_run_nothing_is_claimed(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"{publishing.BEGIN}\n{publishing.END}\n")
    nothing = Results.load(tmp_path / "results.json")
    publishing.publish(nothing, page)
    assert (
        page.read_text()
        == f"{publishing.BEGIN}\nNo run has been written down yet.\n{publishing.END}\n"
    )
    assert "No run has been written down yet." in report._text(nothing, [])
    assert judging.bars(nothing) == []
