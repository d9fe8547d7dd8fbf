"""The sink without Spark around it: staging, committing once, and every crash in between.

The crash test runs one transaction on a simulated disk. Before each step that changes the disk it
takes a snapshot; each becomes a disk after a kill and after a power loss. On each the application
comes back as Spark does it: it stages its rows again, under other names, and commits again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lamina.errors import (
    CorruptData,
    InvalidRequest,
    Locked,
    Unavailable,
    UnknownTopic,
    UnsupportedField,
)
from lamina.formats.documents.sink_transaction import Part, Transaction
from lamina.spark.commit import staging
from lamina.spark.commit import transaction as transactions
from lamina.spark.commit.handover import publish
from lamina.spark.commit.handover import publishing as taking_over
from lamina.spark.commit.staging import Stager, Staging
from lamina.spark.commit.transaction import Publisher
from lamina.spark.logs.local import boot_of
from lamina.storage.files import Files, LocalFiles
from lamina.store.opening import Boot
from lamina.store.store import Store
from lamina_torture.disk import Disk
from lamina_torture.simulated import SimulatedFiles
from tests.spark.logs import NEVER_MS, START_MS, stored, values

DATA = "/srv/data"
SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])


def rows(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        [[b"key %d" % (n % 17) for n in numbers], [b"row %d" % n for n in numbers]], schema=SCHEMA
    )


def fitting(batch: pa.RecordBatch, files: Files, data: str) -> pa.RecordBatch:
    """Rows as the topic keeps them: one of format wal has no keys, so they name a partition."""
    topics = Boot(files, data, lambda: START_MS).catalog.peek()
    if topics["t"].format != "wal":
        return batch
    chosen = pa.array([row % 2 for row in range(batch.num_rows)], pa.int32())
    return pa.record_batch({"value": batch.column("value"), "partition": chosen})


def stage(
    files: Files, data: str, number: int, *batches: pa.RecordBatch, topic: str | None = "t"
) -> Part:
    place = Staging(files, data, "app", number)
    topics = Boot(files, data, lambda: START_MS).catalog.peek()
    return Stager(place, topics, topic=topic, now_ms=START_MS).stage(batches)


def transaction(number: int, *parts: Part, query: str = "") -> Transaction:
    return Transaction("app", number, query, parts)


def expected(*numbers: int) -> Counter[bytes]:
    """What transactions hold: number n has the rows n * 1000 to n * 1000 + 63."""
    return Counter(b"row %d" % row for n in numbers for row in range(n * 1000, n * 1000 + 64))


def write(files: Files, data: str, number: int, *, backwards: bool = False) -> bool:
    """One whole write, as Spark does it: some tasks, then the commit; a rerun may order anew."""
    tasks = range(8)[::-1] if backwards else range(8)
    first = number * 1000
    batches = [fitting(rows(first + 8 * task, 8), files, data) for task in tasks]
    parts = [stage(files, data, number, batch) for batch in batches]
    return publish(data, transaction(number, *parts), files=files, timeout_ms=60_000)


def make_topic(files: Files, data: str, format_name: str = "keratin") -> None:
    config: dict[str, Any] = {"segment.bytes": 1024}
    if format_name == "wal":
        config["durability"] = "memory"  # a transaction is synced all the same
    with Store(data, files=files) as store:
        store.create_topic("t", partitions=2, format=format_name, config=config)


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = str(tmp_path / "data")
    make_topic(LocalFiles(), path)
    return path


@pytest.fixture
def small_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    """More appends for each partition than a producer's journal remembers."""
    monkeypatch.setattr(transactions, "APPEND_BYTES", 1)


# ---------------------------------------------------------------- crashes


SAMPLES = {"keratin": 40, "wal": 14}
"""How many of the steps are tried each time; a long run tries all."""
FORMATS = pytest.mark.parametrize("format_name", SAMPLES)


