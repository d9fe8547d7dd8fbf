"""Groups in the air: written while others are being synced, landed in their order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lamina.api import Ack
from lamina.config import WriterSettings
from lamina.errors import Closed, Poisoned, StorageFull
from lamina.log import commit
from lamina.log.commit import Writer
from lamina.log.flights import IN_FLIGHT
from lamina.storage.files import LocalFile
from lamina.store.store import Store
from tests.support.writer_rig import SOON_S, FakeLog, request_of, wait_until


class FlyingLog(FakeLog):
    """A log whose groups are synced one by one; each sync waits until it is let through."""

    def __init__(self) -> None:
        super().__init__()
        self.flights: list[Held] = []
        self.landed: list[int] = []
        self.holds = False

    def depart(self) -> Held:
        flight = Held(self, len(self.stored), len(self.flights))
        self.flights.append(flight)
        if not self.holds:
            flight.through.set()
        return flight


class Held:
    """What has departed: `through` lets its sync return, `error` is what that raises."""

    def __init__(self, log: FlyingLog, end: int, number: int) -> None:
        self.log, self.end, self.number = log, end, number
        self.entered, self.through = threading.Event(), threading.Event()
        self.error: BaseException | None = None

    def sync(self) -> None:
        self.entered.set()
        assert self.through.wait(SOON_S)
        self.log.on_sync()
        if self.error is not None:
            raise self.error

    def land(self) -> None:
        self.log.landed.append(self.number)
        self.log.durable = self.end


class Flying:
    """A writer with several groups in the air, and threads that append to it."""

    def __init__(self) -> None:
        self.log = FlyingLog()
        self.pool = ThreadPoolExecutor(4)
        self.users = ThreadPoolExecutor(40)
        settings = WriterSettings(linger_ms=0)
        self.writer = Writer(self.log, settings, self.pool, None, depart=self.log.depart)

    def start(self, value: bytes) -> Any:
        return self.users.submit(self.writer.append, request_of(value), None)

    def take_off(self, count: int) -> list[Any]:
        """Brings so many appends into the air, one behind the other."""
        self.log.holds = True
        self.writer._crowd = 2  # a lone producer keeps the tail until its sync returns
        started = []
        for number in range(count):
            started.append(self.start(b"%d" % number))
            wait_until(lambda at=number: len(self.log.flights) > at)  # type: ignore[misc]
            assert self.log.flights[number].entered.wait(SOON_S)
        return started


@pytest.fixture
def flying() -> Iterator[Flying]:
    made = Flying()
    yield made
    for flight in made.log.flights:
        flight.through.set()
    made.log.holds = False
    made.writer.close(Closed("the test is over"))
    made.users.shutdown()
    made.pool.shutdown()
    assert made.log.overlaps == 0


def test_a_group_is_written_while_another_is_being_synced(flying: Flying) -> None:
    first, second = flying.take_off(2)
    assert flying.log.stored == [b"0", b"1"]
    flying.log.flights[0].through.set()
    assert first.result(SOON_S) == Ack(0, 1, "fsynced")
    assert not second.done()
    flying.log.flights[1].through.set()
    assert second.result(SOON_S) == Ack(1, 1, "fsynced")


def test_nothing_lands_before_what_departed_before_it(flying: Flying) -> None:
    started = flying.take_off(3)
    flying.log.flights[2].through.set()
    flying.log.flights[1].through.set()
    wait_until(lambda: sum(flight.is_down for flight in flying.writer.flights.air) == 2)
    assert flying.log.landed == []
    assert flying.log.durable == 0
    assert not any(each.done() for each in started)
    flying.log.flights[0].through.set()
    assert [each.result(SOON_S).base_offset for each in started] == [0, 1, 2]
    assert flying.log.landed == [0, 1, 2]


def test_no_more_than_so_many_are_in_the_air(flying: Flying) -> None:
    started = flying.take_off(IN_FLIGHT)
    late = [flying.start(b"late") for _ in range(3)]
    flying_before = flying.writer.depth
    wait_until(lambda: flying.writer.depth == 3)
    assert flying_before <= 3
    assert len(flying.log.flights) == IN_FLIGHT
    for flight in flying.log.flights:
        flight.through.set()
    flying.log.holds = False
    for each in [*started, *late]:
        assert each.result(SOON_S).durability == "fsynced"


def test_a_failed_sync_fails_what_is_behind_it_and_nothing_before_it(flying: Flying) -> None:
    started = flying.take_off(4)
    flying.log.flights[1].error = OSError(5, "Input/output error")
    for number in (3, 2, 1):  # those behind it return first, and well
        flying.log.flights[number].through.set()
    wait_until(lambda: flying.writer.failure is not None)
    flying.log.flights[0].through.set()
    assert started[0].result(SOON_S) == Ack(0, 1, "fsynced")
    for each in started[1:]:
        assert isinstance(each.exception(SOON_S), Poisoned)
    assert flying.log.durable == 1
    with pytest.raises(Poisoned):
        flying.writer.append(request_of(b"later"), None)


def test_an_exclusive_action_waits_until_nothing_is_in_the_air(flying: Flying) -> None:
    started = flying.take_off(2)
    seen: list[int] = []
    action = flying.users.submit(flying.writer.exclusively, lambda: seen.append(flying.log.durable))
    wait_until(lambda: flying.writer._reserved == 1)
    flying.log.flights[1].through.set()
    assert seen == []
    flying.log.flights[0].through.set()
    action.result(SOON_S)
    assert seen == [2]
    assert all(each.result(SOON_S) for each in started)


def test_closing_waits_for_what_is_in_the_air(flying: Flying) -> None:
    (started,) = flying.take_off(1)
    closing = flying.users.submit(flying.writer.close, Closed("closed"))
    wait_until(lambda: flying.writer._closing is not None)
    assert not closing.done()
    flying.log.flights[0].through.set()
    closing.result(SOON_S)
    assert started.result(SOON_S).durability == "fsynced"


def test_settling_tells_why_something_fell(flying: Flying) -> None:
    (started,) = flying.take_off(1)
    settled = flying.users.submit(flying.writer.flights.settle)
    flying.log.flights[0].error = OSError(5, "Input/output error")
    flying.log.flights[0].through.set()
    assert isinstance(settled.exception(SOON_S), Poisoned)
    assert isinstance(started.exception(SOON_S), Poisoned)


def test_tasks_fly_as_threads_do(flying: Flying) -> None:
    flying.log.holds = True

    async def produce() -> list[Ack]:
        futures = []
        for number in range(2):
            futures.append(flying.writer.append_soon(request_of(b"%d" % number)))
            while len(flying.log.flights) <= number:
                await asyncio.sleep(0.001)
        for flight in reversed(flying.log.flights):
            flight.through.set()
        return await asyncio.gather(*futures)

    answers = asyncio.run(asyncio.wait_for(produce(), SOON_S))
    assert [each.base_offset for each in answers] == [0, 1]


def test_without_a_pool_a_leader_lands_before_it_leads_for_others(flying: Flying) -> None:
    flying.pool.shutdown()

    async def produce() -> list[Ack]:
        return await asyncio.gather(
            *(flying.writer.append_soon(request_of(b"%d" % number)) for number in range(9))
        )

    answers = asyncio.run(asyncio.wait_for(produce(), SOON_S))
    assert sorted(each.base_offset for each in answers) == list(range(9))


def test_a_leader_gets_a_thread_though_whoever_appointed_it_was_cut_off(
    flying: Flying, monkeypatch: pytest.MonkeyPatch
) -> None:
    lending = flying.writer._lending
    real, cut = lending.is_lent, [False]

    def is_lent(token: object) -> bool:
        if not cut[0]:
            cut[0] = True
            raise KeyboardInterrupt
        return real(token)

    async def produce(started: list[Any]) -> Any:
        flying.log.gate.clear()
        flying.writer._crowd = 2
        started.append(flying.start(b"leader"))
        await asyncio.to_thread(flying.log.entered.acquire, timeout=SOON_S)
        future = flying.writer.append_soon(request_of(b"awaited"))
        monkeypatch.setattr(lending, "is_lent", is_lent)
        flying.log.gate.set()
        return (await asyncio.gather(future, return_exceptions=True))[0]

    started: list[Any] = []
    answer = asyncio.run(asyncio.wait_for(produce(started), SOON_S))
    assert isinstance(started[0].exception(SOON_S), KeyboardInterrupt)
    assert isinstance(answer, Ack | Poisoned)


def test_a_leader_is_led_for_once_by_whoever_comes_first(
    flying: Flying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool that can start no thread says so, and runs what it was given later all the same."""
    given: list[Callable[[], Any]] = []

    def submit(work: Callable[..., Any], token: object) -> None:
        given.append(lambda: work(token))
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(flying.pool, "submit", submit)
    flying.log.gate.clear()

    async def produce() -> Ack:
        return await flying.writer.append_soon(request_of(b"awaited"))

    led = flying.users.submit(asyncio.run, produce())
    assert flying.log.entered.acquire(timeout=SOON_S)
    queued = flying.start(b"queued")
    wait_until(lambda: flying.writer.depth == 1)
    given[0]()  # it finds that another thread leads, and does nothing
    flying.log.gate.set()
    assert [each.result(SOON_S).base_offset for each in (led, queued)] == [0, 1]
    assert flying.log.overlaps == 0


