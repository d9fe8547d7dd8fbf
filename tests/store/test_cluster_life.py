"""A process's life in a cluster, with real threads: whoever cannot serve lets another one do it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from lamina.archive import proof
from lamina.archive.proof import Finding
from lamina.cluster.member import Role
from lamina.errors import ArchiveUnavailable, InvalidRequest, LaminaError, Locked, NotPrimary
from lamina.storage import files as clocks
from lamina.storage import paths
from lamina.storage.objects import Objects, open_objects
from lamina.store.cluster_life import Charter, Membership
from lamina.store.seat import Seat
from lamina.store.store import Store
from lamina_torture.faults.failovers import TOPIC, TTL_MS, Machine
from tests.support.failing_objects import FailingObjects

if TYPE_CHECKING:
    from typing_extensions import Buffer

PATIENCE_S = 30


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.005)


def machine(name: str, objects: Objects, kind: type[Machine] = Machine) -> Machine:
    return kind(name, objects, random.Random(1))


class Patient(Machine):
    """Loses no turn, however slow it is here: no ttl passes while a test takes."""

    ttl_ms = 600_000


class Idle(Patient):
    """Ships nothing by itself."""

    tail_ms = 600_000


class IdleFor10s(Idle):
    """Tries again soon what has failed."""

    ttl_ms = 10_000


class IdleFor2s(Idle):
    """Is succeeded soon."""

    ttl_ms = 2_000


class Lossy(FailingObjects):
    """Loses the answers to some windows that are created."""

    losses = 0

    def create(self, key: str, data: Buffer) -> None:
        super().create(key, data)
        if key.startswith(paths.TAILS) and self.losses:
            self.losses -= 1
            raise ArchiveUnavailable("the answer was lost")


@contextmanager
def two(
    kind: type[Machine] = Patient,
    other: type[Machine] | None = None,
    objects: Objects | None = None,
) -> Iterator[tuple[Machine, Machine]]:
    """Two machines; the first one, of this kind, holds the cluster if it can."""
    objects = objects or open_objects("memory://")
    a = machine("a", objects, kind)
    b = machine("b", objects, other or kind)
    try:
        yield a, b
    finally:
        for each in (a, b):
            each.end()


def test_the_first_holds_and_the_second_knows_it() -> None:
    with two() as (a, b):
        assert a.is_holder()
        until(lambda: b.membership.status()["holder"] == "grpc://a:1", "b knows who holds it")
        assert b.membership.status()["role"] == "standby"
        assert b.membership.problems() == []
        assert a.membership.status()["takeovers"] == 1
        with pytest.raises(NotPrimary, match="held by grpc://a:1"):
            b.membership.hand_over(1)


def test_a_hand_over_ships_everything_and_is_taken_at_once() -> None:
    with two() as (a, b):
        store_of(a).create_topic(TOPIC)
        for number in range(20):
            a.append(b"%d" % number, "all")
        began = time.monotonic()
        a.membership.hand_over(PATIENCE_S)
        assert a.membership.member.role is Role.STANDBY
        b.membership.promote(by_force=False)
        until(b.is_holder, "b holds the cluster")
        assert time.monotonic() - began < PATIENCE_S
        assert store_of(b).latest_offset(TOPIC) == 20
        assert a.membership.status()["diverged"] == []


def store_of(machine: Machine) -> Store:
    assert machine.store is not None
    return machine.store


def test_what_was_begun_is_answered_while_its_server_leaves() -> None:
    with two() as (a, _):
        drained = threading.Event()
        a.drain = drained.wait  # type: ignore[assignment]
        leaving = threading.Thread(target=a.membership.hand_over, args=(PATIENCE_S,))
        leaving.start()
        until(lambda: a.membership.member.role is Role.LEAVING, "a leaves")
        assert a.membership.refusal() is not None
        assert a.membership.refusal(was_begun=True) is None
        drained.set()
        leaving.join()
        assert a.membership.refusal(was_begun=True) is not None


class Unwell(Machine):
    """Cannot open a store."""

    ttl_ms = IdleFor2s.ttl_ms

    def _opened(self, seat: Seat) -> Store:
        raise LaminaError("this machine has no room")


def test_a_store_that_cannot_be_opened_is_left_to_another_machine() -> None:
    with two(Unwell, IdleFor2s) as (a, b):
        until(b.is_holder, "b holds the cluster")
        assert any("no room" in each for each in a.membership.problems())
        time.sleep(1.2 * Unwell.ttl_ms / 1000)
        assert b.is_holder()
        assert b.membership.member.epoch <= 3


class UnwellAndBusy(Unwell):
    """Cannot open a store, and is slow to give the cluster up for it."""

    def __init__(self, *args: Any) -> None:
        self.tried: list[int] = []
        super().__init__(*args)

    def _opened(self, seat: Seat) -> Store:
        keeper = self.membership
        self.tried.append(seat.epoch)
        keeper._changed.set()  # it looks again at once, before the cluster is given up
        keeper._order(lambda: until(lambda: not keeper._changed.is_set(), "it looks again"))
        return super()._opened(seat)


def test_an_opening_that_failed_is_not_tried_again_without_the_windows_it_let_go() -> None:
    with two(UnwellAndBusy, IdleFor2s) as (a, b):
        until(b.is_holder, "b holds the cluster")
        tried = cast("UnwellAndBusy", a).tried
        assert tried == sorted(set(tried)), "each try has an epoch of its own"


def test_a_disk_that_fails_is_left_to_another_machine() -> None:
    with two(IdleFor10s) as (a, b):
        store_of(a).create_topic(TOPIC)
        a.append(b"x", "archived")
        a.files.fail("sync", forever=True)
        with pytest.raises(LaminaError):
            a.append(b"y", "all")
        until(b.is_holder, "b holds the cluster")
        assert b.append(b"z", "archived")[0] >= 1
        assert any("orders/0" in each for each in a.membership.problems())


def test_a_holder_that_is_cut_off_stops_and_sets_aside_what_it_never_shipped() -> None:
    with two(IdleFor2s) as (a, b):
        store_of(a).create_topic(TOPIC)
        a.append(b"x", "archived")
        a.append(b"never shipped", "all")
        a.way.cut()
        until(b.is_holder, "b holds the cluster")
        assert a.membership.refusal() is not None
        a.way.mend()
        until(lambda: bool(a.membership.status()["diverged"]), "a sets aside")
        (kept,) = a.membership.status()["diverged"]
        assert [(each["topic"], each["end"]) for each in kept["ranges"]] == [(TOPIC, 2)]
        assert store_of(b).latest_offset(TOPIC) == 1


def test_a_process_that_was_killed_and_comes_back_loses_nothing_and_waits_for_nobody() -> None:
    with two(Idle) as (a, b):
        store_of(a).create_topic(TOPIC)
        a.append(b"x", "archived")
        a.append(b"in no window", "all")
        a.lose_power("dropped")
        until(a.is_holder, "a goes on, long before its ttl is over")
        assert store_of(a).latest_offset(TOPIC) == 2
        assert a.membership.status()["diverged"] == []
        assert b.membership.status()["role"] == "standby"


def test_a_process_whose_first_takeovers_fail_goes_on_all_the_same() -> None:
    objects = Lossy(open_objects("memory://"))
    with two(IdleFor10s, objects=objects) as (a, _):
        store_of(a).create_topic(TOPIC)
        a.append(b"x", "archived")
        a.append(b"in no window", "all")
        objects.losses = 2
        a.lose_power("dropped")
        until(a.is_holder, "a holds the cluster again")
        assert store_of(a).latest_offset(TOPIC) == 2
        assert a.membership.member.epoch == 4
        assert a.membership.status()["diverged"] == []


def test_a_holder_does_not_keep_the_windows_that_it_took_over_in_memory() -> None:
    with two() as (a, _):
        assert a.membership.member.taken is not None
        assert a.membership.member.taken.tails == ()


def test_two_processes_do_not_share_a_directory() -> None:
    with two() as (a, _):
        again = Membership(a.membership.charter, a, a.files, opening=a._opened)
        with pytest.raises(Locked):
            again.start()


def test_a_clock_that_is_set_ends_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    with two() as (a, _):
        now_ns = time.time_ns
        monkeypatch.setattr(clocks.time, "time_ns", lambda: now_ns() + 3_600_000_000_000)
        assert a.membership.refusal() is None
        monkeypatch.setattr(clocks.time, "time_ns", lambda: now_ns() - 3_600_000_000_000)
        assert a.membership.refusal() is None


def test_a_cluster_of_another_name_is_left_alone() -> None:
    objects = open_objects("memory://")
    a = machine("a", objects, Patient)
    other = Charter("other", "grpc://o:1", "/o", objects, TTL_MS)
    a.end()
    stranger = Membership(other, a, a.files, opening=a._opened)
    stranger.start()
    time.sleep(2 * TTL_MS / 1000)
    assert stranger.member.role is Role.STANDBY
    assert any("belongs to the cluster 'c'" in each for each in stranger.problems())
    assert stranger.member.epoch == 1
    stranger.stop()


def test_an_archive_that_was_proved_unfit_holds_no_cluster() -> None:
    objects = open_objects("memory://")
    found = [Finding("conditional create", "two of 64 writers have won")]
    proof.keep(objects, found, 0, is_trusted=False)
    with pytest.raises(InvalidRequest, match="two of 64 writers"):
        machine("a", objects, Patient)
    proof.keep(objects, found, 0, is_trusted=True)
    a = machine("a", objects, Patient)
    assert a.is_holder()
    a.end()


def test_a_process_that_ends_leaves_no_thread() -> None:
    before = threading.active_count()
    with two():
        pass
    until(lambda: threading.active_count() <= before, "all threads have ended")