def moments(format_name: str) -> list[tuple[str, str, Disk]]:
    files = SimulatedFiles()
    make_topic(files, DATA, format_name)
    write(files, DATA, 1)
    found: list[tuple[str, str, Disk]] = []
    taking = threading.Lock()

    def note(kind: str, path: str) -> None:
        with taking:
            found.append((kind, path, files.snapshot()))

    files.before = note
    write(files, DATA, 2)
    files.before = None
    found.append(("end", "", files.snapshot()))
    return found


def check(files: SimulatedFiles, where: str, *, repeat_at_once: bool) -> None:
    """The disk after a crash holds all of transaction 2 or nothing; a repeat makes it all, once.

    Either the store is opened for the sink first, or the repeat is the first to find the rest.
    """
    if not repeat_at_once:
        with Store(DATA, files=files) as store:
            Publisher(store, files, DATA, lambda: START_MS).go_on()
            found = values(store, "t")
        assert found in (expected(1), expected(1, 2)), where
        was_decided = found == expected(1, 2)
        assert write(files, DATA, 2, backwards=True) is not was_decided, where
    write(files, DATA, 2, backwards=True)
    assert write(files, DATA, 2) is False, where
    assert write(files, DATA, 3) is True, where
    with Store(DATA, files=files) as store:
        assert values(store, "t") == expected(1, 2, 3), where
    assert not [name for name in files.contents() if name.endswith(".part")], where


