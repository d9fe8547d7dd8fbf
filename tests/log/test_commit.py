"""The writer loop alone, on a log that is a list: who leads, who waits, who is answered when."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from lamina.api import DURABLE, NOT_WAITED, WRITTEN, Ack
from lamina.config import WriterSettings
from lamina.errors import Closed, InvalidRequest, Poisoned, QueueFull, StorageFull, Unavailable
from lamina.log.commit import GATHER_BYTES, LOOP_SYNC_NS
from lamina.log.requests import Request, plan
from tests.support.writer_rig import SOON_S, Rig, close, request_of, wait_until


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    close(made)


# ---------------------------------------------------------------------- plan


def sized(*sizes: int) -> list[Request]:
    return [request_of(b"x" * size) for size in sizes]


def test_a_group_is_bounded_by_bytes() -> None:
    settings = WriterSettings(batch_bytes=100)
    assert plan(sized(40, 60, 1), settings) == 2
    assert plan(sized(40, 61), settings) == 1
    assert plan(sized(40, 60), settings) == 2


def test_a_group_is_bounded_by_records() -> None:
    settings = WriterSettings(batch_records=10)
    queue = [request_of(b"x", count=4) for _ in range(4)]
    assert plan(queue, settings) == 2
    assert plan([request_of(b"x", count=5), request_of(b"x", count=5)], settings) == 2


def test_a_request_over_every_bound_still_goes_alone() -> None:
    settings = WriterSettings(batch_bytes=10, batch_records=1)
    assert plan([request_of(b"x" * 99, count=9), request_of(b"x")], settings) == 1


def test_nothing_is_planned_from_an_empty_queue() -> None:
    assert plan([], WriterSettings()) == 0


def test_the_bounds_hold_for_the_groups_that_are_written() -> None:
    made = Rig(batch_records=3)
    held = made.hold()
    others = [made.start(b"%d" % number) for number in range(8)]
    made.wait_for_depth(8)
    made.log.gate.set()
    for future in [held, *others]:
        future.result(SOON_S)
    assert made.log.groups == [1, 3, 3, 2]
    close(made)


# ---------------------------------------------------------------------- waiting and sharing


def test_a_lone_request_never_waits_and_needs_no_other_thread(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []
    real = rig.signal.wait

    def noted(timeout: float | None = None) -> bool:
        waits.append(timeout)
        return real(timeout)

    monkeypatch.setattr(rig.signal, "wait", noted)
    monkeypatch.setattr(rig.pool, "submit", lambda *_: pytest.fail("a thread was borrowed"))
    here = threading.get_ident()
    leaders: set[int] = set()
    rig.log.on_write = lambda group: leaders.add(threading.get_ident())
    for number in range(50):
        assert rig.append(b"x") == Ack(number, 1, "fsynced")
    assert waits == []
    assert leaders == {here}
    assert rig.log.syncs == 50


def test_after_a_crowd_a_lone_request_waits_once_and_briefly(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = rig.hold()
    others = [rig.start(b"x") for _ in range(10)]
    rig.wait_for_depth(10)
    rig.log.gate.set()
    for future in [held, *others]:
        future.result(SOON_S)
    waits: list[float | None] = []
    monkeypatch.setattr(rig.signal, "wait", lambda timeout=None: waits.append(timeout))
    for _ in range(3):
        rig.append(b"alone")
    assert len(waits) <= 1
    assert all(timeout is not None and timeout <= 0.005 for timeout in waits)


def test_a_large_request_waits_for_no_crowd(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is busy with it for longer than the others need to come."""
    waits: list[float | None] = []
    for value, most_waits in ((b"x" * (GATHER_BYTES - 1), 1), (b"x" * GATHER_BYTES, 0)):
        rig.log.gate.clear()
        first = rig.start(b"first")
        assert rig.log.entered.acquire(timeout=SOON_S)
        others = [rig.start(b"x") for _ in range(10)]
        rig.wait_for_depth(10)
        rig.log.gate.set()
        for future in [first, *others]:
            future.result(SOON_S)
        waits.clear()
        with monkeypatch.context() as patched:
            patched.setattr(rig.signal, "wait", lambda timeout=None: waits.append(timeout))
            rig.append(value)
        assert len(waits) == most_waits
        while rig.log.entered.acquire(blocking=False):
            pass


