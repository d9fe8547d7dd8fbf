"""Windows of a cluster's log: every order of two brokers' requests, and mutants that are caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lamina.cluster import tails as product
from lamina.cluster.lease import Identity, Watch
from lamina.cluster.steps import List, Read, run
from lamina.errors import ArchiveUnavailable, Busy, CorruptData, Fenced
from lamina.formats import tail_file
from lamina.formats.tail_file import Kind, Section, Tail
from lamina.storage import paths
from lamina.storage.objects import open_objects
from tests.cluster.world import Actor, Scenario, Script, World, explore, mutant, wander

TTL_MS = 15_000
SEEDS = range(400)


def me(name: str) -> Identity:
    return Identity(name, f"grpc://{name}", TTL_MS)


def holding(text: str) -> tuple[Section, ...]:
    return (Section(Kind.COPY, text, b""),)


def texts(tails: Any) -> list[str]:
    return [tail.sections[0].name for tail in tails if tail.sections]


class Cluster:
    """A world with an archive: what collectors have put there, and what was acknowledged."""

    def __init__(self, code: Any) -> None:
        self.code = code
        self.world = World()
        self.acked: list[str] = []
        self.archived: dict[int, Tail] = {}
        self.seen: list[Tail] = []
        self.served: dict[str, list[str]] = {}

    def taken_over(self, name: str) -> Any:
        """A takeover that nothing disturbs."""
        watch = Watch()
        self.world.carry_out(watch.look(lambda: 0))
        return self.world.carry_out(self.code.take_over(watch, me(name), lambda: 0))

    def writer(self, log: Any, *windows: str) -> Script:
        for text in windows:
            try:
                yield from log.commit(holding(text))
            except ArchiveUnavailable:
                yield from self.settled(log)
            self.acked.append(text)

    def hasty(self, log: Any, *windows: str) -> Script:
        """Goes on with the next window after a failure, and is made to settle the last one."""
        unknown: list[str] = []
        for text in windows:
            while True:
                try:
                    yield from log.commit(holding(text))
                except ArchiveUnavailable:
                    unknown.append(text)
                except Busy:
                    yield from self.settled(log)
                    self.acked += unknown
                    unknown.clear()
                    continue
                else:
                    self.acked.append(text)
                break

    def settled(self, log: Any) -> Script:
        while True:
            try:
                yield from log.settle()
            except ArchiveUnavailable:
                continue
            return

    def successor(self, name: str, *windows: str, collects: bool = False) -> Script:
        """Takes over, commits, and lets go of what it has archived."""
        while True:
            watch = Watch()
            yield from watch.look(lambda: 0)
            try:
                taken = yield from self.code.take_over(watch, me(name), lambda: 0)
            except ArchiveUnavailable:
                continue
            break
        known = self.archived | {tail.seq: tail for tail in taken.tails}
        for text in windows:
            yield from self.writer(taken.log, text)
            seq = taken.log.next_seq - 1
            known[seq] = Tail(seq, taken.holding.epoch, holding(text))
        self.served[name] = texts(known[seq] for seq in sorted(known))
        if collects:
            self.archived |= known
            while True:
                try:
                    yield from self.code.collect(taken.log.next_seq, taken.log)
                except ArchiveUnavailable:
                    continue
                return

    def reader(self, seq: int, count: int) -> Script:
        """A standby that follows the log from a slot on."""
        for each in range(seq, seq + count):
            try:
                tail = yield from self.code.window(each)
            except product.Collected:
                return
            except self.code.Collected:
                return
            if tail is None:
                return
            self.seen.append(tail)

    def judge(self) -> None:
        """Every acknowledged window is in the one history, once; a standby saw nothing else."""
        boundary, _ = self.world.carry_out(product.boundary_of())
        live = {
            seq: tail_file.decode(self.world.there[key])
            for key in self.world.there
            if (seq := paths.tail_seq(key)) is not None and seq >= boundary.first_seq
        }
        assert sorted(live) == list(range(boundary.first_seq, boundary.first_seq + len(live)))
        for seq, tail in live.items():
            assert self.archived.get(seq, tail) == tail, "a slot had two contents"
        history = self.archived | live
        told = texts(history[seq] for seq in sorted(history))
        for text in self.acked:
            assert told.count(text) == 1, f"{text} was acknowledged; the history is {told}"
        assert len(set(told)) == len(told)
        epochs = [history[seq].epoch for seq in sorted(history)]
        assert epochs == sorted(epochs), "an earlier epoch has committed after a later one"
        for name, shown in self.served.items():
            assert shown == told[: len(shown)], f"{name} shows {shown} of {told}"
        for tail in self.seen:
            assert history.get(tail.seq, tail) == tail, f"a standby has shown {tail}"


def two_brokers(code: Any, faults: int, *windows: str, collects: bool = False) -> Scenario:
    """A holder commits while another one takes over, commits, and perhaps collects."""
    cluster = Cluster(code)
    log = cluster.taken_over("a").log
    actors = [
        Actor("a", cluster.hasty(log, *windows)),
        Actor("b", cluster.successor("b", "b1", collects=collects)),
    ]

    def judge() -> None:
        assert actors[1].error is None, "the broker of the last epoch is in nobody's way"
        cluster.judge()
        missing = set(cluster.acked) - set(cluster.served["b"])
        assert not missing, f"the successor serves without {missing}"

    return Scenario(cluster.world, actors, judge, faults, "a" if faults == 1 else "")


def zombie(code: Any, faults: int = 0) -> Scenario:
    """A holder wakes up in a slot that was used, archived and collected; a standby follows."""
    cluster = Cluster(code)
    log = cluster.taken_over("a").log
    first = log.next_seq
    cluster.world.carry_out(cluster.successor("b", "b1"))
    cluster.world.carry_out(cluster.successor("c", "c1", collects=True))
    actors = [Actor("a", cluster.writer(log, "a1", "a2")), Actor("s", cluster.reader(first, 4))]
    return Scenario(cluster.world, actors, cluster.judge, faults)


def hasty(code: Any) -> Scenario:
    """A holder whose requests fail goes on with what it has."""
    cluster = Cluster(code)
    log = cluster.taken_over("a").log
    actors = [Actor("a", cluster.hasty(log, "a1", "a2", "a3"))]
    return Scenario(cluster.world, actors, cluster.judge, 2)


def collector(code: Any) -> Scenario:
    """A standby follows while the log is collected and an old holder writes."""
    cluster = Cluster(code)
    log = cluster.taken_over("a").log
    first = log.next_seq
    actors = [
        Actor("b", cluster.successor("b", "b1", collects=True)),
        Actor("a", cluster.writer(log, "a1")),
        Actor("s", cluster.reader(first, 3)),
    ]
    return Scenario(cluster.world, actors, cluster.judge, 1)


def last_collection(code: Any) -> Scenario:
    """A holder lets windows go while another one takes over."""
    cluster = Cluster(code)
    log = cluster.taken_over("a").log
    cluster.world.carry_out(cluster.writer(log, "a1", "a2"))
    cluster.archived[1] = tail_file.decode(cluster.world.there[paths.tail(1)])
    successor = Actor("b", cluster.successor("b"))
    while successor.request != Read(paths.tail(0)):
        successor.ask(cluster.world)

    def judge() -> None:
        assert successor.error is None, f"b cannot take over: {successor.error}"
        cluster.judge()
        assert cluster.served["b"] == ["a1", "a2"]

    return Scenario(cluster.world, [Actor("a", code.collect(2, log)), successor], judge)


def slow_taker(code: Any, *, is_collected: bool) -> Scenario:
    """A broker that has taken the lease fences so late that its slot was used, and is collected.

    Either while it does, or before: then a standby reads what it leaves in that slot.
    """
    cluster = Cluster(code)
    log = cluster.taken_over("a").log
    slow = Actor("b", cluster.successor("b"))
    while not isinstance(slow.request, List):
        slow.ask(cluster.world)
    slow.ask(cluster.world)  # it knows which slot is free now
    first = log.next_seq
    cluster.world.carry_out(cluster.writer(log, "a1"))
    last = cluster.taken_over("c")
    cluster.archived |= {tail.seq: tail for tail in last.tails}
    collecting = Actor("c", code.collect(last.log.next_seq, last.log))
    while is_collected and collecting.request is not None:
        collecting.ask(cluster.world)
    other = Actor("s", cluster.reader(first, 1)) if is_collected else collecting

    def judge() -> None:
        assert isinstance(slow.error, Fenced), f"b serves {cluster.served['b']}"
        cluster.judge()

    return Scenario(cluster.world, [slow, other], judge)


SCENARIOS: dict[str, Callable[[Any], Scenario]] = {
    "hasty": hasty,
    "zombie": lambda code: zombie(code, 1),
    "takeover": lambda code: two_brokers(code, 0, "a1"),
    "slow taker": lambda code: slow_taker(code, is_collected=False),
    "last collection": last_collection,
    "late fence": lambda code: slow_taker(code, is_collected=True),
}
LARGE: dict[str, Callable[[Any], Scenario]] = {
    "lost": lambda code: two_brokers(code, 1, "a1"),
    "two windows": lambda code: two_brokers(code, 0, "a1", "a2", collects=True),
}
LONGER: dict[str, Callable[[Any], Scenario]] = {
    "many": lambda code: two_brokers(code, 4, "a1", "a2", "a3", collects=True),
    "collector": collector,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_order_of_events_loses_an_acknowledged_window(name: str) -> None:
    assert explore(lambda: SCENARIOS[name](product)) > 5


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_no_order_of_more_events_does_either(name: str) -> None:
    assert explore(lambda: LARGE[name](product)) > 1000


@pytest.mark.parametrize("name", LONGER)
def test_longer_histories_by_chance(name: str) -> None:
    wander(lambda: LONGER[name](product), SEEDS)


MUTANTS = {
    "no fence": (
        "        found = yield from _created(seq, data)\n        yield from _require_live(seq)\n",
        "        found = data\n        return TailLog(epoch, seq)\n",
    ),
    "the boundary is not checked": (
        "    if boundary.first_seq > seq:\n        raise Fenced(",
        "    if False:\n        raise Fenced(",
    ),
    "a standby does not check it": (
        "    if boundary.first_seq > seq:\n        raise Collected(seq)\n",
        "",
    ),
    "a takeover does not check it": (
        "    if boundary.first_seq > first:\n        raise Collected(first)\n",
        "",
    ),
    "a slot that is taken counts as ours": (
        "    return bytes(stored.data)\n",
        "    return data\n",
    ),
    "removed before the boundary moves": (
        "        boundary, etag = yield from boundary_of()\n        if boundary.first_seq >= first",
        "        break\n        if boundary.first_seq >= first",
    ),
    "a window of unknown outcome is left behind": (
        "        if self._pending:\n",
        "        self.next_seq += len(self._pending)\n        if False:\n",
    ),
    "a fence of an earlier epoch is enough": (
        "        if found == data:\n",
        "        if True:\n",
    ),
    "fences are collected": (
        "        return not _decoded(seq, stored.data).is_fence\n",
        "        return True\n",
    ),
    "the boundary is read before the fence": (
        "        found = yield from _created(seq, data)\n        yield from _require_live(seq)\n",
        "        yield from _require_live(seq)\n        found = yield from _created(seq, data)\n",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_protocol_is_caught(name: str) -> None:
    code = mutant(product, *MUTANTS[name])
    with pytest.raises((AssertionError, CorruptData)):
        _play_all(code)


def _play_all(code: Any) -> None:
    for make in SCENARIOS.values():
        explore(lambda make=make: make(code))  # type: ignore[misc]
    for make in LONGER.values():
        wander(lambda make=make: make(code), SEEDS)  # type: ignore[misc]


# ---------------------------------------------------------------------- by hand


def test_the_protocol_runs_on_an_object_store() -> None:
    objects = open_objects("memory://")
    watch = Watch()
    run(objects, watch.look(lambda: 0))
    first = run(objects, product.take_over(watch, me("a"), lambda: 0))
    assert (first.holding.epoch, first.log.next_seq) == (1, 1)
    assert [tail.is_fence for tail in first.tails] == [True]
    assert run(objects, first.log.commit(holding("a1"))) == 1
    run(objects, watch.look(lambda: 0))
    second = run(objects, product.take_over(watch, me("b"), lambda: 0))
    assert (second.holding.epoch, texts(second.tails)) == (2, ["a1"])
    with pytest.raises(Fenced, match="slot 2"):
        run(objects, first.log.commit(holding("a2")))
    with pytest.raises(Fenced, match="held by b at grpc://b in epoch 2"):
        run(objects, first.holding.renew(lambda: 0))
    run(objects, product.collect(3, second.log))
    left = {info.key for info in objects.list(paths.TAILS)}
    assert left == {paths.TAIL_BOUNDARY, paths.tail(0), paths.tail(2)}, "fences stay"
    with pytest.raises(product.Collected):
        run(objects, product.window(1))
    assert run(objects, product.window(3)) is None


def test_a_lease_that_was_deleted_does_not_begin_again_at_epoch_one() -> None:
    cluster = Cluster(product)
    for name in ("a", "b", "c"):
        cluster.taken_over(name)
    del cluster.world.there[paths.LEASE]
    assert cluster.taken_over("d").holding.epoch == 4
    cluster.world.carry_out(product.collect(4, product.TailLog(4, 4, 4)))
    del cluster.world.there[paths.LEASE]
    assert cluster.taken_over("e").holding.epoch == 5


def test_a_window_that_is_missing_above_the_boundary_is_damage_and_is_named() -> None:
    cluster = Cluster(product)
    log = cluster.taken_over("a").log
    cluster.world.carry_out(cluster.writer(log, "a1", "a2"))
    del cluster.world.there[paths.tail(1)]
    with pytest.raises(CorruptData, match=r"00000000000000000001\.tail"):
        cluster.taken_over("b")


@pytest.mark.parametrize("key", [paths.LEASE, paths.TAIL_BOUNDARY, paths.tail(1)])
def test_a_damaged_object_is_refused_by_its_name(key: str) -> None:
    cluster = Cluster(product)
    cluster.world.carry_out(cluster.writer(cluster.taken_over("a").log, "a1"))
    cluster.world.there[key] = b"?"
    with pytest.raises(CorruptData, match=key):
        cluster.taken_over("b")


def test_a_tail_of_another_slot_is_refused() -> None:
    cluster = Cluster(product)
    cluster.world.carry_out(cluster.writer(cluster.taken_over("a").log, "a1"))
    cluster.world.there[paths.tail(1)] = cluster.world.there[paths.tail(0)]
    with pytest.raises(CorruptData, match="another slot"):
        cluster.taken_over("b")


def test_the_boundary_never_moves_back() -> None:
    cluster = Cluster(product)
    log = cluster.taken_over("a").log
    cluster.world.carry_out(cluster.writer(log, "a1", "a2"))
    cluster.world.carry_out(product.collect(2, log))
    cluster.world.carry_out(product.collect(1, log))
    boundary, _ = cluster.world.carry_out(product.boundary_of())
    assert boundary.first_seq == 2


def test_one_of_two_takeovers_at_once_wins() -> None:
    def make() -> Scenario:
        cluster = Cluster(product)
        took: list[str] = []

        def taking(name: str) -> Script:
            watch = Watch()
            yield from watch.look(lambda: 0)
            try:
                yield from product.take(watch, me(name), lambda: 0)
            except (Fenced, ArchiveUnavailable):
                return
            took.append(name)

        def check() -> None:
            lease = Watch()
            cluster.world.carry_out(lease.look(lambda: 0))
            assert lease.lease is None or lease.lease.epoch <= 2
            assert len(took) <= 2
            if len(took) == 2:
                assert lease.lease is not None
                assert lease.lease.epoch == 2, "one after the other, never both in one epoch"

        actors = [Actor(name, taking(name)) for name in ("a", "b")]
        return Scenario(cluster.world, actors, check, 2)

    assert explore(make) > 100