def test_many_producers_get_answers_that_are_durable(flying: Flying) -> None:
    def produce() -> None:
        for _ in range(30):
            ack = flying.writer.append(request_of(b"x"), None)
            assert ack is not None
            assert ack.base_offset < flying.log.durable

    for each in [flying.users.submit(produce) for _ in range(16)]:
        each.result(SOON_S)
    assert flying.log.landed == sorted(flying.log.landed)


INTERRUPTED = {
    "commit.py": "append _lead_alone _submit _await_turn _lead _lead_for_others _next_group"
    " _commit _flies _pass_on _sync _hand_out",
    "flights.py": "depart fly land _next_to_land _drop_landed _answer",
    "pool_leaders.py": "claims find_thread is_lent",
}
"""The functions of each file at whose lines a thread is cut off."""


def test_what_is_interrupted_is_there() -> None:
    for name, functions in INTERRUPTED.items():
        source = Path(commit.__file__).with_name(name).read_text()
        assert [each for each in functions.split() if f"def {each}(" not in source] == []


def test_interrupts_at_any_line_leave_nobody_waiting() -> None:
    """One thread is hit by KeyboardInterrupt at the k-th line it runs up there, for all k."""
    for k in itertools.count():
        made, lines = Flying(), [0]
        others = [made.users.submit(_bystand, made) for _ in range(2)]
        others.append(made.users.submit(asyncio.run, _await_some(made)))
        hit = made.users.submit(_be_hit, made, _hitting(lines, k))
        error = hit.exception(SOON_S)
        assert error is None or isinstance(error, KeyboardInterrupt | Poisoned)
        for each in others:
            each.result(SOON_S)
        made.users.submit(_fly_again, made).result(SOON_S)
        made.writer.close(Closed("the test is over"))
        made.users.shutdown()
        made.pool.shutdown()
        if lines[0] <= k:
            break
    assert k > 60