def test_many_threads_share_one_commit(rig: Rig) -> None:
    held = rig.hold()
    others = [rig.start(b"%02d" % number) for number in range(64)]
    rig.wait_for_depth(64)
    rig.log.gate.set()
    acks = [future.result(SOON_S) for future in others]
    held.result(SOON_S)
    assert rig.log.syncs == 2
    assert rig.log.groups == [1, 64]
    for number, ack in enumerate(acks):
        assert rig.log.stored[ack.base_offset] == b"%02d" % number


def test_under_load_syncs_stay_far_below_requests(rig: Rig) -> None:
    rig.log.on_sync = lambda: time.sleep(0.001)

    def produce(name: int) -> list[tuple[int, bytes]]:
        values = [b"%d-%d" % (name, number) for number in range(50)]
        return [(rig.append(value).base_offset, value) for value in values]

    futures = [rig.users.submit(produce, name) for name in range(16)]
    answered = [pair for future in futures for pair in future.result(SOON_S)]
    assert sorted(offset for offset, _ in answered) == list(range(800))
    assert all(rig.log.stored[offset] == value for offset, value in answered)
    assert rig.log.syncs < 800 / 4


def test_asyncio_and_threads_share_commits_and_all_are_answered(rig: Rig) -> None:
    async def tasks() -> list[Ack]:
        futures = []
        for number in range(200):
            futures.append(rig.writer.append_soon(request_of(b"async-%d" % number)))
            if number % 20 == 0:
                await asyncio.sleep(0)
        return list(await asyncio.wait_for(asyncio.gather(*futures), SOON_S))

    def produce(name: int) -> list[Ack]:
        return [rig.append(b"thread") for _ in range(50)]

    rig.log.on_sync = lambda: time.sleep(0.001)
    threads = [rig.users.submit(produce, name) for name in range(6)]
    acks = asyncio.run(tasks())
    everybody = acks + [ack for future in threads for ack in future.result(SOON_S)]
    assert sorted(ack.base_offset for ack in everybody) == list(range(500))
    for number, ack in enumerate(acks):
        assert rig.log.stored[ack.base_offset] == b"async-%d" % number
    assert rig.log.syncs < 250


def test_an_event_loop_that_closed_before_its_answer_harms_nobody(rig: Rig) -> None:
    held = rig.hold()

    async def leave() -> None:
        rig.writer.append_soon(request_of(b"nobody waits for this"))

    asyncio.run(leave())
    follower = rig.start(b"follower")
    rig.wait_for_depth(2)
    rig.log.gate.set()
    assert held.result(SOON_S).durability == "fsynced"
    assert follower.result(SOON_S).durability == "fsynced"
    assert rig.append(b"later") == Ack(3, 1, "fsynced")


def test_tasks_wait_for_their_turn_however_many_they_are() -> None:
    made = Rig(queue_requests=1)
    held = made.hold()
    filler = made.start(b"filler")
    made.wait_for_depth(1)

    async def many() -> list[Ack]:
        tasks = [
            asyncio.ensure_future(made.writer.append_soon(request_of(b"%d" % n)))
            for n in range(1_000)
        ]
        made.log.gate.set()
        return await asyncio.gather(*tasks)

    acks = asyncio.run(asyncio.wait_for(many(), SOON_S))
    assert [ack.base_offset for ack in acks] == list(range(acks[0].base_offset, 1_000 + 2))
    held.result(SOON_S)
    filler.result(SOON_S)
    assert made.writer._queue._awaited == 0
    close(made)


