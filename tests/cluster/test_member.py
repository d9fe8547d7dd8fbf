"""A member's life by a clock and an object store that the test moves; and two of them by chance."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lamina.cluster import member as product
from lamina.cluster.lease import Identity
from lamina.cluster.member import Member, Role
from lamina.cluster.steps import Create
from lamina.errors import ArchiveUnavailable, Fenced
from lamina.formats.tail_file import Kind, Section
from lamina.storage import paths
from tests.cluster.world import Actor, World, mutant

TTL_MS = 15_000


class Room:
    """Some members in one world, all by the world's clock."""

    def __init__(self, code: Any = product) -> None:
        self.code = code
        self.world = World()

    def member(self, name: str, host: str = "") -> Member:
        host = host or name
        made: Member = self.code.Member(
            Identity(name, f"grpc://{host}:9300,http://{host}:9301", TTL_MS),
            lambda: self.world.now_ms,
        )
        return made

    def turn(self, *members: Member) -> None:
        for member in members:
            self.world.carry_out(member.turn())

    def holder(self, name: str) -> Member:
        member = self.member(name)
        self.turn(member)
        member.opened()
        return member

    def pass_ms(self, span_ms: int, *members: Member) -> None:
        """Lets time pass, and gives members their turns when they are due."""
        end = self.world.now_ms + span_ms
        while self.world.now_ms < end:
            self.world.now_ms += 100
            for member in members:
                if member.due_ms() <= self.world.now_ms:
                    self.turn(member)


def test_the_first_member_takes_an_empty_cluster_and_answers_when_it_is_open() -> None:
    room = Room()
    a = room.member("a")
    assert a.refusal() is not None
    room.turn(a)
    assert (a.role, a.epoch) == (Role.OPENING, 1)
    assert a.refusal() is not None
    a.opened()
    assert a.refusal() is None


def test_a_standby_says_who_holds_and_takes_nothing_while_it_renews() -> None:
    room = Room()
    a, b = room.holder("a"), room.member("b")
    room.pass_ms(10 * TTL_MS, a, b)
    assert (a.role, b.role) == (Role.HOLDER, Role.STANDBY)
    refusal = b.refusal()
    assert refusal is not None
    assert refusal.address("http") == "http://a:9301"
    assert a.refusal() is None
    assert [(each.epoch, each.holder) for each in b.history] == [(1, "a")]