def _hitting(lines: list[int], k: int) -> Callable[..., Any]:
    def trace(frame: Any, event: str, argument: object) -> Any:
        where = Path(frame.f_code.co_filename)
        if where.parent.name != "log" or where.name not in INTERRUPTED:
            return None
        code = linecache.getline(str(where), frame.f_lineno)
        # At the end of a `with` a tracer could raise before the mutex is free; no interrupt does.
        is_with = code.strip().startswith("with ")
        if (
            event == "line"
            and frame.f_code.co_name in INTERRUPTED[where.name].split()
            and not is_with
        ):
            lines[0] += 1
            if lines[0] == k + 1:
                raise KeyboardInterrupt
        return trace

    return trace


def _be_hit(made: Flying, trace: Callable[..., Any]) -> None:
    sys.settrace(trace)
    try:
        for _ in range(3):
            made.writer._crowd = 2  # or it would fly only while another does
            made.writer.append(request_of(b"victim"), None)
    finally:
        sys.settrace(None)


async def _await_some(made: Flying) -> None:
    """Appends as tasks do, which have no thread to lead."""
    for _ in range(4):
        with contextlib.suppress(Poisoned):
            ack = await made.writer.append_soon(request_of(b"awaited"))
            assert ack.base_offset < made.log.durable