def test_tasks_do_not_take_the_room_of_threads() -> None:
    made = Rig(queue_requests=1)
    held = made.hold()

    async def program() -> None:
        futures = [made.writer.append_soon(request_of(b"task")) for _ in range(10)]
        thread = made.start(b"thread")  # one thread has room beside any number of tasks
        made.wait_for_depth(11)
        made.log.gate.set()
        await asyncio.gather(*futures)
        assert thread.result(SOON_S).count == 1

    asyncio.run(asyncio.wait_for(program(), SOON_S))
    held.result(SOON_S)
    close(made)


def test_a_request_that_was_taken_back_is_not_written() -> None:
    made = Rig(queue_requests=1)
    held = made.hold()

    async def program() -> None:
        kept, lost = request_of(b"kept"), request_of(b"taken back")
        future = made.writer.append_soon(kept)
        made.writer.append_soon(lost)
        assert made.writer.withdraw(lost)
        assert not made.writer.withdraw(lost)
        made.log.gate.set()
        await future

    asyncio.run(asyncio.wait_for(program(), SOON_S))
    held.result(SOON_S)
    assert b"kept" in made.log.stored
    assert b"taken back" not in made.log.stored
    assert made.writer._queue._awaited == 0
    close(made)


# ---------------------------------------------------------------------- a loop that leads


class Offering:
    """An event loop's offer to lead: how often it was taken, and which threads have written."""

    def __init__(self, made: Rig, *, is_kept: bool = True) -> None:
        self.taken = 0
        self.writers: list[str] = []
        self._is_kept = is_kept
        made.log.on_write = lambda group: self.writers.append(threading.current_thread().name)

    def lead_soon(self, lead: Callable[[object], None], token: object) -> bool:
        self.taken += self._is_kept
        if self._is_kept:
            asyncio.get_running_loop().call_soon(lead, token)
        return self._is_kept


def appended_by_loop(made: Rig, offering: Offering, values: Sequence[bytes]) -> list[Ack]:
    async def program() -> list[Ack]:
        soon = [made.writer.append_soon(request_of(each), offering.lead_soon) for each in values]
        return list(await asyncio.gather(*soon))

    return asyncio.run(asyncio.wait_for(program(), SOON_S))


def test_a_loop_that_offers_to_lead_commits_all_that_it_has_queued(rig: Rig) -> None:
    offering = Offering(rig)
    acks = appended_by_loop(rig, offering, [b"a", b"b", b"c"])
    assert [ack.base_offset for ack in acks] == [0, 1, 2]
    assert {ack.durability for ack in acks} == {"fsynced"}
    assert (rig.log.groups, rig.log.syncs) == ([3], 1)
    assert (offering.taken, offering.writers) == (1, [threading.current_thread().name])


def test_a_loop_that_does_not_keep_its_offer_has_a_thread_lead(rig: Rig) -> None:
    offering = Offering(rig, is_kept=False)
    appended_by_loop(rig, offering, [b"a"])
    assert all(name.startswith("leader") for name in offering.writers)


def test_a_loop_does_not_wait_for_a_slow_disk_twice(rig: Rig) -> None:
    offering = Offering(rig)
    rig.log.on_sync = lambda: time.sleep(2 * LOOP_SYNC_NS / 1e9)
    for value in (b"finds out", b"is left to a thread"):
        appended_by_loop(rig, offering, [value])
    assert offering.taken == 1
    assert offering.writers[1].startswith("leader")
    rig.log.on_sync = lambda: None
    appended_by_loop(rig, offering, [b"the thread finds that it is quick again"])
    wait_until(lambda: rig.writer._leader is None)
    appended_by_loop(rig, offering, [b"led by the loop"])
    assert offering.taken == 2


def test_a_loop_leaves_a_large_group_to_a_thread(rig: Rig) -> None:
    offering = Offering(rig)
    appended_by_loop(rig, offering, [b"small", b"x" * GATHER_BYTES])
    assert offering.taken == 1
    assert all(name.startswith("leader") for name in offering.writers)


