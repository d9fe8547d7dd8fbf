"""A real store used from many threads at once, forked, and left open at the end of a process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lamina
from lamina.config import WriterSettings
from lamina.errors import Closed, Locked, RecordsMissing
from lamina.log.segment import Bound
from lamina.storage.files import LocalFile
from lamina.store.store import Store

SOON_S = 60
FORMATS = ["keratin", "frame"]
REASONS = {"trim", "retention"}


def run_all(work: list[Callable[[], None]]) -> None:
    """Runs everything at once; the first error is raised."""
    with ThreadPoolExecutor(len(work)) as pool:
        for future in [pool.submit(each) for each in work]:
            future.result(SOON_S)


class Traffic:
    """Eight producers and four readers on two partitions, while segments roll and go."""

    PRODUCERS = 8
    APPENDS = 60

    def __init__(self, store: Store) -> None:
        self.store = store
        self.acked: dict[tuple[int, int], bytes] = {}
        self.producing = self.PRODUCERS
        self.lock = threading.Lock()
        self.ends = [0, 0]

    def produce(self, who: int) -> None:
        for number in range(self.APPENDS):
            partition = (who + number) % 2
            values = [b"%d/%d/%d" % (who, number, row) for row in range(1 + number % 20)]
            acks = "all" if number % 3 else 1
            ack = self.store.append("t", values, partition=partition, acks=acks)
            with self.lock:
                for row, value in enumerate(values):
                    key = partition, ack.base_offset + row
                    assert key not in self.acked, "an offset was given twice"
                    self.acked[key] = value
        with self.lock:
            self.producing -= 1

    @property
    def finished(self) -> bool:
        return self.producing == 0

    def read(self, partition: int, *, long_poll: bool) -> None:
        """Follows a partition to its end; what it saw must be what was acknowledged."""
        offset = 0
        seen: dict[int, bytes] = {}
        while True:
            done = self.finished
            end = self.store.latest_offset("t", partition)
            try:
                offset = self.step(partition, offset, seen, long_poll=long_poll)
            except RecordsMissing as missing:
                offset = self.step_over(missing, offset)
            if done and offset >= end == self.store.latest_offset("t", partition):
                break
        for at, value in seen.items():
            assert self.acked[partition, at] == value

    def step(self, partition: int, offset: int, seen: dict[int, bytes], *, long_poll: bool) -> int:
        if long_poll:
            batches = [self.store.fetch("t", partition, offset, wait_ms=50, max_records=300)]
        else:
            time.sleep(0.002)
            batches = self.store.scan("t", partition, offset, max_records=97)
        for batch in batches:
            if batch.num_rows == 0:
                continue
            offsets = batch.column("offset").to_pylist()
            assert offsets == list(range(offset, offset + len(offsets))), "not dense or not once"
            durable = self.store.latest_offset("t", partition)
            assert offsets[-1] < durable, "a record that is not durable was shown"
            seen.update(zip(offsets, batch.column("value").to_pylist(), strict=True))
            offset = offsets[-1] + 1
        return offset

    def step_over(self, missing: RecordsMissing, offset: int) -> int:
        assert missing.reason in REASONS, missing
        assert offset <= missing.first < missing.end
        return missing.end

    def disturb(self) -> None:
        """Rolls, trims, applies retention, alters and looks, as long as anybody appends."""
        number = 0
        while not self.finished:
            partition = number % 2
            end = self.store.latest_offset("t", partition)
            assert end >= self.ends[partition], "the end moved back"
            self.ends[partition] = end
            self.store.roll("t", partition)
            self.store.trim("t", partition, max(0, end - 500))
            self.store.apply_retention("t", partition)
            self.store.explain_retention("t", partition)
            self.store.describe_topic("t")
            self.store.alter_topic("t", {"retention.bytes": 40_000 + number})
            self.store.maintain()
            number += 1
            time.sleep(0.005)


@pytest.mark.parametrize("format_name", FORMATS)
def test_producers_readers_rolls_and_trims_at_once(tmp_path: Path, format_name: str) -> None:
    settings = WriterSettings(flush_ms=10)
    with Store(str(tmp_path / "data"), writer=settings, tick_ms=10) as store:
        config = {"segment.bytes": 8 << 10, "retention.bytes": 40_000}
        store.create_topic("t", partitions=2, format=format_name, config=config)
        traffic = Traffic(store)
        run_all(
            [
                *(lambda who=who: traffic.produce(who) for who in range(Traffic.PRODUCERS)),
                *(lambda p=p: traffic.read(p, long_poll=True) for p in (0, 1)),
                *(lambda p=p: traffic.read(p, long_poll=False) for p in (0, 1)),
                traffic.disturb,
            ]
        )
        assert len(traffic.acked) == Traffic.PRODUCERS * sum(
            1 + number % 20 for number in range(Traffic.APPENDS)
        )
        total = sum(store.latest_offset("t", partition) for partition in (0, 1))
        assert total == len(traffic.acked)
        assert min(store.earliest_offset("t", partition) for partition in (0, 1)) > 0
        check_rest(store, traffic)
    with lamina.open(str(tmp_path / "data")) as store:
        check_rest(store, traffic)


def check_rest(store: Store, traffic: Traffic) -> None:
    """What was not trimmed is there, once and in order, and the ledger explains the rest."""
    for partition in (0, 1):
        earliest = store.earliest_offset("t", partition)
        found = {}
        for batch in store.scan("t", partition):
            offsets = batch.column("offset").to_pylist()
            found.update(zip(offsets, batch.column("value").to_pylist(), strict=True))
        expected = {
            offset: value
            for (of, offset), value in traffic.acked.items()
            if of == partition and offset >= earliest
        }
        assert found == expected
        assert list(found) == sorted(found)
        gaps = store.gaps("t", partition)
        assert sum(gap.end - gap.first for gap in gaps) == earliest
        assert {gap.reason for gap in gaps} <= REASONS


def test_a_long_poll_is_woken_by_the_append(tmp_path: Path) -> None:
    with lamina.open(str(tmp_path)) as store, ThreadPoolExecutor(8) as pool:
        store.create_topic("t")
        waiting = [pool.submit(store.fetch, "t", 0, 0, wait_ms=60_000) for _ in range(8)]
        partition = store._partitions["t", 0]
        while partition._waiting < 8:
            time.sleep(0.001)
        started = time.perf_counter()
        store.append("t", b"news")
        for future in waiting:
            assert future.result(SOON_S).column("value").to_pylist() == [b"news"]
        assert time.perf_counter() - started < 30


def test_readers_of_durable_records_see_nothing_before_its_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncing, go = threading.Event(), threading.Event()
    real = LocalFile.sync

    def held_back(file: LocalFile) -> None:
        syncing.set()
        assert go.wait(SOON_S)
        real(file)

    with Store(str(tmp_path), tick_ms=100_000) as store, ThreadPoolExecutor(1) as pool:
        store.create_topic("t")
        store.append("t", b"before")
        monkeypatch.setattr(LocalFile, "sync", held_back)
        ack = pool.submit(store.append, "t", b"held back")
        try:
            assert syncing.wait(SOON_S)
            assert store.latest_offset("t", isolation="written") == 2
            assert store.latest_offset("t") == 1
            assert store.fetch("t", 0, 1).num_rows == 0
            assert store.fetch("t", 0, 1, isolation="written").num_rows == 1
            assert not ack.done()
        finally:
            go.set()
        assert ack.result(SOON_S).base_offset == 1
        assert store.fetch("t", 0, 1).num_rows == 1


def test_a_reader_that_comes_too_late_for_a_segment_is_told_why(tmp_path: Path) -> None:
    with lamina.open(str(tmp_path)) as store:
        store.create_topic("t")
        for value in (b"first", b"second"):
            store.append("t", value)
            store.roll("t")
    with lamina.open(str(tmp_path)) as store:
        segment = store._partitions["t", 0].layout.sealed[0]
        real = segment.locate

        def trimmed_before(offset: int, bound: Bound) -> int:
            store.trim("t", 0, 1)
            return real(offset, bound)

        segment.locate = trimmed_before  # type: ignore[method-assign]
        with pytest.raises(RecordsMissing) as caught:
            list(store.scan("t", 0, 0))
        assert (caught.value.first, caught.value.end, caught.value.reason) == (0, 1, "trim")
        values = [v for batch in store.scan("t", 0, 1) for v in batch.column("value").to_pylist()]
        assert values == [b"second"]


def test_split_appends_and_asyncio_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """More appends over several partitions than the pool has threads, while asyncio needs it."""
    rows = [{"key": b"%d" % number, "value": b"v"} for number in range(16)]
    with lamina.open(str(tmp_path)) as store:
        store.create_topic("t", partitions=4)

        def split() -> None:
            for _ in range(10):
                assert store.append("t", rows).count == 16

        async def tasks() -> None:
            async def task() -> None:
                for _ in range(10):
                    await store.append_async("t", rows)

            await asyncio.wait_for(asyncio.gather(*(task() for _ in range(10))), SOON_S)

        run_all([*[split] * 12, lambda: asyncio.run(tasks())])
        total = sum(store.latest_offset("t", partition) for partition in range(4))
        assert total == 16 * (120 + 100)


def test_topics_come_and_go_while_others_are_used(tmp_path: Path) -> None:
    stop = threading.Event()
    acks = []
    with Store(str(tmp_path), tick_ms=5) as store:
        store.create_topic("stays")

        def use() -> None:
            while not stop.is_set():
                acks.append(store.append("stays", b"x"))

        def visit() -> None:
            while not stop.is_set():
                try:
                    store.append("goes", b"y", acks=1)
                    list(store.scan("goes"))
                except (lamina.Closed, lamina.InvalidRequest, RecordsMissing):
                    time.sleep(0.001)

        def come_and_go() -> None:
            for _ in range(6):
                store.create_topic("goes", partitions=2)
                time.sleep(0.01)
                store.delete_topic("goes")
            stop.set()

        run_all([use, visit, visit, come_and_go])
        assert store.latest_offset("stays") == len(acks)


def test_closing_while_everybody_appends_answers_all_or_refuses(tmp_path: Path) -> None:
    acked: list[tuple[int, bytes]] = []
    store = lamina.open(str(tmp_path))
    store.create_topic("t")

    def produce(who: int) -> None:
        number = 0
        while True:
            value = b"%d/%d" % (who, number)
            try:
                acked.append((store.append("t", [value]).base_offset, value))
            except Closed:
                return
            number += 1

    def close() -> None:
        while len(acked) < 100:
            time.sleep(0.001)
        store.close()

    run_all([*(lambda who=who: produce(who) for who in range(8)), close])
    with lamina.open(str(tmp_path)) as again:
        values = [v for batch in again.scan("t") for v in batch.column("value").to_pylist()]
        assert dict(enumerate(values)) == dict(acked)


# ---------------------------------------------------------------------- other processes


def run_script(script: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, str(directory)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FORK = """
import os, signal, sys, threading, lamina
from lamina.errors import Closed
store = lamina.open(sys.argv[1])
store.create_topic("t")
stop = threading.Event()
# The first append loads the kernels; LLVM does not survive a fork in the middle of that.
acked = [store.append("t", b"parent").base_offset]
def produce():
    while not stop.is_set():
        acked.append(store.append("t", b"parent").base_offset)
