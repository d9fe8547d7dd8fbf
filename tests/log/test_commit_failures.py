"""The writer loop when its log fails or a thread is cut off: a typed error, and nobody waits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from lamina.api import DURABLE, WRITTEN, Ack
from lamina.errors import Fenced, Poisoned, StorageFull
from lamina.log.requests import Request
from tests.support.writer_rig import SOON_S, Rig, close, request_of


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    close(made)


# ---------------------------------------------------------------------- failures


def failing_once(error: BaseException) -> Callable[..., None]:
    left = [error]

    def fail(*_: object) -> None:
        if left:
            raise left.pop()

    return fail


def test_a_full_disk_fails_only_its_group(rig: Rig) -> None:
    rig.append(b"before")
    held = rig.hold(b"refused")
    follower = rig.start(b"next group")
    rig.wait_for_depth(1)
    rig.log.on_write = failing_once(StorageFull("no space"))
    rig.log.gate.set()
    assert isinstance(held.exception(SOON_S), StorageFull)
    assert follower.result(SOON_S) == Ack(1, 1, "fsynced")
    assert rig.append(b"later").base_offset == 2
    assert rig.writer.failure is None


@pytest.mark.parametrize("step", ["on_write", "on_sync"])
def test_a_failing_step_poisons_everybody_and_nobody_hangs(rig: Rig, step: str) -> None:
    held = rig.hold()
    waiting = [rig.start(b"waiting") for _ in range(20)]
    rig.wait_for_depth(20)
    setattr(rig.log, step, failing_once(OSError(errno.EIO, "the disk is broken")))
    rig.log.gate.set()
    for future in [held, *waiting]:
        assert isinstance(future.exception(SOON_S), Poisoned)
    before = list(rig.log.stored)
    for _ in range(3):
        with pytest.raises(Poisoned, match="the disk is broken"):
            rig.append(b"later")
        with pytest.raises(Poisoned):
            rig.writer.exclusively(lambda: None)
    assert rig.log.stored == before
    assert rig.log.syncs == 0


@pytest.mark.parametrize("step", ["on_write", "on_sync"])
@pytest.mark.parametrize("n", range(1, 8))
def test_the_nth_failure_poisons_and_what_was_acknowledged_before_it_is_durable(
    rig: Rig, step: str, n: int
) -> None:
    calls = [0]

    def fail(*_: object) -> None:
        calls[0] += 1
        if calls[0] == n:
            raise OSError(errno.EIO, "broken")
        assert calls[0] < n, "the log was called again after it failed"

    setattr(rig.log, step, fail)

    def produce() -> list[Ack]:
        acks = []
        with contextlib.suppress(Poisoned):
            while True:
                acks.append(rig.append(b"x"))
        return acks

    futures = [rig.users.submit(produce) for _ in range(4)]
    acks = [ack for future in futures for ack in future.result(SOON_S)]
    assert all(ack.base_offset < rig.log.durable for ack in acks)


def test_a_refusal_by_the_sync_poisons_too(rig: Rig) -> None:
    rig.log.on_sync = failing_once(StorageFull("no space, found by the sync"))
    with pytest.raises(Poisoned):
        rig.append(b"x")
    with pytest.raises(Poisoned):
        rig.append(b"y")


def test_waiting_for_room_ends_with_the_poison() -> None:
    made = Rig(queue_requests=1)
    held = made.hold()
    waiting = [made.start(b"x") for _ in range(10)]
    made.wait_for_depth(1)
    made.log.on_write = failing_once(OSError(errno.EIO, "broken"))
    made.log.gate.set()
    for future in [held, *waiting]:
        assert isinstance(future.exception(SOON_S), Poisoned)
    close(made)


def test_asyncio_gets_the_poison(rig: Rig) -> None:
    rig.log.on_sync = failing_once(OSError(errno.EIO, "broken"))

    async def two() -> list[Any]:
        rig.log.gate.clear()
        futures = [rig.writer.append_soon(request_of(b"x")) for _ in range(2)]
        rig.log.gate.set()
        return await asyncio.gather(*futures, return_exceptions=True)

    outcomes = asyncio.run(asyncio.wait_for(two(), SOON_S))
    assert [type(outcome) for outcome in outcomes] == [Poisoned, Poisoned]


def test_a_poisoned_writer_keeps_nothing_of_later_requests(rig: Rig) -> None:
    rig.log.on_write = failing_once(OSError(errno.EIO, "broken"))
    for _ in range(50):
        with contextlib.suppress(Poisoned):
            rig.append(b"x")
    gc.collect()
    failure = rig.writer.failure
    assert failure is not None
    depth, frame = 0, failure.__traceback__
    while frame is not None:
        depth, frame = depth + 1, frame.tb_next
    assert depth < 5, "the one error gathers the frames of everybody who got it"


# ---------------------------------------------------------------------- interruptions

INTERRUPTIONS = [KeyboardInterrupt, MemoryError, SystemExit]


@pytest.mark.parametrize("kind", INTERRUPTIONS)
@pytest.mark.parametrize("step", ["on_write", "on_sync"])
def test_a_leader_cut_off_in_the_log_leaves_nobody_waiting(
    rig: Rig, kind: type[BaseException], step: str
) -> None:
    held = rig.hold()
    waiting = [rig.start(b"waiting") for _ in range(10)]
    rig.wait_for_depth(10)
    setattr(rig.log, step, failing_once(kind()))
    rig.log.gate.set()
    assert isinstance(held.exception(SOON_S), kind)
    for future in waiting:
        assert isinstance(future.exception(SOON_S), Poisoned)
    with pytest.raises(Poisoned, match=kind.__name__):
        rig.append(b"later")


@pytest.mark.parametrize("kind", INTERRUPTIONS)
def test_a_leader_cut_off_before_its_own_request_leaves_nobody_waiting(
    kind: type[BaseException],
) -> None:
    made = Rig(batch_records=1)
    held = made.hold()

    async def soon_then_interrupt() -> list[Any]:
        first = made.writer.append_soon(request_of(b"in front"))
        heir = made.start(b"heir")
        made.wait_for_depth(2)
        made.log.on_write = fail
        made.log.gate.set()
        outcomes = await asyncio.gather(first, return_exceptions=True)
        return [heir, *outcomes]

    def fail(group: Sequence[Request]) -> None:
        if group[0].records == [b"in front"]:
            raise kind

    heir, outcome = asyncio.run(asyncio.wait_for(soon_then_interrupt(), SOON_S))
    assert isinstance(outcome, Poisoned)
    assert isinstance(heir.exception(SOON_S), kind), "it was the heir who led"
    held.result(SOON_S)
    with pytest.raises(Poisoned):
        made.append(b"later")
    close(made)


@pytest.mark.parametrize("kind", INTERRUPTIONS)
def test_a_borrowed_leader_cut_off_leaves_nobody_waiting(
    rig: Rig, kind: type[BaseException]
) -> None:
    rig.log.on_write = failing_once(kind())

    async def two() -> list[Any]:
        rig.log.gate.clear()
        futures = [rig.writer.append_soon(request_of(b"x")) for _ in range(2)]
        rig.log.gate.set()
        return await asyncio.gather(*futures, return_exceptions=True)

    outcomes = asyncio.run(asyncio.wait_for(two(), SOON_S))
    assert [type(outcome) for outcome in outcomes] == [Poisoned, Poisoned]


def test_a_follower_cut_off_while_it_waits_takes_its_request_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = rig.hold()

    def interrupted(request: Request, waiter: object, deadline: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rig.writer, "_await_turn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rig.append(b"interrupted")
    follower = rig.start(b"follower")
    rig.wait_for_depth(1)
    rig.log.gate.set()
    held.result(SOON_S)
    assert follower.result(SOON_S) == Ack(1, 1, "fsynced")
    assert rig.log.stored == [b"leader", b"follower"]


def test_an_heir_cut_off_as_it_wakes_passes_the_lead_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = rig.hold()
    real = rig.writer._await_turn

    def interrupted(request: Request, waiter: threading.Lock, deadline: object) -> None:
        if request.records != [b"heir"]:
            real(request, waiter, deadline)
        elif waiter.acquire(timeout=SOON_S):
            raise KeyboardInterrupt

    monkeypatch.setattr(rig.writer, "_await_turn", interrupted)
    heir = rig.start(b"heir")
    rig.wait_for_depth(1)
    follower = rig.start(b"follower")
    rig.wait_for_depth(2)
    rig.log.gate.set()
    held.result(SOON_S)
    assert isinstance(heir.exception(SOON_S), KeyboardInterrupt)
    assert follower.result(SOON_S) == Ack(1, 1, "fsynced")


def test_interrupts_at_any_line_of_the_writer_leave_nobody_waiting() -> None:
    """One thread is hit by KeyboardInterrupt at the k-th line it runs in the writer, for all k."""
    k = 0
    while True:
        made = Rig()
        lines = [0]

        def trace(
            frame: Any, event: str, argument: object, lines: list[int] = lines, k: int = k
        ) -> Any:
            if not frame.f_code.co_filename.endswith("log/commit.py"):
                return None
            if event == "line" and frame.f_code.co_name in INTERRUPTIBLE:
                lines[0] += 1
                if lines[0] == k + 1:
                    raise KeyboardInterrupt
            return trace

        def victim(made: Rig = made, trace: Any = trace) -> None:
            sys.settrace(trace)
            try:
                for _ in range(3):
                    made.append(b"victim")
            finally:
                sys.settrace(None)

        def bystander(made: Rig = made) -> None:
            with contextlib.suppress(Poisoned):
                for _ in range(5):
                    ack = made.append(b"bystander")
                    assert ack.base_offset < made.log.durable

        others = [made.users.submit(bystander) for _ in range(3)]
        hit = made.users.submit(victim)
        error = hit.exception(SOON_S)
        assert error is None or isinstance(error, KeyboardInterrupt | Poisoned)
        for future in others:
            future.result(SOON_S)
        close(made)
        if lines[0] <= k:
            break
        k += 1
    assert k > 30


INTERRUPTIBLE = ("append", "_lead", "_await_turn", "_commit", "_answer_written")


@pytest.mark.parametrize("acks", [WRITTEN, DURABLE])
def test_a_closed_gate_answers_with_its_refusal_and_poisons_nothing(rig: Rig, acks: int) -> None:
    rig.refusal = Fenced("another broker holds the cluster")
    with pytest.raises(Fenced, match="another broker"):
        rig.append(b"a", acks)
    rig.refusal = None
    assert rig.append(b"b", acks).base_offset == 1  # the first one is stored: nobody was told so
    assert rig.writer.failure is None