def test_a_loop_that_has_led_hands_over_to_a_thread_that_waits(rig: Rig) -> None:
    offering = Offering(rig)
    waiting = []
    rig.log.on_sync = lambda: (
        waiting
        or (
            waiting.append(rig.start(b"came meanwhile")),
            rig.wait_for_depth(1),
        )
    )
    appended_by_loop(rig, offering, [b"a"])
    assert waiting[0].result(SOON_S) == Ack(1, 1, "fsynced")


def test_a_failure_in_a_loop_that_leads_is_answered_and_poisons(rig: Rig) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "no")

    rig.log.on_sync = fail
    offering = Offering(rig)
    with pytest.raises(Poisoned):
        appended_by_loop(rig, offering, [b"a", b"b"])
    with pytest.raises(Poisoned):
        rig.append(b"later")


def test_without_a_pool_the_caller_leads_for_those_without_a_thread(rig: Rig) -> None:
    rig.pool.shutdown()
    rig.append(b"not waited for", NOT_WAITED)
    assert rig.log.stored == [b"not waited for"]
    assert rig.append(b"x") == Ack(1, 1, "fsynced")


# ---------------------------------------------------------------------- when answers come


def test_acks_0_is_not_waited_for(rig: Rig) -> None:
    rig.log.gate.clear()
    assert rig.append(b"x", NOT_WAITED) is None
    assert rig.log.stored == []
    rig.log.gate.set()
    wait_until(lambda: rig.log.stored == [b"x"])


def test_acks_1_is_answered_before_the_sync_and_all_only_after_it(rig: Rig) -> None:
    held = rig.hold()
    rig.log.sync_gate.clear()
    written = rig.start(b"written", WRITTEN)
    durable = rig.start(b"durable", DURABLE)
    rig.wait_for_depth(2)
    rig.log.gate.set()
    assert rig.log.sync_entered.acquire(timeout=SOON_S)
    assert not held.done()
    rig.log.sync_gate.set()
    assert held.result(SOON_S).durability == "fsynced"
    rig.log.sync_gate.clear()
    # The second group has both; which thread leads is open, but its sync is held back.
    wait_until(lambda: len(rig.log.stored) == 3)
    rig.log.sync_gate.set()
    assert written.result(SOON_S).durability == "written"
    assert durable.result(SOON_S).durability == "fsynced"


def test_a_follower_with_acks_1_is_free_while_its_group_syncs(rig: Rig) -> None:
    held = rig.hold()
    leader = rig.start(b"durable", DURABLE)
    rig.wait_for_depth(1)
    written = rig.start(b"written", WRITTEN)
    rig.wait_for_depth(2)

    def check() -> None:
        if len(rig.log.stored) == 3:
            assert written.result(SOON_S).durability == "written"
            assert not leader.done()

    rig.log.on_sync = check
    rig.log.gate.set()
    assert leader.result(SOON_S).durability == "fsynced"
    held.result(SOON_S)


def test_every_durable_answer_comes_after_a_sync_that_covers_it(rig: Rig) -> None:
    early: list[Ack] = []

    def produce() -> None:
        for _ in range(100):
            ack = rig.append(b"x")
            if ack.base_offset >= rig.log.durable:
                early.append(ack)

    for future in [rig.users.submit(produce) for _ in range(8)]:
        future.result(SOON_S)
    assert early == []


def test_acks_1_alone_costs_no_sync(rig: Rig) -> None:
    for _ in range(5):
        assert rig.append(b"x", WRITTEN).durability == "written"
    assert rig.log.syncs == 0


# ---------------------------------------------------------------------- backpressure