def _fly_again(made: Flying) -> None:
    """Whoever comes later flies, or is refused: nobody is left in the air, or with the tail."""
    for _ in range(2):
        made.writer._crowd = 2
        _bystand(made)


def _bystand(made: Flying) -> None:
    with contextlib.suppress(Poisoned):
        for _ in range(5):
            ack = made.writer.append(request_of(b"bystander"), None)
            assert ack is not None
            assert ack.base_offset < made.log.durable


# ---------------------------------------------------------------- on a partition


class Syncs:
    """Holds the syncs of log files back, by turns; every other file's go through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.real, self.holds = LocalFile.sync, False
        self.entered: list[LocalFile] = []
        self.through: list[threading.Event] = []
        self.errors: dict[int, OSError] = {}
        syncs = self

        def sync(file: LocalFile) -> None:
            if not syncs.holds:
                syncs.real(file)
                return
            number, through = len(syncs.entered), threading.Event()
            syncs.through.append(through)
            syncs.entered.append(file)
            assert through.wait(SOON_S)
            if number in syncs.errors:
                raise syncs.errors[number]
            syncs.real(file)

        monkeypatch.setattr(LocalFile, "sync", sync)

    def let_go(self) -> None:
        self.holds = False
        for each in self.through:
            each.set()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Syncs]:
    made = Syncs(monkeypatch)
    yield made
    made.let_go()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def fly(store: Store, held: Syncs, pool: ThreadPoolExecutor, count: int) -> list[Any]:
    """Brings so many appends into the air, one behind the other."""
    store.append("t", b"before")
    held.holds = True
    _writer(store)._crowd = 2  # a lone producer keeps the tail until its sync returns
    started = []
    for number in range(count):
        started.append(pool.submit(store.append, "t", b"%d" % number))
        wait_until(lambda at=number: len(held.entered) > at)  # type: ignore[misc]
    return started


@pytest.mark.parametrize("format_name", ["keratin", "frame"])
def test_readers_see_a_finished_prefix_as_durable(
    tmp_path: Path, held: Syncs, pool: ThreadPoolExecutor, format_name: str
) -> None:
    with Store(tmp_path) as store:
        store.create_topic("t", format=format_name)
        started = fly(store, held, pool, 3)
        held.through[2].set()
        held.through[1].set()
        assert not started[2].done()
        assert store.latest_offset("t") == 1
        assert store.latest_offset("t", isolation="written") == 4
        held.through[0].set()
        for each in started:
            each.result(SOON_S)
        assert store.latest_offset("t") == 4
        held.let_go()


def test_each_sync_in_the_air_has_a_descriptor_of_its_own_and_a_quiet_log_one(
    tmp_path: Path, held: Syncs, pool: ThreadPoolExecutor
) -> None:
    with Store(tmp_path) as store:
        store.create_topic("t")
        started = fly(store, held, pool, 3)
        assert len({id(file) for file in held.entered}) == 3
        assert len({file._descriptor for file in held.entered}) == 3
        held.let_go()
        for each in started:
            each.result(SOON_S)
        active = _active(store)
        assert (active._in_flight, active._idle, active._is_lent) == (0, [], False)


def _writer(store: Store) -> Any:
    return store._lookup.partition("t", 0).writer


def _active(store: Store) -> Any:
    return store._lookup.partition("t", 0).active


def test_what_fell_leaves_no_hole_and_what_was_answered_is_there_after_opening(
    tmp_path: Path, held: Syncs, pool: ThreadPoolExecutor
) -> None:
    store = Store(tmp_path)
    store.create_topic("t")
    started = fly(store, held, pool, 3)
    held.errors[1] = OSError(5, "Input/output error")
    for number in (2, 1, 0):
        held.through[number].set()
    assert started[0].result(SOON_S)
    assert isinstance(started[1].exception(SOON_S), Poisoned)
    assert isinstance(started[2].exception(SOON_S), Poisoned)
    held.let_go()
    with pytest.raises(Poisoned):
        store.append("t", b"later")
    assert store.latest_offset("t") == 2
    store.close()
    with Store(tmp_path) as again:  # nobody was told: each of them may be there, and then for good
        found = _values(again)
        assert found == [b"before", b"0", b"1", b"2"][: len(found)]
        assert len(found) >= 2


def test_a_roll_waits_until_nothing_is_in_the_air(
    tmp_path: Path, held: Syncs, pool: ThreadPoolExecutor
) -> None:
    with Store(tmp_path) as store:
        store.create_topic("t", config={"segment.bytes": 4096})
        started = fly(store, held, pool, 1)
        rolling = pool.submit(store.append, "t", b"x" * 4000)
        wait_until(lambda: _writer(store)._signal.sleepers == 1)
        assert len(held.entered) == 1
        assert len(_active_directory(tmp_path)) == 1
        held.let_go()
        started[0].result(SOON_S)
        rolling.result(SOON_S)
        assert len(_active_directory(tmp_path)) == 2


def _active_directory(tmp_path: Path) -> list[Path]:
    return list(tmp_path.rglob("*.log"))


def test_a_refused_group_is_cut_off_only_when_nothing_is_in_the_air(
    tmp_path: Path, held: Syncs, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path) as store:
        store.create_topic("t")
        started = fly(store, held, pool, 1)
        real = LocalFile.write_at

        def full(file: LocalFile, position: int, data: Any) -> None:
            real(file, position, memoryview(data).cast("B")[:5])
            raise OSError(28, "No space left on device")

        cut: list[bool] = []
        truncate = LocalFile.truncate

        def truncated(file: LocalFile, size: int) -> None:
            cut.append(started[0].done())
            truncate(file, size)

        monkeypatch.setattr(LocalFile, "write_at", full)
        monkeypatch.setattr(LocalFile, "truncate", truncated)
        refused = pool.submit(store.append, "t", b"too much")
        wait_until(lambda: _active(store)._changes > 0 and bool(refused.running()))
        held.let_go()
        assert isinstance(refused.exception(SOON_S), StorageFull)
        monkeypatch.setattr(LocalFile, "write_at", real)
        assert cut[-1]
        assert started[0].result(SOON_S)
        store.append("t", b"after")
        assert [bytes(row) for row in _values(store)] == [b"before", b"0", b"after"]


def _values(store: Store) -> list[bytes]:
    return [v for batch in store.scan("t") for v in batch.column("value").to_pylist()]


def test_a_lone_producer_keeps_the_tail_and_flies_with_nobody(flying: Flying) -> None:
    assert [flying.writer.append(request_of(b"x"), None) for _ in range(3)]
    assert flying.log.flights == []
    assert flying.log.syncs == 3


def test_without_descriptors_groups_go_one_at_a_time(
    tmp_path: Path, held: Syncs, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path) as store:
        store.create_topic("t")
        started = fly(store, held, pool, 1)
        files = _active(store).files

        def none_left(path: str) -> Any:
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr(type(files), "open", lambda self, path: none_left(path))
            second = pool.submit(store.append, "t", b"1")
            wait_until(lambda: store.latest_offset("t", isolation="written") == 3)
            assert len(held.entered) == 1
            held.let_go()
            assert second.result(SOON_S)
            assert started[0].result(SOON_S)
        assert store.latest_offset("t") == 3