@FORMATS
@pytest.mark.usefixtures("small_appends")
def test_a_kill_at_any_step_stores_every_row_once(format_name: str) -> None:
    found = moments(format_name)
    assert len(found) > 40
    kinds = {kind for kind, _, _ in found}
    assert {"create", "write_at", "sync", "rename", "remove"} <= kinds
    for step, (kind, path, disk) in enumerate(found[:: max(1, len(found) // SAMPLES[format_name])]):
        where = f"killed before step {step}: {kind} {path}"
        check(disk.restart(), where, repeat_at_once=step % 2 == 0)


@FORMATS
@pytest.mark.usefixtures("small_appends")
def test_a_power_loss_stores_every_row_once(format_name: str) -> None:
    found = moments(format_name)
    for step, (kind, path, disk) in enumerate(
        found[:: max(1, 2 * len(found) // SAMPLES[format_name])]
    ):
        where = f"power lost before step {step}: {kind} {path}"
        check(disk.crash("dropped"), where, repeat_at_once=step % 2 == 0)


@FORMATS
@pytest.mark.long
@pytest.mark.usefixtures("small_appends")
def test_any_crash_at_every_step_stores_every_row_once(format_name: str) -> None:
    for step, (kind, path, disk) in enumerate(moments(format_name)):
        where = f"before step {step}: {kind} {path}"
        for at_once in (True, False):
            check(disk.restart(), f"killed {where}", repeat_at_once=at_once)
            for choice in ("dropped", "kept", 1, 2):
                lost = f"power lost ({choice}) {where}"
                check(disk.crash(choice), lost, repeat_at_once=at_once)


# ---------------------------------------------------------------- committing


def test_a_repeat_and_an_older_number_are_not_stored(data: str) -> None:
    files = LocalFiles()
    assert [write(files, data, number) for number in (1, 1, 3, 2)] == [True, False, True, False]
    with Store(data) as store:
        assert values(store, "t") == expected(1, 3)


def test_parts_that_no_commit_names_are_not_served_and_swept(data: str) -> None:
    files = LocalFiles()
    stage(files, data, 5, rows(9000, 10))  # an attempt that lost
    write(files, data, 5)
    with Store(data) as store:
        assert values(store, "t") == expected(5)
    assert not list(Path(data, "sink").rglob("*.part"))


def test_parts_of_a_transaction_that_never_came_are_swept_after_a_day(data: str) -> None:
    files = LocalFiles()
    stage(files, data, 5, rows(9000, 10))
    now_ms = START_MS + transactions.KEPT_MS
    for age_ms, left in ((0, 1), (1, 0)):
        with Store(data) as store:
            at = now_ms + age_ms
            Publisher(store, files, data, lambda at=at: at).go_on()  # type: ignore[misc]
        assert len(list(Path(data, "sink").rglob("*.part"))) == left


def test_a_damaged_part_is_refused_before_anything_is_stored(data: str) -> None:
    files = LocalFiles()
    parts = [stage(files, data, 1, rows(0, 30)), stage(files, data, 1, rows(30, 30))]
    path = next(Path(data, "sink").rglob(parts[1].name))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptData, match="staged part is damaged"):
        publish(data, transaction(1, *parts), files=files, timeout_ms=1000)
    with Store(data) as store:
        assert values(store, "t") == Counter()
    assert write(files, data, 1) is True


def test_an_application_belongs_to_one_query(data: str) -> None:
    files = LocalFiles()
    part = stage(files, data, 0, rows(0, 5))
    assert publish(data, transaction(0, part, query="one"), files=files, timeout_ms=1000)
    other = stage(files, data, 0, rows(5, 5))
    with pytest.raises(InvalidRequest, match="belongs to another query"):
        publish(data, transaction(0, other, query="two"), files=files, timeout_ms=1000)


@pytest.mark.usefixtures("small_appends")
def test_rows_for_a_topic_deleted_since_the_decision_go_with_it(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LocalFiles()
    with Store(data) as store:
        store.create_topic("u")
        kept, lost = rows(1000, 64), rows(0, 9)
        parts = [stage(files, data, 1, kept), stage(files, data, 1, lost, topic="u")]
        publisher = Publisher(store, files, data, lambda: START_MS)
        with monkeypatch.context() as context:
            context.setattr(Publisher, "_finish", lambda *_: None)  # killed here
            publisher.settle(transaction(1, *parts))
        store.delete_topic("u")
        store.create_topic("u")
        publisher.go_on()
        assert values(store, "t") == expected(1)
        assert values(store, "u") == Counter()


def test_no_rows_are_a_transaction_too(data: str) -> None:
    files = LocalFiles()
    empty = stage(files, data, 1)
    assert publish(data, transaction(1, empty), files=files, timeout_ms=1000) is True
    assert publish(data, transaction(1, empty), files=files, timeout_ms=1000) is False


# ---------------------------------------------------------------- a store that is open elsewhere


def test_a_live_store_takes_commits_over_while_its_producers_append(data: str) -> None:
    stop = threading.Event()
    appended: Counter[bytes] = Counter()

    def produce(store: Store) -> None:
        number = 0
        while not stop.is_set():
            value = b"own %d" % number
            store.append("t", [value], partition=number % 2)
            appended[value] += 1
            number += 1

    with Store(data) as store, taking_over(store):
        producer = threading.Thread(target=produce, args=(store,))
        producer.start()
        try:
            answers = [write(LocalFiles(), data, number) for number in (1, 2, 2, 3)]
        finally:
            stop.set()
            producer.join()
        assert answers == [True, True, False, True]
        assert values(store, "t") == appended + expected(1, 2, 3)
    assert list(Path(data, "sink", "inbox").iterdir()) == []


def test_a_live_store_answers_what_is_wrong(data: str) -> None:
    part = stage(LocalFiles(), data, 1, rows(0, 5))
    next(Path(data, "sink").rglob(part.name)).unlink()
    with (
        Store(data) as store,
        taking_over(store),
        pytest.raises(Unavailable, match=r"could not commit: .*staged part is gone"),
    ):
        publish(data, transaction(1, part), files=LocalFiles(), timeout_ms=5000)


def test_a_store_that_nobody_publishes_for_is_waited_for_and_named(data: str) -> None:
    part = stage(LocalFiles(), data, 1, rows(0, 5))
    with Store(data), pytest.raises(Locked, match=r"lamina\.spark\.publishing"):
        publish(data, transaction(1, part), files=LocalFiles(), timeout_ms=50)


# ---------------------------------------------------------------- staging


def test_rows_go_where_append_would_put_them(data: str) -> None:
    files = LocalFiles()
    batch = rows(0, 200)
    with Store(data) as store:
        store.create_topic("same", partitions=2)
        store.append("same", batch)
    part = stage(files, data, 1, batch)
    publish(data, transaction(1, part), files=files, timeout_ms=1000)
    with Store(data) as store:
        for partition in range(2):
            found, wanted = (
                [value for (value,) in stored(store, topic, partition, "value")]
                for topic in ("t", "same")
            )
            assert found == wanted


def staged(data: str, columns: dict[str, Any], topic: str | None = "t") -> list[dict[str, Any]]:
    files = LocalFiles()
    part = stage(files, data, 1, pa.record_batch(columns), topic=topic)
    publish(data, transaction(1, part), files=files, timeout_ms=1000)
    with Store(data) as store:
        return [
            row | {"topic": name, "partition": each.partition}
            for name in store.topics()
            for each in store.describe_topic(name).partitions
            for batch in store.scan(name, each.partition)
            for row in batch.to_pylist()
        ]


def test_a_row_may_name_its_partition_and_topic(data: str) -> None:
    with Store(data) as store:
        store.create_topic("u", partitions=3)
    found = staged(
        data,
        {
            "value": pa.array(["a", "b", "c"]),
            "topic": pa.array(["u", "t", "u"]),
            "partition": pa.array([2, 1, None], pa.int32()),
            "key": pa.array([b"k", b"k", None]),
        },
        topic=None,
    )
    places = {row["value"]: (row["topic"], row["partition"]) for row in found}
    assert places[b"a"] == ("u", 2)
    assert places[b"b"] == ("t", 1)
    assert places[b"c"][0] == "u"


def test_times_are_rounded_to_milliseconds(data: str) -> None:
    micros = [START_MS * 1000 + 499, START_MS * 1000 + 500, -1, None]
    times = pa.array(micros, pa.timestamp("us", tz="UTC"))
    found = staged(data, {"value": pa.array(["a", "b", "c", "d"]), "timestamp": times})
    rounded = {row["value"]: round(row["timestamp"].timestamp() * 1000) for row in found}
    assert rounded == {b"a": START_MS, b"b": START_MS + 1, b"c": 0, b"d": START_MS}


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"value": ["a"], "partition": [2]}, UnknownTopic),
        ({"value": ["a"], "partition": [-1]}, UnknownTopic),
        ({"value": ["a"], "tag": ["x"]}, UnsupportedField),
        ({"value": ["a" * ((16 << 20) + 1)]}, InvalidRequest),
    ],
)
def test_rows_that_cannot_be_stored_fail_their_task(
    data: str, columns: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        stage(LocalFiles(), data, 1, pa.record_batch(columns))


def test_a_row_needs_a_topic_that_is_there(data: str) -> None:
    for topic, error in (("missing", UnknownTopic), (None, InvalidRequest)):
        batch = pa.record_batch({"value": ["a"], "topic": pa.array([topic], pa.string())})
        with pytest.raises(error):
            stage(LocalFiles(), data, 1, batch, topic=None)


def test_batches_are_joined_but_never_all_of_them(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "FLUSH_BYTES", 2000)
    held: list[int] = []

    def many() -> Iterator[pa.RecordBatch]:
        for number in range(20):
            held.append(number)
            yield rows(number * 50, 50)

    place = Staging(LocalFiles(), data, "app", 1)
    stager = Stager(place, boot_of(data).catalog.peek(), topic="t", now_ms=START_MS)
    part = stager.stage(many())
    assert len(held) == 20
    assert sum(run.rows for run in part.runs) == 1000
    assert len(part.runs) >= 20


def test_a_sealed_store_is_not_needed_to_stage(data: str) -> None:
    with Store(data, tick_ms=NEVER_MS):
        assert stage(LocalFiles(), data, 1, rows(0, 5)).runs[0].rows > 0