def test_a_full_queue_blocks_and_then_raises_queue_full() -> None:
    made = Rig(queue_requests=2)
    held = made.hold()
    waiting = [made.start(b"fits"), made.start(b"fits")]
    made.wait_for_depth(2)
    patient = made.start(b"patient", timeout_s=SOON_S)
    started = time.monotonic()
    with pytest.raises(QueueFull):
        made.append(b"refused", timeout_s=0.05)
    assert time.monotonic() - started >= 0.05
    assert not patient.done()
    made.log.gate.set()
    for future in [held, *waiting, patient]:
        assert future.result(SOON_S).durability == "fsynced"
    assert sorted(made.log.stored) == [b"fits", b"fits", b"leader", b"patient"]
    close(made)


def test_a_withdrawn_request_is_not_stored_and_makes_room() -> None:
    made = Rig(queue_requests=1)
    held = made.hold()
    impatient = made.start(b"impatient", timeout_s=0.1)
    made.wait_for_depth(1)
    patient = made.start(b"patient", timeout_s=SOON_S)
    with pytest.raises(Unavailable, match="nothing was stored"):
        impatient.result(SOON_S)
    made.wait_for_depth(1)  # the patient one has taken the room, though nothing was written
    made.log.gate.set()
    held.result(SOON_S)
    patient.result(SOON_S)
    assert made.log.stored == [b"leader", b"patient"]
    close(made)


def test_a_timeout_while_being_written_waits_for_the_answer(rig: Rig) -> None:
    held = rig.hold()
    late = rig.start(b"late", timeout_s=0.05)
    rig.wait_for_depth(1)
    rig.log.sync_gate.clear()
    rig.log.gate.set()
    wait_until(lambda: rig.log.sync_entered.acquire(blocking=False))
    rig.log.sync_gate.set()
    held.result(SOON_S)
    outcome = late.exception(SOON_S)
    stored = b"late" in rig.log.stored
    assert stored == (outcome is None)


def test_what_times_out_is_stored_and_answered_or_not_stored_at_all(rig: Rig) -> None:
    rig.log.on_sync = lambda: time.sleep(0.002)
    answered: list[bytes] = []
    refused: list[bytes] = []

    def produce(name: int) -> None:
        for number in range(60):
            value = b"%d-%d" % (name, number)
            try:
                ack = rig.append(value, timeout_s=0.0005 * (number % 8))
            except Unavailable:
                refused.append(value)
            else:
                assert rig.log.stored[ack.base_offset] == value
                answered.append(value)

    for future in [rig.users.submit(produce, name) for name in range(8)]:
        future.result(SOON_S)
    assert sorted(answered) == sorted(rig.log.stored)
    assert len(answered) + len(refused) == 480
    assert answered
    assert refused
    assert rig.writer._queue.size_bytes == 0  # or groups would be held for too large for ever


# ---------------------------------------------------------------------- refusals


def test_what_one_request_holds_is_refused_to_it_alone(rig: Rig) -> None:
    def judge(group: Sequence[Request]) -> None:
        for request in group:
            if request.records == [b"bad"]:
                raise InvalidRequest("a record that cannot be stored")
            if request.records == [b"large"] and len(group) == 1:
                raise StorageFull("no room for this one")

    rig.log.on_write = judge
    held = rig.hold()
    values = [b"a", b"bad", b"b", b"large", b"c"]
    futures = []
    for number, value in enumerate(values, 1):  # in this order
        futures.append(rig.start(value))
        rig.wait_for_depth(number)
    rig.log.gate.set()
    held.result(SOON_S)
    failures = [future.exception(SOON_S) for future in futures]
    assert [type(each) for each in failures] == [
        *(type(None), InvalidRequest, type(None)),
        *(StorageFull, type(None)),
    ]
    assert rig.log.stored == [b"leader", b"a", b"b", b"c"]
    acks = [future.result() for future in (futures[0], futures[2], futures[4])]
    assert acks == [Ack(number, 1, "fsynced") for number in (1, 2, 3)]
    assert rig.log.syncs == 2
    assert rig.log.durable == 4


# ---------------------------------------------------------------------- alone with the tail