threads = [threading.Thread(target=produce) for _ in range(4)]
for thread in threads:
    thread.start()
for number in range(10):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        status = 1
        try:
            store.append("t", b"child")
        except Closed:
            status = 0
        store.close()
        if number % 2:
            os._exit(status)
        sys.exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, number
stop.set()
for thread in threads:
    thread.join()
try:
    lamina.open(sys.argv[1])
except lamina.Unavailable:
    pass
else:
    raise AssertionError("a child that ended gave the lock away")
assert sorted(acked) == list(range(len(acked)))
store.append("t", b"after the children")
store.close()
print(len(acked))
"""


def test_a_forked_child_cannot_write_and_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    count = int(run_script(FORK, tmp_path / "data"))
    with lamina.open(str(tmp_path / "data")) as store:
        values = [v for batch in store.scan("t") for v in batch.column("value").to_pylist()]
    assert values == [b"parent"] * count + [b"after the children"]


FORK_AND_CLOSE = """
import os, sys, lamina
store = lamina.open(sys.argv[1])
store.create_topic("t")
read_end, write_end = os.pipe()
child = os.fork()
if child == 0:
    os.close(write_end)
    os.read(read_end, 1)
    os._exit(0)
os.close(read_end)
store.close()
lamina.open(sys.argv[1]).close()
os.close(write_end)
os.waitpid(child, 0)
"""


def test_a_child_that_lives_on_does_not_keep_the_lock(tmp_path: Path) -> None:
    run_script(FORK_AND_CLOSE, tmp_path / "data")


NOT_CLOSED = """
import asyncio, os, sys, threading, lamina
store = lamina.open(sys.argv[1])
store.create_topic("t")
def say(ack, what):
    os.write(1, b"%d %s\\n" % (ack.base_offset, what))
