"""Reading: limits, ends, isolation, waiting, and what rolls and trims do to a scan under way."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lamina.errors import Closed, InvalidRequest, OffsetOutOfRange, RecordsMissing, UnknownTopic
from tests.support.directories import FORMATS, START_MS, offsets, opened, rows, timed, values

BOTH = pytest.mark.parametrize("format_name", FORMATS)


# ---------------------------------------------------------------- limits


@BOTH
@pytest.mark.parametrize("sealed", [True, False])
def test_batches_keep_to_their_limits(tmp_path: Path, format_name: str, sealed: bool) -> None:
    contents = [bytes([number]) * 100 for number in range(50)]
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        store.append("t", contents)
        if sealed:
            store.roll("t")
        for max_records in (1, 7, 50, 51):
            sizes = [batch.num_rows for batch in store.scan("t", max_records=max_records)]
            assert sum(sizes) == 50
            assert max(sizes) <= max_records
        sizes = [batch.num_rows for batch in store.scan("t", max_bytes=1000)]
        assert sum(sizes) == 50
        assert max(sizes) < 10
        assert [batch.num_rows for batch in store.scan("t", max_bytes=1)] == [1] * 50


@BOTH
@pytest.mark.parametrize("sealed", [True, False])
def test_a_record_larger_than_any_limit_comes_alone(
    tmp_path: Path, format_name: str, sealed: bool
) -> None:
    large = bytes(range(256)) * 4096
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"a", large, b"b"])
        if sealed:
            store.roll("t")
        batch = store.fetch("t", 0, 1, max_bytes=1)
        assert batch.column("value").to_pylist() == [large]
        assert [row["value"] for row in rows(store, max_bytes=1)] == [b"a", large, b"b"]


@pytest.mark.parametrize("wrong", [{"max_records": 0}, {"max_bytes": 0}, {"max_bytes": -1}])
def test_a_limit_of_nothing_is_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t")
        with pytest.raises(InvalidRequest, match="limits must be positive"):
            store.scan("t", **wrong)
        with pytest.raises(InvalidRequest, match="limits must be positive"):
            store.fetch("t", 0, 0, **wrong)


@BOTH
def test_a_scan_ends_where_it_is_told_to(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"a", b"b", b"c"])
        store.roll("t")
        store.append("t", [b"d", b"e"])
        for start in range(6):
            for end in range(7):
                found = [row["offset"] for row in rows(store, start=start, end=end)]
                assert found == list(range(start, min(end, 5)))


# ---------------------------------------------------------------- ends


@BOTH
def test_an_empty_partition_has_nothing_and_no_time(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        assert (store.earliest_offset("t"), store.latest_offset("t")) == (0, 0)
        assert list(store.scan("t")) == []
        batch = store.fetch("t", 0, 0)
        assert batch.num_rows == 0
        store.append("t", [b"a"])
        assert store.fetch("t", 0, 0).schema == batch.schema
        assert store.offset_for_time("t", 0, START_MS + 1) is None


@BOTH
def test_offsets_that_never_were_are_refused(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"a", b"b"])
        assert store.fetch("t", 0, 2).num_rows == 0
        with pytest.raises(OffsetOutOfRange, match="beyond the end"):
            store.fetch("t", 0, 3)
        with pytest.raises(OffsetOutOfRange, match="beyond the end"):
            list(store.scan("t", start=3))
        with pytest.raises(OffsetOutOfRange, match="beyond the end"):
            list(store.scan("t", start=3, end=1))
        with pytest.raises(OffsetOutOfRange, match="count from 0"):
            store.fetch("t", 0, -1)
        with pytest.raises(OffsetOutOfRange, match="count from 0"):
            list(store.scan("t", start=-1))


@BOTH
def test_durable_readers_see_only_what_was_synced(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"a"])
        store.append("t", [b"b"], acks=1)
        assert store.latest_offset("t") == 1
        assert store.latest_offset("t", isolation="written") == 2
        assert [row["value"] for row in rows(store)] == [b"a"]
        assert [row["value"] for row in rows(store, isolation="written")] == [b"a", b"b"]
        assert store.fetch("t", 0, 1).num_rows == 0
        assert store.fetch("t", 0, 1, isolation="written").num_rows == 1
        assert list(store.scan("t", start=2)) == []
        store.flush()
        assert [row["value"] for row in rows(store)] == [b"a", b"b"]


@BOTH
def test_a_roll_makes_written_records_durable_in_order(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"a"], acks=1)
        store.roll("t")
        store.append("t", [b"b"], acks=1)
        assert values(store) == [b"a"]


# ---------------------------------------------------------------- waiting


@BOTH
@pytest.mark.parametrize(("isolation", "acks"), [("durable", "all"), ("written", 1)])
def test_a_waiting_reader_is_woken_by_the_append(
    tmp_path: Path, format_name: str, isolation: str, acks: object
) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        got: list[bytes] = []

        def read() -> None:
            batch = store.fetch("t", 0, 0, wait_ms=60_000, isolation=isolation)  # type: ignore[arg-type]
            got.extend(batch.column("value").to_pylist())

        reader = threading.Thread(target=read)
        reader.start()
        partition = store._partitions["t", 0]
        while not partition._waiting:
            time.sleep(0.001)
        started = time.monotonic()
        store.append("t", [b"a"], acks=acks)
        reader.join(30)
        assert got == [b"a"]
        assert time.monotonic() - started < 10


def test_waiting_is_not_polling(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t")
        partition = store._partitions["t", 0]
        looked = 0
        real = partition.end_offset

        def counted(isolation: str = "durable") -> int:
            nonlocal looked
            looked += 1
            return real(isolation)  # type: ignore[arg-type]

        partition.end_offset = counted  # type: ignore[method-assign, assignment]
        assert store.fetch("t", 0, 0, wait_ms=300).num_rows == 0
        assert looked < 10


def test_a_durable_reader_is_not_woken_by_what_is_only_written(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t")
        threading.Timer(0.05, lambda: store.append("t", [b"a"], acks=1)).start()
        started = time.monotonic()
        assert store.fetch("t", 0, 0, wait_ms=300).num_rows == 0
        assert time.monotonic() - started >= 0.3


# ---------------------------------------------------------------- times


@BOTH
def test_the_first_record_at_or_after_a_time_is_found_where_times_go_back(
    tmp_path: Path, format_name: str
) -> None:
    ahead = [10, 5, 30, 20, 20, 40, 1, 50]
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        for first in range(0, 8, 3):
            store.append("t", timed([START_MS + each for each in ahead[first : first + 3]]))
            store.roll("t")
        for wanted in range(60):
            late = (offset for offset, each in enumerate(ahead) if each >= wanted)
            found = store.offset_for_time("t", 0, START_MS + wanted)
            assert found == next(late, None)


@BOTH
def test_a_time_in_a_large_segment_is_found_through_the_index(
    tmp_path: Path, format_name: str
) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        times = [START_MS + 10 * number for number in range(5000)]
        store.append("t", timed(times, size=100))
    with opened(tmp_path / "data") as store:
        for number in (0, 1, 999, 1000, 2500, 4999):
            for shift, expected in ((0, number), (-9, number), (1, number + 1)):
                found = store.offset_for_time("t", 0, times[number] + shift)
                assert found == (expected if expected < 5000 else None)
        for start in (0, 1, 999, 2500, 4999):
            assert store.fetch("t", 0, start, max_records=1).column("offset").to_pylist() == [start]


# ---------------------------------------------------------------- while segments come and go


@BOTH
def test_a_scan_that_runs_while_segments_roll_sees_one_stream(
    tmp_path: Path, format_name: str
) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name, config={"segment.bytes": 1024})
        store.append("t", [b"x" * 50] * 100)
        reader = store.scan("t", max_records=3)
        seen = []
        for batch in reader:
            seen += batch.column("offset").to_pylist()
            store.append("t", [b"y" * 50] * 5)
        assert seen == list(range(100)), "to the end as it was"


@BOTH
def test_readers_and_a_trimming_writer_agree(tmp_path: Path, format_name: str) -> None:
    """Each reader sees every offset once, in order, or a reason why not; never another error."""
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name, config={"segment.bytes": 1024})
        failures: list[BaseException] = []
        told: list[tuple[int, RecordsMissing]] = []
        done = threading.Event()

        def read() -> None:
            try:
                at = 0
                while not done.is_set() or at < store.latest_offset("t"):
                    at = read_on(at)
                    done.wait(0.001)
            except BaseException as error:
                failures.append(error)

        def read_on(at: int) -> int:
            try:
                for batch in store.scan("t", start=at, max_records=7):
                    for offset, value in zip(
                        batch.column("offset").to_pylist(),
                        batch.column("value").to_pylist(),
                        strict=True,
                    ):
                        assert offset == at
                        assert value == b"%06d" % offset
                        at += 1
            except RecordsMissing as missing:
                told.append((at, missing))
                at = missing.end
            return at

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        end = 0
        for step in range(60):
            store.append("t", [b"%06d" % (end + number) for number in range(9)])
            end += 9
            if step % 5 == 4:
                store.trim("t", 0, end - 40)
        done.set()
        for reader in readers:
            reader.join(60)
        assert not failures, failures[0]
        assert all(at <= missing.first < missing.end for at, missing in told)
        assert {missing.reason for _, missing in told} <= {"trim"}
        assert offsets(store)[-1] == end - 1


@pytest.mark.parametrize("ending", ["close", "delete"])
def test_the_end_of_a_store_or_topic_ends_a_long_poll(tmp_path: Path, ending: str) -> None:
    with opened(tmp_path / "data") as store, ThreadPoolExecutor(1) as pool:
        store.create_topic("t")
        waiting = pool.submit(store.fetch, "t", 0, 0, wait_ms=250_000)
        reader = store._lookup.partition("t", 0)
        while reader._waiting == 0:
            time.sleep(0.001)
        if ending == "close":
            store.close()
        else:
            store.delete_topic("t")
        with pytest.raises(Closed if ending == "close" else UnknownTopic):
            waiting.result()