@pytest.mark.parametrize("way", ["threads", "asyncio"])
def test_an_exclusive_action_gets_its_turn_under_load(rig: Rig, way: str) -> None:
    stop = threading.Event()
    rig.log.on_sync = lambda: time.sleep(0.0002)

    def produce() -> None:
        while not stop.is_set():
            rig.append(b"x")

    async def produce_soon() -> None:
        pending = {rig.writer.append_soon(request_of(b"x")) for _ in range(20)}
        while not stop.is_set():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            pending |= {rig.writer.append_soon(request_of(b"x")) for _ in done}
        await asyncio.gather(*pending)

    if way == "threads":
        load = [rig.users.submit(produce) for _ in range(8)]
    else:
        load = [rig.users.submit(lambda: asyncio.run(produce_soon()))]
    wait_until(lambda: rig.writer.pulse.groups > 5)
    groups = []

    def action() -> int:
        with rig.log.alone():
            time.sleep(0.001)
            return rig.writer.pulse.groups

    for _ in range(20):
        before = rig.writer.pulse.groups
        ran = rig.users.submit(rig.writer.exclusively, action)
        groups.append(ran.result(SOON_S) - before)
    stop.set()
    for future in load:
        future.result(SOON_S)
    assert max(groups) < 200, "it waited for more than a few groups"


def test_an_exclusive_action_goes_before_everybody_who_waits(rig: Rig) -> None:
    held = rig.hold()
    waiting = [rig.start(b"waiting") for _ in range(5)]
    rig.wait_for_depth(5)
    alone = rig.users.submit(rig.writer.exclusively, lambda: list(rig.log.stored))
    wait_until(lambda: rig.writer._reserved == 1)
    rig.log.gate.set()
    assert alone.result(SOON_S) == [b"leader"]
    for future in [held, *waiting]:
        future.result(SOON_S)


def test_exclusive_actions_and_groups_never_overlap(rig: Rig) -> None:
    inside = [0]

    def action() -> None:
        with rig.log.alone():
            inside[0] += 1
            time.sleep(0.0001)

    def change() -> None:
        for _ in range(40):
            rig.writer.exclusively(action)

    def produce() -> None:
        for _ in range(100):
            rig.append(b"x")

    work = [rig.users.submit(change) for _ in range(4)]
    work += [rig.users.submit(produce) for _ in range(4)]
    for future in work:
        future.result(SOON_S)
    assert inside == [160]
    assert len(rig.log.stored) == 400
    assert rig.log.overlaps == 0


def test_requests_that_come_during_an_exclusive_action_are_led_after_it(rig: Rig) -> None:
    inside, go = threading.Event(), threading.Event()

    def action() -> str:
        inside.set()
        assert go.wait(SOON_S)
        return "done"

    alone = rig.users.submit(rig.writer.exclusively, action)
    assert inside.wait(SOON_S)
    late = rig.start(b"late")
    rig.append(b"not waited for", NOT_WAITED)
    rig.wait_for_depth(2)
    assert rig.log.stored == []
    go.set()
    assert alone.result(SOON_S) == "done"
    late.result(SOON_S)
    wait_until(lambda: len(rig.log.stored) == 2)


def test_the_errors_of_an_exclusive_action(rig: Rig) -> None:
    def failing(error: BaseException) -> Callable[[], None]:
        def action() -> None:
            raise error

        return action

    with pytest.raises(StorageFull):
        rig.writer.exclusively(failing(OSError(errno.ENOSPC, "full")))
    with pytest.raises(InvalidRequest):
        rig.writer.exclusively(failing(InvalidRequest("no")))
    assert rig.append(b"x").base_offset == 0
    with pytest.raises(Poisoned):
        rig.writer.exclusively(failing(OSError(errno.EIO, "broken")))
    with pytest.raises(Poisoned):
        rig.append(b"y")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