def test_a_holder_that_is_gone_is_succeeded_after_the_ttl_and_not_before() -> None:
    room = Room()
    a, b = room.holder("a"), room.member("b")
    room.pass_ms(TTL_MS, a, b)
    seen_ms = b.watch.changed_ms
    assert seen_ms is not None
    room.pass_ms(seen_ms + TTL_MS - 100 - room.world.now_ms, b)
    assert b.role is Role.STANDBY
    room.pass_ms(TTL_MS // 5, b)
    assert (b.role, b.epoch) == (Role.OPENING, 2)
    assert [each.epoch for each in b.history] == [1, 2]


def test_a_holder_that_was_paused_answers_no_more_and_learns_why() -> None:
    room = Room()
    a, b = room.holder("a"), room.member("b")
    room.turn(b)
    room.pass_ms(2 * TTL_MS, b)  # a is paused
    b.opened()
    refusal = a.refusal()
    assert refusal is not None
    assert refusal.holder == ""
    assert b.refusal() is None
    room.turn(a)
    assert (a.role, a.taken) == (Role.STANDBY, None)
    assert "grpc://b:9300" in a.trouble
    room.turn(a)
    refusal = a.refusal()
    assert refusal is not None
    assert refusal.address("grpc") == "grpc://b:9300"


def test_a_holder_cut_off_from_the_object_store_stops_and_goes_on_when_it_is_back() -> None:
    room = Room()
    a = room.holder("a")
    for _ in range(8):
        room.world.now_ms += TTL_MS // 5
        actor = Actor("a", a.turn())
        actor.take(ArchiveUnavailable("503"))
    assert a.role is Role.HOLDER
    assert a.trouble == "503"
    assert a.refusal() is not None
    room.turn(a)
    assert a.refusal() is None
    assert a.trouble == ""


def test_a_release_is_taken_up_at_once_and_not_taken_back() -> None:
    room = Room()
    a, b = room.holder("a"), room.member("b")
    room.turn(b)
    assert a.leave()
    assert a.refusal() is not None
    room.turn(a)  # it renews until the store is closed
    assert a.role is Role.LEAVING
    room.world.carry_out(a.release())
    room.turn(a)
    assert a.role is Role.STANDBY
    room.turn(b)
    assert b.role is Role.OPENING


def test_what_was_begun_is_answered_until_the_release_is_on_its_way() -> None:
    room = Room()
    a = room.holder("a")
    a.leave()
    assert a.refusal() is not None
    assert a.refusal(was_begun=True) is None
    releasing = Actor("a", a.release())
    assert releasing.request is not None
    assert a.refusal(was_begun=True) is not None


def test_a_process_that_comes_back_on_its_directory_takes_its_own_lease_at_once() -> None:
    room = Room()
    a, b = room.holder("a"), room.member("b")
    room.turn(b)
    again = room.member("a2", host="a")
    again.ended_epoch = a.epoch
    room.turn(again)
    assert (again.role, again.epoch) == (Role.OPENING, 2)
    other = room.member("a3", host="a")
    other.ended_epoch = 1
    room.turn(other)
    assert other.role is Role.STANDBY


def test_a_copy_of_a_holders_directory_on_another_machine_takes_nothing_from_it() -> None:
    room = Room()
    a, copy = room.holder("a"), room.member("copy")
    copy.ended_epoch = a.epoch
    room.pass_ms(3 * TTL_MS, a, copy)
    assert (a.role, a.epoch, copy.role) == (Role.HOLDER, 1, Role.STANDBY)


def test_epochs_that_were_taken_in_turns_that_failed_were_nobodys() -> None:
    room = Room()
    room.holder("a").leave()
    again = room.member("a2", host="a")
    again.ended_epoch = 1
    for _ in range(2):
        actor = Actor("a2", again.turn())
        while not isinstance(actor.request, Create):
            actor.ask(room.world)
        actor.take(ArchiveUnavailable("the answer was lost"))
        assert again.role is Role.STANDBY
    room.turn(again)
    assert again.taken is not None
    assert (again.epoch, again.taken.last_epoch) == (4, 1)
    again.lost(Fenced("another broker's slot"))
    room.turn(again)
    assert again.taken is not None
    assert (again.epoch, again.taken.last_epoch) == (5, 4)
    again.opened()
    room.turn(other := room.member("b"))
    other.promote()
    room.turn(other)
    assert other.taken is not None
    assert (other.epoch, other.taken.last_epoch) == (6, 5)


def test_a_lease_of_another_cluster_is_not_taken() -> None:
    room = Room()
    room.holder("orders/1").leave()
    stranger = room.member("payments/1")
    room.pass_ms(3 * TTL_MS, stranger)
    assert stranger.role is Role.STANDBY
    assert "belongs to the cluster 'orders'" in stranger.trouble


def test_the_lease_is_renewed_while_many_windows_are_read() -> None:
    room = Room()
    a, b = room.holder("a"), room.member("b")
    assert a.taken is not None
    for number in range(40):
        section = Section(Kind.COPY, f"{number}", b"x")
        room.world.carry_out(a.taken.log.commit((section,)))
    room.turn(b)
    b.promote()
    actor = Actor("b", b.turn())
    while actor.request is not None:
        room.world.now_ms += TTL_MS // 10
        actor.ask(room.world)
    assert b.role is Role.OPENING
    b.opened()
    assert b.refusal() is None


def test_whoever_handed_over_takes_the_cluster_back_when_nobody_else_does() -> None:
    room = Room()
    a = room.holder("a")
    a.leave()
    room.world.carry_out(a.release())
    room.pass_ms(TTL_MS - 500, a)
    assert a.role is Role.STANDBY
    room.pass_ms(TTL_MS, a)
    assert (a.role, a.epoch) == (Role.OPENING, 2)


def test_a_member_that_is_promoted_does_not_wait() -> None:
    room = Room()
    a, b = room.holder("a"), room.member("b")
    room.turn(b)
    b.promote()
    assert b.due_ms() <= room.world.now_ms
    room.turn(b)
    assert b.role is Role.OPENING
    room.turn(a)
    assert a.role is Role.STANDBY


def test_promoting_the_holder_changes_nothing() -> None:
    room = Room()
    a = room.holder("a")
    a.promote()
    room.pass_ms(TTL_MS, a)
    assert (a.role, a.epoch) == (Role.HOLDER, 1)


def test_a_takeover_whose_answer_was_lost_is_made_again_at_once() -> None:
    room = Room()
    a = room.member("a")
    actor = Actor("a", a.turn())
    while actor.request is not None and paths.LEASE not in room.world.there:
        actor.ask(room.world)  # until the lease was written
    actor.take(ArchiveUnavailable("the answer was lost"))
    assert a.role is Role.STANDBY
    assert a.refusal() is not None
    room.turn(a)
    assert (a.role, a.epoch) == (Role.OPENING, 2)


def test_a_damaged_lease_is_reported_and_nobody_takes_over() -> None:
    room = Room()
    room.world.there[paths.LEASE] = b"{}"
    a = room.member("a")
    room.turn(a)
    assert a.role is Role.STANDBY
    assert paths.LEASE in a.trouble


def test_a_member_that_cannot_open_its_store_goes_back_to_watching() -> None:
    room = Room()
    a = room.member("a")
    room.turn(a)
    a.lost(Fenced("the disk is broken"))
    assert (a.role, a.trouble) == (Role.STANDBY, "the disk is broken")
    a.opened()
    assert a.refusal() is not None


# ---------------------------------------------------------------------- two of them, by chance


def play(code: Any, seed: int) -> int:
    """Two members that are paused, cut off, asked to leave or promoted; returns the takeovers."""
    luck, room = random.Random(seed), Room(code)
    members = [room.member("a"), room.member("b")]
    actors: list[Actor | None] = [None, None]
    for _ in range(600):
        room.world.now_ms += luck.choice((0, 50, 200, TTL_MS // 20))
        at = luck.randrange(2)
        if luck.random() < 0.002:  # one is paused for long
            room.world.now_ms += TTL_MS * 3 // 2
        member, actor = members[at], actors[at]
        if actor is None or actor.request is None:
            if member.role.value == "opening":
                member.opened()
            if luck.random() < 0.02 and member.leave():
                actors[at] = Actor("leaving", member.release())
            elif member.due_ms() <= room.world.now_ms:
                actors[at] = Actor("turn", member.turn())
        elif luck.random() < 0.03:
            actor.take(ArchiveUnavailable("no answer"))
        else:
            actor.ask(room.world)
        answering = [each.me.holder for each in members if each.refusal(was_begun=True) is None]
        assert len(answering) < 2, f"both answer at {room.world.now_ms} ms"
    return max(each.epoch for each in members)


def test_never_do_two_members_answer() -> None:
    assert sum(play(product, seed) for seed in range(40)) > 80


def leaves_in_silence(code: Any) -> None:
    room = Room(code)
    a = room.holder("a")
    a.leave()
    assert a.refusal() is not None


def judged(code: Any) -> None:
    for seed in range(40):
        play(code, seed)
    leaves_in_silence(code)


def test_a_member_that_leaves_answers_nothing_though_its_lease_is_in_order() -> None:
    leaves_in_silence(product)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if taken.holding.may_answer(self.clock()):", "if True:"),
        ("return is_ours or self.watch.may_take(self.clock())", "return True"),
        ("            self.role = Role.LEAVING\n", "            pass\n"),
    ],
)
def test_mutants_of_the_member_are_caught(old: str, new: str) -> None:
    code = mutant(product, old, new)
    with pytest.raises(AssertionError):
        judged(code)
