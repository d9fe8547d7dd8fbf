"""The lease: two clocks, renewals whose outcome is not known, and mutants that are caught.

The holder answers for what is on its disk alone; the successor begins to answer when it has taken
over. No answer of the former may leave after the first of the latter, whatever happens to requests,
however slow an answer is, and though one clock runs faster than the other.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from lamina.cluster import lease as product
from lamina.cluster.steps import run
from lamina.errors import ArchiveUnavailable, Fenced
from lamina.formats.documents import lease_file
from lamina.formats.documents.lease_file import Lease
from lamina.storage import paths
from lamina.storage.objects import Stored, open_objects
from tests.cluster.world import Actor, Script, World, mutant, tag_of

TTL_MS = 15_000
TICK_MS = 500
ANSWER_MS = 1_500
"""How long an answer may be on its way."""
DRIFT = 1.05
"""How much faster the standby's clock runs."""
SEEDS = range(120)


def me(code: Any, name: str) -> Any:
    return code.Identity(name, f"grpc://{name}", TTL_MS)


class Race:
    """A holder and a standby in one world, over five ttl; the holder is cut off at some moment.

    Its requests take effect at once or not at all, and their answers come late or never.
    """

    def __init__(self, code: Any, seed: int) -> None:
        self.code = code
        self.luck = random.Random(seed)
        self.world = World()
        self.left: list[int] = []
        """When the holder's answers left."""
        self.first: int | None = None
        """When the successor could first answer."""
        watch = code.Watch()
        self.world.carry_out(watch.look(self.holders_clock))
        taking = code.take(watch, me(code, "a"), self.holders_clock)
        self.holding = self.world.carry_out(taking)
        self.watch = code.Watch()
        self.cut_off_ms = self.luck.randrange(3 * TTL_MS)
        self.answer: tuple[int, Any] | None = None
        """What the holder's request was answered, and when that is there."""

    def holders_clock(self) -> int:
        return self.world.now_ms

    def standbys_clock(self) -> int:
        return 7_000_000 + int(self.world.now_ms * DRIFT)

    def renewing(self) -> Script:
        yield from self.holding.renew(self.holders_clock)

    def standing_by(self) -> Script:
        yield from self.watch.look(self.standbys_clock)
        if self.watch.may_take(self.standbys_clock()):
            yield from self.code.take(self.watch, me(self.code, "b"), self.standbys_clock)
            self.first = self.world.now_ms

    def play(self) -> None:
        holder: Actor | None = None
        for _ in range(5 * TTL_MS // TICK_MS):
            self.world.now_ms += TICK_MS
            if self.holding.may_answer(self.holders_clock()):
                self.left.append(self.world.now_ms + self.luck.randrange(ANSWER_MS))
            if holder is None and self.holders_clock() >= self.holding.renewal_due_ms():
                holder = Actor("a", self.renewing())
            holder = self._go_on(holder)
            if self.first is None:
                self.world.carry_out(self.standing_by())

    def _go_on(self, holder: Actor | None) -> Actor | None:
        """Sends the holder's request, or lets its answer come; None when the renewal has ended."""
        while holder is not None and holder.request is not None:
            if self.answer is None:
                self.answer = self._sent(holder)
            due_ms, answer = self.answer
            if self.world.now_ms < due_ms:
                return holder
            self.answer = None
            holder.take(answer)
        return None

    def _sent(self, holder: Actor) -> tuple[int, Any]:
        is_away = self.world.now_ms >= self.cut_off_ms
        luck = self.luck.random()
        answer = ArchiveUnavailable("it never arrived") if is_away else holder.outcome(self.world)
        if luck < 0.2:
            answer = ArchiveUnavailable("no answer came")
        slow_ms = self.luck.choice([0, 0, 1_000, 6_000])
        return self.world.now_ms + slow_ms, answer

    def judge(self) -> None:
        last = max(self.left)
        assert self.first is None or last < self.first, f"{last} is not before {self.first}"


def play(code: Any) -> int:
    """Plays all seeds; returns in how many somebody took over."""
    taken = 0
    for seed in SEEDS:
        race = Race(code, seed)
        race.play()
        race.judge()
        taken += race.first is not None
    return taken


def test_the_holders_last_answer_leaves_before_the_successors_first() -> None:
    assert play(product) > 20, "there were takeovers to judge"


MUTANTS = {
    "no margin": (
        "        return max(0, self.lease.ttl_ms - margin_ms - (now_ms - self.proven_ms))\n",
        "        return max(0, self.lease.ttl_ms - (now_ms - self.proven_ms))\n",
    ),
    "renewal counted from its end": (
        "                self.lease, self.proven_ms = wanted, begun_ms\n",
        "                self.lease, self.proven_ms = wanted, clock()\n",
    ),
    "successor does not wait": (
        "        return now_ms - self.changed_ms >= self.lease.ttl_ms\n",
        "        return now_ms - self.changed_ms >= self.lease.ttl_ms // 2\n",
    ),
    "successor counts from the first look": (
        "        if self.changed_ms is None or etag != self.etag:\n",
        "        if self.changed_ms is None:\n",
    ),
    "an earlier try in place proves the later one": (
        "            self.written += 1\n",
        "            self.written = self.lease.renewals + 1\n",
    ),
    "a fenced holder writes over its successor": (
        "                self.successor = there  # and its tag is never ours to write with\n",
        "                self.etag = found.etag\n                raise taken_by(there)\n",
    ),
    "clocks are compared": (
        "        return now_ms - self.changed_ms >= self.lease.ttl_ms\n",
        "        return now_ms >= self.lease.renewals + self.lease.ttl_ms\n",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_lease_is_caught(name: str) -> None:
    code = mutant(product, *MUTANTS[name])
    with pytest.raises(AssertionError):
        play(code)


# ---------------------------------------------------------------------- by hand

LEASE = Lease(7, "a", "grpc://a", TTL_MS, 3)


def stored(lease: Lease) -> Stored:
    data = lease_file.encode(lease)
    return Stored(data, tag_of(data))


def test_a_holder_renews_and_answers_by_the_moment_at_which_its_last_write_began() -> None:
    world = World()
    times = iter([100, 900, 5_000])
    watch = product.Watch()
    world.carry_out(watch.look(lambda: 0))
    holding = world.carry_out(product.take(watch, me(product, "a"), lambda: next(times)))
    assert (holding.epoch, holding.proven_ms, holding.renewal_due_ms()) == (1, 100, 5_100)
    assert holding.may_answer(12_099)
    assert not holding.may_answer(12_100)
    world.carry_out(holding.renew(lambda: next(times)))
    assert (holding.epoch, holding.proven_ms, holding.lease.renewals) == (1, 900, 1)


def test_a_standby_waits_a_full_ttl_from_the_answer_in_which_it_saw_a_change() -> None:
    watch = product.Watch()
    assert not watch.may_take(10**9), "it has not looked yet"
    watch.saw(stored(LEASE), 1_000)
    watch.saw(stored(LEASE), 9_000)
    assert not watch.may_take(15_999)
    assert watch.may_take(16_000)
    watch.saw(stored(Lease(7, "a", "grpc://a", TTL_MS, 4)), 16_000)
    assert not watch.may_take(30_999)
    watch.saw(stored(Lease(7, "a", "grpc://a", TTL_MS, 5, is_released=True)), 17_000)
    assert watch.may_take(17_000), "the holder has said that it has ended"
    watch.saw(None, 17_500)
    assert watch.may_take(17_500), "there is no cluster yet"


def test_a_released_lease_is_taken_at_once_in_the_next_epoch() -> None:
    objects, watch = open_objects("memory://"), product.Watch()
    run(objects, watch.look(lambda: 0))
    holding = run(objects, product.take(watch, me(product, "a"), lambda: 0))
    run(objects, holding.release(lambda: 1))
    run(objects, watch.look(lambda: 2))
    assert watch.may_take(2)
    assert run(objects, product.take(watch, me(product, "b"), lambda: 3)).epoch == 2
    for _ in range(2):  # also with what it has learned meanwhile
        with pytest.raises(Fenced, match="held by b at grpc://b in epoch 2"):
            run(objects, holding.renew(lambda: 4))
    assert not holding.may_answer(4)
    assert lease_file.decode(objects.read(paths.LEASE).data).holder == "b"


def test_a_renewal_that_finds_its_own_earlier_try_writes_again() -> None:
    """What it finds was written at a moment that is not known: it proves nothing of now."""
    world, watch = World(), product.Watch()
    world.carry_out(watch.look(lambda: 0))
    holding = world.carry_out(product.take(watch, me(product, "a"), lambda: 0))
    actor = Actor("a", holding.renew(lambda: 5_000))
    assert actor.request is not None
    world.apply(actor.request)
    actor.take(ArchiveUnavailable("the answer was lost"))
    assert isinstance(actor.error, ArchiveUnavailable)
    assert holding.proven_ms == 0
    world.carry_out(holding.renew(lambda: 9_000))
    assert (holding.proven_ms, holding.lease.renewals) == (9_000, 3)
    there = lease_file.decode(world.there[paths.LEASE])
    assert there == holding.lease


def test_a_lease_that_somebody_deleted_fences_its_holder() -> None:
    world, watch = World(), product.Watch()
    world.carry_out(watch.look(lambda: 0))
    holding = world.carry_out(product.take(watch, me(product, "a"), lambda: 0))
    del world.there[paths.LEASE]
    with pytest.raises(Fenced, match="deleted"):
        world.carry_out(holding.renew(lambda: 1))


def test_an_epoch_is_above_every_one_that_is_known() -> None:
    world, watch = World(), product.Watch()
    world.carry_out(watch.look(lambda: 0))
    assert world.carry_out(product.take(watch, me(product, "a"), lambda: 0, floor=41)).epoch == 42