def test_an_exclusive_action_cut_off_in_the_middle_poisons(
    rig: Rig, kind: type[BaseException]
) -> None:
    def action() -> None:
        raise kind

    with pytest.raises(kind):
        rig.writer.exclusively(action)
    with pytest.raises(Poisoned):
        rig.append(b"x")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError])
def test_an_exclusive_action_cut_off_at_its_very_end_gives_the_tail_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    pass_on, calls = rig.writer._pass_on, 0

    def cut_off(owner: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise kind
        pass_on(owner)

    with monkeypatch.context() as patched:
        patched.setattr(rig.writer, "_pass_on", cut_off)
        with pytest.raises(kind):
            rig.writer.exclusively(lambda: None)
    assert rig.start(b"next").result(SOON_S).base_offset == 0


def test_one_cut_off_right_behind_its_wait_for_the_tail_gives_it_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_over = rig.writer._take_over

    def cut_off(token: object) -> None:
        take_over(token)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rig.writer, "_take_over", cut_off)
        with pytest.raises(KeyboardInterrupt):
            rig.writer.exclusively(lambda: None)
    assert rig.start(b"next").result(SOON_S).base_offset == 0


def test_one_cut_off_while_it_waits_for_the_tail_blocks_nobody(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = rig.hold()

    def interrupted(timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rig.signal, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rig.writer.exclusively(lambda: None)
    rig.log.gate.set()
    held.result(SOON_S)
    assert rig.start(b"next").result(SOON_S).base_offset == 1


def test_one_cut_off_as_it_leaves_the_tail_to_others_finds_them_a_thread(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, here, wait = rig.hold(), threading.get_ident(), rig.signal.wait
    rig.append(b"has no thread of its own", NOT_WAITED)

    def interrupted(timeout: float | None = None) -> bool:
        if threading.get_ident() != here:
            return wait(timeout)
        rig.log.gate.set()
        while rig.writer._leader is not None:
            wait()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rig.signal, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rig.writer.exclusively(lambda: None)
    held.result(SOON_S)
    assert rig.start(b"next").result(SOON_S).base_offset == 2


# ---------------------------------------------------------------------- closing


def test_closing_answers_everything_accepted(rig: Rig) -> None:
    held = rig.hold()
    waiting = [rig.start(b"waiting") for _ in range(20)]
    rig.wait_for_depth(20)
    rig.append(b"not waited for", NOT_WAITED)
    closing = rig.users.submit(rig.writer.close, Closed("closed by the test"))
    wait_until(lambda: rig.writer._closing is not None)
    with pytest.raises(Closed, match="closed by the test"):
        rig.append(b"too late")
    rig.log.gate.set()
    closing.result(SOON_S)
    for future in [held, *waiting]:
        assert future.result(SOON_S).durability == "fsynced"
    assert len(rig.log.stored) == 22
    with pytest.raises(Closed):
        rig.writer.exclusively(lambda: None)


def test_closing_ends_though_producers_go_on(rig: Rig) -> None:
    acks: list[Ack] = []

    def produce() -> None:
        with contextlib.suppress(Closed):
            while True:
                acks.append(rig.append(b"x"))

    load = [rig.users.submit(produce) for _ in range(8)]
    wait_until(lambda: rig.writer.pulse.groups > 5)
    rig.users.submit(rig.writer.close, Closed("enough")).result(SOON_S)
    for future in load:
        future.result(SOON_S)
    assert len(acks) == len(rig.log.stored)


def test_closing_wakes_those_who_wait_for_room() -> None:
    made = Rig(queue_requests=1)
    held = made.hold()
    accepted = made.start(b"accepted")
    made.wait_for_depth(1)
    outside = made.start(b"outside")
    closing = made.users.submit(made.writer.close, Closed("closed by the test"))
    assert isinstance(outside.exception(SOON_S), Closed)
    made.log.gate.set()
    closing.result(SOON_S)
    held.result(SOON_S)
    accepted.result(SOON_S)
    assert made.log.stored == [b"leader", b"accepted"]
    close(made)
