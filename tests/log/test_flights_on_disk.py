"""Groups in the air on a disk that loses power or fails, or whose writer dies, at every moment."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lamina.api import ProducerStamp
from lamina.errors import LaminaError, NotPrimary, Poisoned
from lamina.log.active_segment import ActiveSegment
from lamina.log.requests import answerer
from lamina.log.segment import Bound
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from lamina_torture.disk import Choice, Disk
from lamina_torture.scribe import DATA, open_store
from lamina_torture.simulated import SimulatedFiles
from tests.support.held_disk import TOPIC, Aloft, HeldDisk, Lost, take_off
from tests.support.writer_rig import SOON_S, wait_until

LOSSES: tuple[Choice, ...] = ("dropped", "kept", 1)
ORDERS = list(itertools.permutations(range(3)))
FORMATS = ("keratin", "frame")


class Flown:
    """A store on a held disk, with a first record that is durable."""

    def __init__(self, format_name: str, **config: int) -> None:
        self.disk = HeldDisk()
        self.threads = ThreadPoolExecutor(8)
        self.store = open_store(self.disk)
        self.store.create_topic(TOPIC, format=format_name, config=config)
        self.store.append(TOPIC, b"before")

    @property
    def partition(self) -> Any:
        return self.store._lookup.partition(TOPIC, 0)

    def take_off(self, count: int) -> list[Aloft]:
        return take_off(self.store, self.disk, self.threads, count)

    def publish(self) -> None:
        """Writes the checkpoint, as maintenance does beside all that is in the air."""
        self.store._maintenance.checkpoint([self.partition])

    def end(self) -> None:
        self.disk.let_go()
        self.store.close()
        self.threads.shutdown()


@pytest.fixture(params=FORMATS)
def flown(request: pytest.FixtureRequest) -> Iterator[Flown]:
    made = Flown(request.param)
    yield made
    made.end()


def values(store: Any) -> list[bytes]:
    return [row for batch in store.scan(TOPIC) for row in batch.column("value").to_pylist()]


def hold(disk: Disk[SimulatedFiles], handed_in: list[bytes], stored: int) -> None:
    """After any power loss a beginning of what was appended is there, with all that was stored."""
    for loss in LOSSES:
        with open_store(disk.crash(loss)) as store:
            found = values(store)
            assert found == handed_in[: len(found)]
            assert len(found) >= stored
            assert store.gaps(TOPIC) == (), "nothing was lost that was durable"
            assert store.append(TOPIC, b"after").base_offset == len(found)


def stored_of(aloft: list[Aloft]) -> int:
    """How many were answered as stored: the first ones, or there is a hole."""
    landed = itertools.takewhile(lambda each: each.flight.has_landed, aloft)
    stored = [each.answer.exception(SOON_S) is None for each in landed]
    assert stored == sorted(stored, reverse=True)
    return sum(stored)


APPENDED = [b"before", b"0", b"1", b"2"]


@pytest.mark.parametrize("order", ORDERS)
def test_what_was_answered_survives_power_loss_in_whatever_order_syncs_return(
    flown: Flown, order: tuple[int, ...]
) -> None:
    aloft = flown.take_off(3)
    for number in (None, *order):
        if number is not None:
            aloft[number].come_down()
        stored = stored_of(aloft)  # first: more may be answered before the disk is looked at
        flown.publish()
        hold(flown.disk.snapshot(), APPENDED, 1 + stored)
    assert [each.answer.result(SOON_S).base_offset for each in aloft] == [1, 2, 3]


@pytest.mark.parametrize("lost", ["dropped", "kept"])
@pytest.mark.parametrize("order", ORDERS)
def test_what_fails_takes_all_behind_it_along_and_nothing_that_was_answered(
    order: tuple[int, ...], lost: Lost
) -> None:
    for failing in range(3):
        made = Flown("keratin")
        aloft = made.take_off(3)
        for number in order:
            aloft[number].come_down(lost if number == failing else None)
        for each in aloft:
            assert type(each.answer.exception(SOON_S)) in (type(None), Poisoned)
        # The last sync saves all before it, so that a later error concerns nobody. Any other is
        # told to each sync that has not returned yet, and ends those behind it.
        at = order.index(failing)
        stored = stored_of(aloft)
        assert stored == (3 if 2 in order[:at] else min(order[at:]))
        hold(made.disk.snapshot(), APPENDED, 1 + stored)
        made.disk.let_go()
        if stored < 3:
            with pytest.raises(Poisoned):
                made.store.append(TOPIC, b"later")
        assert made.store.latest_offset(TOPIC) == 1 + stored
        made.end()
        again = made.disk.snapshot().restart()
        with open_store(again) as store:  # the same machine: what is served now, stays
            served = values(store)
            hold(again.snapshot(), served, len(served))
        assert served == APPENDED[: len(served)]
        assert len(served) > stored


@pytest.mark.parametrize("landed", range(4))
def test_readers_beside_a_writer_that_dies_show_nothing_that_power_loss_takes(
    flown: Flown, landed: int
) -> None:
    aloft = flown.take_off(3)
    for each in aloft[:landed]:
        each.come_down()
    stored = stored_of(aloft)
    flown.publish()
    with ReadOnlyStore(DATA, files=flown.disk) as beside:
        shown = values(beside)
        assert shown == APPENDED[: len(shown)]
        assert 1 + stored <= len(shown) <= 1 + landed
    left = (
        flown.disk.snapshot().restart()
    )  # the writer is killed: nothing of it is safer than before
    with ReadOnlyStore(DATA, files=left) as reader:
        assert values(reader) == APPENDED
    hold(left.snapshot(), APPENDED, len(APPENDED))


def test_a_repeat_waits_for_its_first_try(flown: Flown) -> None:
    stamp = ProducerStamp(7, 0, 0)
    flown.disk.holds, flown.partition.writer._crowd = True, 2

    def append() -> Any:
        return flown.threads.submit(
            lambda: flown.store.append(TOPIC, b"0", partition=0, producer=stamp)
        )

    first = append()
    wait_until(lambda: len(flown.disk.held) == 1)
    repeat = append()
    wait_until(lambda: len(flown.disk.held) == 2)
    flown.disk.held[1].through.set()
    wait_until(lambda: flown.partition.writer.flights.air[1].is_down)
    assert not repeat.done()
    flown.disk.held[0].through.set()
    assert first.result(SOON_S).base_offset == repeat.result(SOON_S).base_offset == 1
    assert values(flown.store) == [b"before", b"0"]


def test_a_repeat_of_what_falls_falls_too(flown: Flown) -> None:
    stamp = ProducerStamp(7, 0, 0)
    flown.disk.holds, flown.partition.writer._crowd = True, 2
    tries = []
    for count in (1, 2):
        tries.append(
            flown.threads.submit(
                lambda: flown.store.append(TOPIC, b"0", partition=0, producer=stamp)
            )
        )
        wait_until(lambda at=count: len(flown.disk.held) == at)  # type: ignore[misc]
    flown.disk.held[0].lost = "dropped"
    flown.disk.held[0].through.set()
    assert isinstance(tries[0].exception(SOON_S), Poisoned)
    flown.disk.let_go()
    assert [type(each.exception(SOON_S)) for each in tries] == [Poisoned, Poisoned]


def test_what_needs_no_sync_does_not_wait_for_what_is_in_the_air(flown: Flown) -> None:
    aloft = flown.take_off(2)
    for number in range(3):
        assert flown.store.append(TOPIC, b"written", acks=1).base_offset == 3 + number
    later = flown.threads.submit(flown.store.append, TOPIC, b"later")
    wait_until(lambda: len(flown.disk.held) == 3)
    assert not any(each.answer.done() for each in aloft)
    flown.disk.let_go()
    assert later.result(SOON_S).base_offset == 6
    assert flown.store.latest_offset(TOPIC) == 7


ACTIONS: dict[str, Callable[[Store], Any]] = {
    "roll": lambda store: store.roll(TOPIC),
    "trim": lambda store: store.trim(TOPIC, 0, 1),
    "delete-records": lambda store: store.delete_records(TOPIC, 0, 1),
    "maintain": lambda store: store.maintain(),
    "delete-topic": lambda store: store.delete_topic(TOPIC),
    "close": lambda store: store.close(),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_what_owns_the_tail_begins_when_all_has_landed(flown: Flown, name: str) -> None:
    aloft = flown.take_off(3)
    seen: list[tuple[str, bool]] = []
    flown.disk.before = lambda kind, path: seen.append((path, all(_done(aloft))))
    writer = flown.partition.writer
    action = flown.threads.submit(ACTIONS[name], flown.store)
    wait_until(lambda: writer._reserved == 1 or writer._closing is not None)
    aloft[1].come_down()
    aloft[2].come_down()
    assert not any(_done(aloft))
    assert not action.done()
    aloft[0].sync.through.set()
    assert [each.answer.result(SOON_S).base_offset for each in aloft] == [1, 2, 3]
    flown.disk.let_go()
    action.result(SOON_S)
    flown.disk.before = None
    assert [path for path, is_after in seen if path.endswith(".log") and not is_after] == []


def _done(aloft: list[Aloft]) -> list[bool]:
    return [each.flight.has_landed for each in aloft]


@pytest.mark.parametrize("name", FORMATS)
def test_power_is_lost_at_every_step_of_producers_that_fly(name: str) -> None:
    """Four producers, two of them idempotent, segments that fill up, a checkpoint now and then."""
    made = Flown(name, **{"segment.bytes": 1024})
    made.partition.writer._crowd = 4
    told: list[tuple[int, bytes]] = [(0, b"before")]
    moments: list[tuple[Disk[SimulatedFiles], dict[int, bytes]]] = []

    def look(kind: str, path: str) -> None:
        known = dict(list(told))  # first: what is answered later may be on the disk already
        moments.append((made.disk.snapshot(), known))

    def produce(producer: int) -> None:
        for number in range(8):
            value = b"%d-%d" % (producer, number) + b"." * 40
            stamp = ProducerStamp(producer, 0, number) if producer > 2 else None
            ack = made.store.append(TOPIC, value, partition=0, producer=stamp)
            told.append((ack.base_offset, value))
            if number % 3 == 2:
                made.publish()

    made.disk.before = look
    for each in [made.threads.submit(produce, producer) for producer in (1, 2, 3, 4)]:
        each.result(SOON_S)
    made.disk.before = None
    made.end()
    for number, (disk, known) in enumerate(moments):
        with open_store(disk.crash(("dropped", number)[number % 2])) as store:
            found = values(store)
            assert {at: found[at] for at in known if at < len(found)} == known
            assert len(set(found)) == len(found)
            assert store.gaps(TOPIC) == ()


def test_a_lease_that_ends_while_groups_are_in_the_air_holds_their_answers_back(
    flown: Flown,
) -> None:
    writer, refusal = flown.partition.writer, list[LaminaError]()
    writer._answer = answerer(lambda: refusal[0] if refusal else None)
    aloft = flown.take_off(3)
    aloft[0].come_down()
    assert aloft[0].answer.result(SOON_S).base_offset == 1
    refusal.append(NotPrimary("another broker holds the cluster", was_begun=True))
    aloft[1].come_down()
    assert isinstance(aloft[1].answer.exception(SOON_S), NotPrimary)
    refusal.clear()
    aloft[2].come_down()
    assert aloft[2].answer.result(SOON_S).base_offset == 3
    assert flown.store.latest_offset(TOPIC) == 4, "what was not answered is durable all the same"
    assert writer.failure is None


def test_a_landing_that_is_cut_off_at_any_line_is_made_up_for(flown: Flown) -> None:
    active, code = flown.partition.active, ActiveSegment.land.__code__
    lines = sorted({line for _, _, line in code.co_lines() if line and line > code.co_firstlineno})

    def cut_off(at: int) -> Callable[..., Any]:
        def trace(frame: Any, event: str, argument: object) -> Any:
            if event == "line" and frame.f_code is code and frame.f_lineno == at:
                raise KeyboardInterrupt
            return trace

        return trace

    for line in lines:
        flown.disk.holds = False
        active.durable = Bound(0, 0)
        departed = active.depart(lambda: None)
        sys.settrace(cut_off(line))
        try:
            with contextlib.suppress(KeyboardInterrupt):  # not every line is run
                active.land(departed)
        finally:
            sys.settrace(None)
        active.land(departed)
        assert active.durable == active.tail, f"line {line}"