for number in range(20):
    say(store.append("t", b"all"), b"all")
    say(store.append("t", b"1", acks=1), b"1")
def produce():
    while True:
        say(store.append("t", b"thread"), b"thread")
for _ in range(3):
    threading.Thread(target=produce, daemon=True).start()
async def soon():
    say(await store.append_async("t", b"async"), b"async")
asyncio.run(soon())
store.append("t", b"0", acks=0)
"""


def test_a_store_that_is_not_closed_at_exit_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    printed = run_script(NOT_CLOSED, tmp_path / "data")
    acked = dict(line.split() for line in printed.splitlines())
    assert len(acked) >= 41
    with lamina.open(str(tmp_path / "data")) as store:
        found = {}
        for batch in store.scan("t"):
            offsets = map(str, batch.column("offset").to_pylist())
            values = [value.decode() for value in batch.column("value").to_pylist()]
            found.update(zip(offsets, values, strict=True))
    assert acked.items() <= found.items()


def test_a_store_that_failed_to_open_lets_the_directory_go(tmp_path: Path) -> None:
    with lamina.open(str(tmp_path)) as store:
        store.create_topic("t")
        with pytest.raises(Locked, match=str(os.getpid())):
            lamina.open(str(tmp_path))
    (tmp_path / "meta" / "broker.id").write_bytes(b"not an identity")
    for _ in range(2):
        with pytest.raises(lamina.CorruptData):
            lamina.open(str(tmp_path))
